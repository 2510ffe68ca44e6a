"""Tensors in the hands of Python, NumPy, JAX and torch: numbers, texts, files, trees, traces, DLPack, several devices.

What one line asks of a tensor is asked of torch's too. Printing has test_display.py, values read early test_rules_early_values.py.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from oracle import compiled, numbers, torch

ROOT = Path(__file__).resolve().parent.parent

# ---------------------------------------------------------------- numbers and texts


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "complex64"])
def test_items_are_python_numbers(tl: Any, dtype: str) -> None:
    x = tl.tensor([[1, 0], [1, 1]], dtype=getattr(tl, dtype))
    kind = {"f": float, "i": int, "u": int, "b": bool, "c": complex}[dtype[0]]
    assert type(x[0, 0].item()) is kind and type(x.tolist()[1][0]) is kind and x.tolist() == [[1, 0], [1, 1]]
    assert x[0, 0].tolist() == 1 and bool(x[0, 1]) is False and int(x[1, 1]) == 1 and complex(x[0, 0]) == 1
    assert x.numpy().dtype.name == dtype and x[0, 0].numpy().shape == ()


def test_numbers_of_complex_tensors(tl: Any) -> None:
    assert int(tl.tensor(3 + 0j)) == 3 and float(tl.tensor(3 + 0j)) == 3.0
    for kind in (int, float):
        with pytest.raises(RuntimeError, match="value cannot be converted to type .* without overflow"):
            kind(tl.tensor(1 + 2j))


def test_formats(tl: Any) -> None:
    x = tl.tensor(3.14159)
    assert f"{x:.2f}" == "3.14" and f"{x:8.1e}" == " 3.1e+00" and f"{tl.tensor(7):03d}" == "007"
    assert f"{x}" == ("tensor(3.1416)" if tl is tj else "3.141590118408203") or f"{x}" == str(x.item())
    assert f"{tl.tensor([1.0, 2.0])}" == "tensor([1., 2.])" == str(tl.tensor([1.0, 2.0]))
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{tl.tensor([1.0]):.2f}"


def test_equality_is_elementwise_and_hash_is_not(tl: Any) -> None:
    a, b = tl.tensor([1, 2]), tl.tensor([1, 3])
    assert numbers(a == b) == [True, False] and numbers(a != b) == [False, True]
    assert (a == "x") is False and (a == None) is False and (a != None) is True  # noqa: E711
    assert a in [a] and {a: 1}[a] == 1 and hash(a) != hash(copy.copy(a))


def test_variables_of_old_programs(tl: Any) -> None:
    Variable = tl.autograd.Variable
    x = tl.ones(3)
    v = Variable(x, requires_grad=True)
    assert isinstance(v, Variable) and isinstance(x, Variable) and not isinstance(1.0, Variable) and v is not x
    assert v.is_leaf and v.requires_grad and not x.requires_grad
    v.data[0] = 5.0
    assert numbers(x) == numbers(v) == [5.0, 1.0, 1.0]
    (v * v).sum().backward()
    assert numbers(v.grad) == [10.0, 2.0, 2.0]
    y = v * 2
    w = Variable(y)
    assert not w.requires_grad and w.grad_fn is None
    y.mul_(2)
    assert numbers(w) == [20.0, 4.0, 4.0] and w._version == 1
    with pytest.raises(TypeError, match="Variable data has to be a tensor, but got list"):
        Variable([1.0])
    with pytest.raises(RuntimeError, match="floating point"):
        Variable(tl.ones(2, dtype=tl.int64), requires_grad=True)


def test_unpacking_and_membership(tl: Any) -> None:
    first, *rest = tl.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert numbers(first) == [1.0, 2.0] and len(rest) == 2
    assert [10, 11, 12][tl.tensor(2)] == 12 and [0] * tl.tensor(2) == [0, 0]
    assert numbers(list(reversed(tl.tensor([1, 2, 3])))) in ([3, 2, 1], [[3], [2], [1]])
    with pytest.raises(TypeError, match="only integer tensors of a single element can be converted to an index"):
        [1, 2][tl.tensor(1.0)]


def test_iteration_gives_gradients(tl: Any) -> None:
    x = tl.tensor([1.0, 2.0, 3.0], requires_grad=True)
    sum(v * v * i for i, v in enumerate(x)).backward()
    assert numbers(x.grad) == [0.0, 4.0, 12.0]


# ---------------------------------------------------------------- NumPy


def test_numpy_is_read_only_and_shares_memory() -> None:
    """Values on the tape are immutable; torch's array may be written, ours refuses."""
    x = tj.arange(6.0).reshape(2, 3)
    a = x.numpy()
    assert not a.flags.writeable and np.shares_memory(a, x.numpy()) and np.shares_memory(a, np.asarray(x))
    with pytest.raises(ValueError, match="read-only"):
        a[0] = 1.0
    with pytest.raises(RuntimeError, match=r"Can't call numpy\(\) on Tensor that requires grad"):
        x.requires_grad_().numpy()
    assert np.shares_memory(a, x.numpy(force=True))


