"""Spread, order statistics and counts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.norm import root
from tapejax.ops.reduce import along, axes, axis, picked, shared
from tapejax.tape.op import Array, composite, error_sample, op, rough, sample

# --- variance ---------------------------------------------------------------------------------------------------------


def moments(name: str, x: Any, dim: Any, correction: float, keepdim: bool) -> tuple[Any, Any]:
    """Return (variance, mean) over `dim`, in float32 at least.

    Values are shifted by one of their own, so that equal values have a variance of exactly 0 and a large
    common offset costs no precision.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        given = dtypes.of(x.dtype).tensor_name
        message = f"std and var only support floating point and complex dtypes, got {given} → convert it with .float()"
        raise refuse(RuntimeError, name, message)
    where = axes(name, dim, x.ndim)
    x = x.astype(np.float32) if x.dtype.name in ("float16", "bfloat16") else x
    count = int(np.prod([x.shape[d] for d in where]))
    if count:
        first = jax.lax.stop_gradient(x[tuple(slice(0, 1) if d in where else slice(None) for d in range(x.ndim))])
    else:
        first = jnp.zeros((), x.dtype)
    shifted = x - first
    offset = jnp.mean(shifted, axis=where, keepdims=True)
    centred = shifted - offset
    square = jnp.square(centred.real) + jnp.square(centred.imag) if jnp.iscomplexobj(x) else jnp.square(centred)
    total = jnp.sum(square, axis=where, keepdims=keepdim)
    mean = first + offset
    divisor = jnp.asarray(max(count - correction, 0), total.dtype)
    return total / divisor, mean if keepdim else jnp.squeeze(mean, where)


def _spread(name: str, x: Any, dim: Any, correction: float, keepdim: bool, deviation: bool) -> tuple[Any, Any]:
    variance, mean = moments(name, x, dim, correction, keepdim)
    return (root(variance) if deviation else variance).astype(x.real.dtype), mean.astype(x.dtype)


@op("", name="var", saves="input", grad_name="Var")
def var_op(input: Array, dim: Any = None, *, correction: float = 1, keepdim: bool = False) -> Array:
    """Return the variance with an explicit correction; see the public `var`."""
    return _spread("var", input, dim, correction, keepdim, False)[0]


@op("", name="std", saves="input result", grad_name="Std")
def std_op(input: Array, dim: Any = None, *, correction: float = 1, keepdim: bool = False) -> Array:
    """Return the standard deviation with an explicit correction; see the public `std`."""
    return _spread("std", input, dim, correction, keepdim, True)[0]


@op("", name="var_mean", saves="input", returns="var mean", grad_name="VarMean")
def var_mean_op(input: Array, dim: Any = None, *, correction: float = 1, keepdim: bool = False) -> tuple[Array, Array]:
    """Return (variance, mean) with an explicit correction; see the public `var_mean`."""
    return _spread("var_mean", input, dim, correction, keepdim, False)


@op("", name="std_mean", saves="input std", returns="std mean", grad_name="StdMean")
def std_mean_op(input: Array, dim: Any = None, *, correction: float = 1, keepdim: bool = False) -> tuple[Array, Array]:
    """Return (standard deviation, mean) with an explicit correction; see the public `std_mean`."""
    return _spread("std_mean", input, dim, correction, keepdim, True)


for _op in (var_op, std_op, var_mean_op, std_mean_op):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make(3, 4)
        yield sample(make(3, 4), -1, correction=0, keepdim=True)
        yield sample(make(2, 3, 4), (0, 2), correction=2)
        yield sample(np.array([[0.1, 0.1, 0.1], [1.0, 2.0, 4.0]]), 1)
        yield sample(make.complex(2, 3), 1)

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(RuntimeError, "only support floating point and complex", make.ints(3))
        yield error_sample(IndexError, "Dimension out of range", make(3), 1)


def _correction(name: str, dim: Any, unbiased: Any, correction: Any) -> tuple[Any, float]:
    """Resolve torch's three spellings `(unbiased)`, `(dim, unbiased)` and `correction=` to (dim, correction)."""
    if isinstance(dim, (bool, np.bool_)):
        dim, unbiased = None, bool(dim)
    if unbiased is not None and correction is not None:
        raise refuse(TypeError, name, "got both unbiased= and correction= → pass one of them")
    if unbiased is not None:
        return dim, 1 if unbiased else 0
    return dim, 1 if correction is None else correction


