"""Hooks on saved tensors, and writing saved values: what is packed, when, and what backward makes of it."""

from __future__ import annotations

import gc
import math
import weakref

import pytest

import tapejax as tj
from oracle import square_of
from tapejax.autograd.graph import (
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)

torch = pytest.importorskip("torch")


def _leaf(lib, *shape: int, scale: float = 0.25, grad: bool = True):
    n = math.prod(shape)
    return lib.tensor([scale * (i + 1) for i in range(n)], dtype=lib.float64).reshape(shape).requires_grad_(grad)


def _packs(lib, build):
    """What is packed while `build` records, how often backward unpacks, and the gradients."""
    packed, unpacked = [], []

    def pack(x):
        packed.append((tuple(x.shape), [round(v, 6) for v in x.detach().reshape(-1)[:1].tolist()]))
        return x

    def unpack(x):
        unpacked.append(1)
        return x

    hooks = lib.autograd.graph.saved_tensors_hooks(pack, unpack)
    x, y, c = _leaf(lib, 3).detach().requires_grad_(), _leaf(lib, 3, scale=0.5).detach().requires_grad_(), _leaf(lib, 3, scale=0.125, grad=False)
    m, n = _leaf(lib, 3, 3, scale=0.1).detach().requires_grad_(), _leaf(lib, 3, 3, scale=0.2).detach().requires_grad_()
    with hooks:
        z = build(lib, x, y, c, m, n)
    z.sum().backward()
    return packed, len(unpacked), [None if t.grad is None else t.grad.tolist() for t in (x, y, m, n)]


CASES = {
    "mul of two": lambda t, x, y, c, m, n: x * y,
    "square by itself": lambda t, x, y, c, m, n: x * x,
    "mul with a constant": lambda t, x, y, c, m, n: x * c,
    "mul with a number": lambda t, x, y, c, m, n: x * 2,
    "add": lambda t, x, y, c, m, n: x + y,
    "div": lambda t, x, y, c, m, n: x / y,
    "constant over x": lambda t, x, y, c, m, n: c / x,
    "pow": lambda t, x, y, c, m, n: x**2,
    "pow of two": lambda t, x, y, c, m, n: x**y,
    "exp": lambda t, x, y, c, m, n: x.exp(),
    "tanh": lambda t, x, y, c, m, n: x.tanh(),
    "sqrt": lambda t, x, y, c, m, n: x.sqrt(),
    "sigmoid": lambda t, x, y, c, m, n: x.sigmoid(),
    "softmax": lambda t, x, y, c, m, n: m.softmax(0) * n,
    "log_softmax": lambda t, x, y, c, m, n: m.log_softmax(-1)[0],
    "sin": lambda t, x, y, c, m, n: x.sin(),
    "matmul": lambda t, x, y, c, m, n: m @ n,
    "matmul with a constant": lambda t, x, y, c, m, n: m @ n.detach(),
    "linear": lambda t, x, y, c, m, n: t.nn.functional.linear(m, n, x),
    "view and select": lambda t, x, y, c, m, n: x.view(3, 1)[0],
    "cat": lambda t, x, y, c, m, n: t.cat([x, y]),
    "max over a dim": lambda t, x, y, c, m, n: m.max(0).values,
    "norm": lambda t, x, y, c, m, n: x.norm(),
    "logsumexp": lambda t, x, y, c, m, n: x.logsumexp(0),
    "mse_loss": lambda t, x, y, c, m, n: t.nn.functional.mse_loss(x, y),
    "in-place exp": lambda t, x, y, c, m, n: (x * 1).exp_(),
    "in-place mul": lambda t, x, y, c, m, n: (x * 1).mul_(y),
}


def _spd(t, m):
    return m @ m.t() + 2 * t.eye(3, dtype=t.float64)