def test_an_array_taken_before_a_write_keeps_its_value() -> None:
    x = tj.zeros(3)
    a = x.numpy()
    x.add_(1)
    assert a.tolist() == [0, 0, 0] and x.tolist() == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # torch's
def test_numpy_functions_take_tensors(tl: Any) -> None:
    x = tl.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert np.asarray(x).dtype == np.float32 and np.asarray(x, dtype=np.int32).dtype == np.int32
    assert np.sum(np.asarray(x)) == 10 and np.allclose(x, [[1, 2], [3, 4]])
    copied = np.array(x)
    copied[0] = 9
    assert numbers(x) == [[1.0, 2.0], [3.0, 4.0]]


# ---------------------------------------------------------------- copies and files


def test_shallow_copies_and_views(tl: Any) -> None:
    x = tl.tensor([1.0, 2.0])
    x.note = "kept"
    y = copy.deepcopy({"a": x, "b": [x]})
    assert y["a"] is y["b"][0] and y["a"].note == "kept" and y["a"] is not x
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy([(x.requires_grad_() * 2)])


def test_files(tl: Any, tmp_path: Path) -> None:
    shared = tl.tensor([1.0, 2.0], requires_grad=True)
    given = {"w": shared, "n": 3, "kinds": [tl.tensor(True), tl.tensor([1, 2], dtype=tl.int8), tl.tensor([1.5], dtype=tl.bfloat16)]}
    for file in (io.BytesIO(), tmp_path / "x.pt"):
        tl.save(given, file)
        if isinstance(file, io.BytesIO):
            file.seek(0)
        found = tl.load(file)
        assert numbers(found) == numbers(given) and found["w"].requires_grad and found["kinds"][2].dtype == tl.bfloat16


def test_pickles_of_every_type() -> None:
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"):
        x = tj.tensor([1, 0, 1], dtype=getattr(tj, name))
        y = pickle.loads(pickle.dumps(x))
        assert y.dtype is x.dtype and y.tolist() == x.tolist(), name
    assert pickle.loads(pickle.dumps((tj.float32, tj.device("cpu"), tj.Size([2])))) == (tj.float32, tj.device("cpu"), tj.Size([2]))
    with pytest.raises(RuntimeError, match="only leaf tensors can be pickled"):
        pickle.dumps(tj.ones(1, requires_grad=True) * 2)


# ---------------------------------------------------------------- JAX


def test_tensors_are_pytrees() -> None:
    tree = {"a": tj.tensor([1.0, 2.0]), "b": (tj.tensor(3, dtype=tj.int32), None)}  # JAX outside x64 refuses 64 bits itself
    doubled = jax.tree.map(lambda x: x * 2, tree)
    assert isinstance(doubled["a"], tj.Tensor) and numbers(doubled) == {"a": [2.0, 4.0], "b": [6, None]}
    leaves, structure = jax.tree.flatten(tree)
    assert all(isinstance(x, jax.Array) for x in leaves)
    assert numbers(jax.tree.unflatten(structure, leaves)) == numbers(tree)


def test_jax_functions_take_tensors() -> None:
    x = tj.tensor([1.0, 2.0])
    assert jnp.asarray(x).tolist() == [1.0, 2.0] and jnp.sin(x.array()).dtype == jnp.float32
    found = jax.jit(lambda t: t * 2 + 1)(x)
    assert isinstance(found, tj.Tensor) and found.tolist() == [3.0, 5.0]
    grown = jax.vmap(lambda t: (t * t).sum())(tj.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert isinstance(grown, tj.Tensor) and grown.tolist() == [5.0, 25.0]


def test_gradients_of_jax_through_tensors() -> None:
    value, slope = jax.value_and_grad(lambda t: (t**3).sum().array())(tj.tensor([1.0, 2.0]))
    assert float(value) == 9.0 and isinstance(slope, tj.Tensor) and slope.tolist() == [3.0, 12.0]


# ---------------------------------------------------------------- DLPack


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bfloat16", "complex64"])
def test_dlpack_both_ways(dtype: str) -> None:
    x = tj.tensor([[1, 2], [3, 4]], dtype=getattr(tj, dtype))
    assert jax.dlpack.from_dlpack(x).tolist() == x.tolist()
    assert tj.from_dlpack(x.array()).dtype is x.dtype
    if dtype != "bfloat16":
        assert np.from_dlpack(x).tolist() == x.tolist()
        assert tj.from_dlpack(np.array([[1, 2]], dtype)).tolist() == [[1, 2]]
    if torch is not None:
        theirs = torch.from_dlpack(x)
        assert str(theirs.dtype) == f"torch.{dtype}" and theirs.tolist() == x.tolist()
        assert theirs.data_ptr() == x.array().unsafe_buffer_pointer()
        back = tj.from_dlpack(theirs.clone())
        assert back.dtype is x.dtype and back.tolist() == x.tolist()


def test_dlpack_refuses_gradients() -> None:
    with pytest.raises(BufferError, match="require gradient, use tensor.detach"):
        np.from_dlpack(tj.ones(1, requires_grad=True))


# ---------------------------------------------------------------- devices


def run(program: str) -> None:
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=300, env=env)
    assert made.returncode == 0, made.stderr[-2000:]


