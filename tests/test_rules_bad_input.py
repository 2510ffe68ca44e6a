"""Bad input: after any exception values and gradients are as before, and the next step works."""

from __future__ import annotations

import sys
from typing import Any

import jax
import pytest

import tapejax
from oracle import near, numbers
from tapejax.engine import execute, materialise
from tapejax.engine.cache import CACHE

backward_module = sys.modules["tapejax.autograd.backward"]  # `tapejax.autograd.backward` is the function


def leaf(tl: Any, data: Any) -> Any:
    return tl.tensor(data, requires_grad=True)


class Step:
    """Two parameters with gradients of an earlier step, and a step that can be broken in the middle."""

    def __init__(self, tl: Any) -> None:
        self.tl = tl
        self.w, self.b = leaf(tl, [1.0, 2.0]), leaf(tl, [0.5, -0.5])
        self.run()

    def run(self, break_at: Any = None, forward_only: bool = False) -> Any:
        h = (self.w * 2 + self.b).tanh()
        if break_at is not None:
            break_at(h)
        loss = (h * h).sum()
        if not forward_only:
            loss.backward()
        return loss

    def state(self) -> Any:
        return numbers([self.w, self.b, self.w.grad, self.b.grad])


@pytest.fixture
def step(tl: Any) -> Step:
    return Step(tl)


def check(step: Step, exception: type[BaseException], match: str, break_at: Any) -> None:
    before = step.state()
    with pytest.raises(exception, match=match or None):
        step.run(break_at)
    assert step.state() == before
    assert step.tl.is_grad_enabled()
    step.run()
    after = step.state()
    assert near(after[2], [2 * g for g in before[2]]) and near(after[3], [2 * g for g in before[3]]) and after[:2] == before[:2]


def test_a_shape_error_in_the_middle_of_a_step(step):
    tl = step.tl
    check(step, RuntimeError, "must match the size of tensor b|size of tensor a", lambda h: h + tl.ones(3))
    step = Step(tl)
    check(step, RuntimeError, "mat1 and mat2 shapes cannot be multiplied", lambda h: tl.ones(2, 3) @ tl.ones(2, 3))


def test_a_type_error_in_the_middle_of_a_step(step):
    check(step, TypeError, "", lambda h: h + "a")


def test_an_index_error_in_the_middle_of_a_step(step):
    check(step, IndexError, "out of bounds|out of range", lambda h: h[7])


def test_a_refused_write_in_the_middle_of_a_step(step):
    check(step, RuntimeError, "a leaf Variable that requires grad", lambda h: step.w.mul_(2))


def test_a_refused_in_place_shape_in_the_middle_of_a_step(step):
    check(step, RuntimeError, "doesn't match the broadcast shape", lambda h: h.add_(step.tl.ones(3, 2)))


def test_a_users_exception_in_the_middle_of_a_step(step):
    def bad(h: Any) -> None:
        raise KeyboardInterrupt

    check(step, KeyboardInterrupt, "", bad)


def test_a_hook_that_raises(step):
    def bad(g: Any) -> None:
        raise KeyError("mine")

    check(step, KeyError, "mine", lambda h: h.register_hook(bad))


def test_a_leaf_hook_that_raises_changes_no_gradient():
    tl = tapejax
    step = Step(tl)

    def bad(g: Any) -> None:
        raise KeyError("mine")

    for p in (step.w, step.b):
        before = step.state()
        handle = p.register_hook(bad)
        with pytest.raises(KeyError, match="mine"):
            step.run()
        handle.remove()
        assert step.state() == before
    step.run()
    assert step.state()[2] == [2 * g for g in before[2]]