_classes = [0, 2, 1]
BESIDE_OPERANDS = {
    "sort": lambda t, x, y, c, m, n: t.sort(m, 1, descending=True)[0],
    "msort": lambda t, x, y, c, m, n: t.msort(m),
    "topk": lambda t, x, y, c, m, n: m.topk(2)[0],
    "kthvalue": lambda t, x, y, c, m, n: m.kthvalue(2)[0],
    "mode": lambda t, x, y, c, m, n: m.mode()[0],
    "min over a dim": lambda t, x, y, c, m, n: m.min(1, keepdim=True)[0],
    "median over a dim": lambda t, x, y, c, m, n: m.median(1)[0],
    "cummax": lambda t, x, y, c, m, n: m.cummax(1)[0],
    "cummin": lambda t, x, y, c, m, n: m.cummin(1)[0],
    "aminmax": lambda t, x, y, c, m, n: sum(t.aminmax(m)),
    "var_mean": lambda t, x, y, c, m, n: sum(t.var_mean(m, 1)),
    "std_mean": lambda t, x, y, c, m, n: sum(t.std_mean(m, 1)),
    "svd": lambda t, x, y, c, m, n: t.linalg.svd(_spd(t, m))[1],
    "svdvals": lambda t, x, y, c, m, n: t.linalg.svdvals(_spd(t, m)),
    "eigh": lambda t, x, y, c, m, n: t.linalg.eigh(_spd(t, m))[0],
    "eigvalsh": lambda t, x, y, c, m, n: t.linalg.eigvalsh(_spd(t, m)),
    "qr": lambda t, x, y, c, m, n: t.linalg.qr(_spd(t, m))[1],
    "slogdet": lambda t, x, y, c, m, n: t.linalg.slogdet(_spd(t, m))[1],
    "logdet": lambda t, x, y, c, m, n: t.logdet(_spd(t, m)),
    "det": lambda t, x, y, c, m, n: t.linalg.det(_spd(t, m)),
    "solve": lambda t, x, y, c, m, n: t.linalg.solve(_spd(t, m), n),
    "lu": lambda t, x, y, c, m, n: t.linalg.lu(_spd(t, m))[2],
    "lu_solve": lambda t, x, y, c, m, n: t.linalg.lu_solve(*t.linalg.lu_factor(_spd(t, m)), n),
    "cholesky_ex": lambda t, x, y, c, m, n: t.linalg.cholesky_ex(_spd(t, m))[0],
    "cholesky_solve, constant factor": lambda t, x, y, c, m, n: t.cholesky_solve(n, m.detach()),
    "layer_norm": lambda t, x, y, c, m, n: t.nn.functional.layer_norm(m, (3,), x, y),
    "layer_norm without weight": lambda t, x, y, c, m, n: t.nn.functional.layer_norm(m, (3,)),
    "layer_norm of a constant": lambda t, x, y, c, m, n: t.nn.functional.layer_norm(m.detach(), (3,), x, y),
    "rms_norm": lambda t, x, y, c, m, n: t.nn.functional.rms_norm(m, (3,), x),
    "rms_norm without weight": lambda t, x, y, c, m, n: t.nn.functional.rms_norm(m, (3,)),
    "rms_norm of a constant": lambda t, x, y, c, m, n: t.nn.functional.rms_norm(m.detach(), (3,), x),
    "group_norm": lambda t, x, y, c, m, n: t.nn.functional.group_norm(m.view(1, 3, 3), 3, x, y),
    "batch_norm in training": lambda t, x, y, c, m, n: t.nn.functional.batch_norm(m, None, None, x, y, training=True),
    "batch_norm in evaluation": lambda t, x, y, c, m, n: t.nn.functional.batch_norm(m, c, c, x, y),
    "max_pool2d": lambda t, x, y, c, m, n: t.nn.functional.max_pool2d(m.view(1, 3, 3), 2),
    "max_pool2d with indices": lambda t, x, y, c, m, n: t.nn.functional.max_pool2d(m.view(1, 3, 3), 2, return_indices=True)[0],
    "adaptive_max_pool2d": lambda t, x, y, c, m, n: t.nn.functional.adaptive_max_pool2d(m.view(1, 3, 3), 2),
    "nll_loss": lambda t, x, y, c, m, n: t.nn.functional.nll_loss(m, t.tensor(_classes), c),
    "cross_entropy": lambda t, x, y, c, m, n: t.nn.functional.cross_entropy(m, t.tensor(_classes), reduction="none"),
    "cross_entropy with weights": lambda t, x, y, c, m, n: t.nn.functional.cross_entropy(m, t.tensor(_classes), c),
    "l1_loss": lambda t, x, y, c, m, n: t.nn.functional.l1_loss(m, n),
    "logsigmoid": lambda t, x, y, c, m, n: t.nn.functional.logsigmoid(x),
}
CASES.update(BESIDE_OPERANDS)