def test_a_backward_over_two_devices() -> None:
    """A program runs on one device: what waits on two runs as two, with and without early values, hooks and second order."""
    run(
        """
import tapejax as tj
for early in (False, True):
    for hooked in (False, True):
        x = tj.tensor([1.0, 2.0], requires_grad=True)
        w = tj.tensor([3.0, 4.0], device="cpu:1", requires_grad=True)
        h = x * 2
        if hooked:
            h.register_hook(lambda g: g * 10)
        loss = (h.to("cpu:1") * w).sum()
        if early:
            assert loss.item() == 22.0
        loss.backward()
        assert x.grad.tolist() == ([60.0, 80.0] if hooked else [6.0, 8.0]) and w.grad.tolist() == [2.0, 4.0]
        assert x.grad.device == x.device and w.grad.device == w.device
        with tj.no_grad():
            x -= x.grad
            w -= w.grad
        assert w.tolist() == [1.0, 0.0]
(g,) = tj.autograd.grad(((x * x).to("cpu:1") * w).sum(), x, create_graph=True)
gx, gw = tj.autograd.grad(g.sum(), [x, w])
assert gx.tolist() == [2.0, 0.0] and gw.tolist() == (2 * x).tolist()
"""
    )


def test_two_devices() -> None:
    """Gradients come back to the device they belong to; mixing devices and absent ones are refused."""
    run(
        """
import tapejax as tj
def refused(program, phrase):
    try:
        program()
    except RuntimeError as e:
        assert phrase in str(e), e
    else:
        raise AssertionError(phrase)
x = tj.tensor([1.0, 2.0], requires_grad=True)
w = tj.tensor([3.0, 4.0], device="cpu:1", requires_grad=True)
assert w.device == tj.device("cpu", 1), w.device
loss = (x.to("cpu:1") * w).sum()
assert loss.device == w.device
loss.backward()
assert x.grad.tolist() == [3.0, 4.0] and w.grad.tolist() == [1.0, 2.0]
assert x.grad.device == x.device and w.grad.device == w.device
assert w.array().devices() != x.array().devices()
assert w.grad.array().devices() == w.array().devices() and x.grad.array().devices() == x.array().devices()
refused(lambda: x + w, "Expected all tensors to be on the same device")
refused(lambda: tj.ones(1, device="cpu:7"), "cpu:7")
refused(lambda: tj.ones(1).to("cuda"), "cuda")
m = tj.nn.Linear(2, 1).to("cpu:1")
m(tj.ones(1, 2, device="cpu:1")).sum().backward()
assert {p.grad.device for p in m.parameters()} == {w.device}
"""
    )


def test_a_users_jax_goes_on_as_before() -> None:
    """Computing, training and drawing leave x64, the default device and JAX's and NumPy's random state alone."""
    run(
        """
import jax, numpy as np
key = jax.random.key(0)
before = jax.random.uniform(key, (3,)).tolist()
np.random.seed(0)
drawn = np.random.get_state()[1].tolist()
import tapejax as tj
tj.manual_seed(3)
x = tj.randn(3, 3, dtype=tj.float64, requires_grad=True)
tj.nn.functional.dropout(x @ x, 0.5).sum().backward()
assert x.grad.dtype is tj.float64
assert jax.random.uniform(key, (3,)).tolist() == before and np.random.get_state()[1].tolist() == drawn
assert jax.numpy.ones(2).dtype == "float32" and not jax.config.jax_enable_x64 and jax.config.jax_default_device is None
assert jax.jit(lambda a: a * 2)(jax.numpy.arange(3)).dtype == "int32"
"""
    )


def test_reading_twice_compiles_once() -> None:
    x = tj.tensor([1.0, 2.0, 5.0]) * 3
    x.tolist()
    before = compiled()
    assert x.tolist() == [3.0, 6.0, 15.0] and repr(x) == "tensor([ 3.,  6., 15.])" and x.numpy().sum() == 24 and x[0] is not None
    assert compiled() == before
