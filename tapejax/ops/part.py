"""Views of parts of a tensor: entries, ranges, diagonals, repeats and windows.

Where a view shows an element several times (`expand`, `unfold`, `as_strided`) its gradient sums.
"""

from __future__ import annotations

import builtins
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.errors import refuse
from tapejax.ops.shape import axis, spread
from tapejax.tape.op import Array, Ints, composite, error_sample, op, sample
from tapejax.tensor import Tensor

# ---------------------------------------------------------------- parts


def put_select(base: Array, value: Array, index: Array, *, dim: int) -> Array:
    return lax.dynamic_update_index_in_dim(base, value, index, dim)


@op("", put=put_select, oracle=None)
def select_(input: Array, index: Array, dim: int) -> Array:
    """Return entry `index` along `dim`, without that dimension. The index is an operand: changing it recompiles
    nothing.
    """
    return lax.dynamic_index_in_dim(input, index, dim, keepdims=False)


@select_.samples
def _(make):
    yield sample(make(3, 4), 1, 0)
    yield sample(make(3, 4), 3, 1)
    yield sample(make(2, 3, 4), np.asarray(-1), 1)


@composite("torch Tensor")
def select(input: Any, dim: int, index: Any) -> Any:
    """Return entry `index` along `dim` as a view without that dimension.

    `index` is an int or a 0-d integer tensor; a changing one recompiles nothing. A tensor is not read, so one out of
    range is moved to the nearest entry instead of raising IndexError.
    """
    if input.ndim == 0:
        raise refuse(IndexError, "select", "select() cannot be applied to a 0-dim tensor.")
    d = axis("select", dim, input.ndim)
    return select_(input, checked_index("select", index, d, input.shape[d]), d)


def checked_index(name: str, index: Any, dim: int, n: int) -> Any:
    """Return a Python index as a non-negative one, or raise torch's IndexError; a tensor passes through unread."""
    if isinstance(index, Tensor):
        return index
    index = index.__index__()
    if not -n <= index < n:
        raise refuse(IndexError, name, f"index {index} is out of bounds for dimension {dim} with size {n}")
    return index % n


def _put_narrow(base: Array, value: Array, start: Array, *, dim: int, length: int) -> Array:
    return lax.dynamic_update_slice_in_dim(base, value, start, dim)


@op("", put=_put_narrow, grad_name="Slice", oracle=None)
def narrow_dynamic(input: Array, start: Array, dim: int, length: int) -> Array:
    """Return `length` entries along `dim` from `start` on. The start is an operand: changing it recompiles nothing."""
    return lax.dynamic_slice_in_dim(input, start, length, dim)


@narrow_dynamic.samples
def _(make):
    yield sample(make(5, 2), 1, 0, 3)
    yield sample(make(2, 4), 0, 1, 4)
    yield sample(make(2, 4), 2, 1, 0)


@composite("torch Tensor")
def narrow(input: Any, dim: int, start: Any, length: int) -> Any:
    """Return the `length` entries from `start` on along `dim`, as a view.

    `start` is an int or a 0-d integer tensor (not read: one out of range is moved until the entries fit); a changing
    start recompiles nothing, a changing length does. Raises IndexError/RuntimeError if the range leaves the dimension.
    """
    if input.ndim == 0:
        raise refuse(RuntimeError, "narrow", "narrow() cannot be applied to a 0-dim tensor.")
    d = axis("narrow", dim, input.ndim)
    n = input.shape[d]
    if length < 0:
        raise refuse(RuntimeError, "narrow", f"length must be non-negative, got {length}")
    if not isinstance(start, Tensor):
        start = start.__index__()
        if not -n <= start <= n:
            raise refuse(
                IndexError, "narrow", f"start out of range (expected to be in range of [{-n}, {n}], but got {start})"
            )
        if start < 0:
            start += n
        if start + length > n:
            raise refuse(RuntimeError, "narrow", f"start ({start}) + length ({length}) exceeds dimension size ({n}).")
    return narrow_dynamic(input, start, d, length)


def _bounds(n: int, start: int | None, stop: int | None, step: int | None) -> tuple[int, int, int]:
    if step is not None and step <= 0:
        raise refuse(ValueError, "slice", f"step must be greater than zero, got {step} → use .flip()")
    first, last, by = builtins.slice(start, stop, step).indices(n)
    return first, max(first, last), by


def put_slice(base: Array, value: Array, *, dim: int, start: int | None, stop: int | None, step: int | None) -> Array:
    d = axis("slice", dim, base.ndim)
    first, last, by = _bounds(base.shape[d], start, stop, step)
    if by == 1:
        return lax.dynamic_update_slice_in_dim(base, value, first, d)
    return base.at[(builtins.slice(None),) * d + (builtins.slice(first, last, by),)].set(value)


