"""Sums, products, extremes and logical reductions.

Every `dim` here is None (all axes), an int or a tuple; a 0-d input accepts the axes 0 and -1, as in torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.tape.op import TABLE, Array, Dims, Op, composite, error_sample, op, sample


def axis(name: str, dim: int, rank: int) -> int:
    """Return `dim` counted from the front; raise torch's IndexError where it is not an axis. A 0-d input has axis 0."""
    span = rank or 1
    if not -span <= dim < span:
        message = f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], but got {dim})"
        raise refuse(IndexError, name, f"{message} → the input has {rank} dimensions")
    return dim % span


def axes(name: str, dim: Any, rank: int) -> tuple[int, ...]:
    """Return the sorted axes that a `Dims` value names; None and () name all of them."""
    if dim is None or dim == ():
        return tuple(range(rank))
    named = [axis(name, d, rank) for d in ((dim,) if isinstance(dim, int) else dim)]
    for d in named:
        if named.count(d) > 1:
            raise refuse(RuntimeError, name, f"dim {d} appears multiple times in the list of dims {tuple(dim)}")
    return tuple(sorted(named)) if rank else ()


def mixed(avals: Any, statics: Any) -> tuple[Any, ...]:
    """Promotion rule: the common element type of operands whose shapes need not broadcast."""
    present = [a for a in avals if a is not None]
    return (dtypes.common((a.dtype, a.rank) for a in present),) * len(avals)


def _kept(x: Any, where: tuple[int, ...], keepdim: bool) -> Any:
    """Drop the reduced axes, which `x` still has with extent 1, unless they are to be kept."""
    return x if keepdim else jnp.squeeze(x, where)


def summed_type(x: Any, dtype: dtypes.dtype | None) -> Any:
    """The NumPy type that sums and products of `x` have: `dtype`, or int64 for bools and integers."""
    if dtype is not None:
        return dtype.np
    return x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else np.dtype(np.int64)


@op("torch Tensor")
def sum_(input: Array, dim: Dims = None, keepdim: bool = False, *, dtype: dtypes.dtype | None = None) -> Array:
    """Return the sum over `dim` (all axes if None): `y = Σ x`.

    The result has the input's element type, int64 for bools and integers, or `dtype`, to which the input is
    converted first. An empty sum is 0. Raises IndexError for an axis that the input lacks.

    >>> import tapejax as tj
    >>> tj.tensor([[1., 2.], [3., 4.]]).sum(0)
    tensor([4., 6.])
    """
    kind = summed_type(input, dtype)
    return jnp.sum(input.astype(kind), axis=axes("sum", dim, input.ndim), keepdims=keepdim, dtype=kind)


@sum_.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4)
    yield sample(make(3, 4), -1, True)
    yield sample(make(2, 3, 4), (0, -1))
    yield sample(make(), 0)
    yield sample(make.ints(3, 2), 0)
    yield sample(make.bools(3))
    yield sample(make(2, 0), 1)
    yield sample(make.complex(2, 3), 0)


@sum_.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(IndexError, r"Dimension out of range \(expected to be in range of \[-2, 1\], but got 2\)", make(2, 3), 2)
    yield error_sample(RuntimeError, "appears multiple times", make(2, 3), (0, -2))


@op("torch Tensor")
def mean(input: Array, dim: Dims = None, keepdim: bool = False, *, dtype: dtypes.dtype | None = None) -> Array:
    """Return the arithmetic mean over `dim` (all axes if None): `y = Σ x / n`; NaN where n is 0.

    Needs a floating or complex input, or such a `dtype`, to which the input is converted first; otherwise raises
    RuntimeError. Half-precision inputs are accumulated in float32.

    >>> import tapejax as tj
    >>> tj.tensor([[1., 2.], [3., 5.]]).mean(1)
    tensor([1.5000, 4.0000])
    """
    kind = input.dtype if dtype is None else dtype.np
    if not jnp.issubdtype(kind, jnp.inexact):
        given = dtypes.of(kind).tensor_name
        which = "Input" if dtype is None else "Optional"
        raise refuse(
            RuntimeError,
            "mean",
            f"could not infer output dtype. {which} dtype must be either a floating point or complex dtype. "
            f"Got: {given} → convert it first (.float()) or pass dtype=",
        )
    return jnp.mean(input.astype(kind), axis=axes("mean", dim, input.ndim), keepdims=keepdim)


