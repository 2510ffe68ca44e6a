"""Sorting, selection by rank, and searching in sorted values. NaN sorts after every number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.create import from_numpy
from tapejax.ops.reduce import along, axis, mixed, picked
from tapejax.tape.op import Array, composite, error_sample, op, sample


def _ordered(name: str, x: Any) -> None:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        given = dtypes.of(x.dtype).tensor_name
        raise refuse(RuntimeError, name, f"Sort does not support complex dtypes on CPU, got {given}: not ordered")


def _order(x: Any, d: int, descending: bool) -> Any:
    """Return the int64 stable order of `x` along `d`."""
    fixed = jax.lax.stop_gradient(x)
    return jnp.argsort(fixed, axis=d, stable=True, descending=descending).astype(np.int64)


@op("", returns="values indices", saves="indices", grad_name="Sort", oracle="sort")
def sort_op(input: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    """Return (values, indices) of the stable sort along `dim`; see the public `sort`."""
    d = axis("sort", dim, input.ndim)
    _ordered("sort", input)
    if not input.ndim:
        return input, jnp.zeros((), np.int64)
    index = _order(input, d, descending)
    return along(input, index, d), index


@sort_op.samples
def _(make: Any) -> Iterator[Any]:
    yield make.distinct(3, 4)
    yield sample(make.distinct(3, 4), 0, True)
    yield np.array([2.0, np.nan, -1.0, np.inf])
    yield make.distinct(4).astype(np.int64)
    yield make()


@sort_op.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(IndexError, "Dimension out of range", make(2), 1)


@composite("torch Tensor")
def sort(input: Any, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Any:
    """Return (values, indices) sorted along `dim`; the order is always stable, NaN counts as largest.

    The gradient of each value goes to the element it came from.

    >>> import tapejax as tj
    >>> tj.tensor([3., 1., 2.]).sort().indices
    tensor([1, 2, 0])
    """
    return sort_op(input, dim, descending)


@op("", differentiable=False, oracle="argsort")
def argsort_op(input: Array, dim: int = -1, descending: bool = False) -> Array:
    """Return the int64 indices of the stable sort along `dim`; see the public `argsort`."""
    d = axis("argsort", dim, input.ndim)
    _ordered("argsort", input)
    return _order(input, d, descending) if input.ndim else jnp.zeros((), np.int64)


@argsort_op.samples
def _(make: Any) -> Iterator[Any]:
    yield make.distinct(3, 4)
    yield sample(make.distinct(3, 4), 0, True)


@composite("torch Tensor")
def argsort(input: Any, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Any:
    """Return the int64 indices that sort along `dim`, always stably."""
    return argsort_op(input, dim, descending)


@op("torch Tensor", grad_name="Sort", saves="indices", computes="indices")
def msort(input: Array) -> Array:
    """Return the values sorted along the first axis."""
    _ordered("msort", input)
    return along(input, _order(input, 0, False), 0) if input.ndim else input


@msort.computed
def _(input: Any) -> Any:
    return (_order(input, 0, False) if input.ndim else jnp.zeros((), np.int64),)


@msort.samples
def _(make: Any) -> Iterator[Any]:
    yield make.distinct(3, 4)
    yield make.distinct(3)


@op("torch Tensor", returns="values indices", saves="indices")
def topk(input: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    """Return (values, indices) of the `k` largest (or smallest) elements along `dim`, in order.

    NaN counts as largest; of those that tie the first comes first. The gradient goes to the elements chosen.
    Raises RuntimeError where `dim` has fewer than `k` elements.

    >>> import tapejax as tj
    >>> tj.tensor([1., 5., 3.]).topk(2).values
    tensor([5., 3.])
    """
    d = axis("topk", dim, input.ndim)
    _ordered("topk", input)
    extent = input.shape[d] if input.ndim else 1
    if not 0 <= k <= extent:
        raise refuse(RuntimeError, "topk", f"selected index k out of range: k is {k}, axis {dim} has {extent} elements")
    if not input.ndim:
        return input, jnp.zeros((), np.int64)
    key = jax.lax.stop_gradient(jnp.moveaxis(input, d, -1))
    key = key.astype(np.uint8) if key.dtype == np.bool_ else key
    if jnp.issubdtype(key.dtype, jnp.floating):  # top_k tells -0 from 0 and one NaN's sign from another's
        key = jnp.where(jnp.isnan(key), jnp.nan, jnp.where(key == 0, 0, key)).astype(input.dtype)
        key = key if largest else -key
    elif not largest:
        key = ~key
    index = jax.lax.top_k(key, k)[1]
    index = jnp.moveaxis(index.astype(np.int64), -1, d)
    return along(input, index, d), index


@topk.samples
def _(make: Any) -> Iterator[Any]:
    yield make.distinct(6), 2
    yield sample(make.distinct(3, 4), 2, 0)
    yield sample(make.distinct(3, 4), 3, -1, False)
    yield sample(make.ints(1, 5, high=50), 1, 1, False)
    yield np.array([1.0, np.nan, 3.0, np.inf]), 3
    yield sample(np.array([1.0, np.nan, 3.0, -np.inf]), 4, largest=False)
    yield make(3), 0


@topk.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "selected index k out of range", make(3), 4)


@op("torch Tensor", returns="values indices", saves="indices")
def kthvalue(input: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """Return (values, indices) of the `k`-th smallest element along `dim`, counted from 1.

    The gradient goes to the element chosen. Raises RuntimeError where `k` is not a rank along `dim`.
    """
    d = axis("kthvalue", dim, input.ndim)
    _ordered("kthvalue", input)
    extent = input.shape[d] if input.ndim else 1
    if not 1 <= k <= extent:
        message = f"selected number k out of range for dimension {d}: k is {k}, the axis has {extent} elements"
        raise refuse(RuntimeError, "kthvalue", message)
    if not input.ndim:
        return input, jnp.zeros((), np.int64)
    index = jax.lax.slice_in_dim(_order(input, d, False), k - 1, k, axis=d)
    return picked(input, index, d, keepdim)


@kthvalue.samples
def _(make: Any) -> Iterator[Any]:
    yield make.distinct(6), 2
    yield sample(make.distinct(3, 4), 2, 0, True)
    yield make(), 1


@kthvalue.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "selected number k out of range", make(3), 4)


# --- searching --------------------------------------------------------------------------------------------------------


def _search(seq: Any, x: Any, side: str, int32: bool) -> Any:
    find = jnp.vectorize(lambda s, v: jnp.searchsorted(s, v, side=side), signature="(n),(m)->(m)")
    flat = x.reshape(-1) if seq.ndim == 1 else x
    if not seq.shape[-1]:
        found = jnp.zeros(flat.shape, np.int64)
    else:
        found = jnp.searchsorted(seq, flat, side=side) if seq.ndim == 1 else find(seq, flat)
    return found.reshape(x.shape).astype(np.int32 if int32 else np.int64)


@op("", differentiable=False, oracle="searchsorted")
def searchsorted_op(
    sorted_sequence: Array, input: Array, sorter: Array | None = None, *, out_int32: bool = False, side: str = "left"
) -> Array:
    """Return where each value would be inserted; see the public `searchsorted`."""
    seq = sorted_sequence
    if seq.ndim != 1 and (seq.ndim != input.ndim or seq.shape[:-1] != input.shape[:-1]):
        message = "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries "
        shapes = f"{tuple(seq.shape)} and {tuple(input.shape)}"
        raise refuse(RuntimeError, "searchsorted", f"{message}tensor and input value tensor must match, but we got {shapes}")
    if sorter is not None:
        seq = along(seq, sorter, -1)
    return _search(seq, input, side, out_int32)


@searchsorted_op.samples
def _(make: Any) -> Iterator[Any]:
    yield np.array([1.0, 3.0, 3.0, 7.0]), np.array([[3.0, 0.0], [8.0, 4.0]])
    yield sample(np.array([1.0, 3.0, 3.0, 7.0]), np.array(3.0), side="right", out_int32=True)
    yield np.sort(make(2, 4), -1), make(2, 3)
    yield np.array([1, 3, 5]), np.array([5, 6])


@searchsorted_op.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "must match", make(2, 3), make(3, 3))


def _side(name: str, side: str | None, right: bool) -> str:
    if side not in (None, "left", "right"):
        raise refuse(RuntimeError, name, f"side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise refuse(RuntimeError, name, "side and right can't be set to opposites, got side of left while right was True")
    return side or ("right" if right else "left")


@composite("torch")
def searchsorted(
    sorted_sequence: Any, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    """Return the int64 index at which each value of `input` keeps `sorted_sequence` sorted: before equal ones, or after.

    The sequence is `(N,)`, or `(..., N)` with the leading axes of `input`; `sorter` holds the indices that sort it.
    `right=True` or `side="right"` inserts after equal values.

    >>> import tapejax as tj
    >>> tj.searchsorted(tj.tensor([1., 3., 5.]), tj.tensor([3., 4.]))
    tensor([1, 2])
    """
    side = _side("searchsorted", side, right)
    return searchsorted_op(sorted_sequence, input, sorter, out_int32=out_int32, side=side)


@op("torch", differentiable=False)
def bucketize(input: Array, boundaries: Array, *, out_int32: bool = False, right: bool = False) -> Array:
    """Return the index of the interval of the sorted vector `boundaries` that holds each value.

    Interval i is `(b_{i-1}, b_i]`; with `right=True`, `[b_{i-1}, b_i)`.
    """
    if boundaries.ndim != 1:
        message = f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})"
        raise refuse(RuntimeError, "bucketize", message)
    return _search(boundaries, input, "right" if right else "left", out_int32)


@bucketize.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4), np.array([-1.0, 0.0, 1.0])
    yield sample(np.array([1.0, 2.0]), np.array([1.0, 2.0]), right=True)


@bucketize.error_samples
def _(make: Any) -> Iterator[Any]:
    yield error_sample(RuntimeError, "boundaries tensor must be 1 dimension", make(3), make(2, 2))


@op("torch", differentiable=False, promote=mixed)
def isin(elements: Array, test_elements: Array, *, assume_unique: bool = False, invert: bool = False) -> Array:
    """Return, for each of `elements`, whether it is among `test_elements` (with `invert`, whether it is not)."""
    return jnp.isin(elements, test_elements, assume_unique=assume_unique, invert=invert)


@isin.samples
def _(make: Any) -> Iterator[Any]:
    yield make.ints(3, 4, high=6), np.array([1, 4])
    yield sample(make.ints(5, high=6), np.array([1, 4]), invert=True)


# --- results whose shape depends on values ----------------------------------------------------------------------------


def _read(name: str, x: Any) -> np.ndarray:
    """Return the values, which determine the shape of the result."""
    return np.asarray(x.detach().numpy())


@composite("torch Tensor")
def unique(
    input: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Return the distinct values, sorted (or the distinct slices along `dim`); optionally inverse and counts, int64.

    Reads the values now, because they determine the shape; the result carries no gradient.

    >>> import tapejax as tj
    >>> tj.tensor([3, 1, 3]).unique()
    tensor([1, 3])
    """
    x = _read("unique", input)
    if dim is not None:
        dim = axis("unique", dim, x.ndim)
    values, inverse, counts = np.unique(x, return_inverse=True, return_counts=True, axis=dim, equal_nan=False)
    inverse = inverse.reshape(-1) if dim is not None else inverse.reshape(x.shape)
    return _several(values, (inverse, return_inverse), (counts, return_counts))


