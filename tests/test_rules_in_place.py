"""Rules 5, 6, 7: in-place writes, views, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from oracle import grad_or_none, near, numbers

LEAF = "a leaf Variable that requires grad is being used in an in-place operation"
LEAF_VIEW = "a view of a leaf Variable that requires grad is being used in an in-place operation"


def leaf(tl: Any, data: Any) -> Any:
    return tl.tensor(data, requires_grad=True)


def matrix(tl: Any) -> Any:
    return leaf(tl, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


# ---------------------------------------------------------------- in-place on a value


def test_in_place_returns_the_tensor_itself(tl):
    x = tl.ones(2)
    assert x.add_(1) is x and x.mul_(2) is x and x.zero_() is x


def test_in_place_rewrites_value_and_history(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * 2
    before = y.grad_fn
    y.mul_(3)
    assert numbers(y) == [6.0, 12.0] and y.grad_fn is not before and y.grad_fn.name() == "MulBackward0"
    y.sum().backward()
    assert numbers(x.grad) == [6.0, 6.0]


def test_a_constant_becomes_differentiable_when_written(tl):
    x = leaf(tl, [1.0, 2.0])
    y = tl.ones(2)
    assert y.is_leaf and not y.requires_grad
    y.mul_(x)
    assert not y.is_leaf and y.requires_grad
    y.sum().backward()
    assert numbers(x.grad) == [1.0, 1.0]


def test_augmented_assignment_keeps_the_object(tl):
    x = leaf(tl, [1.0, 2.0])
    y = alias = x * 1
    y += 1
    y -= 0.5
    y *= 2
    y /= 4
    y **= 2
    assert y is alias and near(y, [0.5625, 1.5625])
    y.sum().backward()
    assert near(x.grad, [0.75, 1.25])


def test_old_uses_keep_the_old_value(tl):
    x = leaf(tl, [1.0, 2.0])
    a = x * 2
    b = a + 1
    a.mul_(10)
    c = a + 1
    assert numbers(b) == [3.0, 5.0] and numbers(c) == [21.0, 41.0]
    (b + c).sum().backward()
    assert numbers(x.grad) == [22.0, 22.0]


def test_writing_zero_cuts_the_gradient(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * 2
    y.zero_()
    assert y.requires_grad
    y.sum().backward()
    assert numbers(x.grad) == [0.0, 0.0]


def test_fill_and_copy_replace_history(tl):
    x, w = leaf(tl, [1.0, 2.0]), leaf(tl, [3.0, 4.0])
    y = x * 2
    y.copy_(w)
    y.sum().backward()
    assert numbers(x.grad) == [0.0, 0.0] and numbers(w.grad) == [1.0, 1.0]
    y = x * 2
    y.fill_(5)
    y.sum().backward()
    assert numbers(x.grad) == [0.0, 0.0]


def test_copy_broadcasts_and_casts(tl):
    w = tl.tensor(3.0, dtype=tl.float64, requires_grad=True)
    y = tl.zeros(2, 2)
    y.copy_(w)
    assert y.dtype == tl.float32
    y.sum().backward()
    assert numbers(w.grad) == 4.0 and w.grad.dtype == tl.float64


def test_in_place_does_not_broadcast_self_or_promote(tl):
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        tl.ones(1).add_(tl.ones(3))
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        tl.ones(2, dtype=tl.int64).add_(1.5)
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        tl.ones(2, dtype=tl.int64).div_(2)
    x = tl.ones(2)
    x.add_(tl.ones(2, dtype=tl.float64))
    assert x.dtype == tl.float32


def test_a_refused_write_changes_nothing(tl):
    x = tl.ones(1)
    with pytest.raises(RuntimeError):
        x.add_(tl.ones(3))
    assert numbers(x) == [1.0] and x._version == 0


# ---------------------------------------------------------------- leaves


def test_a_leaf_that_requires_grad_refuses_writes(tl):
    x = leaf(tl, [1.0, 2.0])
    for write in (lambda: x.add_(1), lambda: x.zero_(), lambda: x.mul_(x), lambda: x.copy_(tl.zeros(2))):
        with pytest.raises(RuntimeError, match="^(?!.*view of).*" + LEAF):
            write()
    with pytest.raises(RuntimeError, match=LEAF):
        x += 1
    assert numbers(x) == [1.0, 2.0] and x._version == 0


def test_setitem_into_a_leaf_is_a_write_to_its_view(tl):
    x = leaf(tl, [1.0, 2.0])
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad is being used in an in-place operation"):
        x[0] = 5.0
    with pytest.raises(RuntimeError, match=LEAF_VIEW):
        x[0:1].add_(1)
    with pytest.raises(RuntimeError, match=LEAF_VIEW):
        x.view(2, 1).zero_()
    assert numbers(x) == [1.0, 2.0]


def test_no_grad_allows_writes_to_leaves(tl):
    x = leaf(tl, [1.0, 2.0])
    with tl.no_grad():
        x.add_(1)
        x[0] = 7.0
        x[1:].mul_(2)
        x -= 1
    assert numbers(x) == [6.0, 5.0] and x.is_leaf and x.requires_grad and x.grad_fn is None
    (x * x).sum().backward()
    assert numbers(x.grad) == [12.0, 10.0]


def test_only_leaves_may_change_requires_grad(tl):
    x = leaf(tl, [1.0])
    y = x * 2
    with pytest.raises(RuntimeError, match="you can only change requires_grad flags of leaf variables"):
        y.requires_grad = False
    with pytest.raises(RuntimeError, match="you can only change requires_grad flags of leaf variables"):
        y.requires_grad_(False)
    y.requires_grad_(True)
    x.requires_grad_(False)
    assert not x.requires_grad and x.is_leaf
    x.requires_grad = True
    assert x.requires_grad


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", "uint8"])
def test_integers_may_not_require_grad(tl, dtype):
    with pytest.raises(RuntimeError, match="(?i)only tensors of floating point (and complex )?dtype can require gradients"):
        tl.ones(2, dtype=getattr(tl, dtype)).requires_grad_()
    with pytest.raises(RuntimeError, match="(?i)only tensors of floating point (and complex )?dtype can require gradients"):
        tl.zeros(2, dtype=getattr(tl, dtype), requires_grad=True)


def test_a_leaf_that_no_longer_requires_grad_accumulates_nothing(tl):
    x = leaf(tl, [3.0])
    y = x * x
    x.requires_grad_(False)
    y.sum().backward()
    assert x.grad is None


def test_detach_cuts(tl):
    x = leaf(tl, [1.0, 2.0])
    y = (x * 2).detach()
    assert not y.requires_grad and y.is_leaf and y.grad_fn is None
    y.requires_grad_()
    (y * 3).sum().backward()
    assert numbers(y.grad) == [3.0, 3.0] and x.grad is None


def test_detach_in_place(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * 2
    z = y * 3
    assert y.detach_() is y
    assert not y.requires_grad and y.is_leaf
    z.sum().backward()
    assert numbers(x.grad) == [6.0, 6.0]
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        (x * 2)[0:1].detach_()


def test_detach_in_place_of_a_leaf(tl):
    x = leaf(tl, [1.0, 2.0])
    x.detach_()
    assert not x.requires_grad


def test_detach_shares_storage(tl):
    x = tl.ones(2)
    d = x.detach()
    d.add_(1)
    assert numbers(x) == [2.0, 2.0]
    x.mul_(5)
    assert numbers(d) == [10.0, 10.0]


def test_a_write_with_history_through_detach_does_not_reach_the_source(tl):
    w = leaf(tl, [3.0, 4.0])
    x = tl.ones(2)
    d = x.detach()
    d.mul_(w)
    assert d.requires_grad and not x.requires_grad
    assert numbers(x) == [3.0, 4.0]
    d.sum().backward()
    assert numbers(w.grad) == [1.0, 1.0]


def test_writing_through_detach_keeps_the_sources_history(tl):
    x = leaf(tl, [1.0, 2.0])
    a = x * 2
    a.detach().zero_()
    assert a.requires_grad and numbers(a) == [0.0, 0.0]
    a.sum().backward()
    assert numbers(x.grad) == [2.0, 2.0]


def test_writing_data_of_a_leaf(tl):
    x = leaf(tl, [1.0, 2.0])
    x.data.mul_(5)
    x.data[0] = 1.5
    assert numbers(x) == [1.5, 10.0] and x.is_leaf and x.requires_grad
    (x * x).sum().backward()
    assert numbers(x.grad) == [3.0, 20.0]


def test_assigning_data_keeps_identity_and_grad(tl):
    x = leaf(tl, [1.0, 2.0])
    (x * x).sum().backward()
    x.data = tl.tensor([5.0, 6.0])
    assert numbers(x) == [5.0, 6.0] and x.requires_grad and numbers(x.grad) == [2.0, 4.0]
    (x * x).sum().backward()
    assert numbers(x.grad) == [12.0, 16.0]


SOURCES = [
    ("a tensor", lambda t: t),
    ("its data", lambda t: t.data),
    ("its detached data", lambda t: t.data.detach()),
    ("a view", lambda t: t.view(2, 1).view(2)),
    ("a view of its data", lambda t: t.data[:]),
]


@pytest.mark.parametrize(("name", "of"), SOURCES, ids=[n for n, _ in SOURCES])
def test_assigned_data_is_shared(tl, name, of):
    """Writes to either side are seen by the other, the history and the gradient of the leaf stay."""
    x, y = leaf(tl, [1.0, 2.0]), tl.tensor([5.0, 6.0])
    x.data = of(y)
    for step in range(3):
        y.add_(1)
        (x * x).sum().backward()
        assert numbers(x.grad) == [2 * v for v in numbers(y)] and x.is_leaf
        with tl.no_grad():
            x.mul_(2)
        x.grad = None
        assert numbers(y) == numbers(x) == [12.0, 14.0] if step == 0 else numbers(y) == numbers(x)


def test_assigned_data_keeps_history_and_version(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * 3
    y.data = tl.tensor([5.0, 6.0])
    y.retain_grad()
    assert y.requires_grad and not y.is_leaf
    (y * y).sum().backward()
    assert numbers(y.grad) == [10.0, 12.0] and numbers(x.grad) == [30.0, 36.0]
    z = tl.zeros(2)
    z.add_(1)
    before = z[:1]
    z.data = tl.ones(2)
    assert z._version == 1 and numbers(before) == [1.0]
    z.mul_(7)
    assert z._version == 2 and numbers(before) == [1.0]
    x.data = x.data
    seen = x.detach()
    x.data.add_(1)
    assert numbers(seen) == numbers(x) == [2.0, 3.0]


def test_a_detached_value_of_a_detached_value_shares_with_the_first(tl):
    x = tl.zeros(2)
    last = x.detach().data.view(1, 2).detach()[0].detach()
    x.add_(1)
    assert numbers(last) == [1.0, 1.0]
    last.add_(1)
    assert numbers(x) == [2.0, 2.0]


def test_parameters_share_what_they_are_made_of(tl):
    flat = tl.zeros(6)
    p, q = tl.nn.Parameter(flat[:4].view(2, 2)), tl.nn.Parameter(flat[4:])
    for _ in range(3):
        flat.add_(1)
        (p.sum() * (q * q).sum()).backward()
        with tl.no_grad():
            p.copy_(p.grad)
            q.mul_(2)
        p.grad = q.grad = None
    assert numbers(flat) == [98.0] * 4 + [14.0] * 2 and flat._version == p._version == q._version == 9
    frozen = tl.nn.Parameter(flat, requires_grad=False)
    frozen.zero_()
    assert numbers(p) == [[0.0, 0.0], [0.0, 0.0]]


def test_a_view_that_becomes_a_leaf_stays_where_it_is(tl):
    x = tl.zeros(3)
    v = x[:2].requires_grad_()
    x.add_(1)
    (v * v).sum().backward()
    assert v.is_leaf and numbers(v.grad) == [2.0, 2.0]
    with tl.no_grad():
        v.mul_(3)
    assert numbers(x) == [3.0, 3.0, 1.0]


# ---------------------------------------------------------------- views

VIEWS = [
    ("select", lambda t: t[0]),
    ("select method", lambda t: t.select(1, 1)),
    ("slice", lambda t: t[:, 1:]),
    ("step", lambda t: t[:, ::2]),
    ("narrow", lambda t: t.narrow(1, 0, 2)),
    ("t", lambda t: t.t()),
    ("T", lambda t: t.T),
    ("mT", lambda t: t.mT),
    ("transpose", lambda t: t.transpose(0, 1)),
    ("permute", lambda t: t.permute(1, 0)),
    ("view", lambda t: t.view(3, 2)),
    ("view flat", lambda t: t.view(-1)),
    ("reshape", lambda t: t.reshape(6)),
    ("flatten", lambda t: t.flatten()),
    ("unflatten", lambda t: t.unflatten(1, (3, 1))),
    ("unsqueeze", lambda t: t.unsqueeze(1)),
    ("squeeze", lambda t: t.unsqueeze(0).squeeze(0)),
    ("diagonal", lambda t: t.diagonal()),
    ("diagonal offset", lambda t: t.diagonal(1)),
    ("None and Ellipsis", lambda t: t[None, ..., 0]),
    ("view_as", lambda t: t.view_as(t)),
    ("swapaxes", lambda t: t.swapaxes(0, 1)),
    ("movedim", lambda t: t.movedim(0, 1)),
    ("unfold", lambda t: t.unfold(1, 1, 2)),
    ("select of slice", lambda t: t[:, 1:][1]),
    ("slice of transpose", lambda t: t.t()[1:]),
    ("diagonal of slice", lambda t: t[:, 1:].diagonal()),
    ("view of view of view", lambda t: t.view(6)[1:5].view(2, 2).t()[0]),
    ("expand_as itself", lambda t: t.expand(2, 3)),
]
EXPECTED_VIEWS = {
    "select": ([[10.0, 20.0, 30.0], [4.0, 5.0, 6.0]], [[10, 10, 10], [1, 1, 1]]),
    "step": ([[10.0, 2.0, 30.0], [40.0, 5.0, 60.0]], [[10, 1, 10], [10, 1, 10]]),
    "t": ([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]], [[10, 10, 10], [10, 10, 10]]),
    "diagonal": ([[10.0, 2.0, 3.0], [4.0, 50.0, 6.0]], [[10, 1, 1], [1, 10, 1]]),
    "view of view of view": ([[1.0, 20.0, 3.0], [40.0, 5.0, 6.0]], [[1, 10, 1], [10, 1, 1]]),
}


@pytest.mark.parametrize(("name", "view"), VIEWS, ids=[n for n, _ in VIEWS])
def test_a_write_through_a_view_reaches_the_base(tl, name, view):
    x = matrix(tl)
    base = x * 1
    v = view(base)
    assert v.requires_grad and not v.is_leaf
    v.mul_(10)
    mask = numbers(base.detach() / x.detach())
    if name in EXPECTED_VIEWS:
        value, factor = EXPECTED_VIEWS[name]
        assert near(base, value) and near(mask, factor)
    assert near(v, view(base))
    assert base.grad_fn.name() == "torch::autograd::CopySlices"
    weight = tl.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    (base * weight).sum().backward()
    assert near(x.grad, [[m * w for m, w in zip(a, b, strict=True)] for a, b in zip(mask, numbers(weight), strict=True)])


@pytest.mark.parametrize(("name", "view"), VIEWS, ids=[n for n, _ in VIEWS])
def test_the_gradient_of_a_view_after_its_base_was_written(tl, name, view):
    x = matrix(tl)
    base = x * 1
    v = view(base)
    base.mul_(x.detach())
    assert near(v, view(base.detach()))
    v.sum().backward()
    y = matrix(tl)
    view(y * y.detach()).sum().backward()
    assert near(x.grad, numbers(y.grad))


@pytest.mark.parametrize(("name", "view"), VIEWS, ids=[n for n, _ in VIEWS])
def test_a_base_that_did_not_require_grad_is_rewritten_through_its_view(tl, name, view):
    base = tl.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    v = view(base)
    sibling = base.view(-1)
    w = leaf(tl, 3.0)
    v.mul_(w)
    assert base.requires_grad and v.requires_grad and sibling.requires_grad and not base.is_leaf
    (sibling * sibling).sum().backward()
    touched = numbers(view(tl.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])) ** 2)

    def total(nested: Any) -> float:
        return sum(map(total, nested)) if isinstance(nested, list) else nested

    assert near(w.grad, 2 * 3.0 * total(touched))


def test_a_sibling_views_grad_fn_is_regenerated(tl):
    x = matrix(tl)
    base = x * 1
    first, row = base[0], base[0, 1:]
    before = first.grad_fn
    base[1].zero_()
    assert first.grad_fn is not before
    first.mul_(2)
    assert numbers(row) == [4.0, 6.0]
    row.add_(1)
    assert numbers(base) == [[2.0, 5.0, 7.0], [0.0, 0.0, 0.0]] and numbers(first) == [2.0, 5.0, 7.0]
    base.sum().backward()
    assert numbers(x.grad) == [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]]


def test_overlapping_views_written_in_turn(tl):
    x = leaf(tl, [1.0, 2.0, 3.0, 4.0])
    a = x * 1
    left, right = a[:3], a[1:]
    left.mul_(2)
    right.mul_(3)
    left.add_(right.clone())
    assert numbers(a) == [2 + 12.0, 12.0 + 18.0, 18.0 + 12.0, 12.0]
    (a * tl.tensor([1.0, 10.0, 100.0, 1000.0])).sum().backward()
    assert numbers(x.grad) == [2.0, 6 * 11.0, 6 * 110.0, 3 * 1100.0]


def test_a_view_written_with_itself(tl):
    x = leaf(tl, [1.0, 2.0, 3.0])
    a = x * 1
    v = a[:2]
    v.add_(a[1:].clone())
    assert numbers(a) == [3.0, 5.0, 3.0]
    a.sum().backward()
    assert numbers(x.grad) == [1.0, 2.0, 2.0]


def test_views_know_their_base(tl):
    x = tl.zeros(2, 3)
    v = x[0]
    assert v._base is x and v._is_view() and x._base is None and not x._is_view()
    assert v[1:]._base is x
    assert x.clone()._base is None and not (x + 1)._is_view()


def test_requires_grad_of_a_view_of_a_plain_base(tl):
    base = tl.zeros(4)
    v = base[:2]
    v.requires_grad_()
    assert v.is_leaf and not base.requires_grad
    (v * 3).sum().backward()
    assert numbers(v.grad) == [3.0, 3.0]


def test_expanded_memory_is_not_written(tl):
    with pytest.raises(RuntimeError, match="(?i)more than one element of the written-to tensor refers to a single memory location"):
        tl.ones(1).expand(3).add_(1)


def test_real_and_imaginary_parts_are_views(tl):
    z = tl.tensor([1.0 + 2.0j, 3.0 + 4.0j], requires_grad=True)
    y = z * 1
    y.real.mul_(10)
    y.imag.zero_()
    assert near(y, [10 + 0j, 30 + 0j])
    y.real.sum().backward()
    assert near(z.grad, [10 + 0j, 10 + 0j])


def test_view_as_real_is_a_view(tl):
    z = tl.tensor([1.0 + 2.0j, 3.0 + 4.0j], requires_grad=True)
    y = z * 1
    tl.view_as_real(y)[:, 0].mul_(10)
    assert near(y, [10 + 2j, 30 + 4j])
    (y.real.sum() + 2 * y.imag.sum()).backward()
    assert near(z.grad, [10 + 2j, 10 + 2j])


# ---------------------------------------------------------------- forbidden view writes

MULTI = [
    ("unbind", lambda t: t.unbind(0)),
    ("split", lambda t: t.split(1)),
    ("chunk", lambda t: t.chunk(2)),
    ("iteration", lambda t: list(t)),
    ("split sizes", lambda t: t.split([1, 1])),
]


@pytest.mark.parametrize(("name", "several"), MULTI, ids=[n for n, _ in MULTI])
def test_outputs_of_several_view_ops_refuse_writes(tl, name, several):
    x = matrix(tl)
    parts = several(x * 1)
    with pytest.raises(RuntimeError, match="This view is the output of a function that returns multiple views"):
        parts[0].mul_(2)
    with pytest.raises(RuntimeError, match="This view is the output of a function that returns multiple views"):
        parts[0].view(-1).mul_(2)


@pytest.mark.parametrize(("name", "several"), MULTI, ids=[n for n, _ in MULTI])
def test_outputs_of_several_view_ops_may_be_written_without_grad(tl, name, several):
    base = tl.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    parts = several(base)
    parts[0].mul_(2)
    assert near(parts[0], several(base)[0]) and numbers(base)[0][0] == 2.0
    y = matrix(tl) * 1
    parts = several(y)
    with tl.no_grad():
        parts[0].mul_(2)
    assert numbers(y)[0][0] == 2.0


@pytest.mark.parametrize(("name", "several"), MULTI, ids=[n for n, _ in MULTI])
def test_gradients_flow_through_several_view_ops(tl, name, several):
    x = matrix(tl)
    parts = several(x * 2)
    base_written = sum((i + 1) * p.sum() for i, p in enumerate(parts))
    base_written.backward()
    assert x.grad is not None and numbers(x.grad)[0][0] == 2.0


def test_a_written_base_reaches_the_parts(tl):
    x = matrix(tl)
    y = x * 1
    first, second = y.tensor_split(2)
    y.mul_(2)
    assert numbers(second) == [[8.0, 10.0, 12.0]]
    second.mul_(10)
    (first.sum() + y.sum()).backward()
    assert numbers(x.grad) == [[4.0] * 3, [20.0] * 3]


def test_a_view_made_under_no_grad_may_not_be_written_with_grad(tl):
    x = matrix(tl)
    y = x * 1
    with tl.no_grad():
        v = y[0]
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode and is being modified inplace with grad mode enabled"):
        v.mul_(2)
    with tl.no_grad():
        v.mul_(2)
    assert numbers(y) == [[2.0, 4.0, 6.0], [4.0, 5.0, 6.0]]


def test_a_view_made_under_no_grad_of_a_plain_base_may_be_written(tl):
    y = tl.ones(2, 2)
    with tl.no_grad():
        v = y[0]
    v.mul_(2)
    assert numbers(y) == [[2.0, 2.0], [1.0, 1.0]]


def test_a_no_grad_view_refuses_a_differentiable_operand(tl):
    w = leaf(tl, 2.0)
    y = tl.ones(2, 2)
    with tl.no_grad():
        v = y[0]
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
        v.mul_(w)


def test_a_view_returned_from_a_function_refuses_writes(tl):
    class Row(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x[0]

        @staticmethod
        def backward(ctx, g):
            return tl.stack([g, tl.zeros_like(g)])

    x = matrix(tl)
    v = Row.apply(x * 1)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        v.mul_(2)


def test_a_leaf_views_refusal_comes_before_the_value_changes(tl):
    x = matrix(tl)
    with pytest.raises(RuntimeError, match=LEAF_VIEW):
        x[0].mul_(2)
    assert numbers(x)[0] == [1.0, 2.0, 3.0]


# ---------------------------------------------------------------- setitem in all forms

INDICES = [
    ("int", lambda tl: 0),
    ("negative int", lambda tl: -1),
    ("slice", lambda tl: slice(0, 1)),
    ("step", lambda tl: (slice(None), slice(0, None, 2))),
    ("range of columns", lambda tl: (slice(None), slice(1, 3))),
    ("range of columns from the end", lambda tl: (..., slice(-2, -1))),
    ("range beyond the end", lambda tl: (slice(None), slice(1, 9))),
    ("Ellipsis", lambda tl: (..., 0)),
    ("None", lambda tl: (None, 1)),
    ("two ints", lambda tl: (1, 2)),
    ("bool mask", lambda tl: tl.tensor([[True, False, True], [False, True, False]])),
    ("row mask", lambda tl: tl.tensor([True, False])),
    ("integer array", lambda tl: tl.tensor([1, 0])),
    ("list", lambda tl: [1]),
    ("two arrays", lambda tl: (tl.tensor([0, 1]), tl.tensor([2, 0]))),
    ("array and slice", lambda tl: (slice(None), tl.tensor([2, 0]))),
    ("array and int", lambda tl: (0, tl.tensor([2, 0]))),
    ("0-d tensor", lambda tl: tl.tensor(1)),
    ("nested array", lambda tl: (slice(None), tl.tensor([[2], [0]]))),
    ("whole", lambda tl: slice(None)),
    ("empty slice", lambda tl: slice(2, 2)),
    ("True", lambda tl: True),
]


@pytest.mark.parametrize(("name", "index"), INDICES, ids=[n for n, _ in INDICES])
def test_setitem_with_a_number(tl, name, index):
    x = matrix(tl)
    y = x * 1
    y[index(tl)] = -1.0
    touched = numbers(y.detach() == -1.0)
    if name == "bool mask":
        assert numbers(y) == [[-1.0, 2.0, -1.0], [4.0, -1.0, 6.0]]
    if name == "step":
        assert numbers(y) == [[-1.0, 2.0, -1.0], [-1.0, 5.0, -1.0]]
    y.sum().backward()
    assert numbers(x.grad) == [[0.0 if t else 1.0 for t in row] for row in touched]


@pytest.mark.parametrize(("name", "index"), INDICES, ids=[n for n, _ in INDICES])
def test_setitem_with_a_tensor(tl, name, index):
    x = matrix(tl)
    y = x * 1
    at = index(tl)
    value = leaf(tl, 7.0)
    y[at] = value
    count = y[at].numel()
    assert near(y[at].detach(), tl.full_like(y[at].detach(), 7.0))
    y.sum().backward()
    assert near(value.grad, float(count)) or (value.grad is None and count == 0)


@pytest.mark.parametrize(("name", "index"), INDICES, ids=[n for n, _ in INDICES])
def test_augmented_setitem(tl, name, index):
    x = matrix(tl)
    y = x * 1
    at = index(tl)
    y[at] *= 3
    factor = numbers(y.detach() / x.detach())
    assert near(y[at].detach(), x.detach()[at] * 3)
    y.sum().backward()
    assert near(x.grad, factor)


@pytest.mark.parametrize(("name", "index"), INDICES, ids=[n for n, _ in INDICES])
def test_getitem_and_its_gradient(tl, name, index):
    x = matrix(tl)
    y = x[index(tl)]
    (y * y).sum().backward()
    hit = tl.zeros(2, 3)
    hit[index(tl)] = 1.0
    assert near(x.grad, numbers(2 * x.detach() * hit))


def test_setitem_into_a_plain_tensor_records(tl):
    w = leaf(tl, [1.0, 2.0])
    out = tl.zeros(3, 2)
    for i in range(3):
        out[i] = w * i
    assert out.requires_grad and numbers(out) == [[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]]
    (out * out).sum().backward()
    assert numbers(w.grad) == [10.0, 20.0]


def test_setitem_broadcasts_the_value(tl):
    w = leaf(tl, [1.0, 2.0, 3.0])
    out = tl.zeros(2, 3)
    out[:] = w
    out[:, 1] = w[0]
    assert numbers(out) == [[1.0, 1.0, 3.0], [1.0, 1.0, 3.0]]
    out.sum().backward()
    assert numbers(w.grad) == [4.0, 0.0, 2.0]


def test_setitem_of_wrong_shape_is_refused(tl):
    out = tl.zeros(2, 3)
    with pytest.raises(RuntimeError, match="(?i)shape mismatch|must match|expand"):
        out[0] = tl.ones(2)
    with pytest.raises(IndexError, match="index 5 is out of bounds for dimension 0 with size 2"):
        out[5] = 1.0
    with pytest.raises(IndexError, match="too many indices for tensor of dimension 2"):
        out[0, 0, 0] = 1.0
    assert numbers(out) == [[0.0] * 3] * 2 and out._version == 0


def test_setitem_with_a_leaf_value_that_is_written_later(tl):
    x = leaf(tl, [1.0, 2.0])
    a = x * 1
    out = tl.zeros(2, 2)
    out[0] = a
    a.mul_(10)
    assert numbers(out) == [[1.0, 2.0], [0.0, 0.0]]
    out.sum().backward()
    assert numbers(x.grad) == [1.0, 1.0]


def test_setitem_from_an_overlapping_view_of_itself(tl):
    x = leaf(tl, [1.0, 2.0, 3.0])
    a = x * 1
    a[1:] = a[:-1].clone()
    assert numbers(a) == [1.0, 1.0, 2.0]
    a.sum().backward()
    assert numbers(x.grad) == [2.0, 1.0, 0.0]


# ---------------------------------------------------------------- retain_grad and in-place


def test_retain_grad_keeps_the_gradient_of_a_nonleaf(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * 2
    y.retain_grad()
    assert y.retains_grad and not x.retains_grad
    (y * y).sum().backward()
    assert numbers(y.grad) == [4.0, 8.0] and numbers(x.grad) == [8.0, 16.0]


def test_retain_grad_accumulates_over_backwards(tl):
    x = leaf(tl, [1.0])
    y = x * 2
    y.retain_grad()
    (y * 3).sum().backward(retain_graph=True)
    (y * 5).sum().backward()
    assert numbers(y.grad) == [8.0]


def test_retain_grad_on_a_leaf_does_nothing(tl):
    x = leaf(tl, [1.0])
    x.retain_grad()
    assert not x.retains_grad
    (x * 3).sum().backward()
    assert numbers(x.grad) == [3.0]


def test_retain_grad_without_requires_grad_raises(tl):
    with pytest.raises(RuntimeError, match="can't retain_grad on Tensor that has requires_grad=False"):
        tl.ones(1).retain_grad()


def test_retain_grad_follows_the_latest_version(tl):
    x = leaf(tl, [1.0])
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    (y * 5).sum().backward()
    assert numbers(y.grad) == [5.0] and numbers(x.grad) == [30.0]


def test_retain_grad_twice_with_writes_between(tl):
    x = leaf(tl, [1.0])
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    y.retain_grad()
    y.mul_(7)
    (y * 5).sum().backward()
    assert numbers(y.grad) == [5.0] and numbers(x.grad) == [210.0]


def test_retain_grad_of_a_view_whose_base_is_written(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * 2
    v = y[0:1]
    v.retain_grad()
    y.mul_(3)
    (v * 5).sum().backward()
    assert numbers(x.grad) == [30.0, 0.0]
    assert grad_or_none(v) in ([5.0], None)


def test_retain_grad_of_a_view_written_in_place(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * 2
    v = y[0:1]
    v.retain_grad()
    v.mul_(3)
    (v * 5).sum().backward()
    assert numbers(x.grad) == [30.0, 0.0] and grad_or_none(v) == [5.0]


def test_reading_grad_of_a_nonleaf_warns(tl):
    x = leaf(tl, [1.0])
    y = x * 2
    with pytest.warns(UserWarning, match=r"The .grad attribute of a Tensor that is not a leaf Tensor is being accessed"):
        assert y.grad is None
    y.retain_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert y.grad is None and x.grad is None and tl.ones(1).grad is None


def test_in_place_division_and_power_chain(tl):
    x = leaf(tl, [2.0, 3.0])
    y = x.clone()
    y.pow_(2).div_(4).sin_().mul_(2).add_(1)
    y.sum().backward()
    assert near(x.grad, [2 * 0.5403023, 3 * -0.62817362])


def test_in_place_maths_on_views_of_views(tl):
    x = matrix(tl)
    y = x * 1
    y[0][1:].sin_()
    y.t()[0].pow_(2)
    y.view(-1)[3:].mul_(3)
    y.sum().backward()
    assert near(x.grad, [[2.0, -0.41614684, -0.9899925], [24.0, 3.0, 3.0]])


def test_a_saved_result_in_a_view_is_watched(tl):
    x = matrix(tl)
    y = x * 1
    y.t()[0].tanh_()
    y.view(-1)[3:].mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = x * 1
    y[0].exp_()
    y.sum().backward()
    assert near(x.grad, [[2.7182817, 7.389056, 20.085537], [1.0, 1.0, 1.0]])


def test_in_place_saves_a_copy_of_what_it_overwrites(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * 3
    y.mul_(x)
    y.pow_(2)
    y.sum().backward()
    assert numbers(x.grad) == [36.0, 288.0]
    y = x * 3
    y[0:1].mul_(x[1:])
    y.sum().backward()
    assert numbers(x.grad) == [36.0 + 6.0, 288.0 + 3.0 + 3.0]


def test_in_place_with_itself_as_the_other_operand_is_noticed(tl):
    x = leaf(tl, [1.0, 2.0])
    y = x * 3
    y.mul_(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("at", ["leaf", "value", "inputs"])
def test_second_order_through_a_write_that_was_not_recorded(tl, at):
    """The value is the new one, its slope the old one's, in every order; what was overwritten is not needed."""
    x = tl.tensor([0.5, -1.0, 2.0], dtype=tl.float64, requires_grad=True)
    y = x.sin()
    with tl.no_grad():
        y.tanh_()
    (g,) = tl.autograd.grad((y * y).sum(), x if at == "leaf" else y, create_graph=True)
    (g * g).sum().backward(inputs=[y] if at == "inputs" else None)
    v = np.array([0.5, -1.0, 2.0])
    value, slope = np.tanh(np.sin(v)), np.cos(v)
    expected = {
        "leaf": 4 * value * slope * (2 * slope**2 - 2 * value * np.sin(v)),
        "value": 8 * value * slope,
        "inputs": 8 * value,
    }[at]
    assert near((y if at == "inputs" else x).grad, expected.tolist())
