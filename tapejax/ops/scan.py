"""Running sums, products and extremes along one axis, differences and integrals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.reduce import along, axis, mixed, summed_type
from tapejax.tape.op import Array, error_sample, op, sample


def _running(name: str, x: Any, dim: int, dtype: dtypes.dtype | None, scan: Any) -> Any:
    d = axis(name, dim, x.ndim)
    x = x.astype(summed_type(x, dtype))
    return scan(x, axis=d) if x.ndim else x


@op("torch Tensor Tensor_")
def cumsum(input: Array, dim: int, *, dtype: dtypes.dtype | None = None) -> Array:
    """Return the running sum along `dim`: `y_i = x_1 + ... + x_i`, int64 for bools and integers, or of type `dtype`.

    >>> import tapejax as tj
    >>> tj.tensor([1., 2., 3.]).cumsum(0)
    tensor([1., 3., 6.])
    """
    return _running("cumsum", input, dim, dtype, jax.lax.cumsum)


@op("torch Tensor Tensor_", saves="input result")
def cumprod(input: Array, dim: int, *, dtype: dtypes.dtype | None = None) -> Array:
    """Return the running product along `dim`: `y_i = x_1 ... x_i`, int64 for bools and integers, or of type `dtype`.

    The gradient is right where factors are 0, in every order (it never divides by an element).
    """
    return _running("cumprod", input, dim, dtype, jax.lax.cumprod)


for _op in (cumsum, cumprod):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make(3, 4), 1
        yield make(3, 4), -2
        yield np.array([[2.0, 0.0, 3.0, 4.0], [0.0, 1.0, 0.0, 2.0]]), 1
        yield make(), 0
        yield sample(make.ints(3), 0)
        yield sample(make.bools(3), 0, dtype=dtypes.float64)
        yield make.complex(3), 0
        yield make(2, 0), 1

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(IndexError, "Dimension out of range", make(2), 1)


@op("torch Tensor", promote="float", saves="input result")
def logcumsumexp(input: Array, dim: int) -> Array:
    """Return the running `log Σ exp(x)` along `dim`, without overflow; an entry of -inf has weight and gradient 0."""
    d = axis("logcumsumexp", dim, input.ndim)
    if jnp.iscomplexobj(input):
        raise refuse(NotImplementedError, "logcumsumexp", "complex inputs are not supported")
    return jax.lax.cumlogsumexp(input, axis=d) if input.ndim else input


@logcumsumexp.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4), 1
    yield make(3, 4), -2
    yield np.array([1.0, -np.inf, 2.0, 1000.0]), 0
    yield make(), 0


def _record(name: str, x: Any, dim: int, largest: bool) -> tuple[Any, Any]:
    d = axis(name, dim, x.ndim)
    if jnp.iscomplexobj(x):
        raise refuse(NotImplementedError, name, "complex numbers are not ordered")
    if not x.ndim or not x.shape[d]:
        return x, jnp.zeros(x.shape, np.int64)

    def later(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
        wins = (b[0] >= a[0]) if largest else (b[0] <= a[0])
        if jnp.issubdtype(x.dtype, jnp.floating):
            wins = (wins & ~jnp.isnan(a[0])) | jnp.isnan(b[0])
        return jnp.where(wins, b[0], a[0]), jnp.where(wins, b[1], a[1])

    place = jax.lax.broadcasted_iota(np.int64, x.shape, d)
    index = jax.lax.associative_scan(later, (jax.lax.stop_gradient(x), place), axis=d)[1]
    return along(x, index, d), index


@op("torch Tensor", returns="values indices", saves="input indices")
def cummax(input: Array, dim: int) -> tuple[Array, Array]:
    """Return (values, indices) of the running maximum along `dim`: the last of those that tie; NaN wins.

    The gradient goes to the one element chosen.
    """
    return _record("cummax", input, dim, True)


@op("torch Tensor", returns="values indices", saves="input indices")
def cummin(input: Array, dim: int) -> tuple[Array, Array]:
    """Return (values, indices) of the running minimum along `dim`: the last of those that tie; NaN wins.

    The gradient goes to the one element chosen.
    """
    return _record("cummin", input, dim, False)


for _op in (cummax, cummin):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make.distinct(3, 5), 1
        yield make.distinct(3, 4), -2
        yield np.array([1.0, 2.0, 2.0, 1.0, np.nan, 3.0, 1.0]), 0
        yield make.ints(6), 0
        yield make(), 0


@op("torch Tensor", promote=mixed)
def diff(input: Array, n: int = 1, dim: int = -1, prepend: Array | None = None, append: Array | None = None) -> Array:
    """Return the n-th forward difference along `dim`, after joining `prepend` and `append` to the ends.

    Each order shortens the axis by one (never below 0); bools differ by exclusive or. Raises RuntimeError for a 0-d
    input or a negative `n`.
    """
    if not input.ndim:
        raise refuse(RuntimeError, "diff", "diff expects input to be at least one-dimensional, but it has shape ()")
    if n < 0:
        raise refuse(RuntimeError, "diff", f"order must be non-negative but got {n}")
    d = axis("diff", dim, input.ndim)
    if not n:
        return input
    parts = [p for p in (prepend, input, append) if p is not None]
    for part in parts:
        rest = [tuple(v.shape[:d]) + tuple(v.shape[d + 1 :]) for v in (part, input)]
        if part.ndim != input.ndim or rest[0] != rest[1]:
            message = f"diff expects the shape of tensor to prepend or append to match that of input except along dim {d}"
            raise refuse(RuntimeError, "diff", f"{message}: got {tuple(part.shape)} and {tuple(input.shape)}")
    x = jnp.concatenate(parts, axis=d)
    for _ in range(min(n, x.shape[d])):
        head, tail = (jax.lax.slice_in_dim(x, a, b, axis=d) for a, b in ((0, -1), (1, None)))
        x = tail ^ head if x.dtype == np.bool_ else tail - head
    return x


@diff.samples
def _(make: Any) -> Iterator[Any]:
    yield make(5)
    yield sample(make(3, 4), 2, 0)
    yield sample(make(3, 4), dim=1, prepend=make(3, 1), append=make(3, 2))
    yield make.bools(4)
    yield sample(make(2), 3)


@diff.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "at least one-dimensional", make())


def _trapezoids(name: str, y: Any, x: Any, dx: Any, dim: int) -> Any:
    d = axis(name, dim, y.ndim)
    y = y if jnp.issubdtype(y.dtype, jnp.inexact) else y.astype(dtypes.get_default_dtype().np)
    heights = jax.lax.slice_in_dim(y, 1, None, axis=d) + jax.lax.slice_in_dim(y, 0, -1, axis=d)
    if x is None:
        return heights * (jnp.asarray(dx, y.dtype) / 2), d
    if x.ndim == 1:
        if x.shape[0] != y.shape[d]:
            message = f"There must be one `x` value for each sample point, got {x.shape[0]} for {y.shape[d]} along dim {d}"
            raise refuse(RuntimeError, name, message)
        steps = jnp.diff(x).reshape((-1,) + (1,) * (y.ndim - 1 - d))
    else:
        steps = jnp.diff(x, axis=d - y.ndim)
    return heights * (steps / 2).astype(y.dtype), d


@op("torch", aliases="trapz", promote=mixed, saves={"y": "x", "x": "y"})
def trapezoid(y: Array, x: Array | None = None, *, dx: float = 1, dim: int = -1) -> Array:
    """Return the integral of samples `y` along `dim` by the trapezoidal rule: `Σ (x_{i+1} - x_i)(y_i + y_{i+1}) / 2`.

    The points are `x` (a vector, or a shape that broadcasts with `y`) or `dx` apart.
    """
    area, d = _trapezoids("trapezoid", y, x, dx, dim)
    return jnp.sum(area, axis=d)


@trapezoid.samples
def _(make: Any) -> Iterator[Any]:
    yield make(5)
    yield make(3, 4), make(4)
    yield sample(make(3, 4), make(3), dim=0)
    yield sample(make(3, 4), dx=0.5, dim=0)


@op("torch", promote=mixed, saves={"y": "x", "x": "y"})
def cumulative_trapezoid(y: Array, x: Array | None = None, *, dx: float = 1, dim: int = -1) -> Array:
    """Return the running integral of samples `y` along `dim` by the trapezoidal rule, one entry shorter; see `trapezoid`."""
    area, d = _trapezoids("cumulative_trapezoid", y, x, dx, dim)
    return jnp.cumsum(area, axis=d)


@cumulative_trapezoid.samples
def _(make: Any) -> Iterator[Any]:
    yield make(5)
    yield make(3, 4), make(4)