@mean.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4)
    yield sample(make(3, 4), 1, True)
    yield sample(make(2, 3, 4), (-1, 0))
    yield sample(make(), -1)
    yield sample(make.ints(3, 2), 0, dtype=dtypes.float64)
    yield sample(make.complex(2, 3), 0)


@mean.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "could not infer output dtype", make.ints(3))


@op("torch Tensor", saves="input result")
def prod(input: Array, dim: int | None = None, keepdim: bool = False, *, dtype: dtypes.dtype | None = None) -> Array:
    """Return the product over one axis (all axes if `dim` is None): `y = Π x`; an empty product is 1.

    The result type is the input's, int64 for bools and integers, or `dtype`. The gradient is the product of the
    *other* factors, also where factors are 0 and in every higher order (it never divides by an element).
    """
    kind = summed_type(input, dtype)
    where = axes("prod", dim, input.ndim)
    return jnp.prod(input.astype(kind), axis=where, keepdims=keepdim, dtype=kind)


@prod.samples
def _(make: Any) -> Iterator[Any]:
    yield make.away(3, 4)
    yield sample(make.away(3, 4), -1, True)
    yield sample(np.array([[2.0, 0.0, 4.0], [0.0, 0.0, 3.0], [1.0, 2.0, 3.0]]), 1)
    yield sample(make(), 0)
    yield sample(make.ints(3, 2), 0)
    yield sample(make.complex(2, 3), 1)
    yield sample(make(2, 0))


@op("torch Tensor", saves="input")
def nansum(input: Array, dim: Dims = None, keepdim: bool = False, *, dtype: dtypes.dtype | None = None) -> Array:
    """Return the sum over `dim` with NaN counted as 0; NaN elements receive no gradient."""
    kind = summed_type(input, dtype)
    x = input.astype(kind)
    present = jnp.where(jnp.isnan(x), jnp.zeros((), kind), x)
    return jnp.sum(present, axis=axes("nansum", dim, input.ndim), keepdims=keepdim, dtype=kind)


@nansum.samples
def _(make: Any) -> Iterator[Any]:
    yield np.array([[1.0, np.nan, 2.0], [np.nan, np.nan, 3.0]])
    yield sample(np.array([[1.0, np.nan, 2.0], [np.nan, 1.0, 3.0]]), 0, True)
    yield sample(make.ints(3, 2), -1)


@op("torch Tensor", saves="input")
def nanmean(input: Array, dim: Dims = None, keepdim: bool = False, *, dtype: dtypes.dtype | None = None) -> Array:
    """Return the mean over `dim` of the elements that are not NaN; NaN where there is none.

    Raises RuntimeError unless the input is floating or complex.
    """
    if not jnp.issubdtype(input.dtype, jnp.inexact):
        given = dtypes.of(input.dtype).tensor_name
        message = f"expected input to have floating point or complex dtype but got {given} → convert it with .float()"
        raise refuse(RuntimeError, "nanmean", message)
    x = input if dtype is None else input.astype(dtype.np)
    where = axes("nanmean", dim, input.ndim)
    missing = jnp.isnan(x)
    count = jnp.sum(~missing, axis=where, keepdims=keepdim)
    return jnp.sum(jnp.where(missing, jnp.zeros((), x.dtype), x), axis=where, keepdims=keepdim) / count.astype(x.dtype)


@nanmean.samples
def _(make: Any) -> Iterator[Any]:
    yield np.array([[1.0, np.nan, 2.0], [np.nan, 2.0, 3.0]])
    yield sample(np.array([[1.0, np.nan, 2.0], [np.nan, 1.0, 3.0]]), 0, True)


