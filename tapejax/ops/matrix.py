"""Matrices by structure: triangles, diagonals, trace; and the checks that the linear algebra ops share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.reduce import axis, summed_type
from tapejax.tape.op import Array, composite, error_sample, op, sample


def matrices(name: str, *operands: Any, square: bool = True, half: bool = False) -> None:
    """Refuse what is not a batch of (square) floating or complex matrices, in torch's words."""
    for x in operands:
        if x.ndim < 2:
            message = f"The input tensor A must have at least 2 dimensions, but it has shape {tuple(x.shape)}"
            raise refuse(RuntimeError, name, message)
        if square and x.shape[-1] != x.shape[-2]:
            message = f"A must be batches of square matrices, but they are {x.shape[-2]} by {x.shape[-1]} matrices"
            raise refuse(RuntimeError, name, message)
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            given = dtypes.of(x.dtype).tensor_name
            message = f"Expected a floating point or complex tensor as input. Got {given} → convert it with .float()"
            raise refuse(RuntimeError, name, message)
        if x.dtype.name in ("float16", "bfloat16") and not half:
            message = f"Low precision dtypes not supported. Got {dtypes.of(x.dtype).tensor_name} → convert it with .float()"
            raise refuse(RuntimeError, name, message)


def adjoint(x: Any) -> Any:
    """Return the conjugate transpose of the last two axes."""
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _planes(name: str, x: Any) -> None:
    if x.ndim < 2:
        raise refuse(RuntimeError, name, f"input tensor must have at least 2 dimensions, but it has shape {tuple(x.shape)}")


@op("torch Tensor Tensor_")
def triu(input: Array, diagonal: int = 0) -> Array:
    """Return the matrices with zeros below the given diagonal (0: the main one; positive: above it)."""
    _planes("triu", input)
    return jnp.triu(input, diagonal)


@op("torch Tensor Tensor_")
def tril(input: Array, diagonal: int = 0) -> Array:
    """Return the matrices with zeros above the given diagonal (0: the main one; positive: above it)."""
    _planes("tril", input)
    return jnp.tril(input, diagonal)


for _op in (triu, tril):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make(3, 4)
        yield make(2, 3, 3), 1
        yield make(4, 2), -1
        yield make.bools(3, 3)

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(RuntimeError, "must have at least 2 dimensions", make(3))


@op("torch Tensor", grad_name="DiagonalCopy")
def diag(input: Array, diagonal: int = 0) -> Array:
    """Return the square matrix with a vector on the given diagonal, or the given diagonal of a matrix (a copy)."""
    if input.ndim not in (1, 2):
        raise refuse(RuntimeError, "diag", f"Supports 1D or 2D tensors. Got {input.ndim}D")
    return jnp.diag(input, diagonal)


@diag.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3)
    yield make(3), -1
    yield make(3, 4), 1


@diag.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "Supports 1D or 2D tensors", make(2, 2, 2))


@op("torch Tensor")
def diag_embed(input: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    """Return matrices in the axes `dim1`, `dim2` that have the last axis of `input` on the diagonal `offset`."""
    rank = input.ndim + 1
    first, second = axis("diag_embed", dim1, rank), axis("diag_embed", dim2, rank)
    if first == second:
        raise refuse(RuntimeError, "diag_embed", f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    n = input.shape[-1]
    place = np.arange(n)
    rows, columns = place + max(-offset, 0), place + max(offset, 0)
    made = jnp.zeros((*input.shape[:-1], n + abs(offset), n + abs(offset)), input.dtype)
    return jnp.moveaxis(made.at[..., rows, columns].set(input), (-2, -1), (first, second))


@diag_embed.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3)
    yield sample(make(2, 3), 1, 0, 2)
    yield sample(make(3), -1)


@op("torch Tensor")
def diagflat(input: Array, offset: int = 0) -> Array:
    """Return the square matrix with all elements of `input` on the diagonal `offset`."""
    return jnp.diag(input.reshape(-1), offset)


@diagflat.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 2)
    yield make(2), 1


@op("torch Tensor")
def trace(input: Array) -> Array:
    """Return the sum of the main diagonal of a matrix; int64 for integers."""
    if input.ndim != 2:
        raise refuse(RuntimeError, "trace", f"expected a matrix, but got tensor with dim {input.ndim}")
    return jnp.trace(input, dtype=summed_type(input, None))


@trace.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4)
    yield make.ints(2, 2)


@trace.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "expected a matrix", make(2, 2, 2))


@op("torch", saves="x", oracle=None)  # torch's own backward of it raises
def vander(x: Array, N: int | None = None, increasing: bool = False) -> Array:
    """Return the matrix of powers of a vector, `(M,) -> (M, N)`; falling powers unless `increasing`."""
    if x.ndim != 1:
        raise refuse(RuntimeError, "vander", f"x must be a one-dimensional tensor, but it has shape {tuple(x.shape)}")
    return _powers(x, N, increasing)


def _powers(x: Any, n: int | None, increasing: bool) -> Any:
    n = x.shape[-1] if n is None else n
    x = x.astype(summed_type(x, None))
    columns = [jnp.ones_like(x)]
    for _ in range(n - 1):
        columns.append(columns[-1] * x)
    return jnp.stack(columns[:n] if increasing else columns[:n][::-1], -1) if n else jnp.zeros((*x.shape, 0), x.dtype)


@vander.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3)
    yield sample(make(3), 2, increasing=True)


@op("", saves="x", oracle="linalg.vander")
def vander_op(x: Array, *, N: int | None = None) -> Array:
    """Return rising powers along a new last axis; see `linalg.vander`."""
    return _powers(x, N, True)


@vander_op.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3)
    yield sample(make(3), N=4)


@composite("linalg", name="vander")
def _linalg_vander(x: Any, *, N: int | None = None) -> Any:
    """Return the rising powers of each element, `(..., M) -> (..., M, N)`."""
    return vander_op(x, N=N)


def hermitian(x: Any, lower: bool) -> Any:
    """Return the Hermitian matrix of which `x` holds one triangle.

    The value reads that triangle only; the derivative is, as in torch, that of the symmetrised whole.
    """
    half = jnp.tril(x, -1) if lower else jnp.triu(x, 1)
    diagonal = jnp.eye(x.shape[-1], dtype=bool)
    mirrored = jnp.where(diagonal, x.real.astype(x.dtype), half + adjoint(half))
    return _valued(mirrored, (x + adjoint(x)) / 2)


@jax.custom_jvp
def _valued(value: Any, varied: Any) -> Any:
    """Return `value`, with the derivative of `varied`."""
    return value


@_valued.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _valued(*primals), tangents[1]
