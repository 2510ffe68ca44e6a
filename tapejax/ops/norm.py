"""Norms and distances. At a zero vector, and at zero distance, the gradient is 0."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.reduce import axes, axis, mixed, shared
from tapejax.tape.op import Array, Dims, composite, error_sample, op, sample


def magnitude(x: Any) -> Any:
    """Return |x| as a real array with derivative 0 at 0."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return root(jnp.square(x.real) + jnp.square(x.imag))
    return x * jnp.sign(jax.lax.stop_gradient(x))


def root(x: Any) -> Any:
    """Return the square root with derivative 0 at 0 instead of infinity."""
    zero = x == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, x)))


def p_norm(x: Any, p: float, where: tuple[int, ...], keepdim: bool) -> Any:
    """Return `(Σ |x|^p)^(1/p)` over the axes `where`, real; also p = 0 (nonzeros), inf and -inf (extremes)."""
    kind = x.real.dtype
    if p == 2:
        square = jnp.square(x.real) + jnp.square(x.imag) if jnp.iscomplexobj(x) else jnp.square(x)
        return root(jnp.sum(square, axis=where, keepdims=keepdim))
    if p == 0:
        return jnp.sum(x != 0, axis=where, keepdims=keepdim).astype(kind)
    size = magnitude(x)
    if p == 1:
        return jnp.sum(size, axis=where, keepdims=keepdim)
    if math.isinf(p):
        if p > 0 and not size.size:
            return jnp.zeros(jnp.sum(size, axis=where, keepdims=keepdim).shape, kind)
        found = shared(size, where, partial(jnp.max if p > 0 else jnp.min, axis=where, keepdims=True))
        return found if keepdim else jnp.squeeze(found, where)
    zero = size == 0
    powers = jnp.where(zero, 0 if p > 0 else jnp.inf, jnp.where(zero, 1, size) ** p)
    total = jnp.sum(powers, axis=where, keepdims=keepdim)
    edge = (total == 0) | jnp.isinf(total)
    limit = jnp.where(jnp.isinf(total) == (p > 0), jnp.inf, 0) if p < 0 else total
    return jnp.where(edge, jax.lax.stop_gradient(limit).astype(kind), jnp.where(edge, 1, total) ** (1 / p)).astype(kind)


def _floating(name: str, x: Any, dtype: dtypes.dtype | None) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        given = dtypes.of(x.dtype).tensor_name
        message = f"Expected a floating point or complex tensor as input. Got {given} → convert it with .float()"
        raise refuse(RuntimeError, name, message)
    return x if dtype is None else x.astype(dtype.np)


def _vector(name: str, x: Any, p: float, dim: Any, keepdim: bool) -> Any:
    where = axes(name, dim, x.ndim)
    if (p < 0 or math.isinf(p)) and any(not x.shape[d] for d in where):
        message = f"cannot compute the {p} norm on an empty tensor because the operation does not have an identity"
        raise refuse(RuntimeError, name, f"{message}; the input has shape {tuple(x.shape)}")
    if x.dtype.name in ("float16", "bfloat16"):
        return p_norm(x.astype(np.float32), p, where, keepdim).astype(x.dtype)
    return p_norm(x, p, where, keepdim)


def _singular_values(x: Any) -> Any:
    return jnp.linalg.svd(x, full_matrices=False, compute_uv=False)


def _matrix(name: str, x: Any, order: Any, dim: tuple[int, ...], keepdim: bool) -> Any:
    if len(dim) != 2 or x.ndim < 2:
        message = f"dim must be a 2-tuple of axes of an input with at least 2 dimensions. Got {dim} for shape {tuple(x.shape)}"
        raise refuse(RuntimeError, name, message)
    r, c = (axis(name, d, x.ndim) for d in dim)
    if r == c:
        raise refuse(RuntimeError, name, f"dims must be different. Got {dim}")
    if order == "fro":
        return p_norm(x, 2, (r, c), keepdim)
    if order in (1, -1, math.inf, -math.inf):
        summed, chosen = (r, c) if abs(order) == 1 else (c, r)
        sums = p_norm(x, 1, (summed,), True)
        choose = partial(jnp.max if order > 0 else jnp.min, axis=(chosen,), keepdims=True)
        result = shared(sums, (chosen,), choose)
    elif order in (2, -2, "nuc"):
        s = _singular_values(jnp.moveaxis(x, (r, c), (-2, -1)))
        s = s.sum(-1) if order == "nuc" else s[..., 0 if order == 2 else -1]
        result = jnp.expand_dims(s, (r, c))
    else:
        allowed = "'fro', 'nuc', 1, -1, 2, -2, inf or -inf"
        kind = ValueError if isinstance(order, str) else RuntimeError
        raise refuse(kind, name, f"Order {order} not supported → use {allowed}")
    return result if keepdim else jnp.squeeze(result, (r, c))