@composite("torch Tensor")
def var(input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    """Return the variance over `dim` (all axes if None): `Σ |x - mean|² / max(0, n - correction)`, real.

    `correction` is 1 unless given; `unbiased=False` means 0. NaN or inf where nothing is left to divide by.
    Raises RuntimeError for integers.

    >>> import tapejax as tj
    >>> tj.tensor([1., 2., 3.]).var()
    tensor(1.)
    """
    dim, correction = _correction("var", dim, unbiased, correction)
    return var_op(input, dim, correction=correction, keepdim=keepdim)


@composite("torch Tensor")
def std(input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    """Return the standard deviation over `dim`, the square root of `var`; for equal values it and its gradient are 0."""
    dim, correction = _correction("std", dim, unbiased, correction)
    return std_op(input, dim, correction=correction, keepdim=keepdim)


@composite("torch")
def var_mean(input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    """Return (variance, mean) over `dim`; see `var`."""
    dim, correction = _correction("var_mean", dim, unbiased, correction)
    return var_mean_op(input, dim, correction=correction, keepdim=keepdim)


@composite("torch")
def std_mean(input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    """Return (standard deviation, mean) over `dim`; see `std`."""
    dim, correction = _correction("std_mean", dim, unbiased, correction)
    return std_mean_op(input, dim, correction=correction, keepdim=keepdim)


# --- order statistics -------------------------------------------------------------------------------------------------


def _real(name: str, x: Any, d: int | None = None) -> None:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        given = dtypes.of(x.dtype).tensor_name
        raise refuse(NotImplementedError, name, f"not implemented for '{given}': complex numbers are not ordered")
    if d is not None and x.ndim and not x.shape[d]:
        message = f"Expected reduction dim {d} to have non-zero size, but the input has shape {tuple(x.shape)}"
        raise refuse(IndexError, name, message)


def _missing(x: Any) -> Any:
    return jnp.isnan(x) if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.zeros(x.shape, bool)


def _middle(flat: Any, skip_nan: bool) -> Any:
    """Return the lower median of a flat array, with extent 1; NaN if one is present (if all are, with `skip_nan`)."""
    missing = _missing(flat)
    count = jnp.sum(~missing) if skip_nan else flat.size
    found = jnp.sort(flat)[jnp.maximum((count - 1) // 2, 0)]
    if jnp.issubdtype(flat.dtype, jnp.inexact):
        lost = jnp.all(missing) if skip_nan else jnp.any(missing)
        found = jnp.where(lost, jnp.asarray(jnp.nan, flat.dtype), found)
    return found[None]


def _median_full(name: str, x: Any, skip_nan: bool) -> Any:
    _real(name, x)
    if not x.size:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise refuse(RuntimeError, name, f"the input is empty (shape {tuple(x.shape)}) and {x.dtype} has no NaN")
        return jnp.full((), jnp.nan, x.dtype)
    return shared(x.reshape(-1), (0,), partial(_middle, skip_nan=skip_nan))[0]


def _median_dim(name: str, x: Any, dim: int, keepdim: bool, skip_nan: bool) -> tuple[Any, Any]:
    d = axis(name, dim, x.ndim)
    if not x.ndim:
        return x, jnp.zeros((), np.int64)
    _real(name, x, d)
    fixed = jax.lax.stop_gradient(x)
    missing = _missing(fixed)
    count = jnp.sum(~missing, axis=d, keepdims=True) if skip_nan else x.shape[d]
    at = jnp.broadcast_to(jnp.maximum((count - 1) // 2, 0), tuple(1 if i == d else n for i, n in enumerate(x.shape)))
    index = along(jnp.argsort(fixed, axis=d, stable=True), at, d)
    if not skip_nan:
        bad = jnp.any(missing, axis=d, keepdims=True)
        index = jnp.where(bad, jnp.argmax(missing, axis=d, keepdims=True), index)
    return picked(x, index, d, keepdim)


@op("", saves="input result", grad_name="Median", oracle="median")
def median_full(input: Array) -> Array:
    """Return the lower median of all elements; elements equal to it share the gradient evenly."""
    return _median_full("median", input, False)


@op("", saves="input result", grad_name="Nanmedian", oracle="nanmedian")
def nanmedian_full(input: Array) -> Array:
    """Return the lower median of all elements that are not NaN; elements equal to it share the gradient evenly."""
    return _median_full("nanmedian", input, True)


@op("", returns="values indices", saves="indices", grad_name="Median", oracle="median")
def median_dim(input: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """Return (values, indices) of the lower median along `dim`; the gradient goes to that one element."""
    return _median_dim("median", input, dim, keepdim, False)


@op("", returns="values indices", saves="indices", grad_name="Nanmedian", oracle="nanmedian")
def nanmedian_dim(input: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """Return (values, indices) of the lower median along `dim`, NaN skipped; the gradient goes to that one element."""
    return _median_dim("nanmedian", input, dim, keepdim, True)


for _op in (median_full, nanmedian_full):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make.distinct(3, 4)
        yield np.array([1.0, 3.0, 2.0, 2.0])
        yield make.ints(4)
        yield np.array([1.0, np.nan, 2.0])
        yield make(0)


for _op in (median_dim, nanmedian_dim):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make.distinct(3, 4), 0
        yield sample(make.distinct(2, 5), -1, True)
        yield np.array([[1.0, np.nan, 2.0, 0.0], [3.0, 1.0, 2.0, 5.0]]), 1

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(IndexError, "Expected reduction dim 0 to have non-zero size", make(0, 2), 0)


@composite("torch Tensor")
def median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the lower median: of all elements, or (values, indices) along `dim`; NaN if one is present.

    Elements equal to the median of all share its gradient evenly; along `dim` it goes to one element.

    >>> import tapejax as tj
    >>> tj.tensor([4., 1., 3., 2.]).median()
    tensor(2.)
    """
    return median_full(input) if dim is None else median_dim(input, dim, keepdim)


@composite("torch Tensor")
def nanmedian(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the lower median of the elements that are not NaN; otherwise as `median`."""
    return nanmedian_full(input) if dim is None else nanmedian_dim(input, dim, keepdim)


@op("torch Tensor", returns="values indices", saves="indices")
def mode(input: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """Return (values, indices) of the most frequent element along `dim`, the smallest if several are, at its last place.

    The gradient goes to that one element.
    """
    d = axis("mode", dim, input.ndim)
    if not input.ndim:
        return input, jnp.zeros((), np.int64)
    _real("mode", input, d)
    fixed = jax.lax.stop_gradient(input)
    order = jnp.argsort(fixed, axis=d, stable=True)
    ranked = along(fixed, order, d)
    place = jax.lax.broadcasted_iota(np.int64, input.shape, d)
    head = jax.lax.slice_in_dim(place, 0, 1, axis=d) == 0
    starts = jax.lax.slice_in_dim(ranked, 1, None, axis=d) != jax.lax.slice_in_dim(ranked, 0, -1, axis=d)
    first = jax.lax.cummax(jnp.where(jnp.concatenate([head, starts], d), place, 0), axis=d)
    best = jnp.argmax(place - first, axis=d, keepdims=True)
    return picked(input, along(order, best, d), d, keepdim)


@mode.samples
def _(make: Any) -> Iterator[Any]:
    yield np.array([1.0, 2.0, 2.0, 1.0, 3.0, 3.0])
    yield sample(make.ints(3, 5), 1, True)
    yield sample(make.ints(4, 3), 0)


def _quantile(name: str, x: Any, q: Any, dim: Any, keepdim: bool, interpolation: str, skip_nan: bool) -> Any:
    if x.dtype.name not in ("float32", "float64"):
        message = f"input tensor must be either float or double dtype, got {x.dtype} → convert it with .float()"
        raise refuse(RuntimeError, name, message)
    if q.ndim > 1:
        raise refuse(RuntimeError, name, f"q must be a scalar or 1D tensor, got shape {tuple(q.shape)}")
    if not x.size:
        raise refuse(RuntimeError, name, f"input tensor must be non-empty, got shape {tuple(x.shape)}")
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        message = "interpolation must be one of linear, lower, higher, midpoint or nearest"
        raise refuse(RuntimeError, name, f"{message}, but got {interpolation}")
    flat = x.reshape(-1) if dim is None else jnp.moveaxis(x, axis(name, dim, x.ndim), -1) if x.ndim else x[None]
    missing = jnp.isnan(flat)
    ranked = along(flat, jnp.argsort(jax.lax.stop_gradient(flat), axis=-1, stable=True), -1)
    last = (jnp.sum(~missing, -1, keepdims=True) if skip_nan else jnp.full((*flat.shape[:-1], 1), flat.shape[-1])) - 1
    place = q.reshape(-1) * jnp.maximum(last, 0).astype(x.dtype)  # (..., Q)
    if not skip_nan:
        place = jnp.where(jnp.any(missing, -1, keepdims=True), flat.shape[-1] - 1.0, place).astype(x.dtype)
    fixed = jax.lax.stop_gradient(place)
    low, high = jnp.floor(fixed), jnp.ceil(fixed)
    if interpolation == "nearest":
        low = high = jnp.round(fixed)
    elif interpolation in ("lower", "higher"):
        low = high = low if interpolation == "lower" else high
    pick = [along(ranked, jnp.clip(v.astype(np.int64), 0, flat.shape[-1] - 1), -1) for v in (low, high)]
    weight = jnp.full((), 0.5, x.dtype) if interpolation == "midpoint" else place - low
    found = pick[0]
    if low is not high:
        found = found + weight * jnp.where(pick[0] == pick[1], 0, pick[1] - pick[0])  # inf - inf would be NaN
    found = jnp.moveaxis(found, -1, 0)
    shape = tuple(x.shape)
    if dim is None or not shape:
        rest = (1,) * len(shape) if keepdim else ()
    else:
        d = dim % len(shape)
        rest = (*shape[:d], *((1,) if keepdim else ()), *shape[d + 1 :])
    found = found.reshape(found.shape[0], *rest)
    return found if q.ndim else found[0]


@op("torch Tensor", promote="first", saves="computed")
def quantile(
    input: Array, q: Array, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Array:
    """Return the `q`-th quantiles along `dim`, or of all elements: shape `(*q.shape, *the reduced shape)`.

    `q` is a number or a vector in [0, 1]; a quantile between two elements is interpolated as `interpolation` says
    ("linear", "lower", "higher", "midpoint", "nearest"). A slice with NaN gives NaN. Values of `q` are not checked.

    >>> import tapejax as tj
    >>> tj.tensor([0., 1., 3.]).quantile(0.75)
    tensor(2.)
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@op("torch Tensor", promote="first", saves="computed")
def nanquantile(
    input: Array, q: Array, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Array:
    """Return the `q`-th quantiles of the elements that are not NaN; otherwise as `quantile`."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


for _op in (quantile, nanquantile):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make.distinct(3, 4), 0.3
        yield rough("a step leaves [0, 1]", make.distinct(3, 4), np.array([0.1, 0.55, 1.0]), 1, True)
        yield sample(make.distinct(5, 2), 0.4, 0, interpolation="nearest")
        yield sample(make.distinct(3, 4), 0.4, -1, interpolation="midpoint")
        yield sample(make.distinct(3, 4), np.array([0.4]), 0, interpolation="lower")
        yield sample(np.array([[1.0, np.nan, 2.0, 0.0], [3.0, 1.0, 2.0, 5.0]]), 0.3, 1)

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(RuntimeError, "float or double", make.ints(3), 0.5)
        yield error_sample(RuntimeError, "interpolation must be one of", make(3), 0.5, interpolation="cubic")


@op("torch Tensor", differentiable=False)
def histc(input: Array, bins: int = 100, min: float = 0, max: float = 0) -> Array:
    """Return how many elements fall into each of `bins` equal intervals of [min, max]: `(bins,)`, the input's type.

    The last interval includes its end; elements outside and NaN are not counted. With `min == max` the range is that
    of the input. Raises RuntimeError for `bins < 1` or `max < min`.
    """
    if bins <= 0:
        raise refuse(RuntimeError, "histc", f"bins must be > 0, got {bins}")
    if max < min:
        raise refuse(RuntimeError, "histc", f"max must be larger than min, got [{min}, {max}]")
    x = input.reshape(-1)
    if not x.size:
        return jnp.zeros((bins,), input.dtype)
    low, high = jnp.asarray(min, x.dtype), jnp.asarray(max, x.dtype)
    if min == max:
        low, high = jnp.min(x), jnp.max(x)
    level = low == high
    low, high = jnp.where(level, low - 1, low), jnp.where(level, high + 1, high)
    place = jnp.floor((x - low) / (high - low) * bins).astype(np.int64)
    inside = (x >= low) & (x <= high)
    place = jnp.where(inside, jnp.clip(place, 0, bins - 1), bins)
    return jnp.zeros((bins + 1,), input.dtype).at[place].add(1)[:bins]


@histc.samples
def _(make: Any) -> Iterator[Any]:
    yield make(20), 5
    yield sample(make(20), bins=4, min=-1, max=1)
    yield sample(np.array([0.0, 1.0, 2.0, np.nan]), 4, 0, 2)


@histc.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "bins must be > 0", make(3), 0)
