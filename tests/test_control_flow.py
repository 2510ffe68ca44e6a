"""Python control flow on values: each value asked for ends a program, equal iterations are found in the cache, and the cache is bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tapejax as tj
from oracle import compiled, torch
from tapejax import config
from tapejax.engine.cache import CACHE


@pytest.fixture(autouse=True)
def fresh() -> None:
    tj.debug.clear_cache()


def launches(run: Any) -> int:
    before = CACHE.launches
    run()
    return CACHE.launches - before


def test_a_value_asked_for_ends_a_program() -> None:
    """Nothing runs while recording; every question runs what it needs, once."""

    def branch(asks: int) -> None:
        x = tj.tensor([0.5, -1.0, 2.0])
        for _ in range(asks):
            x = x * 2 if (x.sum() > 1e6).item() else x + 1
        kept.append(x)

    kept: list[Any] = []
    assert launches(lambda: branch(0)) == 0
    for asks in (1, 2, 5):
        assert launches(lambda asks=asks: branch(asks)) == asks
    assert launches(lambda: kept[-1].tolist()) == 1 and launches(lambda: kept[-1].tolist()) == 0


@pytest.mark.parametrize("ask", [bool, float, lambda t: t.item(), lambda t: t.tolist(), lambda t: t.numpy(), repr, lambda t: tj.ones(3)[t.long()]])
def test_every_way_of_asking_runs_at_most_one_program(ask: Any) -> None:
    x = tj.tensor(0.5) * 2
    assert launches(lambda: ask(x)) <= 1


def newton(lib: Any, a: float, tolerance: float = 1e-10) -> tuple[float, int]:
    """√a by Newton's method with gradients from the tape; the number of steps is not known before."""
    x = lib.tensor(float(a), dtype=lib.float64)
    steps = 0
    while True:
        x = x.detach().requires_grad_()
        f = x * x - a
        if abs(f.item()) < tolerance:
            return x.item(), steps
        (slope,) = lib.autograd.grad(f, x)
        x = x - f / slope
        steps += 1


def test_newton_of_unknown_length_compiles_a_constant_number_of_programs() -> None:
    first = newton(tj, 2.0)
    before = compiled()
    found = [newton(tj, a) for a in (3.0, 1e3, 1e6, 0.01)]
    assert compiled() == before, "other numbers and other lengths are the same programs"
    assert len({n for _, n in [first, *found]}) > 2
    for (root, steps), a in zip(found, (3.0, 1e3, 1e6, 0.01), strict=True):
        assert np.isclose(root, a**0.5)
        if torch is not None:
            assert (root, steps) == pytest.approx(newton(torch, a), rel=1e-12)


def test_branches_compile_once_each() -> None:
    w = tj.tensor([1.0, -2.0], requires_grad=True)

    def step(x: float) -> None:
        h = (w * x).sum()
        loss = h.sin() if h.item() > 0 else h * h
        loss.backward()
        w.grad = None

    for x in (1.0, -1.0, 2.0, -2.0):
        step(x)
    before = compiled()
    for x in (0.5, -0.5, -3.0, 4.0, 1.5, -0.1):
        step(x)
    assert compiled() == before


def test_an_early_exit_inside_a_loop_is_one_program_per_question() -> None:
    def run(bound: float) -> int:
        x, n = tj.tensor(1.0), 0
        while (x < bound).item():
            x, n = x * 1.5, n + 1
        return n

    run(2.0)
    run(5.0)
    before = compiled()
    assert launches(lambda: run(40.0)) == run(40.0) + 1
    assert compiled() == before


def test_varying_shapes_compile_once_each_and_the_cache_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def cube(n: int) -> float:
        return (tj.ones(n) ** 3).sum().item()

    before = compiled()
    for n in (*range(1, 6), *range(1, 6)):
        assert cube(n) == n
    assert compiled() - before == 5
    monkeypatch.setattr(config, "cache_size", 4)
    for n in range(10, 30):
        assert cube(n) == n
    assert tj.debug.cache_info().entries <= 4 and tj.debug.cache_info().evicted > 0
    assert cube(1) == 1, "an evicted program is compiled again"
