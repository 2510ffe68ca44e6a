"""Gather and scatter: reading and writing along one dimension at places that a tensor holds.

Indices are not read, so one out of range means the nearest entry when reading and is dropped when writing. Gradients
are those of the function actually computed: an element that was overwritten gets none, ties of amax and amin share.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.errors import refuse
from tapejax.ops.shape import axis
from tapejax.tape.op import Array, Scalar, composite, error_sample, op, sample
from tapejax.tensor import Tensor

_REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _integers(name: str, index: Any) -> None:
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise refuse(RuntimeError, name, f"Expected dtype int32/int64 for index, got {index.dtype}")


def _lined_up(name: str, input: Any, dim: int, index: Any, src: Any = None) -> int:
    """Check torch's size rules for gather and scatter; return the axis."""
    _integers(name, index)
    d = axis(name, dim, input.ndim)
    if index.size == 0:
        return d
    for other, what in ((input, "input"), (src, "src")):
        if other is not None and max(other.ndim, 1) != max(index.ndim, 1):
            raise refuse(
                RuntimeError,
                name,
                f"Index tensor must have the same number of dimensions as {what} tensor, got index "
                f"{list(index.shape)} and "
                f"{what} {list(other.shape)}",
            )
    for k, n in enumerate(index.shape):
        if k != d and input.ndim and n > input.shape[k]:
            raise refuse(
                RuntimeError,
                name,
                f"Size does not match at dimension {k} expected index {list(index.shape)} to be no larger than self "
                f"{list(input.shape)} apart from dimension {d}",
            )
        if src is not None and src.ndim and n > src.shape[k]:
            raise refuse(
                RuntimeError,
                name,
                f"Expected index {list(index.shape)} to be no larger than src {list(src.shape)}: it is at "
                f"dimension {k}",
            )
    return d


def _places(index: Array, d: int) -> tuple[Array, ...]:
    """Return full coordinates: each element's own along every axis, the index along axis `d`."""
    return tuple(index if k == d else lax.broadcasted_iota(index.dtype, index.shape, k) for k in range(index.ndim))


def _at_least_1d(*arrays: Any) -> tuple[Any, ...]:
    return tuple(a.reshape(1) if a.ndim == 0 else a for a in arrays)


def _used(src: Array, index: Array) -> Array:
    """Return the part of `src` that the index addresses: only that gets gradient."""
    return src if src.shape == index.shape else src[tuple(slice(n) for n in index.shape)]


