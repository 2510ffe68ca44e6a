"""Views and reshaping: the same elements under another shape or order.

A view is an op with `put`: its body reads the elements out of the base, `put(base, value, ...)` gives the base with
those elements replaced. Strides do not exist here: `view`, `reshape` and `flatten` of any tensor are views, also where
torch would refuse (`view` of a transposed tensor) or copy (`reshape` of one). `contiguous()` is the tensor itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.tape.op import Array, Dims, Ints, composite, error_sample, op, sample


def axis(name: str, dim: Any, ndim: int) -> int:
    """Return `dim` as a non-negative axis of a tensor with `ndim` dimensions (a 0-d tensor counts as 1-d)."""
    room = max(ndim, 1)
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise refuse(TypeError, name, f"argument 'dim' must be int, not {type(dim).__name__}")
    dim = dim.__index__()
    if not -room <= dim < room:
        raise refuse(
            IndexError,
            name,
            f"Dimension out of range (expected to be in range of [{-room}, {room - 1}], but got {dim})",
        )
    return dim % room


def axes(name: str, dims: Any, ndim: int) -> tuple[int, ...]:
    """Return `dims` (an int or several) as distinct non-negative axes."""
    found = tuple(axis(name, d, ndim) for d in (dims if isinstance(dims, (tuple, list)) else (dims,)))
    for i, d in enumerate(found):
        if d in found[:i]:
            raise refuse(RuntimeError, name, f"dim {d} appears multiple times in the list of dims {tuple(dims)}")
    return found


def infer_size(name: str, size: Sequence[int], numel: int) -> tuple[int, ...]:
    """Replace a -1 in `size` so that the product is `numel`."""
    shown = list(size)
    known = 1
    free = None
    for i, s in enumerate(size):
        if s == -1:
            if free is not None:
                raise refuse(RuntimeError, name, f"only one dimension can be inferred, but the shape is {shown}")
            free = i
        elif s < 0:
            raise refuse(RuntimeError, name, f"invalid shape dimension {s} in {shown} → use sizes >= 0, or one -1")
        else:
            known *= s
    if free is not None and known == 0 and numel == 0:
        raise refuse(
            RuntimeError,
            name,
            f"cannot reshape tensor of 0 elements into shape {shown} because the unspecified dimension size -1 "
            "can be any "
            "value and is ambiguous → give every size",
        )
    if (known != numel) if free is None else (known == 0 or numel % known):
        raise refuse(RuntimeError, name, f"shape '{shown}' is invalid for input of size {numel}")
    full = list(size)
    if free is not None:
        full[free] = numel // known
    return tuple(full)


def spread(size: tuple[Any, ...]) -> tuple[int, ...]:
    """Return `f(2, 3)` and `f((2, 3))` as (2, 3)."""
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size


def _put_reshaped(base: Array, value: Array, **statics: Any) -> Array:
    return value.reshape(base.shape)


# ---------------------------------------------------------------- new shape, same order


def _put_view(base: Array, value: Array, *, size: Ints) -> Array:
    if _is_dtype(size):
        return lax.bitcast_convert_type(value, base.dtype)
    return value.reshape(base.shape)


def _is_dtype(size: Any) -> bool:
    return isinstance(size, dtypes.dtype) or (len(size) == 1 and isinstance(size[0], dtypes.dtype))


@op("Tensor", put=_put_view, oracle="Tensor.view")
def view(input: Array, size: Ints) -> Array:
    """Return the elements of `input` under the shape `size`, sharing storage; one size may be -1.

    With a dtype instead (`x.view(tj.int32)`) the bits are read as that type, which must have the same item size.
    Unlike torch a transposed tensor may be viewed too. Raises RuntimeError if the number of elements differs.

    >>> import tapejax as tj
    >>> tj.arange(6).view(2, -1).shape
    torch.Size([2, 3])
    """
    if _is_dtype(size):
        target: Any = size if isinstance(size, dtypes.dtype) else size[0]
        if np.dtype(input.dtype).itemsize != target.itemsize:
            raise refuse(
                RuntimeError,
                "view",
                f"cannot read {dtypes.of(input.dtype)} as {target}: the item sizes differ → use .to({target})",
            )
        return lax.bitcast_convert_type(input, target.np)
    return input.reshape(infer_size("view", size, input.size))


@view.samples
def _(make):
    x = make(2, 3, 4)
    yield sample(x, (6, 4))
    yield sample(x, (-1,))
    yield sample(x, (4, -1, 2))
    yield sample(make(), (1, 1))
    yield sample(make(1), ())
    yield sample(make(0, 3), (3, 0))


@view.error_samples
def _(make):
    yield error_sample(RuntimeError, r"shape '\[4, 2\]' is invalid for input of size 6", make(2, 3), (4, 2))
    yield error_sample(RuntimeError, "only one dimension can be inferred", make(2, 3), (-1, -1))


@op("torch Tensor", put=_put_reshaped, grad_name="View")
def reshape(input: Array, shape: Ints) -> Array:
    """Return the elements of `input` in row-major order under `shape`; one size may be -1.

    Always a view here, also where torch would copy (a transposed input). Raises RuntimeError if the number of elements
    differs.
    """
    return input.reshape(infer_size("reshape", shape, input.size))


@reshape.samples
def _(make):
    x = make(2, 3, 4)
    yield sample(x, (3, 8))
    yield sample(x, (-1,))
    yield sample(x, (2, -1, 2))
    yield sample(make(0), (2, 0))


@reshape.error_samples
def _(make):
    yield error_sample(RuntimeError, "is invalid for input of size 6", make(2, 3), (5, -1))
    yield error_sample(RuntimeError, "invalid shape dimension -2", make(2, 3), (-2, 3))


@op("torch Tensor", put=_put_reshaped, grad_name="View")
def flatten(input: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    """Join the dimensions `start_dim` to `end_dim` (inclusive) into one; a 0-d input becomes 1-d. Always a view
    here.
    """
    first, last = axis("flatten", start_dim, input.ndim), axis("flatten", end_dim, input.ndim)
    if first > last:
        raise refuse(RuntimeError, "flatten", f"start_dim cannot come after end_dim, got {start_dim} and {end_dim}")
    shape = input.shape
    return input.reshape((*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))


@flatten.samples
def _(make):
    x = make(2, 3, 4)
    yield sample(x)
    yield sample(x, 1)
    yield sample(x, -3, -2)
    yield sample(make())


@flatten.error_samples
def _(make):
    yield error_sample(RuntimeError, "start_dim cannot come after end_dim", make(2, 3), 1, 0)
    yield error_sample(IndexError, "Dimension out of range", make(2, 3), 2)


@op("torch Tensor", put=_put_reshaped, grad_name="View")
def ravel(input: Array) -> Array:
    """Return the elements of `input` as one dimension, in row-major order."""
    return input.reshape(-1)


@ravel.samples
def _(make):
    yield sample(make(2, 3))
    yield sample(make())


@op("torch Tensor", put=_put_reshaped, grad_name="View")
def unflatten(input: Array, dim: int, sizes: Ints) -> Array:
    """Split dimension `dim` into the dimensions `sizes`, of which one may be -1."""
    d = axis("unflatten", dim, input.ndim)
    n = input.shape[d] if input.ndim else 1
    if not sizes:
        raise refuse(RuntimeError, "unflatten", "sizes must be non-empty")
    full = _unflattened(sizes, n, dim)
    return input.reshape((*input.shape[:d], *full, *input.shape[d + 1 :]))


def _unflattened(sizes: Ints, n: int, dim: int) -> tuple[int, ...]:
    try:
        return infer_size("unflatten", sizes, n)
    except RuntimeError:
        if sizes.count(-1) > 1:
            raise
        raise refuse(
            RuntimeError,
            "unflatten",
            f"Provided sizes {list(sizes)} don't multiply up to the size of dim {dim} ({n}) in the input tensor",
        ) from None


@unflatten.samples
def _(make):
    x = make(2, 6)
    yield sample(x, 1, (2, 3))
    yield sample(x, -1, (3, -1))
    yield sample(x, 0, (1, 2, 1))


@unflatten.error_samples
def _(make):
    yield error_sample(RuntimeError, "don't multiply up to the size of dim", make(2, 6), 1, (4, 2))


@op("torch Tensor", put=_put_reshaped)
def squeeze(input: Array, dim: Dims = None) -> Array:
    """Drop dimensions of size 1: all of them, or those named in `dim` (an int or a tuple; others stay as they are)."""
    which = range(input.ndim) if dim is None else axes("squeeze", dim, input.ndim)
    return input.reshape(tuple(n for d, n in enumerate(input.shape) if n != 1 or d not in which))


@squeeze.samples
def _(make):
    x = make(1, 3, 1, 2)
    yield sample(x)
    yield sample(x, 0)
    yield sample(x, -2)
    yield sample(x, 1)
    yield sample(x, (0, 2))
    yield sample(make(), 0)


@squeeze.error_samples
def _(make):
    yield error_sample(IndexError, "Dimension out of range", make(1, 3), 2)


@op("torch Tensor", put=_put_reshaped)
def unsqueeze(input: Array, dim: int) -> Array:
    """Insert a dimension of size 1 before dimension `dim` (negative: counted in the result)."""
    d = axis("unsqueeze", dim, input.ndim + 1)
    return input.reshape((*input.shape[:d], 1, *input.shape[d:]))


@unsqueeze.samples
def _(make):
    x = make(2, 3)
    yield sample(x, 0)
    yield sample(x, 2)
    yield sample(x, -2)
    yield sample(make(), 0)


@unsqueeze.error_samples
def _(make):
    yield error_sample(IndexError, r"Dimension out of range \(expected to be in range of \[-3, 2\]", make(2, 3), 3)


@composite("Tensor")
def view_as(input: Any, other: Any) -> Any:
    """Return `input` viewed under the shape of `other`."""
    return view(input, tuple(other.shape))


@composite("Tensor")
def reshape_as(input: Any, other: Any) -> Any:
    """Return `input` under the shape of `other`."""
    return reshape(input, tuple(other.shape))


# ---------------------------------------------------------------- new order


def _swapped(name: str, input: Array, dim0: int, dim1: int) -> Array:
    a, b = axis(name, dim0, input.ndim), axis(name, dim1, input.ndim)
    return jnp.swapaxes(input, a, b) if input.ndim else input


def _put_transpose(base: Array, value: Array, *, dim0: int, dim1: int) -> Array:
    return _swapped("transpose", value, dim0, dim1)


@op("torch Tensor", put=_put_transpose)
def transpose(input: Array, dim0: int, dim1: int) -> Array:
    """Exchange the dimensions `dim0` and `dim1`."""
    return _swapped("transpose", input, dim0, dim1)


@transpose.samples
def _(make):
    x = make(2, 3, 4)
    yield sample(x, 0, 1)
    yield sample(x, -1, 0)
    yield sample(x, 1, 1)
    yield sample(make(), 0, -1)
    yield sample(make.complex(2, 3), 0, 1)


@transpose.error_samples
def _(make):
    yield error_sample(IndexError, "Dimension out of range", make(2, 3), 0, 2)


@composite("torch Tensor", aliases="swapdims")
def swapaxes(input: Any, axis0: int, axis1: int) -> Any:
    """Exchange two dimensions; another name of `transpose`."""
    return transpose(input, axis0, axis1)


@op("torch Tensor", put=lambda base, value: value.T, grad_name="T")
def t(input: Array) -> Array:
    """Transpose a matrix; a 0-d or 1-d tensor is returned as it is."""
    if input.ndim > 2:
        raise refuse(
            RuntimeError,
            "t",
            f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D → use .mT or .transpose()",
        )
    return input.T


@t.samples
def _(make):
    yield sample(make(2, 3))
    yield sample(make(3))
    yield sample(make())


@t.error_samples
def _(make):
    yield error_sample(RuntimeError, "expects a tensor with <= 2 dimensions, but self is 3D", make(2, 3, 4))


def _permutation(input: Array, dims: Ints) -> tuple[int, ...]:
    if len(dims) != input.ndim:
        raise refuse(
            RuntimeError,
            "permute",
            "number of dimensions in the tensor input does not match the length of the desired ordering "
            f"of dimensions i.e. input.dim() = {input.ndim} is not equal to len(dims) = {len(dims)}",
        )
    found = tuple(axis("permute", d, input.ndim) for d in dims)
    if len(set(found)) != len(found):
        raise refuse(RuntimeError, "permute", f"duplicate dims are not allowed, got {tuple(dims)}")
    return found


def _put_permute(base: Array, value: Array, *, dims: Ints) -> Array:
    return jnp.transpose(value, tuple(int(i) for i in np.argsort(_permutation(base, dims))))


@op("torch Tensor", put=_put_permute)
def permute(input: Array, dims: Ints) -> Array:
    """Reorder the dimensions: dimension i of the result is dimension `dims[i]` of `input`."""
    return jnp.transpose(input, _permutation(input, dims))


@permute.samples
def _(make):
    x = make(2, 3, 4)
    yield sample(x, (2, 0, 1))
    yield sample(x, (-1, 1, 0))
    yield sample(make(), ())


@permute.error_samples
def _(make):
    yield error_sample(RuntimeError, "number of dimensions", make(2, 3), (0,))
    yield error_sample(RuntimeError, "duplicate dims", make(2, 3), (0, -2))


def _moved(input: Array, source: Dims, destination: Dims) -> tuple[tuple[int, ...], tuple[int, ...]]:
    here = source if isinstance(source, (tuple, list)) else (source,)
    there = destination if isinstance(destination, (tuple, list)) else (destination,)
    if len(here) != len(there):
        raise refuse(
            RuntimeError,
            "movedim",
            f"Invalid source or destination dims: source ({list(here)} dims) should contain the same number of dims as "
            f"destination ({list(there)} dims)",
        )
    found = tuple(axis("movedim", d, input.ndim) for d in here), tuple(axis("movedim", d, input.ndim) for d in there)
    for which, dims in zip(("source", "destination"), found, strict=True):
        if len(set(dims)) != len(dims):
            raise refuse(RuntimeError, "movedim", f"repeated dim in `{which}` ({list(dims)})")
    return found


def _put_movedim(base: Array, value: Array, *, source: Dims, destination: Dims) -> Array:
    here, there = _moved(base, source, destination)
    return jnp.moveaxis(value, there, here) if base.ndim else value


@op("torch Tensor", put=_put_movedim, aliases="moveaxis", grad_name="Permute")
def movedim(input: Array, source: Dims, destination: Dims) -> Array:
    """Move the dimensions `source` to the places `destination`; the others keep their order."""
    here, there = _moved(input, source, destination)
    return jnp.moveaxis(input, here, there) if input.ndim else input


@movedim.samples
def _(make):
    x = make(2, 3, 4)
    yield sample(x, 0, -1)
    yield sample(x, (0, 1), (2, 0))
    yield sample(x, 1, 1)


@movedim.error_samples
def _(make):
    yield error_sample(RuntimeError, "same number of dims", make(2, 3), (0, 1), (1,))
    yield error_sample(RuntimeError, "repeated dim in `source`", make(2, 3), (0, 0), (0, 1))
