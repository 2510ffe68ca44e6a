"""JAX functions on the tape as one operation, tape functions as JAX functions, arrays of other libraries."""

from __future__ import annotations

import io
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax.interop import from_dlpack, from_jax, from_numpy, to_dlpack, to_jax


def close(a, b, tolerance=1e-6):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def layer(p, x, *, power=2, scaled=False):
    y = jnp.tanh(x @ p["w"] + p["b"])
    return {"y": y, "norms": [(y**power).sum(), y.max()] if scaled else [(y**power).mean()]}


def given(dtype=tj.float32):
    rng = np.random.default_rng(0)
    w, b, x = (tj.tensor(rng.normal(size=s), dtype=dtype, requires_grad=True) for s in ((3, 2), (2,), (4, 3)))
    return {"w": w, "b": b}, x


# -- from_jax -----------------------------------------------------------------------------------------------------------


def test_trees_in_and_out():
    p, x = given()
    f = from_jax(layer)
    found = f(p, x, scaled=True)
    expected = layer({k: v.detach().numpy() for k, v in p.items()}, x.detach().numpy(), scaled=True)
    assert set(found) == {"y", "norms"} and isinstance(found["norms"], list) and len(found["norms"]) == 2
    jax.tree.map(lambda a, b: close(a.detach().numpy(), b), found, expected, is_leaf=lambda t: isinstance(t, tj.Tensor))
    assert len(f(p, x)["norms"]) == 1


def test_it_is_one_operation_without_a_cut():
    p, x = given()
    f = from_jax(layer)
    found = tj.debug.program(f(p, x)["y"])
    assert [k.name for k, _, _ in found.program.instructions] == ["layer", "pick"] or found.text.count("= layer(") == 1
    tj.debug.clear_cache()
    with tj.debug.assert_compiles(1):
        (f(p, x)["norms"][0] + p["w"].sum()).backward()


def test_gradients():
    p, x = given(tj.float64)
    f = from_jax(layer)
    ((f(p, x)["y"] ** 2).sum() + f(p, x, power=3)["norms"][0]).backward()
    with jax.enable_x64(True):
        arrays = {k: jnp.asarray(v.detach().numpy()) for k, v in p.items()}
        at = jnp.asarray(x.detach().numpy())
        expected = jax.grad(lambda p, x: (layer(p, x)["y"] ** 2).sum() + layer(p, x, power=3)["norms"][0], (0, 1))(arrays, at)
        close(p["w"].grad.numpy(), expected[0]["w"], 1e-12)
        close(p["b"].grad.numpy(), expected[0]["b"], 1e-12)
        close(x.grad.numpy(), expected[1], 1e-12)


def test_any_order():
    f = from_jax(lambda x: jnp.sin(x) * x)
    z = tj.tensor(0.7, dtype=tj.float64, requires_grad=True)
    (first,) = tj.autograd.grad(f(z), z, create_graph=True)
    (second,) = tj.autograd.grad(first, z, create_graph=True)
    (third,) = tj.autograd.grad(second, z)
    close([second.item(), third.item()], [2 * np.cos(0.7) - 0.7 * np.sin(0.7), -3 * np.sin(0.7) - 0.7 * np.cos(0.7)], 1e-12)
    assert tj.autograd.gradcheck(f, (z,)) and tj.autograd.gradgradcheck(f, (z,))


def test_complex_gradients_follow_torch():
    import torch

    values = np.array([1 + 2j, -0.5 + 1j])
    mine = tj.tensor(values, requires_grad=True)
    from_jax(lambda z: (jnp.abs(z) ** 2 * z).real.sum())(mine).backward()
    theirs = torch.tensor(values, requires_grad=True)
    (theirs.abs() ** 2 * theirs).real.sum().backward()
    close(mine.grad.numpy(), theirs.grad.numpy(), 1e-12)


def test_custom_rules_of_jax_are_used():
    @jax.custom_vjp
    def clipped(x):
        return x**2

    clipped.defvjp(lambda x: (x**2, x), lambda x, g: (jnp.clip(2 * x * g, -1, 1),))
    x = tj.tensor([0.1, 5.0], requires_grad=True)
    from_jax(clipped)(x).sum().backward()
    close(x.grad.numpy(), [0.2, 1.0])


