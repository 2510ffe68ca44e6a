"""Copies in another arrangement: repeated, rolled, flipped; and the matrix spellings of transposition."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp

from tapejax.errors import refuse
from tapejax.ops.part import as_strided, diagonal, put_as_strided, put_diagonal, put_select, put_slice, select_, slice_
from tapejax.ops.shape import axes, axis, permute, transpose
from tapejax.tape.op import Array, Dims, Ints, composite, error_sample, op, sample
from tapejax.tensor import Tensor


@op("torch Tensor")
def clone(input: Array, *, memory_format: Any = None) -> Array:
    """Return a copy with its own storage, through which gradients flow."""
    return input


@clone.samples
def _(make):
    yield sample(make(2, 3))
    yield sample(make.ints(2))


@composite("Tensor")
def contiguous(input: Any, memory_format: Any = None) -> Any:
    """Return the tensor itself: every tensor counts as contiguous here."""
    return input


@composite("Tensor")
def is_contiguous(input: Any, memory_format: Any = None) -> bool:
    """Return True: there are no strides."""
    return True


@composite("Tensor")
def stride(input: Any, dim: int | None = None) -> Any:
    """Return the strides (in elements) that a row-major tensor of this shape has, or the one of `dim`."""
    found: list[int] = []
    step = 1
    for n in reversed(input.shape):
        found.append(step)
        step *= max(n, 1)
    strides = tuple(reversed(found))
    return strides if dim is None else strides[axis("stride", dim, input.ndim)]


# ---------------------------------------------------------------- repeats


@op("Tensor", oracle="Tensor.repeat")
def repeat(input: Array, repeats: Ints) -> Array:
    """Return `input` repeated `repeats[i]` times along dimension i, as a copy; more repeats than dimensions add
    leading ones.
    """
    if len(repeats) < input.ndim:
        raise refuse(
            RuntimeError,
            "repeat",
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor, got "
            f"{len(repeats)} for {input.ndim}",
        )
    if any(r < 0 for r in repeats):
        raise refuse(
            RuntimeError, "repeat", f"Trying to create tensor with negative dimension: repeats {list(repeats)}"
        )
    return jnp.tile(input, repeats)


@repeat.samples
def _(make):
    x = make(2, 3)
    yield sample(x, (2, 1))
    yield sample(x, (2, 1, 2))
    yield sample(x, (0, 1))
    yield sample(make(), (3,))


@repeat.error_samples
def _(make):
    yield error_sample(RuntimeError, "Number of dimensions of repeat dims", make(2, 3), (2,))


@op("torch Tensor", grad_name="Repeat")
def tile(input: Array, dims: Ints) -> Array:
    """Return `input` repeated `dims[i]` times along dimension i; missing leading entries count as 1."""
    return jnp.tile(input, dims)


@tile.samples
def _(make):
    yield sample(make(2, 3), (2,))
    yield sample(make(3), (2, 1, 2))


@op("", oracle="repeat_interleave", name="repeat_interleave", grad_name="RepeatInterleave")
def repeated_evenly(input: Array, repeats: int, dim: int | None = None) -> Array:
    """Return each entry along `dim` (or each element) `repeats` times in a row; see `repeat_interleave`."""
    if repeats < 0:
        raise refuse(RuntimeError, "repeat_interleave", f"Repeats must be non-negative, got {repeats}")
    if dim is None:
        return jnp.repeat(input.reshape(-1), repeats)
    return jnp.repeat(input, repeats, axis=axis("repeat_interleave", dim, input.ndim))


@repeated_evenly.samples
def _(make):
    yield sample(make(2, 3), 2)
    yield sample(make(2, 3), 2, -1)
    yield sample(make(2, 3), 0, 0)


@op("", grad_name="IndexSelect", oracle=None)
def repeated(input: Array, repeats: Array, dim: int, total: int) -> Array:
    """Return entry i along `dim` `repeats[i]` times in a row, `total` entries in all; see `repeat_interleave`."""
    if repeats.ndim != 1 or repeats.shape[0] not in (1, input.shape[dim]):
        raise refuse(
            RuntimeError,
            "repeat_interleave",
            f"repeats must have the same size as input along dim, but got repeats.size(0) = {repeats.shape[:1]} and "
            f"input.size({dim}) = {input.shape[dim]}",
        )
    each = jnp.broadcast_to(repeats, (input.shape[dim],))
    return jnp.repeat(input, each, axis=dim, total_repeat_length=total)


@repeated.samples
def _(make):
    yield sample(make(3, 2), make.ints(3, low=1, high=2), 0, 3)


@composite("torch Tensor")
def repeat_interleave(
    input: Any, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Any:
    """Return each entry along `dim` (of the flattened tensor without it) several times in a row.

    `repeats` is an int, or a vector of counts, whose sum is read unless `output_size` gives it. With the counts alone,
    `repeat_interleave(repeats)`, the result lists entry numbers.
    """
    if repeats is None:
        from_counts = input
        entries = _counting(from_counts)
        return repeat_interleave(entries, from_counts, 0, output_size=output_size)
    if not isinstance(repeats, Tensor):
        return repeated_evenly(input, repeats.__index__(), dim)
    if dim is None:
        input, dim = input.reshape(-1), 0
    d = axis("repeat_interleave", dim, input.ndim)
    counts = repeats.reshape(1) if repeats.ndim == 0 else repeats
    if output_size is None:
        scale = input.shape[d] if counts.shape[0] == 1 else 1
        output_size = int(counts.sum().item()) * scale
    return repeated(input, counts, d, output_size)


def _counting(like: Any) -> Any:
    from_zero = like.new_ones(like.shape[0]).cumsum(0)
    return from_zero - 1


# ---------------------------------------------------------------- rolled and flipped


@op("torch Tensor")
def roll(input: Array, shifts: Dims, dims: Dims = None) -> Array:
    """Return `input` shifted cyclically by `shifts[i]` along `dims[i]`; of the flattened tensor without `dims`."""
    many = shifts if isinstance(shifts, tuple) else (shifts,)
    if dims is None or dims == ():
        if len(many) != 1:
            raise refuse(RuntimeError, "roll", f"shifts and dimensions must align. shifts: {len(many)}, dims:0")
        return jnp.roll(input, many[0])
    where = dims if isinstance(dims, tuple) else (dims,)
    if len(many) != len(where):
        raise refuse(RuntimeError, "roll", f"shifts and dimensions must align. shifts: {len(many)}, dims:{len(where)}")
    return jnp.roll(input, many, tuple(axis("roll", d, input.ndim) for d in where)) if input.ndim else input


@roll.samples
def _(make):
    x = make(3, 4)
    yield sample(x, 1)
    yield sample(x, -1, 1)
    yield sample(x, (1, 2), (0, -1))


@roll.error_samples
def _(make):
    yield error_sample(RuntimeError, "shifts and dimensions must align", make(2, 2), (1, 1), 0)


@op("torch Tensor")
def flip(input: Array, dims: Ints) -> Array:
    """Return a copy with the order of entries reversed along each of `dims`."""
    return jnp.flip(input, axes("flip", dims, input.ndim)) if input.ndim else input


@flip.samples
def _(make):
    x = make(2, 3)
    yield sample(x, (0,))
    yield sample(x, (0, -1))
    yield sample(x, ())


@flip.error_samples
def _(make):
    yield error_sample(RuntimeError, "appears multiple times in the list of dims", make(2, 2), (0, 0))


@composite("torch Tensor")
def fliplr(input: Any) -> Any:
    """Return a copy with dimension 1 reversed."""
    if input.ndim < 2:
        raise refuse(RuntimeError, "fliplr", f"Input must be >= 2-d, got {input.ndim}-d")
    return flip(input, (1,))


@composite("torch Tensor")
def flipud(input: Any) -> Any:
    """Return a copy with dimension 0 reversed."""
    if input.ndim < 1:
        raise refuse(RuntimeError, "flipud", "Input must be >= 1-d, got 0-d")
    return flip(input, (0,))


@op("torch Tensor")
def rot90(input: Array, k: int = 1, dims: tuple[int, ...] = (0, 1)) -> Array:
    """Return a copy turned `k` times by 90 degrees in the plane of `dims`, from the first towards the second."""
    if len(dims) != 2 or input.ndim < 2:
        raise refuse(
            RuntimeError,
            "rot90",
            f"expected total rotation dims == 2 and total dims >= 2, but got dims = {len(dims)} and total dims = "
            f"{input.ndim}",
        )
    a, b = axis("rot90", dims[0], input.ndim), axis("rot90", dims[1], input.ndim)
    if a == b:
        raise refuse(
            RuntimeError,
            "rot90",
            f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}",
        )
    return jnp.rot90(input, k, (a, b))


@rot90.samples
def _(make):
    x = make(2, 3)
    yield sample(x)
    yield sample(x, -1, (1, 0))
    yield sample(make(2, 3, 2), 2, (0, -1))


@rot90.error_samples
def _(make):
    yield error_sample(RuntimeError, "expected total rotation dims == 2", make(2, 2), 1, (0,))


# ---------------------------------------------------------------- matrix spellings


@composite("Tensor.property")
def T(input: Any) -> Any:  # noqa: N802 (torch's name)
    """The tensor with its dimensions reversed, as a view; deprecated for other than matrices."""
    if input.ndim == 2:
        return transpose(input, 0, 1)
    warnings.warn(
        f"The use of `x.T` on tensors of dimension other than 2 ({input.ndim}) to reverse their shape is "
        "deprecated. Use `x.mT` for "
        "batches of matrices or `x.permute(*range(x.ndim - 1, -1, -1))`.",
        UserWarning,
        stacklevel=2,
    )
    return permute(input, tuple(reversed(range(input.ndim))))


@composite("Tensor.property")
def mT(input: Any) -> Any:  # noqa: N802
    """The matrix, or each matrix of the batch, transposed, as a view."""
    return _matrix_transpose("mT", input)


@composite("Tensor.property")
def H(input: Any) -> Any:  # noqa: N802
    """The matrix transposed and conjugated."""
    if input.ndim not in (0, 2):
        raise refuse(
            RuntimeError, "H", f"tensor.H is only supported on matrices (2-D tensors). Got {input.ndim}-D tensor."
        )
    return adjoint(input) if input.ndim else input


@composite("Tensor.property")
def mH(input: Any) -> Any:  # noqa: N802
    """The matrix, or each matrix of the batch, transposed and conjugated."""
    return adjoint(input)


@composite("torch Tensor")
def adjoint(input: Any) -> Any:
    """Return each matrix over the last two dimensions transposed and conjugated."""
    turned = _matrix_transpose("adjoint", input)
    return turned.conj() if input.dtype.is_complex else turned


def _matrix_transpose(name: str, input: Any) -> Any:
    if input.ndim < 2:
        raise refuse(
            RuntimeError,
            name,
            f"tensor.{name} is only supported on matrices or batches of matrices. Got {input.ndim}-D tensor.",
        )
    return transpose(input, -2, -1)


# ---------------------------------------------------------------- a copy with one part replaced


def _same_shape(name: str, src: Array, part: Array) -> None:
    if src.shape != part.shape:
        raise refuse(
            RuntimeError,
            name,
            f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, slice size = "
            f"{list(part.shape)}",
        )


@op("torch Tensor", promote="first")
def select_scatter(input: Array, src: Array, dim: int, index: int) -> Array:
    """Return a copy of `input` with entry `index` along `dim` replaced by `src`."""
    d = axis("select_scatter", dim, input.ndim)
    n = input.shape[d]
    if not -n <= index < n:
        raise refuse(IndexError, "select_scatter", f"index {index} is out of bounds for dimension {d} with size {n}")
    at = jnp.asarray(index % n)
    _same_shape("select_scatter", src, select_.impl(input, at, d))
    return put_select(input, src, at, dim=d)


@select_scatter.samples
def _(make):
    yield sample(make(3, 4), make(4), 0, -1)
    yield sample(make(3, 4), make(3), 1, 2)


@select_scatter.error_samples
def _(make):
    yield error_sample(RuntimeError, "expected src to have a size equal", make(3, 4), make(3), 0, 1)


@op("torch Tensor", promote="first")
def slice_scatter(
    input: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    """Return a copy of `input` with `input[start:end:step]` along `dim` replaced by `src`."""
    _same_shape("slice_scatter", src, slice_.impl(input, dim, start, end, step))
    return put_slice(input, src, dim=dim, start=start, stop=end, step=step)


@slice_scatter.samples
def _(make):
    yield sample(make(5, 2), make(2, 2), 0, 1, 4, 2)
    yield sample(make(2, 5), make(2, 2), dim=1, start=-2)


@op("torch Tensor", promote="first")
def diagonal_scatter(input: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """Return a copy of `input` with a diagonal replaced by `src`; see `diagonal`."""
    _same_shape("diagonal_scatter", src, diagonal.impl(input, offset, dim1, dim2))
    return put_diagonal(input, src, offset=offset, dim1=dim1, dim2=dim2)


@diagonal_scatter.samples
def _(make):
    yield sample(make(3, 4), make(3))
    yield sample(make(3, 4), make(2), -1)


@op("torch Tensor", promote="first", oracle=None)
def as_strided_scatter(
    input: Array, src: Array, size: tuple[int, ...], stride: tuple[int, ...], storage_offset: int | None = None
) -> Array:
    """Return a copy of `input` with the elements that `as_strided` would show replaced by `src`."""
    _same_shape("as_strided_scatter", src, as_strided.impl(input, size, stride, storage_offset))
    return put_as_strided(input, src, size=size, stride=stride, storage_offset=storage_offset)


@as_strided_scatter.samples
def _(make):
    yield sample(make(2, 3), make(2, 2), (2, 2), (3, 1), 1)