@pytest.mark.parametrize("name", CASES)
def test_packs_what_torch_packs(name: str) -> None:
    packed, unpacked, grads = _packs(tj, CASES[name])
    expected, count, reference = _packs(torch, CASES[name])
    if name == "solve":  # LAPACK's pivots are of another layout of the matrix
        packed, expected = ([shape for shape, _ in p] for p in (packed, expected))
    assert packed == expected and unpacked == count
    for g, r in zip(grads, reference, strict=True):
        assert (g is None) == (r is None)
        if r is not None:
            assert torch.allclose(torch.tensor(g), torch.tensor(r))


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "dropout2d", "rrelu"])
def test_random_masks_are_packed_and_used(name: str) -> None:
    def run(lib, unpack):
        x = lib.ones(2, 3, 4, 4, dtype=lib.float64, requires_grad=True)
        packed = []
        with lib.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t), t)[1], unpack):
            y = getattr(lib.nn.functional, name)(x, training=True)
        y.sum().backward()
        return [(tuple(p.shape), str(p.dtype).split(".")[1]) for p in packed], x.grad

    assert run(tj, lambda t: t)[0] == run(torch, lambda t: t)[0]
    if name != "rrelu":  # whose gradient is computed from the numbers drawn
        assert run(tj, lambda t: t * 0 + 3)[1].unique().tolist() == [3]


def test_backward_uses_the_indices_that_unpack_returns() -> None:
    def run(lib, name):
        x = lib.tensor([[1.0, 3.0, 2.0], [4.0, 0.0, 1.0]], requires_grad=True)
        with lib.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 0 if t.dtype == lib.int64 else t):
            y = getattr(x, name)(*{"topk": (2,), "kthvalue": (2,)}.get(name, (1,)))[0]
        y.sum().backward()
        return x.grad.tolist()

    for name in ("max", "min", "sort", "topk", "kthvalue", "median", "mode", "cummax", "cummin"):
        assert run(tj, name) == run(torch, name), name


def test_only_the_innermost_pair_applies() -> None:
    log: list[str] = []
    x = _leaf(tj, 3)

    def pair(name: str) -> saved_tensors_hooks:
        return saved_tensors_hooks(lambda t: (log.append(name), t)[1], lambda t: t)

    with pair("outer"):
        with pair("inner"):
            x.sin()
        x.sin()
    x.sin()
    assert log == ["inner", "outer"]


def test_backward_uses_what_unpack_returns() -> None:
    x = _leaf(tj, 3)
    with saved_tensors_hooks(lambda t: t, lambda t: 2 * t):
        y, z = x * x.detach(), x.exp()
    y.sum().backward()
    assert x.grad.tolist() == pytest.approx((2 * x).tolist())
    x.grad = None
    z.sum().backward()
    assert x.grad.tolist() == pytest.approx((2 * x.exp()).tolist())


def test_packed_objects_may_be_anything() -> None:
    x = _leaf(tj, 3)
    with saved_tensors_hooks(lambda t: t.tolist(), lambda values: tj.tensor(values, dtype=tj.float64)):
        y = (x * x).sin()
    y.sum().backward()
    assert x.grad.tolist() == pytest.approx([2 * v * math.cos(v * v) for v in x.tolist()])


def test_unpack_runs_on_each_access() -> None:
    count = [0]

    def unpack(t):
        count[0] += 1
        return t

    x = _leaf(tj, 3)
    with saved_tensors_hooks(lambda t: t, unpack):
        y = x.exp()
    assert y.grad_fn._saved_result.tolist() == pytest.approx(y.tolist())
    _ = y.grad_fn._saved_result
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert count[0] == 4
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        _ = y.grad_fn._saved_result
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.sum().backward()


