"""Values read early, before, between and after: forcing changes when something is computed, never what."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from oracle import grad_or_none, near, numbers

READ = {
    "item": lambda t: t.sum().item(),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.detach().numpy(),
    "print": lambda t: repr(t),
    "bool": lambda t: bool(t.sum() > 0),
    "float": lambda t: float(t.detach().sum()),
    "iterate": lambda t: [float(v) for v in t.detach().reshape(-1)],
}
E = 2.7182817


def leaf(tl: Any, data: Any) -> Any:
    return tl.tensor(data, requires_grad=True)


@pytest.fixture(params=READ)
def read(request: pytest.FixtureRequest) -> Any:
    return READ[request.param]


def test_a_value_read_between_forward_and_backward(tl, read):
    x = leaf(tl, [1.0, 2.0])
    h = x.exp()
    read(h)
    loss = (h * h).sum()
    read(loss)
    loss.backward()
    assert near(x.grad, [2 * E**2, 2 * 54.598152])


def test_reading_with_hooks(tl, read):
    seen = []
    x = leaf(tl, [1.0, 2.0])
    h = x.exp()
    h.register_hook(lambda g: (seen.append(numbers(g)), g * 2)[1])
    read(h)
    k = h * 3
    k.retain_grad()
    read(k)
    k.sum().backward()
    assert seen == [[3.0, 3.0]] and numbers(k.grad) == [1.0, 1.0] and near(x.grad, [6 * E, 6 * 7.389056])


def test_a_hook_registered_after_the_read(tl, read):
    seen = []
    x = leaf(tl, [1.0, 2.0])
    h = x * 3
    k = h.exp()
    read(k)
    h.register_hook(lambda g: (seen.append(1), g * 2)[1])
    k.sum().backward()
    assert seen == [1] and near(x.grad, [6 * 20.085537, 6 * 403.42880])


def test_reading_with_inputs_filters(tl, read):
    x, w = leaf(tl, [1.0, 2.0]), leaf(tl, [3.0, 4.0])
    h = x * w
    k = h.exp()
    read(k)
    loss = k.sum()
    loss.backward(inputs=[h, w], retain_graph=True)
    assert x.grad is None and near(grad_or_none(h), [20.085537, 2980.958]) and near(w.grad, [20.085537, 2 * 2980.958])
    (g,) = tl.autograd.grad(loss, h)
    assert near(g, [20.085537, 2980.958])


def test_reading_after_in_place(tl, read):
    x = leaf(tl, [1.0, 2.0])
    h = x * 2
    h.mul_(3)
    read(h)
    h[0] = 0.0
    read(h)
    h.add_(x)
    (h * h).sum().backward()
    assert numbers(h) == [1.0, 14.0] and numbers(x.grad) == [2.0, 2 * 14 * 7.0]


def test_reading_views_and_bases(tl, read):
    x = leaf(tl, [1.0, 2.0, 3.0])
    y = x * 1
    v = y[1:]
    read(v)
    v.mul_(2)
    read(y)
    y[0:1].mul_(5)
    read(v)
    (y * y).sum().backward()
    assert numbers(x.grad) == [50.0, 16.0, 24.0]


def test_reading_part_of_a_graph_twice(tl, read):
    x = leaf(tl, [1.0, 2.0])
    a = x * 2
    b = a.exp()
    read(a)
    read(b)
    c = (a * b).sum()
    read(c)
    c.backward()
    assert near(x.grad, [2 * 7.389056 * 3, 2 * 54.59815 * 5])


def test_reading_between_two_heads(tl, read):
    x = leaf(tl, [1.0, 2.0])
    trunk = x * x
    first, second = (trunk * 2).sum(), (trunk * 3).sum()
    read(first)
    first.backward(retain_graph=True)
    read(second)
    second.backward()
    assert numbers(x.grad) == [10.0, 20.0]


def test_reading_before_double_backward(tl, read):
    x = leaf(tl, [1.0, 2.0])
    y = (x**3).sum()
    read(y)
    (g,) = tl.autograd.grad(y, x, create_graph=True)
    read(g)
    (g**2).sum().backward()
    assert near(x.grad, [36.0, 288.0])


def test_reading_a_gradient_then_accumulating(tl, read):
    x = leaf(tl, [1.0, 2.0])
    (x * x).sum().backward()
    g = x.grad
    read(g)
    (x * x).sum().backward()
    assert x.grad is g and numbers(g) == [4.0, 8.0]


def test_reading_inside_the_loop(tl, read):
    w = leaf(tl, [1.0, 2.0])
    for _ in range(4):
        loss = (w * w).sum()
        read(loss)
        loss.backward()
        with tl.no_grad():
            w -= 0.25 * w.grad
        w.grad = None
        read(w)
    assert near(w, [0.0625, 0.125])


def test_reading_under_no_grad_keeps_the_graph(tl, read):
    x = leaf(tl, [1.0, 2.0])
    h = x.exp()
    with tl.no_grad():
        read(h)
        read(h * 2)
    h.sum().backward()
    assert near(x.grad, [E, 7.389056])


def test_functions_and_reading(tl, read):
    class Double(tl.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            read(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            read(x)
            read(g)
            return g * 2

    x = leaf(tl, [1.0, 2.0])
    y = Double.apply(x.exp())
    read(y)
    y.sum().backward()
    assert near(x.grad, [2 * E, 2 * 7.389056])


def test_several_outputs_of_one_op_read_apart(tl, read):
    x = leaf(tl, [[3.0, 1.0], [2.0, 5.0]])
    values, where = x.max(1)
    read(values)
    assert numbers(where) == [0, 1]
    top, _ = x.sort(0)
    read(top)
    (values.sum() + (top * top).sum()).backward()
    assert numbers(x.grad) == [[7.0, 2.0], [4.0, 11.0]]


# ---------------------------------------------------------------- conversions


def test_item_of_several_elements_is_refused(tl):
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted to Scalar"):
        tl.ones(2).item()


def test_bool_of_several_elements_is_refused(tl):
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"):
        bool(tl.ones(2))
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with no values is ambiguous"):
        bool(tl.ones(0))


def test_numpy_of_a_tensor_that_requires_grad_is_refused(tl):
    x = leaf(tl, [1.0])
    with pytest.raises(RuntimeError, match=r"Can't call numpy\(\) on Tensor that requires grad"):
        x.numpy()
    assert x.detach().numpy().tolist() == [1.0]
    with pytest.raises(RuntimeError, match="requires grad"):
        np.asarray(x)


def test_len_iteration_and_contains(tl):
    x = tl.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert len(x) == 2 and [numbers(r) for r in x] == [[1.0, 2.0], [3.0, 4.0]] and 3.0 in x and 7.0 not in x
    with pytest.raises(TypeError, match="len.. of a 0-d tensor"):
        len(tl.tensor(1.0))
    with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
        iter(tl.tensor(1.0))


def test_tensors_hash_by_identity(tl):
    a, b = tl.ones(2), tl.ones(2)
    assert len({a, b, a}) == 2 and {a: 1}[a] == 1


def test_deepcopy_of_leaves_and_of_results(tl):
    x = leaf(tl, [1.0, 2.0])
    (x * x).sum().backward()
    y = copy.deepcopy(x)
    assert y is not x and y.requires_grad and numbers(y) == [1.0, 2.0] and numbers(y.grad) == [2.0, 4.0]
    with tl.no_grad():
        y.add_(1)
    assert numbers(x) == [1.0, 2.0]
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user .* support the deepcopy protocol"):
        copy.deepcopy(x * 2)
    p, q = copy.deepcopy([x, x])
    assert p is q


def test_a_copied_parameter_has_no_gradient(tl):
    p = tl.nn.Parameter(tl.tensor([1.0, 2.0]))
    p.tag = "mine"
    p.grad = tl.ones(2)
    q, again = copy.deepcopy([p, p])
    assert q is again and type(q) is tl.nn.Parameter and q.requires_grad and q.grad is None and not hasattr(q, "tag")
    with tl.no_grad():
        q.add_(1)
    assert numbers(p) == [1.0, 2.0] and numbers(q) == [2.0, 3.0]
    assert not copy.deepcopy(tl.nn.Parameter(p, requires_grad=False)).requires_grad


def test_pickling_leaves(tl):
    x = leaf(tl, [1.0, 2.0])
    y = pickle.loads(pickle.dumps(x))
    assert y.requires_grad and numbers(y) == [1.0, 2.0] and y.dtype == tl.float32
    z = pickle.loads(pickle.dumps(tl.tensor([1, 2], dtype=tl.int32)))
    assert numbers(z) == [1, 2] and z.dtype == tl.int32


def test_repr_shows_how_a_tensor_came_about(tl):
    x = leaf(tl, [1.0, 2.0])
    assert repr(x) == "tensor([1., 2.], requires_grad=True)"
    assert repr(x * 2) == "tensor([2., 4.], grad_fn=<MulBackward0>)"
    assert repr(tl.tensor(3)) == "tensor(3)"
    y = x * 2
    y[0] = 5.0
    assert repr(y) == "tensor([5., 4.], grad_fn=<CopySlices>)"


def test_as_index_and_as_number(tl):
    assert [10, 20, 30][tl.tensor(1)] == 20
    assert int(tl.tensor(3.7)) == 3 and float(tl.tensor(2)) == 2.0 and complex(tl.tensor(2.0)) == 2 + 0j
    assert list(range(tl.tensor(3))) == [0, 1, 2]