@nanmean.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "expected input to have floating point or complex dtype", make.ints(3))


# --- extremes ---------------------------------------------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def shared(x: Any, where: tuple[int, ...], choose: Any) -> Any:
    """Return `choose(x)`, one element per slice along `where` (kept); elements that tie share its gradient evenly."""
    return choose(x)


@shared.defjvp
def _(where: tuple[int, ...], choose: Any, primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    value = shared(x, where, choose)
    tied = (x == value) | (jnp.isnan(x) & jnp.isnan(value))
    count = jnp.sum(tied, axis=where, keepdims=True)
    return value, jnp.sum(jnp.where(tied, dx, 0), axis=where, keepdims=True) / count.astype(dx.dtype)


def _nonempty(name: str, x: Any, where: tuple[int, ...], dim: Any, kind: type[Exception] = RuntimeError) -> None:
    """Refuse to pick an element of an empty slice."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        given = dtypes.of(x.dtype).tensor_name
        raise refuse(NotImplementedError, name, f"not implemented for '{given}': complex numbers are not ordered")
    if (dim is None or dim == ()) and 0 in x.shape:
        message = "Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument."
        raise refuse(kind, name, f"{message} The input has shape {tuple(x.shape)}")
    for d in where:
        if not x.shape[d]:
            message = f"Expected reduction dim {d} to have non-zero size, but the input has shape {tuple(x.shape)}"
            raise refuse(IndexError, name, message)


def _extreme(name: str, x: Any, dim: Any, keepdim: bool, largest: bool) -> Any:
    where = axes(name, dim, x.ndim)
    _nonempty(name, x, where, dim)
    return _kept(shared(x, where, partial(jnp.max if largest else jnp.min, axis=where, keepdims=True)), where, keepdim)


@op("torch Tensor", saves="input result")
def amax(input: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    """Return the largest element over `dim` (all axes if empty); NaN wins. Elements that tie share the gradient evenly.

    Raises IndexError for an empty axis and RuntimeError for an empty input without `dim`.
    """
    return _extreme("amax", input, dim, keepdim, True)


@op("torch Tensor", saves="input result")
def amin(input: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    """Return the smallest element over `dim` (all axes if empty); NaN wins. Elements that tie share the gradient evenly.

    Raises IndexError for an empty axis and RuntimeError for an empty input without `dim`.
    """
    return _extreme("amin", input, dim, keepdim, False)


def _extreme_samples(make: Any) -> Iterator[Any]:
    yield make.distinct(3, 4)
    yield sample(make.distinct(3, 4), -1, True)
    yield sample(make.distinct(2, 3, 2), (0, -1))
    yield sample(np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]), 1)
    yield sample(make(), 0)
    yield sample(make.ints(3, 2), 0)
    yield sample(make(0, 2), 1)


def _extreme_errors(make: Any) -> Iterator[Any]:
    yield error_sample(IndexError, "Expected reduction dim 0 to have non-zero size", make(0, 2), 0)
    yield error_sample(RuntimeError, "Expected reduction dim to be specified", make(0, 2))
    yield error_sample(IndexError, "Dimension out of range", make(2), 1)


for _op in (amax, amin):
    _op.samples(_extreme_samples)
    _op.error_samples(_extreme_errors)


@op("", saves="input result", grad_name="Max", oracle="max")
def max_full(input: Array) -> Array:
    """Return the largest of all elements; NaN wins. Elements that tie share the gradient evenly."""
    return _extreme("max", input, None, False, True)


@op("", saves="input result", grad_name="Min", oracle="min")
def min_full(input: Array) -> Array:
    """Return the smallest of all elements; NaN wins. Elements that tie share the gradient evenly."""
    return _extreme("min", input, None, False, False)


for _op in (max_full, min_full):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make.distinct(3, 4)
        yield np.array([1.0, 3.0, 3.0, 1.0])
        yield make()
        yield make.ints(4)


def along(x: Any, index: Any, dim: int) -> Any:
    """Return the elements of `x` at `index`, which lies in bounds, along `dim`."""
    return jnp.take_along_axis(x, index, axis=dim, mode="promise_in_bounds")


def picked(x: Any, index: Any, d: int, keepdim: bool) -> tuple[Any, Any]:
    """Return (values, int64 indices) for kept `index` along `d`: the gradient goes to that one element."""
    index = index.astype(np.int64)
    return _kept(along(x, index, d), (d,), keepdim), _kept(index, (d,), keepdim)


def _extreme_at(name: str, x: Any, dim: int, keepdim: bool, largest: bool) -> tuple[Any, Any]:
    d = axis(name, dim, x.ndim)
    if not x.ndim:
        return x, jnp.zeros((), np.int64)
    _nonempty(name, x, (d,), dim)
    index = (jnp.argmax if largest else jnp.argmin)(jax.lax.stop_gradient(x), axis=d, keepdims=True)
    return picked(x, index, d, keepdim)


@op("", returns="values indices", saves="indices", grad_name="Max", oracle="max")
def max_dim(input: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """Return (values, indices) of the largest element along `dim`; the first NaN wins, else the first of those that tie.

    The gradient goes to that one element.
    """
    return _extreme_at("max", input, dim, keepdim, True)


@op("", returns="values indices", saves="indices", grad_name="Min", oracle="min")
def min_dim(input: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """Return (values, indices) of the smallest element along `dim`; the first NaN wins, else the first of those that tie.

    The gradient goes to that one element.
    """
    return _extreme_at("min", input, dim, keepdim, False)


for _op in (max_dim, min_dim):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make.distinct(3, 4), 0
        yield sample(make.distinct(2, 3, 4), -2, True)
        yield np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]), 1
        yield make(), 0
        yield make.ints(3, 2), 1

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(IndexError, "Expected reduction dim 0 to have non-zero size", make(0, 2), 0)
        yield error_sample(IndexError, "Dimension out of range", make(2), 1)


def _three_forms(full: Op, along_dim: Op, pairwise: str, args: tuple[Any, Any], keepdim: bool, other: Any) -> Any:
    input, dim = args
    if dim is None and other is None:
        return full(input)
    if other is None and isinstance(dim, (int, np.integer)):
        return along_dim(input, int(dim), keepdim)
    return TABLE[pairwise](input, dim if other is None else other)


@composite("torch Tensor", name="max")
def max_(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """Return the largest element: of all, along an axis, or of two tensors element by element.

    - `max(input)`: a 0-d tensor; elements that tie share the gradient evenly (`amax` does so along axes);
    - `max(input, dim, keepdim=False)`: (values, indices); the gradient goes to the one element chosen, the first;
    - `max(input, other)`: `maximum(input, other)`.

    NaN counts as largest.

    >>> import tapejax as tj
    >>> tj.tensor([[1., 5.], [7., 2.]]).max(1).indices
    tensor([1, 0])
    """
    return _three_forms(max_full, max_dim, "maximum", (input, dim), keepdim, other)


@composite("torch Tensor", name="min")
def min_(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """Return the smallest element: of all, along an axis, or of two tensors element by element.

    The three forms and their gradients are those of `max`; NaN counts as smallest.
    """
    return _three_forms(min_full, min_dim, "minimum", (input, dim), keepdim, other)


@op("torch Tensor", returns="min max", saves="input result")
def aminmax(input: Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    """Return (min, max) over one axis, or over all if `dim` is None; ties share the gradient evenly.

    Raises RuntimeError for an empty axis.
    """
    extents = input.shape if dim is None else [(input.shape or (1,))[axis("aminmax", dim, input.ndim)]]
    if 0 in extents:
        raise refuse(RuntimeError, "aminmax", "cannot compute aminmax over an empty dimension as the operation has no identity")
    return _extreme("aminmax", input, dim, keepdim, False), _extreme("aminmax", input, dim, keepdim, True)


@aminmax.samples
def _(make: Any) -> Iterator[Any]:
    yield make.distinct(3, 4)
    yield sample(make.distinct(3, 4), dim=-1, keepdim=True)
    yield sample(np.array([[1.0, 3.0, 3.0], [1.0, 1.0, 2.0]]), dim=1)


@aminmax.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "cannot compute aminmax over an empty dimension", make(0, 2))


def _arg(name: str, x: Any, dim: Any, keepdim: bool, find: Any) -> Any:
    where = axes(name, dim, x.ndim)
    _nonempty(name, x, where, dim, IndexError)
    if x.dtype == np.bool_:
        raise refuse(RuntimeError, name, "does not support bool input → convert it with .int()")
    if not x.ndim:
        return jnp.zeros((), np.int64)
    if dim is not None:
        return find(x, axis=where[0], keepdims=keepdim).astype(np.int64)
    index = find(x.reshape(-1)).astype(np.int64)
    return index.reshape((1,) * x.ndim) if keepdim else index


@op("torch Tensor", differentiable=False)
def argmax(input: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Return the int64 index of the largest element along `dim`, or in the flattened input; the first if several tie.

    NaN counts as largest. Raises IndexError for an empty slice and RuntimeError for bools.

    >>> import tapejax as tj
    >>> tj.tensor([[1., 5.], [7., 2.]]).argmax(1)
    tensor([1, 0])
    """
    return _arg("argmax", input, dim, keepdim, jnp.argmax)


@op("torch Tensor", differentiable=False)
def argmin(input: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Return the int64 index of the smallest element along `dim`, or in the flattened input; the first if several tie.

    NaN counts as smallest. Raises IndexError for an empty slice and RuntimeError for bools.
    """
    return _arg("argmin", input, dim, keepdim, jnp.argmin)


for _op in (argmax, argmin):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make.distinct(3, 4)
        yield sample(make.distinct(3, 4), -1, True)
        yield sample(make.distinct(3, 4), keepdim=True)
        yield make(), 0
        yield np.array([1.0, np.nan, 2.0]), 0

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(IndexError, "Expected reduction dim 0 to have non-zero size", make(0, 2), 0)
        yield error_sample(RuntimeError, "does not support bool input", make.bools(2))


# --- logical ----------------------------------------------------------------------------------------------------------


def _logical(name: str, x: Any, dim: Any, keepdim: bool, reduce: Any) -> Any:
    where = () if dim == () else axes(name, dim, x.ndim)  # torch reduces nothing for dim=() here
    result = reduce(x != 0, axis=where, keepdims=keepdim)
    return result.astype(x.dtype) if x.dtype == np.uint8 else result  # torch's answer of old for bytes


@op("torch Tensor", name="all", differentiable=False)
def all_(input: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Return whether every element over `dim` (all axes if None) is nonzero: bool, but uint8 for uint8. Empty: True."""
    return _logical("all", input, dim, keepdim, jnp.all)


@op("torch Tensor", name="any", differentiable=False)
def any_(input: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Return whether some element over `dim` (all axes if None) is nonzero: bool, but uint8 for uint8. Empty: False."""
    return _logical("any", input, dim, keepdim, jnp.any)


for _op in (all_, any_):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make.bools(3, 4)
        yield sample(make.ints(3, 4, high=2), -1, True)
        yield sample(make.bools(2, 3, 4), (0, 2))
        yield sample(make.ints(3, 2, high=2).astype(np.uint8), 0)
        yield make(0)


@op("torch Tensor", differentiable=False)
def count_nonzero(input: Array, dim: Dims = None) -> Array:
    """Return how many elements over `dim` (all axes if None) are nonzero, as int64."""
    return jnp.sum(input != 0, axis=axes("count_nonzero", dim, input.ndim), dtype=np.int64)


@count_nonzero.samples
def _(make: Any) -> Iterator[Any]:
    yield make.ints(3, 4)
    yield make.ints(3, 4), (0, 1)
    yield make.bools(3, 4), -1