@pytest.mark.parametrize("value", [3, None, "text"])
def test_unpacking_a_non_tensor_is_a_type_error(value: object) -> None:
    x = _leaf(tj, 3)
    with saved_tensors_hooks(lambda t: t, lambda t: value):
        y = x * x
    with pytest.raises(TypeError, match="Output of saved tensor unpack_hook expected to be a Tensor but got result of type"):
        y.sum().backward()
    assert x.grad is None


def test_a_pack_hook_may_not_write_in_place_nor_touch_the_original() -> None:
    x = _leaf(tj, 3)
    before = x.tolist()
    with pytest.raises(RuntimeError, match="A saved tensor pack hook is modifying its input in place"), saved_tensors_hooks(lambda t: t.add_(1), lambda t: t):
        x * x
    assert x.tolist() == before
    y = x.clone()
    with saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        z = y * y
    w = y * y  # saved without hooks: a write must still be noticed
    with tj.no_grad():
        y.mul_(2)
    z.sum().backward()
    assert x.grad.tolist() == pytest.approx([2 * v for v in before])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        w.sum().backward()


def test_nothing_is_packed_without_recording() -> None:
    x = _leaf(tj, 3)
    with saved_tensors_hooks(lambda t: pytest.fail("packed"), lambda t: t):
        with tj.no_grad():
            x * x
        x.detach() * x.detach()
        x * 2.0 + 1


def test_errors_in_hooks_reach_the_user() -> None:
    x = _leaf(tj, 3)
    with pytest.raises(ZeroDivisionError), saved_tensors_hooks(lambda t: 1 / 0, lambda t: t):
        x * x
    with saved_tensors_hooks(lambda t: t, lambda t: 1 / 0):
        y = x * x
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    assert x.grad is None and (x * x).requires_grad


def test_second_order_goes_through_unpacked_values() -> None:
    x = _leaf(tj, 3)
    for build, second in ((lambda: x**3, lambda: 6 * x), (x.exp, x.exp), (lambda: x * x * x, lambda: 6 * x)):
        with saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
            y = build()
        (g,) = tj.autograd.grad(y.sum(), x, create_graph=True)
        (h,) = tj.autograd.grad(g.sum(), x)
        assert h.tolist() == pytest.approx(second().tolist())


def test_hooks_apply_to_what_a_backward_with_create_graph_saves() -> None:
    x = _leaf(tj, 3)
    y = (x**3).sum()
    count = [0]

    def pack(t):
        count[0] += 1
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        (g,) = tj.autograd.grad(y, x, create_graph=True)
    assert count[0] > 0
    g.sum().backward()
    assert x.grad.tolist() == pytest.approx((6 * x).tolist())


def test_a_custom_function_saves_through_hooks() -> None:
    log = []

    class Product(tj.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            r = x * y
            ctx.save_for_backward(x, None, r, y)
            return r

        @staticmethod
        def backward(ctx, g):
            x, nothing, r, y = ctx.saved_tensors
            assert nothing is None and r.shape == g.shape
            return g * y, g * x

    x, y = _leaf(tj, 3), _leaf(tj, 3, scale=0.5)
    with saved_tensors_hooks(lambda t: (log.append(float(t[0])), t)[1], lambda t: t * 2):
        z = Product.apply(x, y)
    assert log == [0.25, 0.125, 0.5]
    z.sum().backward()
    assert x.grad.tolist() == pytest.approx((2 * y).tolist())


def test_an_operation_with_several_outputs() -> None:
    x = _leaf(tj, 2, 3)
    with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        values, _ = x.max(1)
        _, s, _ = tj.linalg.svd(x, full_matrices=False)
    (values.sum() + s.sum()).backward()
    r = torch.tensor(x.tolist(), dtype=torch.float64, requires_grad=True)
    (r.max(1).values.sum() + torch.linalg.svdvals(r).sum()).backward()
    assert torch.allclose(torch.tensor(x.grad.tolist(), dtype=torch.float64), r.grad)


def test_tensor_hooks_and_retained_gradients_work_beside() -> None:
    x = _leaf(tj, 3)
    seen = []
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        y = x * x
        y.retain_grad()
        y.register_hook(lambda g: seen.append(g.tolist()) or 2 * g)
        z = y.sin()
    z.sum().backward()
    expected = [math.cos(v * v) for v in x.tolist()]
    assert seen == [pytest.approx(expected)]
    assert y.grad.tolist() == pytest.approx([2 * e for e in expected])
    assert x.grad.tolist() == pytest.approx([4 * v * e for v, e in zip(x.tolist(), expected, strict=True)])


def test_packed_results_make_no_cycle() -> None:
    gc.collect()
    gc.disable()
    try:
        x = _leaf(tj, 3)
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            y = x.exp()
        node = weakref.ref(y._node)
        del y
        assert node() is None
    finally:
        gc.enable()


def test_disabled_hooks_raise_the_given_message() -> None:
    def enter() -> None:
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            pass

    with disable_saved_tensors_hooks("not here"):
        with pytest.raises(RuntimeError, match="not here"):
            enter()
        with disable_saved_tensors_hooks("nor here"), pytest.raises(RuntimeError, match="nor here"):
            enter()
        with pytest.raises(RuntimeError, match="not here"), save_on_cpu():
            pass
    enter()
    with saved_tensors_hooks(lambda t: t, lambda t: t), pytest.raises(RuntimeError, match="active"), disable_saved_tensors_hooks("active"):
        pass


def test_hooks_on_one_saved_value() -> None:
    x = _leaf(tj, 3)
    y = x * x
    y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: 3 * t)
    with pytest.raises(RuntimeError, match=r"whose hooks have already been set. Hint: only one pair of hooks is allowed at a time"):
        y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)
    raw = y.grad_fn._raw_saved_other
    y.sum().backward()
    assert x.grad.tolist() == pytest.approx((4 * x).tolist())
    with pytest.raises(RuntimeError, match="Calling register_hooks on a saved tensor after it has been freed"):
        raw.register_hooks(lambda t: t, lambda t: t)