@op("torch Tensor", saves="input result", grad_name="LinalgVectorNorm")
def norm(
    input: Array, p: Any = "fro", dim: Dims = None, keepdim: bool = False, dtype: dtypes.dtype | None = None
) -> Array:
    """Return the p-norm `(Σ |x|^p)^(1/p)` over `dim` (all axes if None), real.

    `p` is a number (0 counts nonzeros; inf and -inf are the extreme magnitudes), "fro" (as 2) or "nuc" (the sum of the
    singular values of the two axes `dim`). The gradient at a zero vector is 0; magnitudes that tie in an inf-norm
    share it. Raises RuntimeError for integers.

    >>> import tapejax as tj
    >>> tj.tensor([3., 4.]).norm()
    tensor(5.)
    """
    x = _floating("linalg.vector_norm", input, dtype)
    if p == "nuc":
        pair = (-2, -1) if dim is None and x.ndim == 2 else dim if isinstance(dim, tuple) else ()
        return _matrix("norm", x, "nuc", pair, keepdim)
    if isinstance(p, str) and p != "fro":
        raise refuse(RuntimeError, "norm", f"Order {p!r} not supported → use a number, 'fro' or 'nuc'")
    return _vector("linalg.vector_norm", x, 2 if p in ("fro", None) else p, dim, keepdim)


@norm.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4)
    yield sample(np.array([[0.0, 0.0], [3.0, 4.0]]), 2, 1)
    yield sample(make.away(3, 4), 1, -1, True)
    yield sample(make.away(2, 3, 4), 3, (0, 2))
    yield sample(make.away(3, 4), 0.5, 1)
    yield sample(np.array([[1.0, -2.0, 2.0], [0.0, 0.0, 0.0]]), math.inf, 1)
    yield sample(make.distinct(3, 4), -math.inf, 0)
    yield sample(make(3, 4), 0, 1)
    yield sample(make.complex(2, 3), 2, 1)
    yield sample(make.complex(2, 3), 1)
    yield sample(make(3, 4), "nuc")
    yield sample(make(2, 0), 2, 1)


@norm.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "Expected a floating point or complex tensor as input. Got Long", make.ints(3))
    yield error_sample(IndexError, "Dimension out of range", make(3), 2, 1)


@op("linalg", saves="x result", oracle="linalg.vector_norm", grad_name="LinalgVectorNorm")
def vector_norm(
    x: Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: dtypes.dtype | None = None
) -> Array:
    """Return the vector norm `(Σ |x|^ord)^(1/ord)` over `dim` (all axes if None), real; see `norm`.

    Raises RuntimeError for integers and for an inf-norm over an empty axis.
    """
    return _vector("linalg.vector_norm", _floating("linalg.vector_norm", x, dtype), ord, dim, keepdim)


@vector_norm.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4)
    yield sample(make(3, 4), 3.5, (0, 1))
    yield sample(make.distinct(3, 4), math.inf, -1, True)
    yield sample(make.away(3, 4), -1, 0)


@vector_norm.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "cannot compute the inf norm on an empty tensor", make(0), math.inf)


@op("linalg", saves="A result", oracle="linalg.matrix_norm")
def matrix_norm(
    A: Array, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: dtypes.dtype | None = None
) -> Array:
    """Return the norm of the matrices in the two axes `dim`, real.

    `ord`: "fro"; "nuc", 2, -2: sum, largest, smallest singular value; 1, -1: largest, smallest column sum of
    magnitudes; inf, -inf: row sum. Raises RuntimeError (ValueError for a word) for any other.
    """
    return _matrix("linalg.matrix_norm", _floating("linalg.matrix_norm", A, dtype), ord, tuple(dim), keepdim)


@matrix_norm.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4)
    for order in ("nuc", 2, -2, 1, -1, math.inf, -math.inf):
        yield make(2, 3, 3), order
    yield sample(make(2, 3, 4), 2, (0, 2), True)


@matrix_norm.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "not supported", make(2, 2), 3)


@op("", saves="A result", oracle="linalg.norm", grad_name="LinalgVectorNorm")
def linalg_norm(
    A: Array, ord: Any = None, dim: Dims = None, keepdim: bool = False, *, dtype: dtypes.dtype | None = None
) -> Array:
    """Return a vector or a matrix norm, by the number of axes; see `linalg.norm`."""
    x = _floating("linalg.vector_norm", A, dtype)
    if ord is None:
        return _vector("linalg.norm", x, 2, dim, keepdim)
    if dim is None and x.ndim not in (1, 2):
        message = f"If dim is not specified but ord is, the input must be 1D or 2D. Got {x.ndim}D → pass dim="
        raise refuse(RuntimeError, "linalg.norm", message)
    pair = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else dim
    if len(pair) == 2:
        return _matrix("linalg.norm", x, ord, pair, keepdim)
    if isinstance(ord, str):
        raise refuse(RuntimeError, "linalg.norm", f"ord={ord!r} needs two axes, dim is {dim}")
    return _vector("linalg.norm", x, ord, pair, keepdim)