def test_inside_transforms():
    f = from_jax(lambda x, w: jnp.dot(jnp.sin(x), w))
    x, w = tj.tensor(np.arange(6.0).reshape(3, 2)), tj.tensor([1.0, 2.0])
    close(tj.func.vmap(f, (0, None))(x, w.double()).numpy(), np.sin(x.numpy()) @ np.array([1.0, 2.0]))
    hessian = tj.func.hessian(lambda v: f(v, w.double()))(x[1])
    close(hessian.numpy(), np.diag(-np.sin([2.0, 3.0]) * [1.0, 2.0]), 1e-12)
    _, tangent = tj.func.jvp(lambda v: f(v, w.double()), (x[1],), (tj.ones(2, dtype=tj.float64),))
    close(tangent.item(), np.cos(2.0) + 2 * np.cos(3.0), 1e-12)


def test_precision_is_the_process_own():
    f = from_jax(lambda x: x + jnp.ones(2) * jnp.arange(2))
    assert f(tj.ones(2)).dtype is tj.float32
    assert f(tj.ones(2, dtype=tj.float64)).dtype is tj.float64
    assert f(np.ones(2, np.float32)).dtype is tj.float32
    assert f(jnp.ones(2)).dtype is tj.float32
    with jax.enable_x64(True):
        assert f(tj.ones(2)).dtype is tj.float64


def test_everything_else_is_fixed_and_part_of_the_program():
    def f(x, how, n):
        return {"sum": x.sum, "prod": x.prod}[how]() * n

    g = from_jax(f)
    x = tj.tensor([2.0, 3.0])
    assert g(x, "sum", 2).item() == 10.0 and g(x, "prod", 2).item() == 12.0 and g(x, how="prod", n=1.5).item() == 9.0
    assert g(tj.tensor([2, 3]), "sum", 2).dtype is not g(tj.tensor([2, 3]), "sum", 2.0).dtype  # 2 and 2.0 are not the same
    with pytest.raises(TypeError, match=r"f\(\): arguments that are no arrays must be hashable, got int, set"):
        g(x, {1}, 2)


def test_a_second_call_compiles_nothing():
    p, x = given()
    from_jax(layer)(p, x)["norms"][0].item()
    with tj.debug.assert_compiles(0):
        from_jax(layer)(p, x)["norms"][0].item()


def test_what_it_refuses():
    with pytest.raises(TypeError, match=r"from_jax\(\): expected a function, got int"):
        from_jax(3)
    with pytest.raises(TypeError, match="returned a str"):
        from_jax(lambda x: {"a": x, "b": "no"})(tj.ones(2))
    with pytest.raises(TypeError, match="returned no array"):
        from_jax(lambda x: None)(tj.ones(2))
    with pytest.raises(RuntimeError, match=r"do not fit together: arrays float32\[2\], arrays float32\[3\]"):
        from_jax(lambda x, y: x + y)(tj.ones(2), tj.ones(3))


def test_writing_an_argument_in_place_is_noticed():
    x = tj.ones(2, requires_grad=True)
    y = x * 1
    z = from_jax(lambda v: v**2)(y).sum()
    y.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_inside_a_module_and_a_loop():
    cell = from_jax(lambda h, x, w: jnp.tanh(h @ w + x))
    w = tj.eye(3, requires_grad=True)
    h = tj.zeros(2, 3)
    xs = tj.ones(30, 2, 3)
    for t in range(30):
        h = cell(h, xs[t], w)
    assert "loop of 30 rounds over 2 operations" in str(tj.debug.program(h))
    h.sum().backward()
    assert w.grad.isfinite().all()


# -- to_jax -------------------------------------------------------------------------------------------------------------


def test_to_jax_through_jits_and_gradients():
    f = to_jax(lambda x: (x.sin() * x).sum())
    x = jnp.arange(3.0)
    expected = np.cos(np.arange(3.0)) * np.arange(3.0) + np.sin(np.arange(3.0))
    close(f(x), (np.sin(np.arange(3.0)) * np.arange(3.0)).sum())
    for g in (jax.grad(f), jax.jit(jax.grad(f)), jax.grad(jax.jit(f)), jax.jacfwd(f)):
        close(g(x), expected)
    close(jax.jit(jax.vmap(f))(jnp.stack([x, x])), [f(x)] * 2)
    close(jax.hessian(f)(x), np.diag(2 * np.cos(np.arange(3.0)) - np.arange(3.0) * np.sin(np.arange(3.0))), 1e-5)
    _, tangent = jax.jvp(jax.jit(f), (x,), (jnp.ones(3),))
    close(tangent, expected.sum())