def test_hooks_on_one_saved_value_of_several_outputs() -> None:
    def run(lib):
        x = lib.tensor([[1.0, 3.0, 2.0], [4.0, 0.0, 1.0]], dtype=lib.float64, requires_grad=True)
        values, _ = x.max(1)
        values.grad_fn._raw_saved_indices.register_hooks(lambda t: t, lambda t: t * 0)
        values.sum().backward()
        found = [values.grad_fn.name(), x.grad.tolist()]
        count = [0]
        u, s, vh = lib.linalg.svd(x, full_matrices=False)
        assert u.grad_fn is s.grad_fn
        u.grad_fn._raw_saved_S.register_hooks(lambda t: t, lambda t: (count.__setitem__(0, count[0] + 1), t)[1])
        with pytest.raises(RuntimeError, match="whose hooks have already been set"):
            vh.grad_fn._raw_saved_S.register_hooks(lambda t: t, lambda t: t)
        (u.abs().sum() + s.sum() + vh.abs().sum()).backward()
        return [*found, count, [round(v, 6) for v in x.grad.flatten().tolist()]]

    assert run(tj) == run(torch)


def test_saved_values_beside_operands_can_be_read() -> None:
    def run(lib):
        m = _leaf(lib, 3, 3)
        norm = lib.nn.functional.layer_norm(m, (3,)).grad_fn
        low, high = lib.aminmax(m)
        found = [norm._saved_result1, norm._saved_result2, m.sort(1)[0].grad_fn._saved_indices, low.grad_fn._saved_max, high.grad_fn._saved_min]
        found.append(lib.linalg.slogdet(m + lib.eye(3, dtype=lib.float64))[1].grad_fn._saved_pivots)
        return [[round(v, 6) for v in t.flatten().tolist()] for t in found]

    assert run(tj) == run(torch)


