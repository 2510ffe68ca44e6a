"""What a loop compiles: everything in its first two rounds, nothing after them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

import tapejax as tj
import tapejax.nn.functional as F
from oracle import compiled
from tapejax import config
from tapejax.autograd import walk
from tapejax.autograd.walk import explore
from tapejax.engine.cache import CACHE
from tapejax.engine.collector import LONG, at_rest


def params(*shapes: tuple[int, ...]) -> list[Any]:
    tj.manual_seed(0)
    return [tj.randn(*s).mul_(0.3).requires_grad_() for s in shapes]


def update(ps: list[Any], lr: float) -> None:
    with tj.no_grad():
        for p in ps:
            p -= lr * p.grad
    for p in ps:
        p.grad = None


def plain(i: int, ps: list[Any]) -> None:
    w, b = ps
    ((tj.ones(4, 3) @ w).tanh() @ b).sum().backward()
    update(ps, 0.1)


def changing_rate(i: int, ps: list[Any]) -> None:
    w, b = ps
    ((tj.ones(4, 3) @ w).tanh() @ b).sum().backward()
    update(ps, 0.1 / (i + 1))


def changing_scalar(i: int, ps: list[Any]) -> None:
    w, b = ps
    (((tj.ones(4, 3) * (i + 0.5)) @ w).tanh() @ b).pow(2).mul(i).sum().backward()
    update(ps, 0.1)


def changing_index(i: int, ps: list[Any]) -> None:
    w, b = ps
    data = tj.ones(32, 3)
    (data[i] @ w @ b).sum().backward()
    update(ps, 0.1)


def fresh_masks(i: int, ps: list[Any]) -> None:
    w, b = ps
    (F.dropout((tj.ones(4, 3) @ w).tanh(), 0.5) @ b).sum().backward()
    update(ps, 0.1)


def fresh_data(i: int, ps: list[Any]) -> None:
    w, b = ps
    x = tj.tensor([[float(i), 1.0, 2.0]] * 4)
    ((x @ w).tanh() @ b).sum().backward()
    update(ps, 0.1)


def with_hooks(i: int, ps: list[Any]) -> None:
    w, b = ps
    h = (tj.ones(4, 3) @ w).tanh()
    h.register_hook(lambda g: g * 2)
    h.retain_grad()
    handle = w.register_hook(lambda g: g.clamp(-1, 1))
    (h @ b).sum().backward()
    handle.remove()
    update(ps, 0.1)


def with_item(i: int, ps: list[Any]) -> None:
    w, b = ps
    loss = ((tj.ones(4, 3) @ w).tanh() @ b).sum()
    loss.item()
    loss.backward()
    update(ps, 0.1)


def with_a_function(i: int, ps: list[Any]) -> None:
    class Double(tj.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 2 + x * 0

    w, b = ps
    (Double.apply((tj.ones(4, 3) @ w).tanh()) @ b).sum().backward()
    update(ps, 0.1)


def double_backward(i: int, ps: list[Any]) -> None:
    w, b = ps
    x = tj.ones(4, 3, requires_grad=True)
    (g,) = tj.autograd.grad(((x @ w).tanh() @ b).sum(), x, create_graph=True)
    (g.norm() - 1).pow(2).backward()
    update(ps, 0.1)


def retained(i: int, ps: list[Any]) -> None:
    w, b = ps
    loss = ((tj.ones(4, 3) @ w).tanh() @ b).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    update(ps, 0.1)


def in_place_and_views(i: int, ps: list[Any]) -> None:
    w, b = ps
    h = tj.ones(4, 3) @ w
    h[:, 0].mul_(i + 1.0)
    h[0] = 1.5 * i
    h.t()[1].add_(0.25)
    (h.tanh() @ b).sum().backward()
    update(ps, 0.1)


def accumulating(i: int, ps: list[Any]) -> None:
    w, b = ps
    for _ in range(2):
        ((tj.ones(4, 3) @ w).tanh() @ b).sum().backward()
    update(ps, 0.1)


def inputs_only(i: int, ps: list[Any]) -> None:
    w, b = ps
    ((tj.ones(4, 3) @ w).tanh() @ b).sum().backward(inputs=[w, b])
    update(ps, 0.1)


def running_average(i: int, ps: list[Any]) -> None:
    w, b = ps
    loss = ((tj.ones(4, 3) @ w).tanh() @ b).sum()
    loss.backward()
    ps_average[0] = ps_average[0] * 0.9 + loss.detach() * 0.1
    update(ps, 0.1)


ps_average: list[Any] = [0.0]
LOOPS: list[Callable[[int, list[Any]], None]] = [
    plain, changing_rate, changing_scalar, changing_index, fresh_masks, fresh_data, with_hooks, with_item, with_a_function,
    double_backward, retained, in_place_and_views, accumulating, inputs_only,
]  # fmt: skip


@pytest.mark.parametrize("step", LOOPS, ids=[f.__name__ for f in LOOPS])
def test_a_loop_compiles_nothing_after_its_second_round(step):
    ps = params((3, 5), (5, 2))
    counts = []
    for i in range(8):
        step(i, ps)
        counts.append(compiled())
    assert counts[2:] == [counts[1]] * 6, counts


def test_a_running_average_compiles_nothing_in_the_long_run():
    ps = params((3, 5), (5, 2))
    counts = []
    for i in range(60):
        running_average(i, ps)
        counts.append(compiled())
    assert counts[40:] == [counts[40]] * 20, counts


def test_equal_programs_of_other_tensors_compile_once():
    def f(n: float) -> Any:
        x = tj.tensor([n, 2.0], requires_grad=True)
        (x.sin() * x).sum().backward()
        return x.grad

    f(1.0).tolist()
    before = compiled()
    f(3.0).tolist()
    assert compiled() == before


def test_equal_python_numbers_are_not_merged():
    x = tj.tensor([1.0, 2.0])

    def f(a: float, b: float) -> Any:
        return ((x * a) + (x * b)).tolist()

    assert f(2.0, 2.0) == [4.0, 8.0]
    before = compiled()
    assert f(2.0, 3.0) == [5.0, 10.0]
    assert compiled() == before


def test_one_launch_per_plain_step():
    ps = params((3, 5), (5, 2))
    for i in range(3):
        plain(i, ps)
    before = CACHE.launches
    for i in range(5):
        plain(i, ps)
    assert CACHE.launches - before == 5


def test_a_gradient_inside_a_loop_walks_its_own_round_only(monkeypatch):
    """As torch does, a walk stops at the oldest target; walking to the first round each time would make the loop quadratic."""
    walked = []

    def counting(*args: Any) -> Any:
        found = explore(*args)
        walked.append(len(found.region))
        return found

    monkeypatch.setattr(sys.modules["tapejax.autograd.backward"], "explore", counting)
    assert walk.floor_of([], True) == 0
    w = tj.tensor([0.5, 1.0], requires_grad=True)
    for _ in range(10):
        (g,) = tj.autograd.grad((w * w).sin().sum(), w, create_graph=True)
        w = w - 0.1 * g
    assert len(set(walked[1:])) == 1, walked
    w.sum().backward()


def test_a_long_program_makes_the_collector_look_at_everything_less_often():
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        for n, expected in ((50, 10), (2100, config.gc_full), (6000, 187), (2200, 187)):
            x = tj.ones(3)
            for _ in range(n):
                x = x * 0.5
            x.sum().item()
            assert gc.get_threshold() == (700, 10, expected)
        gc.set_threshold(700, 10, 50)  # somebody chose that
        for _ in range(2200):
            x = x * 0.5
        x.sum().item()
        assert gc.get_threshold() == (700, 10, 50)
    finally:
        gc.set_threshold(*before)


def test_a_long_tape_paces_the_collector_before_its_first_program():
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        x = tj.ones(())
        x.item()
        gc.collect()
        assert gc.get_threshold() == (700, 10, 10)
        for _ in range(10 * LONG + 1):
            x = x * 0.5
        gc.collect()
        assert gc.get_threshold()[2] >= 10 * LONG // 32
    finally:
        gc.set_threshold(*before)


def test_the_collector_rests_while_a_long_program_is_compiled():
    assert gc.isenabled()
    with at_rest(LONG):
        assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), at_rest(LONG + 1):  # noqa: PT012
        assert not gc.isenabled()
        with at_rest(LONG + 1):
            pass
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled()


@pytest.mark.parametrize("how", ["backward", "grad", "grad of one", "backward(inputs=)"])
def test_a_backward_returns_only_what_somebody_holds(how):
    """Values between the loss and the leaves are temporaries of the program, whatever gradients are asked for."""
    w, v = (tj.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    kept = []

    def loss(keep):
        y = w * v
        for _ in range(5):
            y = y.sin()
            if keep:
                kept.append(y)
        return y.sum()

    run = {
        "backward": lambda f: f.backward(),
        "grad": lambda f: tj.autograd.grad(f, [w, v]),
        "grad of one": lambda f: tj.autograd.grad(f, [w]),
        "backward(inputs=)": lambda f: f.backward(inputs=[v]),
    }[how]

    def returned():
        newest = max(CACHE.entries.values(), key=lambda e: e.used)
        return len(newest.request[1])

    run(loss(False))
    assert returned() == 1  # the loss, which its caller holds while the backward runs
    run(loss(True))
    assert returned() == 6
