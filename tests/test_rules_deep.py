"""Rules 24, 25: deep and reentrant graphs, threads, and what dies when."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import pytest

import tapejax
from oracle import near, numbers


def leaf(tl: Any, data: Any) -> Any:
    return tl.tensor(data, requires_grad=True)


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ---------------------------------------------------------------- reentrant


def reentrant(tl: Any, depth: int) -> Any:
    class Deeper(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x, left):
            ctx.left = left
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            if ctx.left > 0:
                with tl.enable_grad():
                    inner = tl.ones(1, requires_grad=True)
                    Deeper.apply(inner, ctx.left - 1).sum().backward()
                return g + inner.grad, None
            return g, None

    x = tl.ones(1, requires_grad=True)
    Deeper.apply(x, depth).sum().backward()
    return x.grad


def test_backward_inside_backward(tl):
    assert numbers(reentrant(tl, 3)) == [4.0]
    assert tl.is_grad_enabled()


@pytest.mark.slow
def test_backward_inside_backward_two_thousand_deep(tl):
    assert numbers(reentrant(tl, 2000)) == [2001.0]


def test_backward_inside_backward_two_hundred_deep(tl):
    assert numbers(reentrant(tl, 200)) == [201.0]


def test_a_childs_error_is_carried_up(tl):
    class Bad(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise KeyError("the child's")

    class Parent(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            with tl.enable_grad():
                inner = tl.ones(1, requires_grad=True)
                Bad.apply(inner).sum().backward()
            return g

    x = leaf(tl, [1.0])
    with pytest.raises(KeyError, match="the child's"):
        Parent.apply(x).sum().backward()
    assert x.grad is None and tl.is_grad_enabled()


def test_a_hook_that_runs_backward_on_the_same_leaf(tl):
    x = leaf(tl, 2.0)
    y = x * 3

    def inner(g):
        with tl.enable_grad():
            (x * x).backward()

    y.register_hook(inner)
    y.backward()
    assert numbers(x.grad) == 7.0


def test_grad_inside_a_hook_of_a_retained_graph(tl):
    x = leaf(tl, 2.0)
    y = x * x
    seen = []
    z = y * 3

    def inner(g):
        if not seen:
            seen.append("inside")
            seen.append(numbers(tl.autograd.grad(z, x, retain_graph=True)[0]))

    y.register_hook(inner)
    z.backward(retain_graph=True)
    assert seen == ["inside", 12.0] and numbers(x.grad) == 12.0


# ---------------------------------------------------------------- long chains


def test_a_chain_of_ten_thousand_builds_and_frees_without_recursion(tl):
    x = leaf(tl, 1.0)
    y = x
    for _ in range(10_000):
        y = y + 1
    assert y.requires_grad and sys.getrecursionlimit() < 10_000
    del y
    z = x * 2
    z.backward()
    assert numbers(x.grad) == 2.0


@pytest.mark.slow
def test_a_chain_of_ten_thousand_runs_backward(tl):
    x = leaf(tl, 1.0)
    y = x
    for _ in range(10_000):
        y = y + 1
    y.backward()
    assert numbers(x.grad) == 1.0 and numbers(y) == 10_001.0


@pytest.mark.slow
def test_a_chain_of_a_hundred_thousand_runs_backward(tl):
    x = leaf(tl, 0.5)
    y = x
    for _ in range(100_000):
        y = y * 1.00001
    y.backward()
    assert near(x.grad, 2.7182682, rel=5e-3)
    del y


def test_a_chain_under_no_grad_is_not_kept(tl):
    x = tl.ones(1)
    for _ in range(3000):
        x = x + 1
        if float(x.sum()) < 0:
            break
    assert numbers(x) == [3001.0]


# ---------------------------------------------------------------- threads


def test_concurrent_backwards(tl):
    results: dict[int, Any] = {}
    errors: list[BaseException] = []

    def work(k: int) -> None:
        try:
            x = tl.tensor([float(k), 1.0], requires_grad=True)
            for _ in range(5):
                (x * x * x).sum().backward()
            results[k] = numbers(x.grad)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and results == {k: [15.0 * k * k, 15.0] for k in range(6)}


def test_backward_in_another_thread_than_forward(tl):
    x = leaf(tl, [1.0, 2.0])
    y = (x * x).sum()
    t = threading.Thread(target=y.backward)
    t.start()
    t.join()
    assert numbers(x.grad) == [2.0, 4.0]


def test_threads_with_hooks_see_their_own_gradients(tl):
    seen: dict[int, list[float]] = {}

    def work(k: int) -> None:
        x = tl.tensor(float(k), requires_grad=True)
        y = x * 1
        y.register_hook(lambda g: seen.setdefault(k, []).append(g.item()))
        for _ in range(3):
            (y * k).backward(retain_graph=True)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == {k: [float(k)] * 3 for k in range(1, 5)}


# ---------------------------------------------------------------- lifetime


class Token:
    """Something that a closure holds."""


def hooked(token: Token) -> Any:
    return lambda g: (token, None)[1]


def test_retain_grad_makes_no_cycle(tl, no_collector):
    x = leaf(tl, [1.0])
    y = x * 2
    y.retain_grad()
    r = weakref.ref(y)
    (y * y).sum().backward()
    del y
    assert r() is None


def test_detach_makes_no_cycle(tl, no_collector):
    x = leaf(tl, [1.0])
    y = x * 2
    d = y.detach()
    r, s = weakref.ref(y), weakref.ref(d)
    d.add_(1)
    del y, d
    assert r() is None and s() is None


def test_views_and_in_place_make_no_cycle(tl, no_collector):
    x = leaf(tl, [1.0, 2.0])
    y = x * 2
    v = y[0:1]
    v.mul_(3)
    y.add_(1)
    numbers(v)
    r, s = weakref.ref(y), weakref.ref(v)
    y.sum().backward()
    del y
    assert v is not None
    del v
    assert r() is None and s() is None


def test_hook_closures_die_with_the_graph(tl, no_collector):
    token = Token()
    r = weakref.ref(token)
    x = leaf(tl, [1.0])
    y = x * 2
    y.register_hook(hooked(token))
    z = y * 3
    del token, y
    assert r() is not None
    z.sum().backward()
    del z
    assert r() is None


def test_hook_closures_on_leaves_die_with_the_leaf(tl, no_collector):
    token = Token()
    r = weakref.ref(token)
    x = leaf(tl, [1.0])
    x.register_hook(hooked(token))
    x.register_post_accumulate_grad_hook(hooked(token))
    (x * 2).sum().backward()
    del token
    assert r() is not None
    del x
    assert r() is None


def test_a_removed_hook_dies_at_once(tl, no_collector):
    token = Token()
    r = weakref.ref(token)
    x = leaf(tl, [1.0])
    handle = x.register_hook(hooked(token))
    del token
    handle.remove()
    assert r() is None


def test_a_handle_does_not_keep_its_tensor(tl, no_collector):
    x = leaf(tl, [1.0])
    y = x * 2
    handle = y.register_hook(lambda g: None)
    r = weakref.ref(y)
    del y
    assert r() is None
    handle.remove()


def test_node_hooks_die_with_the_graph(tl, no_collector):
    token = Token()
    r = weakref.ref(token)
    x = leaf(tl, [1.0])
    y = x * 2
    y.grad_fn.register_hook(lambda gi, go, t=token: None)
    y.grad_fn.register_prehook(lambda go, t=token: None)
    del token
    y.sum().backward()
    del y
    assert r() is None


def test_metadata_dies_with_the_graph(tl, no_collector):
    token = Token()
    r = weakref.ref(token)
    y = leaf(tl, [1.0]) * 2
    y.grad_fn.metadata["held"] = token
    del token
    assert r() is not None
    del y
    assert r() is None


def test_outputs_of_a_step_die_promptly(tl, no_collector):
    x = leaf(tl, [1.0, 2.0])
    refs = []
    for _ in range(3):
        h = (x * 2).tanh()
        loss = (h * h).sum()
        loss.backward()
        refs += [weakref.ref(h), weakref.ref(loss)]
    del h, loss
    assert all(r() is None for r in refs)


def test_a_grad_dies_when_it_is_cleared(tl, no_collector):
    x = leaf(tl, [1.0, 2.0])
    (x * x).sum().backward()
    r = weakref.ref(x.grad)
    x.grad = None
    assert r() is None


def test_arrays_die_with_their_tensors(no_collector):
    x = tapejax.tensor([1.0, 2.0], requires_grad=True)
    h = (x * 2).tanh()
    h.tolist()
    r = weakref.ref(h.array())
    loss = (h * h).sum()
    loss.backward()
    del h
    assert r() is None, "the value of an intermediate outlives its tensor and its graph"
    assert loss is not None


def test_nodes_of_a_dropped_graph_die(no_collector):
    x = tapejax.tensor([1.0, 2.0], requires_grad=True)
    y = (x * 2).tanh()
    r = weakref.ref(y.node)
    z = y * 3
    del y
    assert r() is not None
    del z
    assert r() is None


def test_create_graph_is_released_when_the_gradient_is(no_collector):
    x = tapejax.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    r = weakref.ref(y.node)
    (g,) = tapejax.autograd.grad((y * y * y).sum(), x, create_graph=True)
    del y
    del g
    assert r() is None


def test_an_exception_does_not_keep_the_graph(tl, no_collector):
    x = leaf(tl, [1.0, 2.0])
    y = x * x
    r = weakref.ref(y)
    try:
        y.backward()
    except RuntimeError:
        pass
    del y
    assert r() is None


def test_a_loop_neither_compiles_nor_grows():
    x = tapejax.tensor([1.0, 2.0], requires_grad=True)

    def step() -> None:
        loss = ((x * 2).tanh() ** 2).sum()
        loss.backward()
        with tapejax.no_grad():
            x.sub_(x.grad * 0.1)
        x.grad = None

    for _ in range(20):
        step()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(300):
        step()
    gc.collect()
    assert len(gc.get_objects()) - before < 100
