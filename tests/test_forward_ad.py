"""Rule 22: forward mode. Tangents follow values through operations, views, writes, Functions and gradients."""

from __future__ import annotations

import gc
import weakref

import pytest

from oracle import near, numbers

#: torch scripts its decompositions when forward mode is first used, and warns about that itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


def fw(tl):
    return tl.autograd.forward_ad


def pair(tl):
    return tl.tensor([1.0, 2.0, 3.0]), tl.tensor([1.0, 1.0, 0.5])


def tangent(tl, x):
    return fw(tl).unpack_dual(x).tangent


# ---------------------------------------------------------------- levels


def test_dual_level_is_numbered_from_zero_and_current_level_says_so(tl):
    assert fw(tl)._current_level == -1
    with fw(tl).dual_level() as level:
        assert level == 0 and fw(tl)._current_level == 0
    assert fw(tl)._current_level == -1


def test_levels_do_not_nest(tl):
    with fw(tl).dual_level(), pytest.raises(RuntimeError, match="Nested forward mode AD is not supported"):
        fw(tl).enter_dual_level()
    fw(tl).enter_dual_level()
    fw(tl).exit_dual_level()


def test_exit_without_a_level_raises(tl):
    with pytest.raises(RuntimeError, match="Dual level must be a positive number"):
        fw(tl).exit_dual_level()


def test_tangents_vanish_on_exit(tl):
    x, t = pair(tl)
    with fw(tl).dual_level():
        d = fw(tl).make_dual(x, t)
        y = d * 2
        assert numbers(tangent(tl, y)) == [2.0, 2.0, 1.0]
    assert tangent(tl, d) is None and tangent(tl, y) is None
    with fw(tl).dual_level():
        assert tangent(tl, y) is None and tangent(tl, y * 2) is None


def test_a_level_left_by_an_exception_is_closed(tl):
    x, t = pair(tl)

    def broken():
        with fw(tl).dual_level():
            fw(tl).make_dual(x, t)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert fw(tl)._current_level == -1


def test_unpack_outside_a_level_gives_the_tensor_itself(tl):
    x, _ = pair(tl)
    primal, found = fw(tl).unpack_dual(x)
    assert primal is x and found is None


# ---------------------------------------------------------------- making duals


def test_make_dual_outside_a_level_raises(tl):
    x, t = pair(tl)
    with pytest.raises(RuntimeError, match="no level exists"):
        fw(tl).make_dual(x, t)


@pytest.mark.parametrize("which", ["primal", "tangent"])
def test_integral_duals_are_refused(tl, which):
    x, t = pair(tl)
    given = (x.long(), t) if which == "primal" else (x, t.long())
    with fw(tl).dual_level(), pytest.raises(ValueError, match=f"Expected {which} to be floating point or complex"):
        fw(tl).make_dual(*given)


def test_a_tangent_of_another_shape_is_refused(tl):
    x, _ = pair(tl)
    with fw(tl).dual_level(), pytest.raises(RuntimeError, match="forward gradient that has a different size"):
        fw(tl).make_dual(x, tl.ones(2))


def test_a_dual_of_a_dual_is_refused(tl):
    x, t = pair(tl)
    with fw(tl).dual_level():
        d = fw(tl).make_dual(x, t)
        with pytest.raises(RuntimeError, match="already has a forward gradient at the same level"):
            fw(tl).make_dual(d, t)
        with pytest.raises(RuntimeError, match="itself has a forward gradient at the same level"):
            fw(tl).make_dual(x, d)


def test_a_level_that_does_not_exist_is_refused(tl):
    x, t = pair(tl)
    with fw(tl).dual_level(), pytest.raises(RuntimeError, match="Invalid level"):
        fw(tl).make_dual(x, t, level=5)


# ---------------------------------------------------------------- what carries tangents


def test_operations_carry_tangents_whatever_the_grad_mode(tl):
    x, t = pair(tl)
    with fw(tl).dual_level():
        d = fw(tl).make_dual(x, t)
        with tl.no_grad():
            assert numbers(tangent(tl, d * 2)) == [2.0, 2.0, 1.0]


def test_several_outputs_and_integers_among_them(tl):
    x, t = pair(tl)
    with fw(tl).dual_level():
        values, indices = fw(tl).make_dual(x, t).max(0)
        assert numbers(tangent(tl, values)) == 0.5 and tangent(tl, indices) is None
        assert tangent(tl, fw(tl).make_dual(x, t) > 1) is None


def test_detach_drops_the_tangent(tl):
    x, t = pair(tl)
    with fw(tl).dual_level():
        assert tangent(tl, fw(tl).make_dual(x, t).detach()) is None