@composite("torch Tensor")
def unique_consecutive(
    input: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Return the first of each run of equal values (or of equal slices along `dim`); optionally inverse and counts.

    Reads the values now, because they determine the shape; the result carries no gradient.
    """
    x = _read("unique_consecutive", input)
    d = 0 if dim is None else axis("unique_consecutive", dim, x.ndim)
    rows = x.reshape(-1) if dim is None else np.moveaxis(x, d, 0)
    changed = (rows[1:] != rows[:-1]).reshape(max(len(rows) - 1, 0), -1).any(1) if len(rows) else np.zeros(0, bool)
    starts = np.flatnonzero(np.concatenate([np.ones(min(len(rows), 1), bool), changed]))
    inverse = np.cumsum(np.concatenate([np.zeros(min(len(rows), 1), np.int64), changed]))
    counts = np.diff(np.append(starts, len(rows)))
    values = rows[starts] if dim is None else np.moveaxis(rows[starts], 0, d)
    inverse = inverse.reshape(x.shape) if dim is None else inverse
    return _several(values, (inverse, return_inverse), (counts, return_counts))


def _several(values: np.ndarray, *extras: tuple[np.ndarray, bool]) -> Any:
    wanted = [from_numpy(np.array(extra, np.int64)) for extra, asked in extras if asked]
    first = from_numpy(np.array(values))
    return (first, *wanted) if wanted else first


@op("", differentiable=False, oracle=None)
def bincount_op(input: Array, weights: Array | None = None, *, length: int) -> Array:
    """Return the counts (or sums of weights) of the values 0 ... length - 1; see the public `bincount`."""
    if weights is None:
        return jnp.zeros((length,), np.int64).at[input].add(1, mode="drop")
    kind = weights.dtype if weights.dtype == np.float32 else np.float64
    return jnp.zeros((length,), kind).at[input].add(weights.astype(kind), mode="drop")


@bincount_op.samples
def _(make: Any) -> Iterator[Any]:
    yield sample(make.ints(6), length=4)
    yield sample(make.ints(6), make(6), length=3)


@composite("torch Tensor")
def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    """Return how often each of 0 ... max(input) occurs (or the sum of its weights), at least `minlength` entries.

    `input` is a vector of integers >= 0. Reads the values now, because they determine the shape; int64 without weights.
    Raises RuntimeError for negative values or another rank.
    """
    x = _read("bincount", input)
    if x.ndim != 1 or x.dtype.kind not in "iu" or (x.size and x.min() < 0):
        message = f"bincount only supports 1-d non-negative integral inputs, got {input.dtype} of shape {tuple(x.shape)}"
        raise refuse(RuntimeError, "bincount", message)
    if weights is not None and tuple(weights.shape) != x.shape:
        message = f"weights should be 1-d and have the same length as input, got {tuple(weights.shape)} for {x.shape}"
        raise refuse(RuntimeError, "bincount", message)
    return bincount_op(input, weights, length=max(minlength, int(x.max()) + 1 if x.size else 0))
