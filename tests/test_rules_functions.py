"""Rules 2, 16, 17: custom Functions."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from oracle import near, numbers


def leaf(tl: Any, data: Any) -> Any:
    return tl.tensor(data, requires_grad=True)


def function(tl: Any, forward: Any, backward: Any = None, **more: Any) -> Any:
    """A Function class from plain functions."""
    members = {"forward": staticmethod(forward), **{k: staticmethod(v) for k, v in more.items()}}
    if backward is not None:
        members["backward"] = staticmethod(backward)
    return type("Mine", (tl.autograd.Function,), members)


def test_forward_and_backward(tl):
    class Cube(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x**2

    x = leaf(tl, [1.0, 2.0])
    y = Cube.apply(x)
    assert y.requires_grad and not y.is_leaf and y.grad_fn.name() == "CubeBackward"
    y.sum().backward()
    assert numbers(x.grad) == [3.0, 12.0]


def test_setup_context_style(tl):
    class Scale(tl.autograd.Function):
        @staticmethod
        def forward(x, factor):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]
            assert numbers(output) == [3.0, 6.0]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

    x = leaf(tl, [1.0, 2.0])
    Scale.apply(x, 3.0).sum().backward()
    assert numbers(x.grad) == [3.0, 3.0]


def test_grad_mode_inside(tl):
    seen = []

    def forward(ctx, x):
        seen.append(tl.is_grad_enabled())
        return x * 2

    def backward(ctx, g):
        seen.append(tl.is_grad_enabled())
        return g * 2

    x = leaf(tl, 1.0)
    mine = function(tl, forward, backward)
    mine.apply(x).backward()
    tl.autograd.grad(mine.apply(x), x, create_graph=True)
    assert seen == [False, False, False, True] and tl.is_grad_enabled()


def test_needs_input_grad(tl):
    seen = []
    mine = function(tl, lambda ctx, x, c, k: x * c * k, lambda ctx, g: (seen.append(ctx.needs_input_grad), (g, None, None))[1])
    x, c = leaf(tl, 1.0), tl.tensor(2.0)
    mine.apply(x, c, 3.0).backward()
    assert seen == [(True, False, False)]


def test_nothing_is_recorded_without_grad(tl):
    mine = function(tl, lambda ctx, x: x * 2, lambda ctx, g: g)
    y = mine.apply(tl.tensor(1.0))
    assert not y.requires_grad and y.grad_fn is None
    with tl.no_grad():
        y = mine.apply(leaf(tl, 1.0))
    assert not y.requires_grad


def test_several_outputs_and_undefined_gradients_as_zeros(tl):
    seen = []

    def backward(ctx, a, b):
        seen.append((numbers(a), numbers(b)))
        return a + 10 * b

    mine = function(tl, lambda ctx, x: (x * 1, x * 10), backward)
    x = leaf(tl, [1.0, 2.0])
    a, b = mine.apply(x)
    b.sum().backward()
    assert seen == [([0.0, 0.0], [1.0, 1.0])] and numbers(x.grad) == [10.0, 10.0]
    a, b = mine.apply(x)
    (a * 2 + b * 3).sum().backward()
    assert seen[1] == ([2.0, 2.0], [3.0, 3.0])


def test_undefined_gradients_stay_none_without_materialising(tl):
    seen = []

    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 1, x * 10

    def backward(ctx, a, b):
        seen.append((a is None, b is None))
        return b

    mine = function(tl, forward, backward)
    x = leaf(tl, 1.0)
    mine.apply(x)[1].backward()
    assert seen == [(True, False)]


def test_an_undefined_gradient_from_above_is_zeros_too(tl):
    seen = []
    nothing = function(tl, lambda ctx, x: x * 2, lambda ctx, g: None)
    watch = function(tl, lambda ctx, x: x * 2, lambda ctx, g: (seen.append(numbers(g)), g)[1])
    x = leaf(tl, 1.0)
    nothing.apply(watch.apply(x)).backward()
    assert seen in ([0.0], []) and (x.grad is None or numbers(x.grad) == 0.0)


def test_non_tensor_arguments_and_outputs(tl):
    mine = function(tl, lambda ctx, x, name, n: (x * n, name, None, [1]), lambda ctx, g, *rest: (g * 7, None, None))
    x = leaf(tl, 1.0)
    y, name, none, listed = mine.apply(x, "a", 3)
    assert name == "a" and none is None and listed == [1]
    y.backward()
    assert numbers(x.grad) == 7.0


def test_gradients_of_non_tensor_outputs_are_none(tl):
    seen = []
    mine = function(tl, lambda ctx, x: (x * 1, "s", x * 2), lambda ctx, a, s, b: (seen.append((s, numbers(b))), a + b)[1])
    x = leaf(tl, 1.0)
    a, _, b = mine.apply(x)
    (a + b).backward()
    assert seen == [(None, 1.0)] and numbers(x.grad) == 2.0


def test_a_single_output_in_a_tuple_stays_a_tuple(tl):
    mine = function(tl, lambda ctx, x: (x * 2,), lambda ctx, g: g * 2)
    x = leaf(tl, 1.0)
    y = mine.apply(x)
    assert isinstance(y, tuple) and len(y) == 1
    y[0].backward()
    assert numbers(x.grad) == 2.0


def test_an_input_returned_as_is_becomes_a_new_differentiable_alias(tl):
    mine = function(tl, lambda ctx, x: x, lambda ctx, g: g * 5)
    x = leaf(tl, [1.0, 2.0])
    y = mine.apply(x)
    assert y is not x and y.grad_fn.name() == "MineBackward" and numbers(y) == [1.0, 2.0]
    y.sum().backward()
    assert numbers(x.grad) == [5.0, 5.0]


def test_the_same_tensor_returned_twice(tl):
    def forward(ctx, x):
        y = x * 2
        return y, y

    mine = function(tl, forward, lambda ctx, a, b: a + 10 * b)
    x = leaf(tl, 1.0)
    a, b = mine.apply(x)
    assert a is b
    a.backward()
    assert numbers(x.grad) == 10.0


def test_trailing_extra_nones_are_accepted(tl):
    mine = function(tl, lambda ctx, x: x * 2, lambda ctx, g: (g, None, None))
    x = leaf(tl, 1.0)
    mine.apply(x).backward()
    assert numbers(x.grad) == 1.0


def test_a_wrong_number_of_gradients(tl):
    x, w = leaf(tl, 1.0), leaf(tl, 2.0)
    mine = function(tl, lambda ctx, x, w: x * w, lambda ctx, g: g)
    with pytest.raises(RuntimeError, match="returned an incorrect number of gradients"):
        mine.apply(x, w).backward()
    mine = function(tl, lambda ctx, x: x * 2, lambda ctx, g: (g, g))
    with pytest.raises(RuntimeError, match="returned an incorrect number of gradients"):
        mine.apply(x).backward()
    assert x.grad is None and w.grad is None


def test_a_gradient_of_wrong_shape(tl):
    x = leaf(tl, [1.0, 2.0])
    mine = function(tl, lambda ctx, x: x * 2, lambda ctx, g: tl.ones(3))
    with pytest.raises(RuntimeError, match="returned an invalid gradient at index 0 - got .*3.* but expected shape compatible with .*2"):
        mine.apply(x).sum().backward()
    assert x.grad is None


def test_a_broadcast_gradient_is_summed(tl):
    x = leaf(tl, [1.0, 2.0])
    mine = function(tl, lambda ctx, x: x * 2, lambda ctx, g: tl.ones(3, 2))
    mine.apply(x).sum().backward()
    assert numbers(x.grad) == [3.0, 3.0]


def test_a_gradient_of_another_type_is_cast(tl):
    x = leaf(tl, [1.0, 2.0])
    mine = function(tl, lambda ctx, x: x * 2, lambda ctx, g: g.double())
    mine.apply(x).sum().backward()
    assert x.grad.dtype == tl.float32 and numbers(x.grad) == [1.0, 1.0]


def test_a_gradient_that_is_no_tensor(tl):
    x = leaf(tl, 1.0)
    mine = function(tl, lambda ctx, x: x * 2, lambda ctx, g: 3.0)
    with pytest.raises((TypeError, RuntimeError), match="(?i)expected (Variable|Tensor) or None|invalid gradient|expected a"):
        mine.apply(x).backward()


def test_a_gradient_for_an_input_without_grad_is_ignored_if_none_is_needed(tl):
    x, c = leaf(tl, 1.0), tl.tensor(2.0)
    mine = function(tl, lambda ctx, x, c: x * c, lambda ctx, g: (g * 2, None))
    mine.apply(x, c).backward()
    assert numbers(x.grad) == 2.0 and c.grad is None


def test_an_exception_in_backward_reaches_the_user_and_changes_nothing(tl):
    def bad(ctx, g):
        raise ZeroDivisionError("mine")

    x, w = leaf(tl, 1.0), leaf(tl, 2.0)
    mine = function(tl, lambda ctx, x: x * 2, bad)
    y = mine.apply(x) + w * w
    with pytest.raises(ZeroDivisionError, match="mine"):
        y.backward()
    assert x.grad is None and tl.is_grad_enabled()
    w.grad = None
    (w * w).backward()
    assert numbers(w.grad) == 4.0


def test_an_exception_in_forward_restores_the_mode(tl):
    def bad(ctx, x):
        raise ZeroDivisionError("mine")

    mine = function(tl, bad, lambda ctx, g: g)
    with pytest.raises(ZeroDivisionError):
        mine.apply(leaf(tl, 1.0))
    assert tl.is_grad_enabled()


def test_forward_and_backward_must_exist(tl):
    nothing = type("Nothing", (tl.autograd.Function,), {})
    with pytest.raises(NotImplementedError, match="You must implement the forward function"):
        nothing.apply(leaf(tl, 1.0))
    half = function(tl, lambda ctx, x: x * 2)
    y = half.apply(leaf(tl, 1.0))
    with pytest.raises(NotImplementedError, match="You must implement either the backward or vjp method"):
        y.backward()


def test_a_function_is_not_instantiated(tl):
    mine = function(tl, lambda ctx, x: x * 2, lambda ctx, g: g)
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        instance = mine()
    with pytest.raises(RuntimeError, match="Legacy autograd function with non-static forward method is deprecated"):
        instance(leaf(tl, 1.0))


def test_double_backward_through_a_function(tl):
    class Sin(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos()

    x = leaf(tl, 1.0)
    (g,) = tl.autograd.grad(Sin.apply(x), x, create_graph=True)
    (h,) = tl.autograd.grad(g, x, create_graph=True)
    (i,) = tl.autograd.grad(h, x)
    assert near([g, h, i], [0.5403023, -0.8414710, -0.5403023])


def test_double_backward_through_a_saved_output(tl):
    class Exp(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y

    x = leaf(tl, 1.0)
    (g,) = tl.autograd.grad(Exp.apply(x), x, create_graph=True)
    (h,) = tl.autograd.grad(g, x)
    assert near([g, h], [2.7182817, 2.7182817])


def test_once_differentiable(tl):
    seen = []

    class Once(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @tl.autograd.function.once_differentiable
        def backward(ctx, g):
            seen.append((tl.is_grad_enabled(), g.requires_grad))
            return g * 2

    x = leaf(tl, 1.0)
    v = leaf(tl, 3.0)
    Once.apply(x).backward()
    assert numbers(x.grad) == 2.0
    (g,) = tl.autograd.grad(Once.apply(x), x, v, create_graph=True)
    assert numbers(g) == 6.0 and g.requires_grad
    assert seen[-1][0] is False
    with pytest.raises(RuntimeError, match="trying to differentiate twice a function that was marked with @once_differentiable"):
        g.backward()


def test_saved_tensors_are_the_inputs_themselves(tl):
    seen = []

    def forward(ctx, x, w):
        ctx.save_for_backward(x, w, None)
        return x * w

    def backward(ctx, g):
        a, b, c = ctx.saved_tensors
        seen.append((a is x, b is w, c))
        return g * b, g * a

    x, w = leaf(tl, 2.0), leaf(tl, 3.0)
    function(tl, forward, backward).apply(x, w).backward()
    assert seen == [(True, True, None)] and numbers(x.grad) == 3.0


def test_saved_tensors_are_freed(tl):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2

    x = leaf(tl, 2.0)
    y = function(tl, forward, backward).apply(x)
    assert y.grad_fn.saved_tensors[0] is x
    y.backward()
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        y.grad_fn.saved_tensors  # noqa: B018
    with pytest.raises(RuntimeError, match="after they have already been freed|backward through the graph a second time"):
        y.backward()


def test_a_function_that_saved_nothing_may_run_again(tl):
    x = leaf(tl, 2.0)
    y = function(tl, lambda ctx, x: x * 2, lambda ctx, g: g * 2).apply(x)
    y.backward()
    y.backward()
    assert numbers(x.grad) == 4.0


def test_only_tensors_are_saved(tl):
    mine = function(tl, lambda ctx, x: (ctx.save_for_backward(3.0), x * 2)[1], lambda ctx, g: g)
    with pytest.raises(TypeError, match="save_for_backward can only save variables, but (argument 0 is of type float|got float)"):
        mine.apply(leaf(tl, 1.0))


def test_a_saved_input_that_was_written_raises(tl):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2

    x = leaf(tl, [2.0])
    a = x * 1
    y = function(tl, forward, backward).apply(a)
    a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    assert x.grad is None


def test_a_saved_output_that_was_written_raises(tl):
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y

    x = leaf(tl, [2.0])
    y = function(tl, forward, backward).apply(x)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_mark_non_differentiable(tl):
    def forward(ctx, x):
        values, where = x.sort()
        mask = x > 1
        ctx.mark_non_differentiable(where, mask)
        return values, where, mask

    seen = []
    mine = function(tl, forward, lambda ctx, g, gw, gm: (seen.append((gw is None or numbers(gw), gm is None or numbers(gm))), g)[1])
    x = leaf(tl, [1.0, 2.0])
    v, where, mask = mine.apply(x)
    assert v.requires_grad and not where.requires_grad and not mask.requires_grad
    v.sum().backward()
    assert numbers(x.grad) == [1.0, 1.0]


def test_mark_non_differentiable_of_a_float_output(tl):
    def forward(ctx, x):
        a, b = x * 2, x * 3
        ctx.mark_non_differentiable(b)
        return a, b

    mine = function(tl, forward, lambda ctx, ga, gb: ga * 2)
    x = leaf(tl, [1.0, 2.0])
    a, b = mine.apply(x)
    assert a.requires_grad and not b.requires_grad and b.grad_fn is None
    a.sum().backward()
    assert numbers(x.grad) == [2.0, 2.0]


def test_integer_outputs_do_not_require_grad(tl):
    mine = function(tl, lambda ctx, x: (x * 1, x.argmax()), lambda ctx, g, i: g)
    x = leaf(tl, [1.0, 2.0])
    y, i = mine.apply(x)
    assert y.requires_grad and not i.requires_grad


def test_autograd_inside_a_function(tl):
    class Inner(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with tl.enable_grad():
                inside = x.detach().requires_grad_()
                y = (inside**3).sum()
            (ctx.g,) = tl.autograd.grad(y, inside)
            return y.detach()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.g

    x = leaf(tl, [1.0, 2.0])
    y = Inner.apply(x * 1)
    assert numbers(y) == 9.0
    y.backward()
    assert numbers(x.grad) == [3.0, 12.0]


def test_a_view_of_an_input_as_output(tl):
    mine = function(tl, lambda ctx, x: x.view(-1), lambda ctx, g: g.view(2, 2) * 3)
    x = leaf(tl, [[1.0, 2.0], [3.0, 4.0]])
    y = mine.apply(x * 1)
    assert y.shape == (4,)
    y.sum().backward()
    assert numbers(x.grad) == [[3.0, 3.0], [3.0, 3.0]]


# ---------------------------------------------------------------- mark_dirty


def test_a_dirty_input_is_returned_itself_with_the_function_as_history(tl):
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    mine = function(tl, forward, lambda ctx, g: g * 2)
    x = leaf(tl, [1.0, 2.0])
    a = x * 1
    y = mine.apply(a)
    assert y is a and numbers(a) == [2.0, 4.0] and a.grad_fn.name() == "MineBackward" and a._version > 0
    (a * 3).sum().backward()
    assert numbers(x.grad) == [6.0, 6.0]


def test_a_dirty_input_that_did_not_require_grad(tl):
    def forward(ctx, a, b):
        a.add_(b)
        ctx.mark_dirty(a)
        return a

    mine = function(tl, forward, lambda ctx, g: (g, g))
    x = leaf(tl, [1.0, 2.0])
    a = tl.zeros(2)
    y = mine.apply(a, x)
    assert y is a and a.requires_grad and not a.is_leaf
    a.sum().backward()
    assert numbers(x.grad) == [1.0, 1.0]


def test_a_dirty_input_must_be_returned(tl):
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x + 1

    mine = function(tl, forward, lambda ctx, g: g)
    with pytest.raises(RuntimeError, match="Some elements marked as dirty during the forward method were not returned as output"):
        mine.apply(leaf(tl, [1.0]) * 1)


def test_a_dirty_leaf_is_refused(tl):
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    mine = function(tl, forward, lambda ctx, g: g)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        mine.apply(leaf(tl, [1.0]))


def test_marking_a_non_input_warns(tl):
    def forward(ctx, x):
        y = x * 2
        ctx.mark_dirty(y)
        return y

    mine = function(tl, forward, lambda ctx, g: g)
    with pytest.warns(UserWarning, match=r"mark_dirty\(\) received a tensor that was not an input"):
        mine.apply(leaf(tl, [1.0]))


def test_a_dirty_view_reaches_its_base(tl):
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    mine = function(tl, forward, lambda ctx, g: g * 2)
    x = leaf(tl, [1.0, 2.0])
    base = x * 1
    v = base[0:1]
    assert mine.apply(v) is v
    assert numbers(base) == [2.0, 2.0]
    base.sum().backward()
    assert numbers(x.grad) == [2.0, 1.0]


def test_a_dirty_view_allows_one_output(tl):
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x, x * 2

    mine = function(tl, forward, lambda ctx, g, h: g)
    with pytest.raises(RuntimeError, match="your Function cannot return more than one Tensor"):
        mine.apply((leaf(tl, [1.0, 2.0]) * 1)[0:1])


# ---------------------------------------------------------------- the ctx as a graph node


def test_ctx_is_the_grad_fn(tl):
    seen = []

    def backward(ctx, g):
        seen.append(ctx)
        return g

    mine = function(tl, lambda ctx, x: x * 2, backward)
    x = leaf(tl, 1.0)
    y = mine.apply(x)
    node = y.grad_fn
    assert node.next_functions[0][0].variable is x
    y.backward()
    assert seen[0] is node


def test_hooks_on_a_functions_node(tl):
    log = []
    mine = function(tl, lambda ctx, x: x * 2, lambda ctx, g: g * 2)
    x = leaf(tl, 1.0)
    y = mine.apply(x)
    y.grad_fn.register_prehook(lambda gs: (gs[0] * 10,))
    y.grad_fn.register_hook(lambda gi, go: log.append((numbers(gi[0]), numbers(go[0]))))
    y.register_hook(lambda g: log.append(numbers(g)))
    y.backward()
    assert log == [1.0, (20.0, 10.0)] and numbers(x.grad) == 20.0


def test_a_function_in_a_forced_graph(tl):
    mine = function(tl, lambda ctx, x: x * 2, lambda ctx, g: g * 2)
    x = leaf(tl, [1.0, 2.0])
    h = x.exp()
    assert near(h, [2.7182817, 7.389056])
    y = mine.apply(h)
    numbers(y)
    z = y.sin().sum()
    z.item()
    z.backward()
    assert near(x.grad, [3.6018, -8.8366], rel=1e-4)


def test_many_functions_in_a_chain(tl):
    mine = function(tl, lambda ctx, x: x + 1, lambda ctx, g: g * 2)
    x = leaf(tl, 0.0)
    y = x
    for _ in range(10):
        y = mine.apply(y)
    y.backward()
    assert numbers(y) == 10.0 and numbers(x.grad) == 1024.0


# ---------------------------------------------------------------- lifetime


def test_ctx_dies_with_the_outputs(tl):
    class Held:
        pass

    def forward(ctx, x):
        ctx.held = Held()
        refs.append(weakref.ref(ctx.held))
        y = x * 2
        ctx.save_for_backward(x, y)
        return y

    refs: list[Any] = []
    mine = function(tl, forward, lambda ctx, g: g)
    gc.collect()
    gc.disable()
    try:
        y = mine.apply(leaf(tl, [1.0]))
        assert refs[0]() is not None
        del y
        assert refs[0]() is None
        x = leaf(tl, [1.0])
        z = mine.apply(x) * 2
        z.sum().backward()
        del z
        assert refs[1]() is None
    finally:
        gc.enable()


def test_a_cycle_through_ctx_is_collectable(tl):
    class Held:
        pass

    def forward(ctx, x):
        ctx.held = Held()
        refs.append(weakref.ref(ctx.held))
        y = x * 2
        ctx.cycle = y
        return y

    refs: list[Any] = []
    mine = function(tl, forward, lambda ctx, g: g)
    y = mine.apply(leaf(tl, [1.0]))
    del y
    gc.collect()
    assert refs[0]() is None