@linalg_norm.samples
def _(make: Any) -> Iterator[Any]:
    yield make(2, 3, 4)
    yield make(3), 1
    yield make(3, 4), 2
    yield sample(make(2, 3, 4), "fro", (1, 2))
    yield sample(make(2, 3, 4), 3, 1, True)


@linalg_norm.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "the input must be 1D or 2D", make(2, 2, 2), 2)


@composite("linalg", name="norm")
def _linalg_norm(
    A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: dtypes.dtype | None = None
) -> Any:
    """Return a vector norm (one axis, or `ord=None`) or a matrix norm (two axes), real.

    Without `ord` it is the 2-norm over `dim` or over everything. With `ord` and no `dim` the input must be a vector
    or a matrix. Orders as in `norm` and `linalg.matrix_norm`.

    >>> import tapejax as tj
    >>> tj.linalg.norm(tj.tensor([[3., 0.], [0., 4.]]), 2)
    tensor(4.)
    """
    return linalg_norm(A, ord, dim, keepdim, dtype=dtype)


# --- distances --------------------------------------------------------------------------------------------------------


@op("torch Tensor", promote="common", saves="input other result")
def dist(input: Array, other: Array, p: float = 2) -> Array:
    """Return the p-norm of `input - other`, broadcast, as a 0-d tensor; the gradient at zero distance is 0."""
    return _vector("dist", _floating("norm", input - other, None), p, None, False)


@dist.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield make(3), make(3), 1
    yield make(3), make(3), 3.0
    yield np.zeros(3), np.zeros(3)


@op("torch", promote=mixed, saves="x1 x2 result", grad_name="Cdist")
def cdist(x1: Array, x2: Array, p: float = 2.0, compute_mode: str | None = None) -> Array:
    """Return the p-norm distances between rows: `(..., P, M)`, `(..., R, M) -> (..., P, R)`, leading axes broadcast.

    Differences are formed exactly; `compute_mode` is accepted for compatibility. The gradient at zero distance is 0.
    Raises RuntimeError for fewer than 2 dimensions or unequal numbers of columns.
    """
    for which, x in (("X1", x1), ("X2", x2)):
        if x.ndim < 2:
            raise refuse(RuntimeError, "cdist", f"cdist only supports at least 2D tensors, {which} got: {x.ndim}D")
    if x1.shape[-1] != x2.shape[-1]:
        columns = f"X1: {x1.shape[-1]} X2: {x2.shape[-1]}"
        raise refuse(RuntimeError, "cdist", f"X1 and X2 must have the same number of columns. {columns}")
    if p < 0:
        raise refuse(RuntimeError, "cdist", f"cdist only supports non-negative p values, got {p}")
    return p_norm(x1[..., :, None, :] - x2[..., None, :, :], p, (-1,), False)


@cdist.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4), make(2, 4)
    yield make(2, 3, 4), make(1, 2, 4), 1.0
    yield make(3, 2), make(2, 2), 3.0
    yield make.distinct(3, 4), make(2, 4), math.inf
    yield make(3, 0), make(2, 0)


@cdist.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "at least 2D tensors", make(3), make(2, 3))
    yield error_sample(RuntimeError, "same number of columns", make(2, 3), make(2, 2))


@op("torch nn.functional", promote="common", saves="result")
def pairwise_distance(x1: Array, x2: Array, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Array:
    """Return the p-norm of `x1 - x2 + eps` over the last axis: `(..., D) -> (...)`."""
    return _vector("pairwise_distance", x1 - x2 + jnp.asarray(eps, x1.dtype), p, -1, keepdim)


@pairwise_distance.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4), make(3, 4)
    yield sample(make(3, 4), make(4), 1.0, keepdim=True)
    yield sample(make(4), make(4), eps=0.1)


@op("torch nn.functional", promote="float", saves="x1 x2")
def cosine_similarity(x1: Array, x2: Array, dim: int = 1, eps: float = 1e-8) -> Array:
    """Return `x1·x2 / (max(|x1|, eps) max(|x2|, eps))` along `dim` of the broadcast operands.

    As in torch, the floor `eps` is not differentiated: the gradient of the norm passes through it.
    """
    d = axis("cosine_similarity", dim, max(x1.ndim, x2.ndim))
    x1, x2 = jnp.broadcast_arrays(x1, x2)

    def unit(x: Any) -> Any:
        length = p_norm(x, 2, (d,), True)
        fixed = jax.lax.stop_gradient(length)
        return x / (length + (jnp.maximum(fixed, eps) - fixed))

    return jnp.sum(unit(x1) * unit(x2), axis=d)


@cosine_similarity.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4), make(3, 4)
    yield make(3, 4), make(4), -1
    yield sample(make(3, 4), make(3, 4), dim=0)
