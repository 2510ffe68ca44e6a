"""Selective checkpointing: what is saved is not computed again, what is not is, and the gradient is right in both."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import tapejax as tj
from oracle import near, numbers, torch
from tapejax.engine.cache import CACHE
from tapejax.utils.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

F = tj.nn.functional
SAVE_ALL = partial(create_selective_checkpoint_contexts, lambda ctx, op, *args, **kwargs: CheckpointPolicy.MUST_SAVE)
SAVE_NONE = partial(create_selective_checkpoint_contexts, lambda ctx, op, *args, **kwargs: CheckpointPolicy.PREFER_RECOMPUTE)


def saving(*ops: Any, **options: Any) -> Callable[[], Any]:
    return partial(create_selective_checkpoint_contexts, list(ops), **options)


@pytest.fixture
def x() -> tj.Tensor:
    return tj.tensor([[0.3, -0.7, 0.4], [1.1, 0.2, -0.5], [0.6, 0.9, 0.1]], dtype=tj.float64, requires_grad=True)


def _gradient(f: Callable[[tj.Tensor], tj.Tensor], x: tj.Tensor) -> Any:
    x.grad = None
    tj.manual_seed(0)
    f(x).sum().backward()
    assert x.grad is not None
    return numbers(x.grad)


def _run(step: Callable[[], Any], what: str) -> int:
    """How many of an XLA operation the programs of `step` hold."""
    CACHE.clear()
    step()
    return sum(c.as_text().count(f" {what}(") for e in CACHE.entries.values() for c in e.compiled())


@pytest.mark.parametrize("early", [False, True])
def test_a_saved_operation_does_not_run_again(early: bool) -> None:
    weights = [tj.randn(8, 8, requires_grad=True) for _ in range(3)]
    data = tj.randn(4, 8)

    def chain(a):
        for w in weights:
            a = (a @ w).tanh().sin()
        return a

    def step(context: Any = None) -> None:
        y = chain(data) if context is None else checkpoint(chain, data, use_reentrant=False, context_fn=context)
        y = y.sum()
        if early:
            y.item()
        y.backward()

    plain = _run(step, "dot")
    assert plain == 8  # three forward, five for gradients
    assert _run(lambda: step(SAVE_NONE), "dot") == plain + 3
    assert _run(lambda: step(saving(tj.matmul)), "dot") == plain
    assert _run(lambda: step(saving(tj.tanh)), "dot") == plain  # nothing above it is needed
    assert _run(lambda: step(SAVE_NONE), "tanh") == 6 and _run(lambda: step(saving(tj.matmul)), "tanh") == 6
    assert _run(lambda: step(saving(tj.matmul, tj.tanh)), "tanh") == 3
    for _ in range(2):
        step(saving(tj.matmul))
    compiled = CACHE.compiled
    step(saving(tj.matmul))
    assert CACHE.compiled == compiled


def test_what_is_recomputed_is_not_kept() -> None:
    weights = [tj.randn(16, 64, requires_grad=True) for _ in range(6)]
    data = tj.randn(256, 16)

    def block(h, w):
        return tj.tanh(tj.tanh((h @ w).sin()).exp().cos() @ w.t())

    def temporary(context: Any = None) -> int:
        CACHE.clear()
        h = data
        for w in weights:
            h = checkpoint(block, h, w, use_reentrant=False, context_fn=context) if context else block(h, w)
        (h * h).mean().backward()
        return max(c.memory_analysis().temp_size_in_bytes for e in CACHE.entries.values() for c in e.compiled())

    assert temporary(saving(tj.matmul)) < temporary() * 0.75


def _views(a: tj.Tensor) -> tj.Tensor:
    b = a.t()[1:] * a[:2]
    top, bottom = b.split(1)
    return top * bottom.exp()


def _several(a: tj.Tensor) -> tj.Tensor:
    values, _ = a.sin().sort(1)
    var, mean = tj.var_mean(values * a, 1)
    return tj.linalg.svd(a + 2 * tj.eye(3, dtype=tj.float64))[1] * var + mean.exp() * a.max(1)[0]


def _layers(a: tj.Tensor) -> tj.Tensor:
    h = F.layer_norm(a @ a, (3,)).relu()
    return F.dropout(F.softmax(h, -1) @ a, 0.5) + F.linear(a, h).sigmoid()


def _random(a: tj.Tensor) -> tj.Tensor:
    return (a * tj.rand(3, 3, dtype=tj.float64)).exp() @ a


def _nested(a: tj.Tensor) -> tj.Tensor:
    inner = checkpoint(lambda b: (b @ b).tanh() @ b, a.sin(), use_reentrant=False)
    return (inner @ a).exp()


def _function(a: tj.Tensor) -> tj.Tensor:
    class Square(tj.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a * a

        @staticmethod
        def backward(ctx, g):
            (a,) = ctx.saved_tensors
            return 2 * a * g

    return Square.apply((a @ a).sin()).exp()


def _intermediate(a: tj.Tensor) -> tj.Tensor:
    h = a @ a
    return checkpoint(lambda b: ((c := (b @ h)), c.tanh()), a, use_reentrant=False)[1]


PROGRAMS = [_views, _several, _layers, _random, _nested, _function, _intermediate]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("context", [SAVE_ALL, SAVE_NONE, saving(tj.matmul), saving(tj.tanh, tj.exp, F.softmax, tj.sort), saving(tj.sin, tj.mul)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_are_those_without_checkpoint(x: tj.Tensor, program, context, early: bool) -> None:
    expected = _gradient(program, x)

    def checkpointed(a):
        y = checkpoint(program, a, use_reentrant=False, context_fn=context)
        if early:
            y.tolist()
        return y

    assert near(_gradient(checkpointed, x), expected)


@pytest.mark.skipif(torch is None, reason="torch is the oracle")
@pytest.mark.parametrize("save", [True, False])
def test_gradients_are_torchs(x: tj.Tensor, save: bool) -> None:
    from torch.utils import checkpoint as reference

    def f(a):
        return ((a @ a).tanh() @ a).exp()

    r = torch.tensor(x.tolist(), dtype=torch.float64, requires_grad=True)
    kept = [torch.ops.aten.mm.default] if save else []
    reference.checkpoint(f, r, use_reentrant=False, context_fn=partial(reference.create_selective_checkpoint_contexts, kept)).sum().backward()
    checkpoint(f, x, use_reentrant=False, context_fn=saving(*[tj.matmul] if save else [])).sum().backward()
    assert near(x.grad, r.grad.tolist())


def test_higher_orders_and_inner_gradients(x: tj.Tensor) -> None:
    def f(a):
        return ((a @ a).tanh() * a).exp()

    for context in (SAVE_ALL, saving(tj.matmul), saving(tj.tanh)):
        results = []
        for run in (f, lambda a, c=context: checkpoint(f, a, use_reentrant=False, context_fn=c)):
            (g,) = tj.autograd.grad(run(x).sum(), x, create_graph=True)
            (h,) = tj.autograd.grad((g * g).sum(), x)
            (j,) = tj.autograd.grad(run(x)[0], x, tj.eye(3, dtype=tj.float64), is_grads_batched=True)
            results.append([numbers(v) for v in (g, h, j)])
        assert near(results[0], results[1])


def test_hooks_and_retained_gradients_at_saved_values(x: tj.Tensor) -> None:
    def f(a, seen):
        h = a @ a
        h.retain_grad()
        h.register_hook(lambda g: 2 * g)
        t = h.tanh()
        t.register_hook(lambda g: seen.append(numbers(g)))
        seen.append(h)
        return t.exp()

    found = []
    for run in (f, lambda a, seen: checkpoint(f, a, seen, use_reentrant=False, context_fn=saving(tj.matmul, tj.tanh))):
        seen: list[Any] = []
        x.grad = None
        run(x, seen).sum().backward()
        h = next(s for s in seen if isinstance(s, tj.Tensor))
        gradients = [s for s in seen if not isinstance(s, tj.Tensor)]
        found.append([numbers(x.grad), numbers(h.grad), gradients])
    assert near(found[0], found[1])


def test_a_policy_sees_public_functions_and_their_arguments(x: tj.Tensor) -> None:
    seen: list[Any] = []

    def policy(ctx, op, *args, **kwargs):
        assert isinstance(ctx, SelectiveCheckpointContext) and not ctx.is_recompute
        seen.append((op, len(args), kwargs, tuple(ctx.op_output.shape) if isinstance(ctx.op_output, tj.Tensor) else len(ctx.op_output)))
        return op is tj.matmul

    def f(a):
        return F.dropout(F.silu(tj.add(a @ a, a, alpha=2)).max(1)[0] ** 2, 0.5) + F.cross_entropy(a, tj.tensor([0, 2, 1]))

    y = checkpoint(f, x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, policy)).sum()
    asked = len(seen)
    y.backward()
    assert len(seen) == asked  # in the forward only
    assert seen == [
        (tj.matmul, 2, {}, (3, 3)),
        (tj.add, 2, {"alpha": 2}, (3, 3)),
        (F.silu, 1, {}, (3, 3)),
        (tj.max, 3, {}, 2),
        (tj.pow, 2, {}, (3,)),
        (F.dropout, 3, {}, (3,)),
        (F.cross_entropy, 6, {}, ()),
        (tj.add, 2, {"alpha": 1}, (3,)),
    ]


@pytest.mark.parametrize(("policy", "dots"), [("MUST_SAVE", 0), ("PREFER_SAVE", 0), ("MUST_RECOMPUTE", 1), ("PREFER_RECOMPUTE", 1), (True, 0), (False, 1)])
def test_what_a_policy_may_answer(x: tj.Tensor, policy: Any, dots: int) -> None:
    answer = getattr(CheckpointPolicy, policy) if isinstance(policy, str) else policy
    context = partial(create_selective_checkpoint_contexts, lambda ctx, op, *args, **kwargs: answer)
    plain = _run(lambda: (x @ x).sin().sum().backward(), "dot")
    assert _run(lambda: checkpoint(lambda a: (a @ a).sin(), x, use_reentrant=False, context_fn=context).sum().backward(), "dot") == plain + dots


def test_the_function_runs_again_as_ever(x: tj.Tensor) -> None:
    runs = [0]

    def f(a):
        runs[0] += 1
        return (a @ a).tanh().exp()

    y = checkpoint(f, x, use_reentrant=False, context_fn=SAVE_ALL).sum()
    y.backward(retain_graph=True)
    assert runs[0] == 2
    first = numbers(x.grad)
    y.backward()  # torch refuses this one
    assert runs[0] == 3 and near(x.grad, numbers(2 * tj.tensor(first, dtype=tj.float64)))


def test_a_saved_result_that_was_written_is_an_error_unless_allowed(x: tj.Tensor) -> None:
    def f(a):
        h = a @ a
        h.mul_(2)
        return h.tanh()

    y = checkpoint(f, x, use_reentrant=False, context_fn=saving(tj.matmul)).sum()
    with pytest.raises(RuntimeError, match="Tensor cached during selective activation checkpoint has been mutated"):
        y.backward()
    allowed = saving(tj.matmul, allow_cache_entry_mutation=True)
    assert near(_gradient(lambda a: checkpoint(f, a, use_reentrant=False, context_fn=allowed), x), _gradient(f, x))


def test_a_second_run_that_does_something_else_is_an_error(x: tj.Tensor) -> None:
    runs = [0]

    def f(a):
        runs[0] += 1
        return (a * a).tanh() if runs[0] == 1 else (a.sin() * a).tanh()

    y = checkpoint(f, x, use_reentrant=False, context_fn=saving(tj.matmul)).sum()
    with pytest.raises(RuntimeError, match="sin encountered during backward but not found in storage. This can happen if the operations"):
        y.backward()
    for more, fewer, error, text in (
        (True, False, CheckpointError, "trying to save more tensors during recomputation"),
        (False, True, CheckpointError, "A different number of tensors was saved"),
    ):
        runs[0] = 0

        def g(a, more=more, fewer=fewer):
            runs[0] += 1
            again = runs[0] > 1
            y = a @ a
            if again and more:
                y = y @ a
            return y if again and fewer else y.tanh()

        y = checkpoint(g, x, use_reentrant=False, early_stop=False, context_fn=saving(tj.matmul)).sum()
        with pytest.raises(error, match=text):
            y.backward()


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(TypeError, match="policy_fn_or_list must be either a function or a list of ops"):
        create_selective_checkpoint_contexts(3)
    for wrong in (print, tj.nn.Linear, "mm"):
        with pytest.raises(ValueError, match="Expected op in `op_list` to be an operation of tapejax but got"):
            create_selective_checkpoint_contexts([wrong])
    create_selective_checkpoint_contexts([])
    create_selective_checkpoint_contexts([tj.mm, tj.Tensor.mm, F.scaled_dot_product_attention, F.conv2d, tj.max, F.dropout, tj.linalg.svd])


def test_an_error_in_a_policy_reaches_the_user(x: tj.Tensor) -> None:
    with pytest.raises(ZeroDivisionError):
        checkpoint(
            lambda a: a @ a, x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, lambda ctx, op, *args, **kwargs: 1 / 0)
        )
    assert (x @ x).requires_grad


def test_dropped_outputs_take_saved_values_along(x: tj.Tensor) -> None:
    gc.collect()
    gc.disable()
    try:
        nodes: list[Any] = []

        def f(a):
            h = a @ a
            nodes.append(weakref.ref(h._node))
            return h, h.tanh() @ a

        h, y = checkpoint(f, x, use_reentrant=False, context_fn=SAVE_ALL)
        del h
        assert nodes[0]() is not None
        y.tolist()
        assert nodes[0]().value is not None  # saved by the forward
        del y
        assert nodes[0]() is None
        h, y = checkpoint(f, x, use_reentrant=False, context_fn=SAVE_ALL)
        del h
        y.sum().backward()
        assert nodes[1]() is None  # freed with the graph
    finally:
        gc.enable()