def test_switching_forward_mode_off(tl):
    x, t = pair(tl)
    assert fw(tl)._is_fwd_grad_enabled()
    with fw(tl).dual_level():
        d = fw(tl).make_dual(x, t)
        with fw(tl)._set_fwd_grad_enabled(False):
            assert not fw(tl)._is_fwd_grad_enabled()
            assert tangent(tl, d * 2) is None and tangent(tl, fw(tl).make_dual(x, t)) is None
        assert fw(tl)._is_fwd_grad_enabled()
        assert numbers(tangent(tl, d)) == numbers(t)


def test_complex_tangents_are_not_conjugated(tl):
    z = tl.tensor([1 + 2j, 3 - 1j])
    with fw(tl).dual_level():
        d = fw(tl).make_dual(z, tl.tensor([1j, 1 + 0j]))
        assert near(tangent(tl, d * d), [-4 + 2j, 6 - 2j])


# ---------------------------------------------------------------- views and writes


def test_a_dual_is_a_view_of_its_primal(tl):
    x, t = pair(tl)
    with fw(tl).dual_level():
        d = fw(tl).make_dual(x, t.clone())
        x.add_(1)
        assert numbers(d) == [2.0, 3.0, 4.0] and numbers(tangent(tl, d)) == numbers(t)
        d.mul_(3)
        assert numbers(x) == [6.0, 9.0, 12.0] and tangent(tl, x) is None
        assert numbers(tangent(tl, d)) == [3.0, 3.0, 1.5]


def test_a_write_into_a_view_reaches_the_base_and_other_views(tl):
    x, t = pair(tl)
    with fw(tl).dual_level():
        base = tl.zeros(2, 3)
        row, column = base[0], base[:, 2]
        row.copy_(fw(tl).make_dual(x, t))
        assert numbers(tangent(tl, base)) == [numbers(t), [0.0] * 3]
        assert numbers(tangent(tl, column)) == [0.5, 0.0]


def test_a_write_into_the_base_reaches_its_views(tl):
    x, t = pair(tl)
    with fw(tl).dual_level():
        base = tl.zeros(2, 3)
        row = base[1]
        base.copy_(fw(tl).make_dual(x, t))
        assert numbers(tangent(tl, row)) == numbers(t)


def test_a_write_under_no_grad_carries_the_tangent(tl):
    x, t = pair(tl)
    with fw(tl).dual_level(), tl.no_grad():
        b = tl.zeros(3)
        b.copy_(fw(tl).make_dual(x, t))
        assert numbers(tangent(tl, b)) == numbers(t)


def test_overwriting_a_dual_with_a_constant_leaves_a_zero_tangent(tl):
    x, t = pair(tl)
    with fw(tl).dual_level():
        d = fw(tl).make_dual(x, t).clone()
        d.zero_()
        found = tangent(tl, d)
        assert found is None or numbers(found) == [0.0] * 3


# ---------------------------------------------------------------- mixed with reverse mode


def test_reverse_over_forward(tl):
    x, t = pair(tl)
    x.requires_grad_()
    with fw(tl).dual_level():
        d = fw(tl).make_dual(x, t)
        assert d.requires_grad and not d.is_leaf
        push = tangent(tl, d.sin())
        (got,) = tl.autograd.grad(push.sum(), x)
    assert near(got, -(x.detach().sin() * t))


def test_forward_over_reverse(tl):
    x, t = pair(tl)
    x.requires_grad_()
    with fw(tl).dual_level():
        d = fw(tl).make_dual(x, t)
        (g,) = tl.autograd.grad((d**3).sum(), d, create_graph=True)
        assert near(tangent(tl, g), 6 * x.detach() * t)


def test_backward_of_the_primal_leaves_the_tangent_readable(tl):
    x, t = pair(tl)
    x.requires_grad_()
    with fw(tl).dual_level():
        y = (fw(tl).make_dual(x, t).sin() * 2).sum()
        y.backward()
        assert near(tangent(tl, y), (x.detach().cos() * t * 2).sum())
    assert near(x.grad, 2 * x.detach().cos())


# ---------------------------------------------------------------- custom Functions


def function(tl, forward, jvp=None):
    space = {"forward": staticmethod(forward)}
    if jvp is not None:
        space["jvp"] = staticmethod(jvp)
    return type("Custom", (tl.autograd.Function,), space)


def test_a_function_without_jvp_is_refused(tl):
    x, t = pair(tl)
    with fw(tl).dual_level(), pytest.raises(NotImplementedError, match="implement the jvp function"):
        function(tl, lambda ctx, x: x * 2).apply(fw(tl).make_dual(x, t))