def test_a_function_whose_backward_raises(step):
    class Bad(step.tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise KeyError("mine")

    def broken(h: Any) -> None:
        (Bad.apply(h) * 3).sum().backward()

    check(step, KeyError, "mine", broken)


def test_a_modified_value_is_noticed_and_leaves_gradients(step):
    check(step, RuntimeError, "modified by an inplace operation", lambda h: h.mul_(2))


def test_an_unwanted_graph_is_freed_without_backward(step):
    for _ in range(3):
        step.run(forward_only=True)
    before = step.state()
    step.run()
    assert near(step.state()[2], [2 * g for g in before[2]])


class Broken:
    """Stands for `engine.execute.run`: raises the given exception, before or after the real run."""

    def __init__(self, error: BaseException, late: bool) -> None:
        self.error = error
        self.late = late
        self.real = execute.run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.late:
            self.real(*args, **kwargs)
        raise self.error


def interrupt(monkeypatch: pytest.MonkeyPatch, error: BaseException, late: bool = False) -> None:
    broken = Broken(error, late)
    for module in (execute, materialise, backward_module):
        if hasattr(module, "run"):
            monkeypatch.setattr(module, "run", broken)


ERRORS = [KeyboardInterrupt(), tapejax.errors.OutOfMemoryError("out of memory"), tapejax.errors.CompileError("no")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_interrupted_backward_changes_nothing(monkeypatch, error):
    step = Step(tapejax)
    before = step.state()
    loss = step.run(forward_only=True)
    with monkeypatch.context() as patch:
        interrupt(patch, error)
        with pytest.raises(type(error)):
            loss.backward()
    assert step.state() == before
    loss.backward()
    assert step.state()[2] == [2 * g for g in before[2]]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_interrupted_read_may_be_repeated(monkeypatch, error):
    step = Step(tapejax)
    loss = step.run(forward_only=True)
    with monkeypatch.context() as patch:
        interrupt(patch, error)
        with pytest.raises(type(error)):
            loss.item()
    assert loss.item() > 0
    before = step.state()
    loss.backward()
    assert step.state()[2] == [2 * g for g in before[2]]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_interrupted_backward_with_hooks_changes_nothing(monkeypatch, error):
    step = Step(tapejax)
    before = step.state()
    seen = []
    h = (step.w * 2 + step.b).tanh()
    h.register_hook(lambda g: seen.append(1))
    h.retain_grad()
    loss = (h * h).sum()
    with monkeypatch.context() as patch:
        interrupt(patch, error)
        with pytest.raises(type(error)):
            loss.backward()
    assert step.state() == before and h.grad is None
    loss.backward()
    assert near(step.state()[2], [2 * g for g in before[2]]) and h.grad is not None and seen == [1, 1]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_interrupted_grad_may_be_repeated(monkeypatch, error):
    step = Step(tapejax)
    loss = step.run(forward_only=True)
    with monkeypatch.context() as patch:
        interrupt(patch, error)
        with pytest.raises(type(error)):
            tapejax.autograd.grad(loss, [step.w, step.b])
    (g, _) = tapejax.autograd.grad(loss, [step.w, step.b])
    assert near(g, step.w.grad)


def test_an_interrupted_update_keeps_the_values(monkeypatch):
    w = leaf(tapejax, [1.0, 2.0])
    (w * w).sum().backward()
    with tapejax.no_grad():
        w -= 0.5 * w.grad
    with monkeypatch.context() as patch:
        interrupt(patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            w.tolist()
    assert numbers(w) == [0.0, 0.0]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_xla_out_of_memory_in_a_settled_loop(monkeypatch, optimizer):
    """Every program that the loop runs fails once as XLA does: nothing moved, and the same step then gives what it would have given."""

    def training() -> tuple[Any, Any]:
        w = leaf(tapejax, [1.0, -2.0])
        opt = getattr(tapejax.optim, optimizer)([w], lr=0.1)

        def step() -> Any:
            opt.zero_grad()
            loss = (w.tanh() * w).sum()
            loss.backward()
            opt.step()
            return loss

        return w, step

    def exhausted(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1099511627776 bytes.")

    w, step = training()
    for _ in range(4):
        step()
        numbers(w)
    undisturbed = [numbers(step()) and numbers(w) for _ in range(3)]
    w, step = training()
    for _ in range(4):
        step()
        before = numbers(w)
    loss = (w.tanh() * w).sum()
    with monkeypatch.context() as patch:
        for made in CACHE.entries.values():
            patch.setattr(made, "call", exhausted)
        with pytest.raises(tapejax.errors.OutOfMemoryError, match="tensors keep their values"):
            step()
    assert numbers(w) == before and w.grad is None  # the step's own zero_grad is all that happened
    assert [numbers(step()) and numbers(w) for _ in range(3)] == undisturbed
    assert numbers(loss) > 0


def test_an_interrupt_while_recording_a_loop(monkeypatch):
    w = leaf(tapejax, [1.0, 2.0])

    def step(fail: bool) -> None:
        loss = (w * w).sum()
        if fail:
            with monkeypatch.context() as patch:
                interrupt(patch, KeyboardInterrupt())
                loss.backward()
        else:
            loss.backward()
        with tapejax.no_grad():
            w.sub_(w.grad * 0.25)
        w.grad = None

    step(False)
    with pytest.raises(KeyboardInterrupt):
        step(True)
    assert numbers(w) == [0.5, 1.0] and w.grad is None
    step(False)
    assert numbers(w) == [0.25, 0.5]


# ---------------------------------------------------------------- messages say what to do


@pytest.mark.parametrize(
    ("call", "exception", "phrase"),
    [
        (lambda tl: tl.ones(2, 3) + tl.ones(2, 4), RuntimeError, r"The size of tensor a \(3\) must match the size of tensor b \(4\) at non-singleton dimension 1"),
        (lambda tl: tl.ones(2, 3) @ tl.ones(2, 3), RuntimeError, "mat1 and mat2 shapes cannot be multiplied"),
        (lambda tl: tl.ones(6).view(4), RuntimeError, r"shape '\[4\]' is invalid for input of size 6"),
        (lambda tl: tl.ones(2).sum(3), IndexError, r"Dimension out of range \(expected to be in range of \[-1, 0\], but got 3\)"),
        (lambda tl: tl.cat([tl.ones(2, 2), tl.ones(3, 3)]), RuntimeError, "Sizes of tensors must match except in dimension 0"),
        (lambda tl: tl.stack([tl.ones(2), tl.ones(3)]), RuntimeError, "stack expects each tensor to be equal size"),
        (lambda tl: tl.ones(2)[5], IndexError, "index 5 is out of bounds for dimension 0 with size 2"),
        (lambda tl: tl.ones(2).expand(3), RuntimeError, r"The expanded size of the tensor \(3\) must match the existing size \(2\)"),
        (lambda tl: tl.zeros(2, dtype=tl.int64).mean(), RuntimeError, "(?i)could not infer output dtype|floating point"),
        (lambda tl: tl.tensor([[1.0], [2.0, 3.0]]), ValueError, "expected sequence of length 1 at dim 1"),
        (lambda tl: tl.ones(2, 3).squeeze(5), IndexError, "Dimension out of range"),
        (lambda tl: tl.ones(2, 3).permute(0, 0), RuntimeError, "(?i)duplicate|repeated"),
        (lambda tl: tl.nn.functional.cross_entropy(tl.ones(2, 3), tl.zeros(3, dtype=tl.int64)), ValueError, "Expected input batch_size .2. to match target batch_size .3."),
        (lambda tl: tl.ones(2, 3).gather(0, tl.zeros(1, dtype=tl.int64)), RuntimeError, "Index tensor must have the same number of dimensions as input tensor"),
    ],
)  # fmt: skip
def test_torchs_class_and_phrase(tl, call, exception, phrase):
    with pytest.raises(exception, match=phrase):
        call(tl)
