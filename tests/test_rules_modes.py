"""Rules 7, 20: grad modes as context managers, calls and decorators, over generators and coroutines, and in threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import tapejax
from oracle import numbers


def leaf(tl: Any, data: Any) -> Any:
    return tl.tensor(data, requires_grad=True)


def test_no_grad_records_nothing(tl):
    x = leaf(tl, 2.0)
    with tl.no_grad():
        y = x * x
        assert not tl.is_grad_enabled()
    assert not y.requires_grad and y.is_leaf and y.grad_fn is None and tl.is_grad_enabled()


def test_enable_grad_inside_no_grad(tl):
    x = leaf(tl, 2.0)
    with tl.no_grad():
        with tl.enable_grad():
            y = x * x
        z = y * 2
    assert y.requires_grad and not z.requires_grad
    y.backward()
    assert numbers(x.grad) == 4.0


def test_factories_may_require_grad_under_no_grad(tl):
    with tl.no_grad():
        x = tl.ones(2, requires_grad=True)
    assert x.requires_grad


def test_the_mode_is_restored_after_an_exception(tl):
    with pytest.raises(KeyError), tl.no_grad():
        raise KeyError
    assert tl.is_grad_enabled()
    with pytest.raises(RuntimeError), tl.no_grad():
        tl.ones(2) @ tl.ones(3)
    assert tl.is_grad_enabled()


def test_decorators_with_and_without_parentheses(tl):
    @tl.no_grad()
    def a(x: Any) -> Any:
        return x * 2, tl.is_grad_enabled()

    @tl.no_grad
    def b(x: Any) -> Any:
        return x * 2, tl.is_grad_enabled()

    @tl.enable_grad()
    def c(x: Any) -> Any:
        return x * 2, tl.is_grad_enabled()

    x = leaf(tl, 2.0)
    assert a.__name__ == "a"
    for f in (a, b):
        y, on = f(x)
        assert not y.requires_grad and not on and tl.is_grad_enabled()
    with tl.no_grad():
        y, on = c(x)
        assert y.requires_grad and on and not tl.is_grad_enabled()


def test_set_grad_enabled_acts_on_call(tl):
    try:
        tl.set_grad_enabled(False)
        assert not tl.is_grad_enabled()
        tl.set_grad_enabled(True)
        assert tl.is_grad_enabled()
    finally:
        tl.set_grad_enabled(True)


def test_set_grad_enabled_as_a_context_manager(tl):
    with tl.set_grad_enabled(False):
        assert not tl.is_grad_enabled()
        with tl.set_grad_enabled(True):
            assert tl.is_grad_enabled()
        assert not tl.is_grad_enabled()
    assert tl.is_grad_enabled()


def test_set_grad_enabled_as_a_decorator_does_not_leak(tl):
    @tl.set_grad_enabled(False)
    def f() -> bool:
        return tl.is_grad_enabled()

    assert tl.is_grad_enabled()
    assert f() is False and tl.is_grad_enabled()


def test_one_manager_used_again_and_nested():
    tl = tapejax  # torch forgets the first mode here
    off = tl.no_grad()
    with off:
        with off:
            assert not tl.is_grad_enabled()
        assert not tl.is_grad_enabled()
    assert tl.is_grad_enabled()


def test_a_recursive_decorated_function(tl):
    @tl.no_grad()
    def down(n: int) -> list[bool]:
        with tl.enable_grad():
            return [] if n == 0 else [*down(n - 1), tl.is_grad_enabled()]

    assert down(3) == [True] * 3 and tl.is_grad_enabled()


# ---------------------------------------------------------------- generators


def test_a_decorated_generator_keeps_both_modes(tl):
    seen = []

    @tl.no_grad()
    def numbers_of() -> Any:
        for i in range(3):
            seen.append(tl.is_grad_enabled())
            got = yield i
            seen.append((got, tl.is_grad_enabled()))

    g = numbers_of()
    assert next(g) == 0 and tl.is_grad_enabled()
    assert g.send("a") == 1 and tl.is_grad_enabled()
    with tl.no_grad():
        assert g.send("b") == 2 and not tl.is_grad_enabled()
    assert tl.is_grad_enabled()
    with pytest.raises(StopIteration):
        g.send("c")
    assert seen == [False, ("a", False), False, ("b", False), False, ("c", False)]


def test_enable_grad_on_a_generator_inside_no_grad(tl):
    @tl.enable_grad()
    def modes() -> Any:
        yield tl.is_grad_enabled()
        yield tl.is_grad_enabled()

    with tl.no_grad():
        for on in modes():
            assert on and not tl.is_grad_enabled()


def test_throwing_into_a_decorated_generator(tl):
    seen = []

    @tl.no_grad()
    def catcher() -> Any:
        try:
            yield 1
        except KeyError:
            seen.append(tl.is_grad_enabled())
            yield 2
        seen.append(tl.is_grad_enabled())

    g = catcher()
    next(g)
    assert g.throw(KeyError()) == 2 and tl.is_grad_enabled()
    assert next(g, "end") == "end"
    assert seen == [False, False] and tl.is_grad_enabled()


def test_closing_a_decorated_generator(tl):
    seen = []

    @tl.no_grad()
    def cleaner() -> Any:
        try:
            yield 1
        finally:
            seen.append(tl.is_grad_enabled())

    g = cleaner()
    next(g)
    g.close()
    assert seen == [False] and tl.is_grad_enabled()


def test_an_exception_inside_a_decorated_generator(tl):
    @tl.no_grad()
    def bad() -> Any:
        yield 1
        raise KeyError("mine")

    g = bad()
    next(g)
    with pytest.raises(KeyError, match="mine"):
        next(g)
    assert tl.is_grad_enabled()


def test_a_generators_return_value(tl):
    @tl.no_grad()
    def answers() -> Any:
        yield 1
        return 42

    def outer() -> Any:
        return (yield from answers())

    g = outer()
    next(g)
    with pytest.raises(StopIteration) as stop:
        next(g)
    assert stop.value.value == 42


def test_set_grad_enabled_on_a_generator(tl):
    @tl.set_grad_enabled(False)
    def modes() -> Any:
        yield tl.is_grad_enabled()
        yield tl.is_grad_enabled()

    for on in modes():
        assert not on and tl.is_grad_enabled()


# ---------------------------------------------------------------- coroutines


class Pause:
    def __await__(self) -> Any:
        yield


def test_a_decorated_coroutine_keeps_both_modes():
    tl = tapejax  # torch's decorators know generators only
    seen = []

    @tl.no_grad()
    async def work() -> str:
        seen.append(tl.is_grad_enabled())
        await Pause()
        seen.append(tl.is_grad_enabled())
        return "done"

    c = work()
    c.send(None)
    assert tl.is_grad_enabled()
    with pytest.raises(StopIteration) as stop:
        c.send(None)
    assert stop.value.value == "done" and seen == [False, False] and tl.is_grad_enabled()


def test_coroutines_side_by_side():
    tl = tapejax
    seen = []

    @tl.no_grad()
    async def off() -> None:
        for _ in range(3):
            seen.append(("off", tl.is_grad_enabled()))
            await asyncio.sleep(0)

    @tl.enable_grad()
    async def on() -> None:
        for _ in range(3):
            seen.append(("on", tl.is_grad_enabled()))
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(off(), on())

    asyncio.run(main())
    assert sorted(seen) == [("off", False)] * 3 + [("on", True)] * 3 and tl.is_grad_enabled()


# ---------------------------------------------------------------- threads


def test_modes_belong_to_threads(tl):
    seen = []

    def work() -> None:
        seen.append(tl.is_grad_enabled())
        with tl.no_grad():
            inside.set()
            outside.wait(10)
            seen.append(tl.is_grad_enabled())

    inside, outside = threading.Event(), threading.Event()
    with tl.no_grad():
        t = threading.Thread(target=work)
        t.start()
        inside.wait(10)
    assert tl.is_grad_enabled()
    outside.set()
    t.join()
    assert seen == [True, False]


# ---------------------------------------------------------------- Python numbers and 0-d tensors


def test_python_control_flow_on_values(tl):
    x = leaf(tl, 3.0)
    y = x
    while y < 100:
        y = y * y if y > 5 else y + 1
    y.backward()
    assert numbers(y) == 1296.0 and numbers(x.grad) == 4 * 6.0**3


def test_requires_grad_may_be_changed_on_leaves_at_any_time(tl):
    x = tl.ones(2)
    y = x * 2
    x.requires_grad_()
    z = x * 2
    assert not y.requires_grad and z.requires_grad
    with tl.no_grad():
        x.requires_grad_(False)
        assert not x.requires_grad
