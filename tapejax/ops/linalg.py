"""Products of vectors and matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.reduce import axis, mixed
from tapejax.tape.op import Array, Scalar, error_sample, op, sample


def same_type(name: str, a: Any, b: Any) -> None:
    """Refuse a product of different element types: torch does not promote in matrix products."""
    if a.dtype != b.dtype:
        x, y = (dtypes.of(v.dtype).name.replace("float64", "double").replace("float32", "float") for v in (a, b))
        message = f"expected m1 and m2 to have the same dtype, but got: {x} != {y}"
        raise refuse(RuntimeError, name, f"{message} → convert one of them with .to()")


def ranks(name: str, **wanted: tuple[Any, int]) -> None:
    """Refuse operands whose rank is not the wanted one: `ranks("mm", input=(input, 2), mat2=(mat2, 2))`."""
    for operand, (value, rank) in wanted.items():
        if value.ndim != rank:
            what = {1: "a 1D tensor", 2: "a matrix", 3: "a 3D tensor"}[rank]
            raise refuse(RuntimeError, name, f"{operand} must be {what}, but it has shape {tuple(value.shape)}")


@op("torch Tensor linalg", saves={"input": "other", "other": "input"})
def matmul(input: Array, other: Array) -> Array:
    """Return the matrix product `y = input @ other`, over broadcast leading axes.

    Vectors `(K,)` act as a row on the left and as a column on the right, and that axis is absent from the result:
    `(K,) @ (K,) -> ()`, `(..., M, K) @ (K,) -> (..., M)`, `(..., M, K) @ (..., K, N) -> (..., M, N)`.
    Both operands must have the same element type. Raises RuntimeError for scalars and for extents that disagree.

    >>> import tapejax as tj
    >>> tj.matmul(tj.tensor([[1., 2.], [3., 4.]]), tj.tensor([1., 1.]))
    tensor([3., 7.])
    """
    if not input.ndim or not other.ndim:
        dims = f"{input.ndim}D and {other.ndim}D"
        raise refuse(RuntimeError, "matmul", f"both arguments to matmul need to be at least 1D, but they are {dims}")
    same_type("matmul", input, other)
    a, b = tuple(input.shape), tuple(other.shape)
    if a[-1] != b[-2 if other.ndim > 1 else 0]:
        if input.ndim == 1 and other.ndim == 1:
            message = f"inconsistent tensor size, expected tensor {list(a)} and src {list(b)} to have the same number of elements"
            raise refuse(RuntimeError, "matmul", message)
        if len(a) > 2 and len(b) > 2:
            message = f"Expected size for first two dimensions of batch2 tensor to be: [.., {a[-1]}] but got: [.., {b[-2]}]"
        elif len(b) == 1:
            message = f"size mismatch, got input ({_by(a)}), mat ({_by(a)}), vec ({b[0]})"
        else:
            rows = (1, *a) if len(a) == 1 else a
            flat = (_count(rows[:-1]), rows[-1])
            message = f"mat1 and mat2 shapes cannot be multiplied ({_by(flat)} and {_by(b[-2:])})"
        side = "axis -2" if len(b) > 1 else "the only axis"
        raise refuse(RuntimeError, "matmul", f"{message}: the last axis of {a} is {a[-1]}, {side} of {b} is {b[-2:][0]}")
    for i, (m, n) in enumerate(zip(a[:-2][::-1], b[:-2][::-1], strict=False)):
        if m != n and 1 not in (m, n):
            message = f"The size of tensor a ({m}) must match the size of tensor b ({n}) at non-singleton dimension"
            where = max(len(a), len(b)) - 3 - i
            raise refuse(RuntimeError, "matmul", f"{message} {where}: the batch axes of {a} and {b} do not broadcast")
    return jnp.matmul(input, other)


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


@matmul.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3), make(3)
    yield make(2, 3), make(3)
    yield make(3), make(3, 2)
    yield make(2, 3), make(3, 4)
    yield make(2, 1, 2, 3), make(4, 3, 2)
    yield make(4, 2, 3), make(3)
    yield make.complex(2, 3), make.complex(3, 2)
    yield make.ints(2, 3), make.ints(3, 2)


@matmul.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(
        RuntimeError, r"mat1 and mat2 shapes cannot be multiplied \(32x128 and 64x10\)", make(32, 128), make(64, 10)
    )
    yield error_sample(RuntimeError, "need to be at least 1D", make(), make(2))
    yield error_sample(RuntimeError, "must match the size", make(2, 2, 2), make(3, 2, 2))
    yield error_sample(RuntimeError, "same dtype", make(2, 2), make.ints(2, 2))


@op("torch Tensor", saves={"input": "mat2", "mat2": "input"})
def mm(input: Array, mat2: Array) -> Array:
    """Return the product of two matrices, `(M, K) @ (K, N) -> (M, N)`; no broadcasting (see `matmul`).

    Raises RuntimeError unless both are matrices of one element type with `input.shape[1] == mat2.shape[0]`.
    """
    if input.ndim != 2:
        raise refuse(RuntimeError, "mm", f"self must be a matrix, but it has shape {tuple(input.shape)} → use matmul")
    if mat2.ndim != 2:
        raise refuse(RuntimeError, "mm", f"mat2 must be a matrix, but it has shape {tuple(mat2.shape)} → use matmul")
    same_type("mm", input, mat2)
    if input.shape[1] != mat2.shape[0]:
        shapes = f"({_by(input.shape)} and {_by(mat2.shape)})"
        raise refuse(RuntimeError, "mm", f"mat1 and mat2 shapes cannot be multiplied {shapes}")
    return jnp.matmul(input, mat2)


@mm.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3), make(3, 4)
    yield make(2, 0), make(0, 3)
    yield make.complex(2, 3), make.complex(3, 2)


@mm.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "mat2 must be a matrix", make(2, 2), make(2))
    yield error_sample(RuntimeError, "self must be a matrix", make(2), make(2, 2))
    yield error_sample(RuntimeError, r"cannot be multiplied \(2x3 and 2x3\)", make(2, 3), make(2, 3))


def _not_multipliable(name: str, a: Any, b: Any) -> Exception:
    shapes = f"({_by(a.shape[-2:])} and {_by(b.shape[-2:])})"
    return refuse(RuntimeError, name, f"mat1 and mat2 shapes cannot be multiplied {shapes}")


@op("torch Tensor", saves={"input": "mat2", "mat2": "input"})
def bmm(input: Array, mat2: Array) -> Array:
    """Return the products of two batches of matrices, `(B, M, K) @ (B, K, N) -> (B, M, N)`; no broadcasting.

    Raises RuntimeError for other ranks, unequal element types or extents that disagree.
    """
    ranks("bmm", batch1=(input, 3), batch2=(mat2, 3))
    same_type("bmm", input, mat2)
    if input.shape[0] != mat2.shape[0] or input.shape[2] != mat2.shape[1]:
        wanted = f"[{input.shape[0]}, {input.shape[2]}] but got: [{mat2.shape[0]}, {mat2.shape[1]}]"
        raise refuse(RuntimeError, "bmm", f"Expected size for first two dimensions of batch2 tensor to be: {wanted}")
    return jnp.matmul(input, mat2)


@bmm.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3, 4), make(2, 4, 2)
    yield make.complex(2, 1, 2), make.complex(2, 2, 2)


@bmm.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "batch2 must be a 3D tensor", make(2, 3, 4), make(4, 2))
    yield error_sample(RuntimeError, "Expected size for first two dimensions", make(2, 3, 4), make(2, 3, 4))


@op("torch Tensor", saves={"input": "vec", "vec": "input"})
def mv(input: Array, vec: Array) -> Array:
    """Return the product of a matrix and a vector, `(M, K) @ (K,) -> (M,)`."""
    if input.ndim != 2 or vec.ndim != 1:
        raise refuse(RuntimeError, "mv", f"vector + matrix @ vector expected, got 1, {input.ndim}, {vec.ndim} dimensions")
    same_type("mv", input, vec)
    if input.shape[1] != vec.shape[0]:
        raise refuse(RuntimeError, "mv", f"size mismatch, got mat ({_by(input.shape)}), vec ({vec.shape[0]})")
    return jnp.matmul(input, vec)


@mv.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3), make(3)


@mv.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "size mismatch", make(2, 3), make(2))


def _vectors(name: str, a: Any, b: Any) -> None:
    if a.ndim != 1 or b.ndim != 1:
        raise refuse(RuntimeError, name, f"1D tensors expected, but got {a.ndim}D and {b.ndim}D tensors")
    if a.dtype != b.dtype:
        kinds = f"{dtypes.of(a.dtype).tensor_name} and {dtypes.of(b.dtype).tensor_name}"
        message = f"{name} : expected both vectors to have same dtype, but found {kinds} → convert one with .to()"
        raise refuse(RuntimeError, name, message)
    if a.shape != b.shape:
        message = f"inconsistent tensor size, expected tensor [{a.shape[0]}] and src [{b.shape[0]}] to have the same number"
        raise refuse(RuntimeError, name, f"{message} of elements")


@op("torch Tensor", saves={"input": "tensor", "tensor": "input"})
def dot(input: Array, tensor: Array) -> Array:
    """Return `Σ x_i y_i` of two vectors `(N,)` (no conjugate), a 0-d tensor."""
    _vectors("dot", input, tensor)
    return jnp.dot(input, tensor)


@op("torch Tensor", saves={"input": "other", "other": "input"})
def vdot(input: Array, other: Array) -> Array:
    """Return `Σ conj(x_i) y_i` of two vectors `(N,)`, a 0-d tensor."""
    _vectors("vdot", input, other)
    return jnp.vdot(input, other)


for _op in (dot, vdot):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make(3), make(3)
        yield make.complex(3), make.complex(3)

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(RuntimeError, "1D tensors expected, but got 2D and 1D tensors", make(2, 3), make(3))
        yield error_sample(RuntimeError, "inconsistent tensor size", make(2), make(3))


@op("linalg", oracle="linalg.vecdot", promote="common", saves={"x": "y", "y": "x"})
def vecdot(x: Array, y: Array, *, dim: int = -1) -> Array:
    """Return `Σ conj(x) y` along `dim` of the broadcast operands."""
    return jnp.sum(jnp.conj(x) * y, axis=axis("vecdot", dim, max(x.ndim, y.ndim)))


@vecdot.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3), make(3)
    yield sample(make.complex(2, 3), make.complex(2, 3), dim=0)


@op("torch Tensor", saves={"input": "other", "other": "input"})
def inner(input: Array, other: Array) -> Array:
    """Return the products over the last axes: `(..., K)`, `(~, K) -> (..., ~)`; a scalar operand multiplies."""
    if not input.ndim or not other.ndim:
        return input * other
    same_type("inner", input, other)
    if input.shape[-1] != other.shape[-1]:
        message = f"the size of tensor a {list(input.shape)} at dim -1 must match that of tensor b {list(other.shape)}"
        raise refuse(RuntimeError, "inner", f"inner() the last dimension must match on both input tensors: {message}")
    return jnp.tensordot(input, other, ((-1,), (-1,)))


@inner.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3), make(3)
    yield make(2, 3), make(4, 2, 3)
    yield make(2, 3), make()


@inner.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "the last dimension must match", make(2), make(3))


@op("torch Tensor", aliases="ger", promote=mixed, saves={"input": "vec2", "vec2": "input"})
def outer(input: Array, vec2: Array) -> Array:
    """Return all products of two vectors: `(N,)`, `(M,) -> (N, M)`."""
    for which, x in (("self", input), ("vec2", vec2)):
        if x.ndim != 1:
            message = f"Expected 1-D argument {which}, but got {x.ndim}-D of shape {tuple(x.shape)}"
            raise refuse(RuntimeError, "outer", message)
    return input[:, None] * vec2


@outer.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3), make(2)
    yield make.ints(3), make(2)


@outer.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "Expected 1-D argument self, but got 2-D", make(2, 2), make(2))


# --- product and addition ---------------------------------------------------------------------------------------------


def _scaled(factor: Any, x: Any, vanish: bool = False) -> Any:
    """Return `factor * x`; with `vanish` a factor of 0 gives 0 even where x is not finite."""
    if isinstance(factor, (int, float)) and factor == 1:
        return x
    factor = jnp.asarray(factor).astype(x.dtype)
    return jnp.where(factor == 0, jnp.zeros((), x.dtype), factor * x) if vanish else factor * x


def _added(name: str, input: Any, product: Any, beta: Any, alpha: Any) -> Any:
    same_type(name, input, product)
    extents = zip(input.shape[::-1], product.shape[::-1], strict=False)
    if input.ndim > product.ndim or any(m not in (1, n) for m, n in extents):
        message = f"The expanded size of the tensor {tuple(product.shape)} must match the existing size {tuple(input.shape)}"
        raise refuse(RuntimeError, name, f"{message}: input does not broadcast to the shape of the product")
    return _scaled(beta, input, vanish=True) + _scaled(alpha, product)


@op("torch Tensor Tensor_", saves={"mat1": "mat2", "mat2": "mat1"})
def addmm(input: Array, mat1: Array, mat2: Array, *, beta: Scalar = 1, alpha: Scalar = 1) -> Array:
    """Return `beta * input + alpha * (mat1 @ mat2)`; `input` broadcasts to `(M, N)`. With `beta` 0 it is ignored."""
    ranks("addmm", mat1=(mat1, 2), mat2=(mat2, 2))
    same_type("addmm", mat1, mat2)
    if mat1.shape[1] != mat2.shape[0]:
        raise _not_multipliable("addmm", mat1, mat2)
    return _added("addmm", input, jnp.matmul(mat1, mat2), beta, alpha)


@addmm.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 4), make(2, 3), make(3, 4)
    yield sample(make(4), make(2, 3), make(3, 4), beta=0.5, alpha=2.0)
    yield sample(np.full((4,), np.nan), make(2, 3), make(3, 4), beta=0)


@addmm.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, r"cannot be multiplied \(2x3 and 2x3\)", make(2), make(2, 3), make(2, 3))


@op("torch Tensor Tensor_", saves={"mat": "vec", "vec": "mat"})
def addmv(input: Array, mat: Array, vec: Array, *, beta: Scalar = 1, alpha: Scalar = 1) -> Array:
    """Return `beta * input + alpha * (mat @ vec)`, `(M,)`; `input` broadcasts. With `beta` 0 it is ignored."""
    ranks("addmv", mat=(mat, 2), vec=(vec, 1))
    same_type("addmv", mat, vec)
    if mat.shape[1] != vec.shape[0]:
        raise refuse(RuntimeError, "addmv", f"size mismatch, got mat ({_by(mat.shape)}), vec ({vec.shape[0]})")
    return _added("addmv", input, jnp.matmul(mat, vec), beta, alpha)


@addmv.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2), make(2, 3), make(3)
    yield sample(make(2), make(2, 3), make(3), beta=2, alpha=0.5)


@op("torch Tensor Tensor_", saves={"vec1": "vec2", "vec2": "vec1"})
def addr(input: Array, vec1: Array, vec2: Array, *, beta: Scalar = 1, alpha: Scalar = 1) -> Array:
    """Return `beta * input + alpha * outer(vec1, vec2)`, `(N, M)`; `input` broadcasts. With `beta` 0 it is ignored."""
    ranks("addr", vec1=(vec1, 1), vec2=(vec2, 1))
    same_type("addr", vec1, vec2)
    return _added("addr", input, vec1[:, None] * vec2, beta, alpha)


@addr.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3), make(2), make(3)
    yield sample(make(3), make(2), make(3), beta=2, alpha=0.5)


def _batches(name: str, a: Any, b: Any) -> None:
    ranks(name, batch1=(a, 3), batch2=(b, 3))
    same_type(name, a, b)
    if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        wanted = f"[{a.shape[0]}, {a.shape[2]}] but got: [{b.shape[0]}, {b.shape[1]}]"
        raise refuse(RuntimeError, name, f"Expected size for first two dimensions of batch2 tensor to be: {wanted}")


@op("torch Tensor Tensor_", saves={"batch1": "batch2", "batch2": "batch1"})
def addbmm(input: Array, batch1: Array, batch2: Array, *, beta: Scalar = 1, alpha: Scalar = 1) -> Array:
    """Return `beta * input + alpha * Σ_b batch1[b] @ batch2[b]`, `(M, N)`; `input` broadcasts."""
    _batches("addbmm", batch1, batch2)
    return _added("addbmm", input, jnp.einsum("bmk,bkn->mn", batch1, batch2), beta, alpha)


@op("torch Tensor Tensor_", saves={"batch1": "batch2", "batch2": "batch1"})
def baddbmm(input: Array, batch1: Array, batch2: Array, *, beta: Scalar = 1, alpha: Scalar = 1) -> Array:
    """Return `beta * input + alpha * (batch1 @ batch2)`, `(B, M, N)`; `input` broadcasts."""
    _batches("baddbmm", batch1, batch2)
    return _added("baddbmm", input, jnp.matmul(batch1, batch2), beta, alpha)


for _op in (addbmm, baddbmm):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make(2, 4), make(2, 2, 3), make(2, 3, 4)
        yield sample(make(4), make(2, 2, 3), make(2, 3, 4), beta=0.5, alpha=2.0)

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(RuntimeError, "Expected size for first two", make(2), make(2, 2, 3), make(2, 2, 3))