def test_writes_to_what_no_hook_keeps_are_noticed() -> None:
    def run(lib, written: int):
        x = _leaf(lib, 3)
        factors = x * 1, x * 2
        y = factors[0] * factors[1]
        y.grad_fn._raw_saved_self.register_hooks(lambda t: t.clone(), lambda t: t)
        with lib.no_grad():
            factors[written].mul_(2)
        y.sum().backward()
        return x.grad.tolist()

    assert run(tj, 0) == run(torch, 0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run(tj, 1)


def test_hooks_set_after_the_value_was_read() -> None:
    x = _leaf(tj, 3)
    y = (x.sin() * x).exp()
    y.tolist()  # the forward ran, and kept what backward needs
    y.grad_fn._raw_saved_result.register_hooks(lambda t: t, lambda t: 3 * t)
    y.sum().backward()
    expected = [3 * math.exp(math.sin(v) * v) * (math.cos(v) * v + math.sin(v)) for v in x.tolist()]
    assert x.grad.tolist() == pytest.approx(expected)


def test_a_saved_leaf_is_the_leaf_itself() -> None:
    x = _leaf(tj, 3)
    assert (x * x).grad_fn._saved_self is x


def test_save_on_cpu_gives_the_same_gradients() -> None:
    x, w = _leaf(tj, 3), _leaf(tj, 3, 3)
    with save_on_cpu(pin_memory=True):
        y = (w @ x).tanh().sum()
    y.backward()
    r, v = _leaf(torch, 3).detach().requires_grad_(), _leaf(torch, 3, 3).detach().requires_grad_()
    (v @ r).tanh().sum().backward()
    assert x.grad.tolist() == pytest.approx(r.grad.tolist()) and w.grad.flatten().tolist() == pytest.approx(v.grad.flatten().tolist())


# -- writing saved values ----------------------------------------------------------------------------------------------


def _square(x: tj.Tensor) -> tuple[tj.Tensor, tj.Tensor]:
    b = x.clone()
    return b, (b * b).sum()


def test_saved_values_may_be_written_inside() -> None:
    x = _leaf(tj, 3)
    with allow_mutation_on_saved_tensors():
        b, y = _square(x)
        e = x.exp()
        b.mul_(5)
        e.zero_()
        part = b.view(3)[:2]
        z = (part * part).sum()
        b.fill_(0)
        with tj.no_grad():
            q = (x * x).sum()
            r = x.sin().sum()
            del q, r
        y.backward()
    assert x.grad.tolist() == pytest.approx((2 * x).tolist())
    del z


def test_a_result_and_a_leaf_may_be_written_inside() -> None:
    x = _leaf(tj, 3)
    before = x.tolist()
    with allow_mutation_on_saved_tensors():
        y = (x * x).sum()
        e = x.exp()
        e.mul_(2)
        with tj.no_grad():
            x.mul_(3)
        (y + e.sum()).backward()
    assert x.grad.tolist() == pytest.approx([2 * v + 2 * math.exp(v) for v in before])


OUTSIDE = "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context"


@pytest.mark.parametrize("mutate", [False, True])
def test_backward_outside_the_context_raises(mutate: bool) -> None:
    x = _leaf(tj, 3)
    with allow_mutation_on_saved_tensors():
        b, y = _square(x)
        s = (x + 1).sum()
        if mutate:
            b.mul_(2)
    with pytest.raises(AssertionError, match=OUTSIDE):
        y.backward()
    with allow_mutation_on_saved_tensors(), pytest.raises(AssertionError, match=OUTSIDE):
        y.backward()
    s.backward()  # nothing saved


def test_clear_ends_the_leave() -> None:
    x = _leaf(tj, 3)
    with allow_mutation_on_saved_tensors() as context:
        _, y = _square(x)
        context.clear()
        with pytest.raises(AssertionError, match=OUTSIDE):
            y.backward()
        _, y = _square(x)
        y.backward()


def test_what_was_recorded_before_the_context_is_checked_as_ever() -> None:
    x = _leaf(tj, 3)
    b, y = _square(x)
    with allow_mutation_on_saved_tensors():
        b.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_contexts_do_not_nest_and_respect_disabling() -> None:
    with allow_mutation_on_saved_tensors(), pytest.raises(RuntimeError, match="cannot be nested"), allow_mutation_on_saved_tensors():
        pass
    with disable_saved_tensors_hooks("no"), pytest.raises(RuntimeError, match="no"), allow_mutation_on_saved_tensors():
        pass
    with allow_mutation_on_saved_tensors():
        pass


def test_a_function_may_save_what_is_written_later() -> None:
    x = _leaf(tj, 3)
    with allow_mutation_on_saved_tensors():
        b = x * 1
        y = square_of(tj).apply(b).sum()
        b.zero_()
        y.backward()
    assert x.grad.tolist() == pytest.approx((2 * x).tolist())
