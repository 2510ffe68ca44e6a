"""Products of vectors and matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.tape.op import Array, error_sample, op


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