@op("", put=put_slice, oracle=None)
def slice_(
    input: Array, dim: int = 0, start: int | None = None, stop: int | None = None, step: int | None = 1
) -> Array:
    """Return `input[start:stop:step]` along `dim`; the bounds are part of the program."""
    d = axis("slice", dim, input.ndim)
    first, last, by = _bounds(input.shape[d], start, stop, step)
    return lax.slice_in_dim(input, first, last, by, d)


@slice_.samples
def _(make):
    x = make(5, 4)
    yield sample(x, 0, 1, None, 2)
    yield sample(x, -1, None, -1, None)
    yield sample(x, 0, 4, 2, 1)


@slice_.error_samples
def _(make):
    yield error_sample(ValueError, "step must be greater than zero", make(3), 0, None, None, -1)


def _diagonal_at(input: Array, offset: int, dim1: int, dim2: int) -> tuple[int, int, Any, Any]:
    a, b = axis("diagonal", dim1, input.ndim), axis("diagonal", dim2, input.ndim)
    if a == b:
        raise refuse(RuntimeError, "diagonal", f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    above, below = max(offset, 0), max(-offset, 0)
    steps = jnp.arange(max(min(input.shape[a] - below, input.shape[b] - above), 0))
    return a, b, steps + below, steps + above


def put_diagonal(base: Array, value: Array, *, offset: int, dim1: int, dim2: int) -> Array:
    a, b, rows, columns = _diagonal_at(base, offset, dim1, dim2)
    written = jnp.moveaxis(base, (a, b), (-2, -1)).at[..., rows, columns].set(value)
    return jnp.moveaxis(written, (-2, -1), (a, b))


@op("torch Tensor", put=put_diagonal)
def diagonal(input: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """Return the diagonal over `dim1` and `dim2` as the last dimension; `offset` > 0 lies above the main one."""
    a, b, _, _ = _diagonal_at(input, offset, dim1, dim2)
    return jnp.diagonal(input, offset, a, b)


@diagonal.samples
def _(make):
    x = make(3, 4)
    yield sample(x)
    yield sample(x, 1)
    yield sample(x, -2, 1, 0)
    yield sample(make(2, 3, 2), 0, -1, 0)
    yield sample(x, 7)


@diagonal.error_samples
def _(make):
    yield error_sample(RuntimeError, "diagonal dimensions cannot be identical", make(2, 2), 0, 1, -1)


# ---------------------------------------------------------------- elements seen more than once


def _expanded(name: str, shape: tuple[int, ...], size: Ints) -> tuple[int, ...]:
    extra = len(size) - len(shape)
    if extra < 0:
        raise refuse(
            RuntimeError,
            name,
            f"the number of sizes provided ({len(size)}) must be greater or equal to the number of dimensions in "
            "the tensor "
            f"({len(shape)})",
        )
    full = list(size)
    for i, want in enumerate(size):
        have = shape[i - extra] if i >= extra else None
        if want == -1 and have is not None:
            full[i] = have
        elif want < 0:
            raise refuse(
                RuntimeError,
                name,
                f"The expanded size of the tensor ({want}) isn't allowed in a leading, non-existing dimension {i}",
            )
        elif have not in (None, 1, want):
            raise refuse(
                RuntimeError,
                name,
                f"The expanded size of the tensor ({want}) must match the existing size ({have}) at non-singleton "
                f"dimension {i}. "
                f" Target sizes: {list(size)}.  Tensor sizes: {list(shape)}",
            )
    return tuple(full)


def _put_expand(base: Array, value: Array, *, size: Ints) -> Array:
    if value.size != base.size:
        raise refuse(
            RuntimeError,
            "expand",
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation.",
        )
    return value.reshape(base.shape)


@op("Tensor", put=_put_expand, oracle="Tensor.expand")
def expand(input: Array, size: Ints) -> Array:
    """Repeat dimensions of size 1 up to `size` (-1: as it is), and add leading ones, without copying.

    The gradient sums over the repeats. Writing into the result raises RuntimeError where an element is seen twice.
    """
    return jnp.broadcast_to(input, _expanded("expand", input.shape, size))


@expand.samples
def _(make):
    yield sample(make(3, 1), (3, 4))
    yield sample(make(3, 1), (2, -1, 4))
    yield sample(make(), (2,))
    yield sample(make(1), (0,))


@expand.error_samples
def _(make):
    yield error_sample(RuntimeError, "must match the existing size", make(3), (4,))
    yield error_sample(RuntimeError, "number of sizes provided", make(2, 3), (3,))


@composite("torch Tensor")
def broadcast_to(input: Any, *size: Any) -> Any:
    """Return `input` expanded to `size`; the same view as `input.expand(size)`."""
    return expand(input, spread(size))


@composite("Tensor")
def expand_as(input: Any, other: Any) -> Any:
    """Return `input` expanded to the shape of `other`."""
    return expand(input, tuple(other.shape))


def _windows(input: Array, dimension: int, size: int, step: int) -> tuple[int, Any]:
    d = axis("unfold", dimension, input.ndim)
    n = input.shape[d] if input.ndim else 1
    if not 0 <= size <= n:
        raise refuse(RuntimeError, "unfold", f"maximum size for tensor at dimension {d} is {n} but size is {size}")
    if step <= 0:
        raise refuse(RuntimeError, "unfold", f"step is {step} but must be > 0")
    return d, jnp.arange((n - size) // step + 1)[:, None] * step + jnp.arange(size)


def _put_unfold(base: Array, value: Array, *, dimension: int, size: int, step: int) -> Array:
    d, at = _windows(base, dimension, size, step)
    flat = base.reshape(-1) if base.ndim == 0 else jnp.moveaxis(base, d, 0)
    value = value.reshape(at.shape) if base.ndim == 0 else jnp.moveaxis(value, (d, -1), (0, 1))
    written = flat.at[at].set(value)
    return written.reshape(()) if base.ndim == 0 else jnp.moveaxis(written, 0, d)


@op("Tensor", put=_put_unfold, oracle="Tensor.unfold")
def unfold(input: Array, dimension: int, size: int, step: int) -> Array:
    """Return all windows of `size` entries along `dimension`, `step` apart; the window is the last dimension of the
    result.

    The result has (n - size) // step + 1 windows. Where they overlap the gradient sums.
    """
    d, at = _windows(input, dimension, size, step)
    if input.ndim == 0:
        return jnp.broadcast_to(input, (size,))
    return jnp.moveaxis(jnp.take(input, at, axis=d, mode="clip"), d + 1, -1)


@unfold.samples
def _(make):
    yield sample(make(5), 0, 2, 1)
    yield sample(make(2, 7), 1, 3, 2)
    yield sample(make(6, 2), -2, 2, 2)


@unfold.error_samples
def _(make):
    yield error_sample(RuntimeError, "maximum size for tensor at dimension 0 is 3 but size is 4", make(3), 0, 4, 1)
    yield error_sample(RuntimeError, "step is 0 but must be > 0", make(3), 0, 2, 0)


def _strided(input: Array, size: Ints, stride: Ints, storage_offset: int | None) -> Any:
    if len(size) != len(stride):
        raise refuse(
            RuntimeError, "as_strided", f"mismatch in length of strides and shape: {len(stride)} and {len(size)}"
        )
    if any(s < 0 for s in stride):
        raise refuse(RuntimeError, "as_strided", f"Negative strides are not supported, got {list(stride)}")
    first = storage_offset or 0
    need = first + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1 if 0 not in size else 0
    if need > input.size:
        raise refuse(
            RuntimeError,
            "as_strided",
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {first} requiring {need} elements "
            f"are out of bounds for storage of size {input.size}",
        )
    at = jnp.asarray(first)
    for k, s in enumerate(stride):
        at = at + lax.broadcasted_iota(jnp.int64, size, k) * s
    return at


def put_as_strided(base: Array, value: Array, *, size: Ints, stride: Ints, storage_offset: int | None) -> Array:
    at = _strided(base, size, stride, storage_offset)
    return base.reshape(-1).at[at].set(value).reshape(base.shape)


@op("torch Tensor", put=put_as_strided)
def as_strided(
    input: Array, size: tuple[int, ...], stride: tuple[int, ...], storage_offset: int | None = None
) -> Array:
    """Return the view whose element (i, j, …) is `input.flatten()[storage_offset + i*stride[0] + j*stride[1] + …]`.

    The addresses count in `input` itself in row-major order (not in the storage that a view `input` shares). Where an
    element is seen several times the gradient sums, and of several values written to it the last stays.
    """
    return jnp.take(input.reshape(-1), _strided(input, size, stride, storage_offset), axis=0, mode="clip")


@as_strided.samples
def _(make):
    yield sample(make(6), (2, 3), (1, 1))
    yield sample(make(3, 4), (2, 2), (4, 2), 1)
    yield sample(make(4), (), ())


@as_strided.error_samples
def _(make):
    yield error_sample(RuntimeError, "out of bounds for storage", make(4), (3, 3), (2, 1))