def test_to_jax_trees_and_other_arguments():
    f = to_jax(lambda d, *, times: {"out": [d["x"] * times, d["y"]], "n": times})
    found = f({"x": jnp.ones(2), "y": np.zeros(3, np.float32)}, times=3)
    assert found["n"] == 3 and isinstance(found["out"][0], jax.Array)
    close(found["out"][0], [3.0, 3.0])


def test_backward_inside_a_jax_trace():
    def f(x):
        y = x.clone().requires_grad_()
        (y**3).sum().backward()
        return y.grad

    close(jax.jit(to_jax(f))(jnp.arange(3.0)), [0.0, 3.0, 12.0])
    close(jax.jacfwd(to_jax(f))(jnp.arange(3.0)), np.diag([0.0, 6.0, 12.0]))


def test_no_tracer_is_left_in_what_it_closes_over():
    w = tj.ones(3, 3, requires_grad=True)
    with tj.no_grad():
        w.mul_(2)  # pending
    v = w.detach()[0] * 1.5  # pending too
    f = jax.jit(to_jax(lambda x: ((x @ w + v) ** 2).sum()))
    assert float(f(jnp.ones((2, 3)))) == 486.0
    assert w.sum().item() == 18.0 and v.sum().item() == 9.0
    assert float(f(jnp.ones((2, 3)))) == 486.0


def test_values_must_not_steer_under_jit():
    f = to_jax(lambda x: x * 2 if x.sum().item() > 0 else x)
    close(f(jnp.ones(2)), [2.0, 2.0])
    with pytest.raises(RuntimeError, match="is being traced"):
        jax.jit(f)(jnp.ones(2))


def test_there_and_back():
    f = to_jax(from_jax(lambda x: jnp.cos(x) * 2))
    close(jax.jit(jax.vmap(jax.grad(f)))(jnp.arange(3.0)), -2 * np.sin(np.arange(3.0)))
    g = from_jax(to_jax(lambda x: x.cos() * 2))
    x = tj.tensor([0.0, 1.0], requires_grad=True)
    g(x).sum().backward()
    close(x.grad.numpy(), -2 * np.sin([0.0, 1.0]))


def test_a_module_trained_by_jax():
    net = tj.nn.Linear(3, 1)
    names = [n for n, _ in net.named_parameters()]

    @to_jax
    def loss(parameters, x):
        return tj.func.functional_call(net, dict(zip(names, parameters, strict=True)), (x,)).square().mean()

    start = [p.detach().array() for p in net.parameters()]
    x = jnp.ones((4, 3))
    stepped = [p - 0.1 * g for p, g in zip(start, jax.jit(jax.grad(loss))(start, x), strict=True)]
    assert loss(stepped, x) < loss(start, x)


# -- arrays -------------------------------------------------------------------------------------------------------------


def test_dlpack_with_torch():
    import torch

    there = from_dlpack(torch.arange(4, dtype=torch.int64))
    assert there.dtype is tj.int64 and there.tolist() == [0, 1, 2, 3]
    back = torch.from_dlpack(tj.arange(3.0))
    assert back.tolist() == [0.0, 1.0, 2.0]
    assert "dltensor" in repr(to_dlpack(tj.ones(2)))
    with pytest.raises(BufferError, match=r"use tensor.detach\(\)"):
        to_dlpack(tj.ones(2, requires_grad=True))


def test_from_numpy():
    assert from_numpy(np.arange(3)).tolist() == [0, 1, 2]


def test_a_new_function_in_every_round_is_told():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.debug.RecompileWarning)
        out = io.StringIO()
        with tj.debug.explain(file=out):
            for _ in range(2):
                from_jax(lambda x: x + 1)(tj.ones(3)).sum().item()
    assert out.getvalue().count("compiled in") == 2


