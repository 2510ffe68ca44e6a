"""utils.checkpoint: when the function runs again, what is compared, what is refused; and that memory is saved."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import pytest

import tapejax as tj
from tapejax.engine.cache import CACHE
from tapejax.utils.checkpoint import (
    CheckpointError,
    checkpoint,
    checkpoint_sequential,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
)


@pytest.fixture
def x() -> tj.Tensor:
    return tj.tensor([1.0, 2.0, 3.0], dtype=tj.float64, requires_grad=True)


def _expected(f, x: tj.Tensor) -> list[float]:
    (g,) = tj.autograd.grad(f(x).sum(), x)
    return pytest.approx(g.tolist())


def _inner(a: tj.Tensor) -> tj.Tensor:
    return (a.sin().exp() * a).tanh()


# -- non-reentrant -----------------------------------------------------------------------------------------------------


def test_gradients_are_those_without_checkpoint(x: tj.Tensor) -> None:
    checkpoint(_inner, x * 2, use_reentrant=False).sum().backward()
    assert x.grad.tolist() == _expected(lambda x: _inner(x * 2), x)


def test_recomputes_once_a_backward_and_stops_early(x: tj.Tensor) -> None:
    log: list[str] = []

    def f(a):
        log.append("start")
        b = a.sin()
        c = b.exp()
        log.append("last saved")
        return c + b

    y = checkpoint(f, x, use_reentrant=False)
    assert log == ["start", "last saved"]
    y.sum().backward(retain_graph=True)
    assert log == ["start", "last saved", "start"]
    y.sum().backward()
    assert log.count("start") == 3 and log.count("last saved") == 1
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.sum().backward()


def test_early_stop_can_be_switched_off(x: tj.Tensor) -> None:
    log: list[int] = []

    def f(a):
        b = a.sin()
        log.append(1)
        return b

    checkpoint(f, x, use_reentrant=False, early_stop=False).sum().backward()
    assert len(log) == 2
    with set_checkpoint_early_stop(False):
        y = checkpoint(f, x, use_reentrant=False)
    y.sum().backward()
    assert len(log) == 4
    checkpoint(f, x, use_reentrant=False).sum().backward()
    assert len(log) == 5


def test_a_function_that_saves_nothing_does_not_run_again(x: tj.Tensor) -> None:
    log: list[int] = []
    checkpoint(lambda a: (log.append(1), a + 1)[1], x, use_reentrant=False).sum().backward()
    assert len(log) == 1 and x.grad.tolist() == [1, 1, 1]


def test_reading_a_saved_value_recomputes_each_time(x: tj.Tensor) -> None:
    count = [0]

    def f(a):
        count[0] += 1
        return (a * a).exp()

    y = checkpoint(f, x, use_reentrant=False)
    _ = y.grad_fn._saved_result
    _ = y.grad_fn._saved_result
    assert count[0] == 3
    y.sum().backward()
    assert count[0] == 4
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        _ = y.grad_fn._saved_result


def _changing(second: bool, change):
    runs = [0]

    def f(a):
        runs[0] += 1
        a = change(a, 0) if (runs[0] == 2) == second else a
        a = a.sin().exp()
        return change(a, 1) if (runs[0] == 2) == second else a

    return f


def test_fewer_tensors_is_an_error(x: tj.Tensor) -> None:
    f = _changing(False, lambda a, at: a.sin() if at else a)
    y = checkpoint(f, x, use_reentrant=False)
    with pytest.raises(CheckpointError, match="A different number of tensors was saved during the original forward and recomputation"):
        y.sum().backward()
    assert x.grad is None


def test_more_tensors_is_an_error_without_early_stop(x: tj.Tensor) -> None:
    def make():
        return _changing(True, lambda a, at: a.sin() if at else a)

    y = checkpoint(make(), x, use_reentrant=False, early_stop=False)
    with pytest.raises(CheckpointError, match="trying to save more tensors during recomputation than during the original forward pass"):
        y.sum().backward()
    checkpoint(make(), x, use_reentrant=False).sum().backward()  # stops before the difference


def test_changed_metadata_is_an_error_unless_unchecked(x: tj.Tensor) -> None:
    def make():
        return _changing(True, lambda a, at: a if at else a[:2])

    y = checkpoint(make(), x, use_reentrant=False)
    with pytest.raises(CheckpointError, match="Recomputed values for the following tensors have different metadata than during the forward pass"):
        y.sum().backward()
    y = checkpoint(make(), x, use_reentrant=False, determinism_check="none")
    y.sum().backward()
    assert x.grad.tolist() == _expected(lambda x: x.sin().exp(), x)
    with pytest.raises(ValueError, match="determinism_check should be one of"):
        checkpoint(make(), x, use_reentrant=False, determinism_check="some")


def test_debug_lists_the_operations_of_both_runs(x: tj.Tensor) -> None:
    def make():
        return _changing(False, lambda a, at: a.cos() if at else a)

    y = checkpoint(make(), x, use_reentrant=False, debug=True)
    with pytest.raises(CheckpointError, match=r"An error happened while unpacking tensors; dumping logs(?s:.*)cos"):
        y.sum().backward()
    with set_checkpoint_debug_enabled(True):
        y = checkpoint(make(), x, use_reentrant=False)
    with pytest.raises(CheckpointError, match="dumping logs"):
        y.sum().backward()


def test_keywords_other_arguments_and_several_outputs(x: tj.Tensor) -> None:
    def f(a, factor, *, shift, names):
        return a.sin() * factor, a.exp() + shift, a.detach(), names

    p, q, r, names = checkpoint(f, x, 2, shift=x, names="text", use_reentrant=False)
    assert not r.requires_grad and names == "text"
    (p.sum() + q.sum()).backward()
    assert x.grad.tolist() == _expected(lambda x: x.sin() * 2 + x.exp() + x, x)
    with pytest.raises(TypeError, match="unexpected keyword"):
        checkpoint(f, x, 2, shift=0, names="", other=1, use_reentrant=False)


def test_autograd_grad_and_higher_orders(x: tj.Tensor) -> None:
    y = checkpoint(lambda a: (a.sin() * a).exp(), x, use_reentrant=False)
    (g,) = tj.autograd.grad(y.sum(), x, create_graph=True)
    (h,) = tj.autograd.grad(g.sum(), x)
    z = (x.sin() * x).exp()
    (g2,) = tj.autograd.grad(z.sum(), x, create_graph=True)
    (h2,) = tj.autograd.grad(g2.sum(), x)
    assert g.tolist() == pytest.approx(g2.tolist()) and h.tolist() == pytest.approx(h2.tolist())


def test_batched_gradients(x: tj.Tensor) -> None:
    y = checkpoint(_inner, x, use_reentrant=False)
    (j,) = tj.autograd.grad(y, x, tj.eye(3, dtype=tj.float64), is_grads_batched=True, retain_graph=True)
    (g,) = tj.autograd.grad(y.sum(), x)
    assert j.sum(0).tolist() == pytest.approx(g.tolist())


@pytest.mark.parametrize(("early", "expected"), [(True, "oii|oiii"), (False, "oii|oiiii")])
def test_nesting_runs_as_often_as_torch(x: tj.Tensor, early: bool, expected: str) -> None:
    log: list[str] = []

    def inner(a):
        log.append("i")
        return a.sin().cos()

    def outer(a):
        log.append("o")
        return checkpoint(inner, checkpoint(inner, a.exp(), use_reentrant=False), use_reentrant=False)

    with set_checkpoint_early_stop(early):
        y = checkpoint(outer, x, use_reentrant=False)
    log.append("|")
    y.sum().backward()
    assert "".join(log) == expected
    assert x.grad.tolist() == _expected(lambda x: x.exp().sin().cos().sin().cos(), x)


def test_parameters_that_the_function_closes_over_get_gradients(x: tj.Tensor) -> None:
    net = tj.nn.Sequential(tj.nn.Linear(3, 4), tj.nn.Tanh(), tj.nn.Linear(4, 3)).double()
    checkpoint(net, x, use_reentrant=False).sum().backward()
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x).sum().backward()
    for a, p in zip(got, net.parameters(), strict=True):
        assert tj.allclose(a, p.grad)
    net.zero_grad()
    y = checkpoint(net, tj.ones(2, 3, dtype=tj.float64), use_reentrant=False)  # the input requires no grad
    y.sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_the_same_random_numbers_in_both_runs(x: tj.Tensor) -> None:
    big = tj.ones(1000, requires_grad=True)
    drawn = []

    def f(a):
        mask = tj.rand(1000)
        drawn.append(mask)
        return tj.nn.functional.dropout(a * mask, 0.5)

    tj.manual_seed(0)
    y = checkpoint(f, big, use_reentrant=False)
    before = tj.get_rng_state()
    y.sum().backward()
    assert tj.get_rng_state() == before
    assert len(drawn) == 2 and drawn[0].tolist() == drawn[1].tolist()
    assert tj.allclose(big.grad, y.detach())


def test_a_written_argument_is_noticed(x: tj.Tensor) -> None:
    a = x * 1
    y = checkpoint(_inner, a, use_reentrant=False)
    with tj.no_grad():
        a.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_hooks_and_retained_gradients_inside(x: tj.Tensor) -> None:
    seen = []
    inner: list[tj.Tensor] = []

    def f(a):
        b = a.sin()
        b.retain_grad()
        b.register_hook(lambda g: seen.append(1) or 2 * g)
        inner.append(b)
        return b.exp()

    y = checkpoint(f, x, use_reentrant=False)
    y.sum().backward()
    assert seen == [1]
    expected = 2 * x.sin().exp()
    assert inner[0].grad.tolist() == pytest.approx(expected.tolist())
    assert x.grad.tolist() == pytest.approx((expected * x.cos()).tolist())


def test_node_hooks_of_several_outputs_inside(x: tj.Tensor) -> None:
    runs, seen = [0], []

    def f(a):
        runs[0] += 1
        var, mean = tj.var_mean(a.sin() * a, 0)
        var.grad_fn.register_hook(lambda inputs, grads: seen.append([g is not None for g in grads]))
        return var * mean

    checkpoint(f, x, use_reentrant=False).backward()
    assert runs[0] == 2 and seen == [[True, True]]
    assert x.grad.tolist() == _expected(lambda x: (x.sin() * x).var() * (x.sin() * x).mean(), x)


def test_a_custom_function_inside(x: tj.Tensor) -> None:
    class Square(tj.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a * a

        @staticmethod
        def backward(ctx, g):
            (a,) = ctx.saved_tensors
            return 2 * a * g

    runs = [0]

    def f(a):
        runs[0] += 1
        return Square.apply(a.sin()).exp()

    y = checkpoint(f, x, use_reentrant=False)
    y.sum().backward()
    assert runs[0] == 2 and x.grad.tolist() == _expected(lambda x: (x.sin() ** 2).exp(), x)


def test_inplace_inside_is_computed_again(x: tj.Tensor) -> None:
    def f(a):
        b = a.exp()
        c = b.sin()
        b = c * 2
        b[0] = 5.0
        return b * c

    checkpoint(f, x, use_reentrant=False).sum().backward()
    assert x.grad.tolist() == _expected(f, x)


def test_values_read_inside_and_before_backward(x: tj.Tensor) -> None:
    def f(a):
        b = a.sin()
        return b.exp() if b.sum().item() > 0 else b

    y = checkpoint(f, x, use_reentrant=False)
    y.sum().item()
    y.sum().backward()
    assert x.grad.tolist() == _expected(f, x)


def test_saved_tensor_hooks_inside_apply_and_outside_see_the_arguments(x: tj.Tensor) -> None:
    inside, outside = [], []

    def f(a):
        with tj.autograd.graph.saved_tensors_hooks(lambda t: (inside.append(1), t)[1], lambda t: t):
            b = a.exp()
        return b.sin()

    with tj.autograd.graph.saved_tensors_hooks(lambda t: (outside.append(1), t)[1], lambda t: t):
        y = checkpoint(f, x, use_reentrant=False)
    assert (len(inside), len(outside)) == (1, 1)
    y.sum().backward()
    assert x.grad.tolist() == _expected(lambda x: x.exp().sin(), x)


def test_context_fn_gives_a_context_for_each_run(x: tj.Tensor) -> None:
    log = []

    @contextlib.contextmanager
    def named(name: str):
        log.append(name)
        try:
            yield
        finally:
            log.append(f"/{name}")

    y = checkpoint(_inner, x, use_reentrant=False, context_fn=lambda: (named("forward"), named("again")))
    assert log == ["forward", "/forward"]
    y.sum().backward()
    assert log == ["forward", "/forward", "again", "/again"]


def test_without_recording_the_function_just_runs(x: tj.Tensor) -> None:
    with tj.no_grad():
        assert not checkpoint(_inner, x, use_reentrant=False).requires_grad
    assert not checkpoint(_inner, x.detach(), use_reentrant=False).requires_grad
    with pytest.raises(ZeroDivisionError):
        checkpoint(lambda a: 1 / 0, x, use_reentrant=False)
    assert checkpoint(_inner, x, use_reentrant=False).requires_grad


def test_a_dropped_output_takes_the_frame_along(x: tj.Tensor) -> None:
    class Held:
        pass

    gc.collect()
    gc.disable()
    try:
        held = Held()
        ref = weakref.ref(held)
        y = checkpoint(lambda a, h: a.sin().exp(), x, held, use_reentrant=False)
        del held
        assert ref() is not None
        y.sum().backward()
        assert ref() is None
        y = checkpoint(lambda a, h: a.sin().exp(), x, (held := Held()), use_reentrant=False)
        ref = weakref.ref(held)
        del held, y
        assert ref() is None
    finally:
        gc.enable()


def _temporary(step) -> int:
    CACHE.clear()
    step()
    return max(c.memory_analysis().temp_size_in_bytes for e in CACHE.entries.values() for c in e.compiled())


def test_memory_is_saved_and_a_second_step_compiles_nothing() -> None:
    weights = [tj.randn(16, 64, requires_grad=True) for _ in range(6)]
    data = tj.randn(256, 16)

    def block(h, w):
        return tj.tanh(tj.tanh(h @ w).sin() @ w.t())

    def step(checkpointed: bool) -> None:
        h = data
        for w in weights:
            h = checkpoint(block, h, w, use_reentrant=False) if checkpointed else block(h, w)
        (h * h).mean().backward()

    plain, saving = _temporary(lambda: step(False)), _temporary(lambda: step(True))
    assert saving < plain / 2
    for _ in range(2):
        step(True)
    compiled = CACHE.compiled
    step(True)
    assert CACHE.compiled == compiled


# -- reentrant ---------------------------------------------------------------------------------------------------------


def test_omitting_use_reentrant_warns(x: tj.Tensor) -> None:
    with pytest.warns(UserWarning, match="the use_reentrant parameter should be passed explicitly"):
        y = checkpoint(_inner, x)
    assert type(y.grad_fn).__name__ == "CheckpointFunctionBackward"
    with pytest.warns(UserWarning, match="the use_reentrant parameter should be passed explicitly"):
        checkpoint_sequential([_inner, _inner], 2, x)


def test_the_reentrant_variant_runs_a_backward_inside(x: tj.Tensor) -> None:
    runs = [0]
    w = tj.ones(3, dtype=tj.float64, requires_grad=True)

    def f(a, factor):
        runs[0] += 1
        return (a * w).sin() * factor

    y = checkpoint(f, x, 2, use_reentrant=True)
    y.sum().backward()
    assert runs[0] == 2
    assert x.grad.tolist() == _expected(lambda x: (x * w).sin() * 2, x)
    assert w.grad.tolist() == pytest.approx((2 * x * x.cos()).tolist())


INCOMPATIBLE = r"incompatible with .grad\(\) or passing an `inputs` parameter to .backward\(\)"


def test_the_reentrant_variant_refuses_grad_and_recovers(x: tj.Tensor) -> None:
    y = checkpoint(_inner, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match=INCOMPATIBLE):
        tj.autograd.grad(y.sum(), x, retain_graph=True)
    with pytest.raises(RuntimeError, match=INCOMPATIBLE):
        y.sum().backward(inputs=[x], retain_graph=True)
    y.sum().backward()
    assert x.grad.tolist() == _expected(_inner, x)


def test_the_reentrant_variant_needs_an_input_that_requires_grad(x: tj.Tensor) -> None:
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        y = checkpoint(_inner, x.detach(), use_reentrant=True)
    assert not y.requires_grad
    z = checkpoint(lambda a: a.detach(), x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="none of output has requires_grad=True"):
        z.sum().backward()


def test_the_reentrant_variant_refuses_keywords_and_contexts(x: tj.Tensor) -> None:
    with pytest.raises(ValueError, match="Unexpected keyword arguments: shift"):
        checkpoint(_inner, x, shift=1, use_reentrant=True)
    with pytest.raises(ValueError, match="Passing `context_fn` or `debug` is only supported when use_reentrant=False"):
        checkpoint(_inner, x, use_reentrant=True, debug=True)


def test_the_reentrant_variant_repeats_random_numbers() -> None:
    a = tj.ones(1000, requires_grad=True)
    y = checkpoint(lambda t: tj.nn.functional.dropout(t, 0.5), a, use_reentrant=True)
    y.sum().backward()
    assert tj.allclose(a.grad, y.detach())


# -- sequences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("segments", [1, 2, 3])
def test_checkpoint_sequential(x: tj.Tensor, reentrant: bool, segments: int) -> None:
    net = tj.nn.Sequential(tj.nn.Linear(3, 5), tj.nn.Tanh(), tj.nn.Linear(5, 3), tj.nn.Sigmoid(), tj.nn.Linear(3, 1)).double()
    checkpoint_sequential(net, segments, x, use_reentrant=reentrant).sum().backward()
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x.detach()).sum().backward()
    assert all(tj.allclose(a, p.grad) for a, p in zip(got, net.parameters(), strict=True))
    with pytest.raises(ValueError, match="Unexpected keyword arguments: other"):
        checkpoint_sequential(net, segments, x, use_reentrant=reentrant, other=1)


def test_utils_are_there_with_the_package(tl: Any) -> None:
    assert callable(tl.utils.checkpoint.checkpoint)