@op("torch Tensor", saves={"input": "input index"})
def gather(input: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    """Return the entries of `input` at `index` along `dim`: `out[i][j] = input[index[i][j]][j]` for dim 0.

    The result has the index's shape, which may be smaller than the input's in the other dimensions. The gradient sums
    over repeats.

    >>> import tapejax as tj
    >>> tj.gather(tj.tensor([[1, 2], [3, 4]]), 1, tj.tensor([[0, 0], [1, 0]])).tolist()
    [[1, 1], [4, 3]]
    """
    d = _lined_up("gather", input, dim, index)
    shape = index.shape
    if index.size == 0:
        return jnp.zeros(shape, input.dtype)
    input, index = _at_least_1d(input, index)
    part = input[tuple(slice(None) if k == d else slice(n) for k, n in enumerate(index.shape))]
    return jnp.take_along_axis(part, index, d, mode="clip").reshape(shape)


@gather.samples
def _(make):
    x = make(3, 4)
    yield sample(x, 0, np.array([[0, 2, 2, 1]]))
    yield sample(x, -1, np.array([[0, 0, 3], [1, 3, 1]]))
    yield sample(make(), 0, np.array([0, 0]))
    yield sample(x, 1, np.zeros((3, 0), np.int64))


@gather.error_samples
def _(make):
    i = np.array([[0, 1]])
    yield error_sample(RuntimeError, "same number of dimensions", make(3), 0, i)
    yield error_sample(RuntimeError, "Size does not match at dimension 1", make(2, 1), 0, i)
    yield error_sample(RuntimeError, "Expected dtype int32/int64 for index", make(2, 2), 0, make(1, 2))


@composite("torch Tensor")
def take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    """Return the entries of `input` at `indices` along `dim`, other dimensions broadcast; of both flattened without
    it.
    """
    if dim is None:
        return gather(input.reshape(-1), 0, indices.reshape(-1))
    if input.ndim != indices.ndim:
        raise refuse(
            RuntimeError,
            "take_along_dim",
            f"input and indices should have the same number of dimensions, but got {input.ndim} dimensions for "
            "input, and "
            f"{indices.ndim} dimensions for indices",
        )
    d = axis("take_along_dim", dim, input.ndim)
    a, b = list(input.shape), list(indices.shape)
    for k in range(len(a)):
        if k != d and a[k] != b[k]:
            a[k] = b[k] = a[k] if b[k] == 1 else b[k]
    return gather(input.expand(tuple(a)), d, indices.expand(tuple(b)))


@op("torch Tensor", saves={"input": "input index"})
def take(input: Array, index: Array) -> Array:
    """Return the elements of the flattened `input` at `index` (negative ones count from the end), in the index's
    shape.
    """
    _integers("take", index)
    return input.reshape(-1).at[index].get(mode="clip")


@take.samples
def _(make):
    yield sample(make(2, 3), np.array([[0, 5], [5, -1]]))
    yield sample(make(2, 3), np.asarray(2))


@op("torch Tensor", saves={"input": "index"})
def index_select(input: Array, dim: int, index: Array) -> Array:
    """Return the entries of `input` along `dim` listed in the vector `index`; the gradient sums over repeats."""
    _integers("index_select", index)
    d = axis("index_select", dim, input.ndim)
    if index.ndim > 1:
        raise refuse(RuntimeError, "index_select", f"Index is supposed to be a vector, got shape {list(index.shape)}")
    if input.ndim == 0:
        return input
    return input.at[(slice(None),) * d + (index.reshape(-1),)].get(mode="clip")


@index_select.samples
def _(make):
    x = make(3, 4)
    yield sample(x, 0, np.array([2, 0, 2]))
    yield sample(x, -1, np.array([1]))
    yield sample(x, 1, np.zeros(0, np.int64))


@index_select.error_samples
def _(make):
    yield error_sample(RuntimeError, "Index is supposed to be a vector", make(3), 0, np.array([[0]]))


# ---------------------------------------------------------------- scatter


def _scattered(
    name: str, input: Array, dim: int, index: Array, src: Array, how: str, include_self: bool = True
) -> Array:
    """Write or reduce `src` into `input` at `index` along `dim`."""
    if src.dtype != input.dtype:
        raise refuse(
            RuntimeError,
            name,
            f"Expected self.dtype to be equal to src.dtype, got {input.dtype} and {src.dtype} → use .to()",
        )
    d = _lined_up(name, input, dim, index, src)
    shape = input.shape
    if index.size == 0:
        return input
    input, index, src = _at_least_1d(input, index, src)
    src = _used(src, index)
    index = jnp.where(index < 0, index + input.shape[d], index)
    at = _places(index, d)
    return _write(input, at, d, src, how, include_self).reshape(shape)


def _write(input: Array, at: tuple[Array, ...], d: int, src: Array, how: str, include_self: bool) -> Array:
    if how == "set":
        return input.at[at].set(src, mode="drop")
    count: Any = None
    if how == "mean" or not include_self:
        count = jnp.zeros(input.shape, jnp.int64).at[at].add(1, mode="drop")
    base = input if include_self else jnp.where(count > 0, _neutral(how, input.dtype), input)
    if how == "sum":
        return base.at[at].add(src, mode="drop")
    if how == "mean":
        total = base.at[at].add(src, mode="drop")
        n = jnp.maximum(count + 1 if include_self else count, 1)
        n = n.astype(total.dtype)
        return total // n if jnp.issubdtype(total.dtype, jnp.integer) else total / n
    if how == "prod":
        return _multiply(base, at, d, src)
    return _extreme(base, src, at, how == "amax")


def _neutral(how: str, dtype: Any) -> Array:
    if how in ("sum", "mean"):
        return jnp.zeros((), dtype)
    if how == "prod":
        return jnp.ones((), dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(-jnp.inf if how == "amax" else jnp.inf, dtype)
    if dtype == jnp.bool_:
        return jnp.asarray(how != "amax")
    info = jnp.iinfo(dtype)
    return jnp.asarray(info.min if how == "amax" else info.max, dtype)


def _multiply(base: Array, at: tuple[Array, ...], d: int, src: Array) -> Array:
    """Multiply each `src` into its slot, exactly differentiable to any order also where factors are zero.

    Equal indices are sorted next to each other and multiplied by a segmented scan, so the derivative is made of
    products of the other factors and never divides.
    """
    index = at[d]
    order = jnp.argsort(index, axis=d, stable=True)
    index = jnp.take_along_axis(index, order, d)
    src = jnp.take_along_axis(src, order, d)
    n = index.shape[d]
    inner = lax.slice_in_dim(index, 1, n, axis=d) != lax.slice_in_dim(index, 0, n - 1, axis=d)
    edge = jnp.ones_like(lax.slice_in_dim(index, 0, 1, axis=d), dtype=bool)
    starts, ends = jnp.concatenate([edge, inner], d), jnp.concatenate([inner, edge], d)

    def joined(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.where(b[0], b[1], a[1] * b[1]), a[0] | b[0]

    def step(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        value, start = joined((a[1], a[0]), (b[1], b[0]))
        return value, start

    products, _ = lax.associative_scan(step, (src, starts), axis=d)
    outside = jnp.where(ends, index, base.shape[d])  # dropped: only the last of a run holds the run's product
    places = tuple(outside if k == d else a for k, a in enumerate(at))
    factors = jnp.ones_like(base).at[places].set(products, mode="drop", unique_indices=True)
    return base * factors


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _extreme(base: Array, src: Array, at: tuple[Array, ...], largest: bool) -> Array:
    written = base.at[at]
    return written.max(src, mode="drop") if largest else written.min(src, mode="drop")


@_extreme.defjvp
def _extreme_jvp(largest: bool, primals: Any, tangents: Any) -> Any:
    base, src, at = primals
    result = _extreme(base, src, at, largest)
    mine = (base == result).astype(base.dtype)  # torch shares the gradient evenly over ties
    theirs = (src == result.at[at].get(mode="clip")).astype(src.dtype)
    n = jnp.maximum(mine.at[at].add(theirs, mode="drop"), 1)
    moved = (mine * tangents[0]).at[at].add(theirs * tangents[1], mode="drop")
    return result, moved / n


def _reduction(name: str, reduce: str | None) -> str:
    if reduce is None:
        return "set"
    if reduce not in ("add", "multiply"):
        raise refuse(RuntimeError, name, f"reduce argument must be either add or multiply, got {reduce!r}")
    return "sum" if reduce == "add" else "prod"


@op("", saves={"input": "index", "src": "index"}, name="scatter", oracle="scatter")
def scatter_src(input: Array, dim: int, index: Array, src: Array, *, reduce: str | None = None) -> Array:
    """Return `input` with `src` written at `index` along `dim`; see `scatter`."""
    return _scattered("scatter", input, dim, index, src, _reduction("scatter", reduce))


@op("", saves={"input": "index"}, grad_name="Scatter", oracle=None)
def scatter_value(input: Array, dim: int, index: Array, value: Scalar, *, reduce: str | None = None) -> Array:
    """Return `input` with the number `value` written at `index` along `dim`; see `scatter`."""
    src = jnp.full(index.shape, jnp.asarray(value).astype(input.dtype))
    return _scattered("scatter", input, dim, index, src, _reduction("scatter", reduce))


@scatter_src.samples
def _(make):
    x = make(3, 4)
    i = np.array([[0, 2, 1], [1, 0, 2]])
    yield sample(x, 0, i, make(2, 3))
    yield sample(x, -1, i, make(2, 3))
    yield sample(make(), 0, np.array([0]), make(1))


@scatter_value.samples
def _(make):
    i = np.array([[0, 2, 1]])
    yield sample(make(3, 4), 0, i, value=2.5)
    yield sample(make(3, 4), 1, i, value=3, reduce="multiply")


@scatter_src.error_samples
def _(make):
    i = np.array([[0, 2, 1]])
    yield error_sample(RuntimeError, "same number of dimensions", make(3), 0, i, make(1, 3))
    yield error_sample(RuntimeError, "to be no larger than src", make(3, 3), 0, i, make(1, 2))
    yield error_sample(RuntimeError, "reduce argument must be", make(3, 3), 0, i, make(1, 3), reduce="max")


@composite("torch Tensor Tensor_")
def scatter(input: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: str | None = None) -> Any:
    """Return `input` with values written at `index` along `dim`: `out[index[i][j]][j] = src[i][j]` for dim 0.

    `src` is a tensor at least as large as the index (only the addressed part is used and gets gradient) or a number.
    `reduce="add"` or "multiply" combines with what is there. Where an index repeats, one of the values stays, and it
    alone gets the gradient.

    >>> import tapejax as tj
    >>> tj.zeros(3).scatter(0, tj.tensor([2, 0]), tj.tensor([5.0, 7.0])).tolist()
    [7.0, 0.0, 5.0]
    """
    src = value if src is None else src
    if src is None:
        raise refuse(TypeError, "scatter", "missing argument: give src (a tensor) or value (a number)")
    if isinstance(src, Tensor):
        return scatter_src(input, dim, index, src, reduce=reduce)
    return scatter_value(input, dim, index, src, reduce=reduce)


@op("torch Tensor Tensor_", saves={"src": "index"})
def scatter_add(input: Array, dim: int, index: Array, src: Array) -> Array:
    """Return `input` with `src` added at `index` along `dim`; repeats add up. Only the addressed part of `src` is
    used.
    """
    return _scattered("scatter_add", input, dim, index, src, "sum")


@scatter_add.samples
def _(make):
    yield sample(make(3), 0, np.array([0, 0, 1]), make(3))
    yield sample(make(2, 3), 1, np.array([[2, 2], [0, 1]]), make(2, 2))
    yield sample(make(2), 0, np.zeros(0, np.int64), make(0))


@op("torch Tensor Tensor_", saves="input index src result")
def scatter_reduce(
    input: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True
) -> Array:
    """Return `input` with `src` reduced into the slots at `index` along `dim`: sum, prod, mean, amax or amin.

    With `include_self=False` the slots that receive something start empty. Gradients: prod gives the product of the
    other factors (zeros included), amax and amin share evenly over ties, slots that receive nothing keep their own.
    """
    if reduce not in _REDUCTIONS:
        raise refuse(
            RuntimeError, "scatter_reduce", f"reduce argument must be either {', '.join(_REDUCTIONS)}, got {reduce!r}"
        )
    return _scattered("scatter_reduce", input, dim, index, src, reduce, include_self)


@scatter_reduce.samples
def _(make):
    i = np.array([0, 0, 2, 0])
    for how in _REDUCTIONS:
        yield sample(make.distinct(4), 0, i, make.distinct(4) + 0.1, how)
        yield sample(make.distinct(4), 0, i, make.distinct(4) + 0.1, how, include_self=False)
    yield sample(make(2, 3), 1, np.array([[2, 2], [0, 1]]), make(2, 2), "prod")


@scatter_reduce.error_samples
def _(make):
    yield error_sample(RuntimeError, "reduce argument must be", make(2), 0, np.array([0]), make(1), "max")


# ---------------------------------------------------------------- whole entries along a dimension


def _entries(name: str, input: Array, dim: int, index: Array, source: Array) -> tuple[int, tuple[Any, ...], Array]:
    """Return the axis, the indexing tuple and the source of an `index_*` op, with 0-d operands made 1-d."""
    _integers(name, index)
    d = axis(name, dim, input.ndim)
    if index.ndim > 1:
        raise refuse(IndexError, name, f"Index is supposed to be a vector, but it has {index.ndim} dimensions")
    index = index.reshape(-1)
    source = source.reshape(1) if source.ndim == 0 else source
    want = (*input.shape[:d], index.shape[0], *input.shape[d + 1 :]) if input.ndim else index.shape
    if source.shape != want:
        raise refuse(
            RuntimeError,
            name,
            f"Number of indices ({index.shape[0]}) should be equal to source.size(dim), and the other sizes to "
            "input's: "
            f"source is {list(source.shape)}, required is {list(want)}",
        )
    if source.dtype != input.dtype:
        raise refuse(
            RuntimeError, name, f"self and source expected to have the same dtype, got {input.dtype} and {source.dtype}"
        )
    return d, (slice(None),) * d + (index,), source


@op("torch Tensor Tensor_", saves={"source": "index source"})
def index_add(input: Array, dim: int, index: Array, source: Array, *, alpha: Scalar = 1) -> Array:
    """Return `input` with `alpha * source` added to the entries along `dim` listed in the vector `index`; repeats
    add up.
    """
    _, at, source = _entries("index_add", input, dim, index, source)
    flat = input.reshape(1) if input.ndim == 0 else input
    return flat.at[at].add(jnp.asarray(alpha).astype(source.dtype) * source, mode="drop").reshape(input.shape)


@index_add.samples
def _(make):
    yield sample(make(2), 0, np.array([0, 1, 0]), make(3))
    yield sample(make(2, 3), -1, np.array([2, 0]), make(2, 2), alpha=-0.5)


@index_add.error_samples
def _(make):
    yield error_sample(RuntimeError, "Number of indices", make(3, 2), 0, np.array([0, 1]), make(3, 2))


@op("torch Tensor Tensor_", saves={"input": "index", "source": "index source"})
def index_copy(input: Array, dim: int, index: Array, source: Array) -> Array:
    """Return `input` with the entries along `dim` listed in `index` replaced by those of `source`."""
    _, at, source = _entries("index_copy", input, dim, index, source)
    flat = input.reshape(1) if input.ndim == 0 else input
    return flat.at[at].set(source, mode="drop").reshape(input.shape)


@index_copy.samples
def _(make):
    yield sample(make(3, 2), 0, np.array([2, 0]), make(2, 2))
    yield sample(make(3, 2), 1, np.array([1]), make(3, 1))


@op("torch Tensor Tensor_", saves={"input": "index", "value": "index"})
def index_fill(input: Array, dim: int, index: Array, value: Array) -> Array:
    """Return `input` with the entries along `dim` listed in `index` set to the number or 0-d tensor `value`."""
    _integers("index_fill", index)
    d = axis("index_fill", dim, input.ndim)
    if value.ndim:
        raise refuse(
            RuntimeError,
            "index_fill",
            f"only supports a 0-dimensional value tensor, but got tensor with {value.ndim} dimension(s).",
        )
    flat = input.reshape(1) if input.ndim == 0 else input
    at = (slice(None),) * d + (index.reshape(-1),)
    return flat.at[at].set(value.astype(input.dtype), mode="drop").reshape(input.shape)


@index_fill.samples
def _(make):
    yield sample(make(3, 2), 0, np.array([2, 0, 2]), 1.5)
    yield sample(make(3, 2), -1, np.array([1]), make())


@op("torch Tensor Tensor_", saves="input index source result")
def index_reduce(
    input: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    """Return `input` with the entries of `source` reduced into those along `dim` listed in `index`: prod, mean,
    amax, amin.
    """
    if reduce not in _REDUCTIONS[1:]:
        raise refuse(
            RuntimeError, "index_reduce", f"reduce argument must be either prod, mean, amax or amin, got {reduce!r}"
        )
    d, at, source = _entries("index_reduce", input, dim, index, source)
    index = at[-1].reshape((-1,) + (1,) * (source.ndim - d - 1))
    return _scattered("index_reduce", input, d, jnp.broadcast_to(index, source.shape), source, reduce, include_self)


@index_reduce.samples
def _(make):
    for how in _REDUCTIONS[1:]:
        yield sample(make.distinct(3, 2), 0, np.array([2, 0, 2]), make.distinct(3, 2) + 0.1, how)
    yield sample(make(2, 3), 1, np.array([1, 1]), make(2, 2), "prod", include_self=False)


# ---------------------------------------------------------------- masks and flat positions


def _mask(name: str, mask: Array) -> None:
    if mask.dtype != jnp.bool_:
        raise refuse(
            RuntimeError, name, f"only supports boolean masks, but got mask with dtype {mask.dtype} → use .bool()"
        )


def _fits(name: str, input: Array, mask: Array) -> tuple[int, ...]:
    try:
        return jnp.broadcast_shapes(input.shape, mask.shape)
    except ValueError:
        raise refuse(
            RuntimeError,
            name,
            f"the mask {list(mask.shape)} must match the size of tensor {list(input.shape)} at non-singleton "
            "dimensions",
        ) from None


@op("torch Tensor Tensor_", saves={"input": "mask", "value": "mask"})
def masked_fill(input: Array, mask: Array, value: Array) -> Array:
    """Return `input` with `value` (a number or a 0-d tensor) where `mask` holds; mask and input are broadcast.

    The filled elements get no gradient, whatever their value (also inf and NaN).
    """
    _mask("masked_fill", mask)
    if value.ndim:
        raise refuse(
            RuntimeError,
            "masked_fill",
            f"only supports a 0-dimensional value tensor, but got tensor with {value.ndim} dimension(s).",
        )
    _fits("masked_fill", input, mask)
    return jnp.where(mask, value.astype(input.dtype), input)


@masked_fill.samples
def _(make):
    yield sample(make(2, 3), make.bools(2, 3), -np.inf)
    yield sample(make(2, 3), make.bools(3), make())
    yield sample(make(3), make.bools(2, 1), 2)


@masked_fill.error_samples
def _(make):
    yield error_sample(RuntimeError, "only supports boolean masks", make(2), np.array([0, 1]), 1.0)
    yield error_sample(RuntimeError, "0-dimensional value tensor", make(2), make.bools(2), make(2))


@op("torch Tensor Tensor_", saves={"input": "mask", "source": "mask"})
def masked_scatter(input: Array, mask: Array, source: Array) -> Array:
    """Return `input` with the elements of `source`, in order, at the places where `mask` holds (broadcast).

    The source must have as many elements as the mask has hits; that is not checked, for the mask is not read.
    """
    _mask("masked_scatter", mask)
    if source.dtype != input.dtype:
        raise refuse(
            RuntimeError,
            "masked_scatter",
            f"expected self and source to have same dtypes but got {input.dtype} and {source.dtype}",
        )
    shape = _fits("masked_scatter", input, mask)
    mask = jnp.broadcast_to(mask, shape)
    if source.size == 0:
        return jnp.broadcast_to(input, shape)
    nth = jnp.cumsum(mask.reshape(-1)) - 1
    taken = jnp.take(source.reshape(-1), nth, mode="clip").reshape(shape)
    return jnp.where(mask, taken, input)


@masked_scatter.samples
def _(make):
    yield sample(make(2, 3), make.bools(2, 3), make(7))
    yield sample(make(2, 3), make.bools(3), make(2, 3))


@op("torch Tensor Tensor_", saves={"input": "index", "source": "index source"})
def put(input: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    """Return `input` with `source` written (or added) at the flat positions `index`, which has as many elements."""
    _integers("put", index)
    if index.size != source.size:
        raise refuse(
            IndexError,
            "put",
            f"Expected source and index to have the same number of elements, but got source.numel() = {source.size}, "
            f"index.numel() = {index.size}",
        )
    if source.dtype != input.dtype:
        raise refuse(
            RuntimeError,
            "put",
            f"Expected self and source to have the same dtype, got {input.dtype} and {source.dtype}",
        )
    written = input.reshape(-1).at[index.reshape(-1)]
    values = source.reshape(-1)
    return (written.add(values) if accumulate else written.set(values)).reshape(input.shape)


@put.samples
def _(make):
    yield sample(make(2, 3), np.array([4, -1]), make(2))
    yield sample(make(2, 3), np.array([[4, 4]]), make(2), True)