def test_a_functions_jvp_gets_tangents_and_saved_tensors(tl):
    seen = []

    def forward(ctx, x, k, y):
        ctx.save_for_forward(x)
        return x * x * k

    def jvp(ctx, tx, tk, ty):
        seen.append((tk, numbers(ty)))
        return 2 * ctx.saved_tensors[0] * tx

    x, t = pair(tl)
    with fw(tl).dual_level():
        y = function(tl, forward, jvp).apply(fw(tl).make_dual(x, t), 3.0, tl.ones(2))
        assert numbers(tangent(tl, y)) == [2.0, 4.0, 3.0]
    assert seen == [(None, [0.0, 0.0])]


def test_wrong_numbers_and_kinds_of_forward_gradients_are_refused(tl):
    x, t = pair(tl)
    with fw(tl).dual_level():
        d = fw(tl).make_dual(x, t)
        with pytest.raises(RuntimeError, match=r"invalid number of forward gradients \(expected 1 but got 2\)"):
            function(tl, lambda ctx, x: x * 2, lambda ctx, t: (t, t)).apply(d)
        with pytest.raises(RuntimeError, match="forward gradient that has a different size"):
            function(tl, lambda ctx, x: x * 2, lambda ctx, t: t.sum()).apply(d)
        with pytest.raises(RuntimeError, match="expected Variable or None"):
            function(tl, lambda ctx, x: x * 2, lambda ctx, t: 3).apply(d)


def test_jvp_matches_the_forward_in_view_behaviour(tl):
    x, t = pair(tl)
    with fw(tl).dual_level():
        d = fw(tl).make_dual(x, t)
        good = function(tl, lambda ctx, x: x.view_as(x), lambda ctx, t: t.view_as(t)).apply(d)
        assert numbers(tangent(tl, good)) == numbers(t)
        with pytest.raises(RuntimeError, match=r"returning a view .* but the jvp is not returning a view"):
            function(tl, lambda ctx, x: x.view_as(x), lambda ctx, t: t * 1).apply(d)
        with pytest.raises(RuntimeError, match=r"returning a view .* but the jvp is not returning a view"):
            function(tl, lambda ctx, x: x, lambda ctx, t: t).apply(d)


def test_jvp_matches_the_forward_in_place(tl):
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    x, t = pair(tl)
    with fw(tl).dual_level():
        d = fw(tl).make_dual(x, t).clone()
        function(tl, forward, lambda ctx, t: t.mul_(2)).apply(d)
        assert numbers(tangent(tl, d)) == [2.0, 2.0, 1.0]
        with pytest.raises(RuntimeError, match="not modifying the forward mode gradients inplace"):
            function(tl, forward, lambda ctx, t: t * 2).apply(fw(tl).make_dual(x, t).clone())


# ---------------------------------------------------------------- lifetime


def test_dual_tensors_die_by_reference_count(tl):
    x, t = pair(tl)
    gc.disable()
    try:
        with fw(tl).dual_level():
            d = fw(tl).make_dual(x, t)
            y = d * 2
            refs = [weakref.ref(d), weakref.ref(y)]
            del d, y
            assert all(r() is None for r in refs)
    finally:
        gc.enable()


# ---------------------------------------------------------------- what a tangent's backward needs


WRITES = [
    ("item", lambda z: z.__setitem__(0, z[0] * 2), [2.0, 1.0, 1.0]),
    ("augmented item", lambda z: z[:2].mul_(2), [2.0, 2.0, 1.0]),
    ("view", lambda z: z.view(3, 1)[1:].sub_(1).div_(4), [1.0, 0.25, 0.25]),
    ("added parts", lambda z: z[1:].add_(z[:1]), [3.0, 1.0, 1.0]),
]


@pytest.mark.parametrize(("name", "write", "factors"), WRITES, ids=[n for n, _, _ in WRITES])
def test_a_write_after_a_linear_step_is_no_write_to_a_saved_value(tl, name, write, factors):
    """A slope that does not depend on a value does not need it: forward-over-reverse through views that are written."""
    x, t = pair(tl)
    x.requires_grad_()
    for _ in range(2):
        x.grad = None
        with fw(tl).dual_level():
            z = (fw(tl).make_dual(x, t) ** 2).clone()
            write(z)
            tangent(tl, z).sum().backward()
        assert near(x.grad, [2 * f * s for f, s in zip(factors, t.tolist(), strict=True)])


def test_a_write_to_what_a_slope_depends_on_is_noticed(tl):
    x, t = pair(tl)
    x.requires_grad_()
    with fw(tl).dual_level():
        z = fw(tl).make_dual(x, t).clone()
        y = z.sin()
        z.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            tangent(tl, y).sum().backward()
