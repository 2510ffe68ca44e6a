"""Joining tensors and taking them apart.

`split`, `chunk` and `unbind` return views of one base; as in torch these refuse in-place writes while recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.part import select_, slice_
from tapejax.ops.shape import axis
from tapejax.storage.view import mark_multi_view
from tapejax.tape.op import Arrays, composite, error_sample, op, sample
from tapejax.tensor import Tensor


def _common(avals: Sequence[Any], statics: tuple[Any, ...]) -> tuple[dtypes.dtype, ...]:
    # Not "common": that rule also checks that the operands broadcast, and what is joined need not.
    return (dtypes.common((a.dtype, a.rank) for a in avals),) * len(avals)


@op("torch", promote=_common, aliases="concat concatenate")
def cat(tensors: Arrays, dim: int = 0) -> Any:
    """Return the tensors one after the other along `dim`; their other sizes are equal, their types are promoted.

    Empty tensors of shape (0,) are skipped whatever the others' shape, as torch does.

    >>> import tapejax as tj
    >>> tj.cat([tj.tensor([1, 2]), tj.tensor([3])]).tolist()
    [1, 2, 3]
    """
    if not tensors:
        raise refuse(ValueError, "cat", "expected a non-empty list of Tensors")
    for i, x in enumerate(tensors):
        if x.ndim == 0:
            raise refuse(
                RuntimeError,
                "cat",
                f"zero-dimensional tensor (at position {i}) cannot be concatenated → use tapejax.stack",
            )
    full = [(i, x) for i, x in enumerate(tensors) if x.shape != (0,)]
    if not full:
        return tensors[0]
    _, first = full[0]
    d = axis("cat", dim, first.ndim)
    for i, x in full[1:]:
        if x.ndim != first.ndim:
            raise refuse(
                RuntimeError, "cat", f"Tensors must have same number of dimensions: got {first.ndim} and {x.ndim}"
            )
        for k, (want, have) in enumerate(zip(first.shape, x.shape, strict=True)):
            if k != d and want != have:
                raise refuse(
                    RuntimeError,
                    "cat",
                    f"Sizes of tensors must match except in dimension {d}. Expected size {want} but got size "
                    f"{have} for tensor "
                    f"number {i} in the list.",
                )
    return jnp.concatenate([x for _, x in full], axis=d)


@cat.samples
def _(make):
    yield sample((make(2, 3), make(1, 3)))
    yield sample((make(2, 3), make(2, 1), make(2, 2)), -1)
    yield sample((make(0), make(2, 3)), 1)
    yield sample((make.ints(2), make(2)))
    yield sample((make.complex(2), make(1)))


@cat.error_samples
def _(make):
    yield error_sample(RuntimeError, "Sizes of tensors must match except in dimension 0", (make(2, 3), make(2, 2)))
    yield error_sample(RuntimeError, r"zero-dimensional tensor \(at position 0\)", (make(), make()))
    yield error_sample(RuntimeError, "same number of dimensions", (make(2, 3), make(2)))


@op("torch", promote=_common)
def stack(tensors: Arrays, dim: int = 0) -> Any:
    """Return the equally shaped tensors as entries of a new dimension `dim` (negative: counted in the result)."""
    if not tensors:
        raise refuse(RuntimeError, "stack", "stack expects a non-empty TensorList")
    for i, x in enumerate(tensors):
        if x.shape != tensors[0].shape:
            raise refuse(
                RuntimeError,
                "stack",
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} at entry 0 and "
                f"{list(x.shape)} "
                f"at entry {i}",
            )
    return jnp.stack(tensors, axis("stack", dim, tensors[0].ndim + 1))


@stack.samples
def _(make):
    yield sample((make(2, 3), make(2, 3)))
    yield sample((make(2, 3), make(2, 3)), -1)
    yield sample((make(), make(), make()))
    yield sample((make.ints(2), make(2)), 1)


@stack.error_samples
def _(make):
    yield error_sample(RuntimeError, "each tensor to be equal size", (make(2), make(3)))
    yield error_sample(IndexError, "Dimension out of range", (make(2),), 2)


@op("", promote=_common, name="block_diag", oracle=None)
def block_diag_(tensors: Arrays) -> Any:
    """Return the matrix with the given matrices along its diagonal and zeros elsewhere; see `block_diag`."""
    for i, x in enumerate(tensors):
        if x.ndim > 2:
            raise refuse(
                RuntimeError,
                "block_diag",
                f"Input tensors must have 2 or fewer dimensions. Input {i} has {x.ndim} dimensions",
            )
    return jax.scipy.linalg.block_diag(*tensors)


@block_diag_.samples
def _(make):
    yield sample((make(2, 2), make(1, 3), make(2), make()))


@composite("torch")
def block_diag(*tensors: Any) -> Any:
    """Return the matrix with the given matrices along its diagonal; a vector counts as a row, a number as 1 × 1."""
    return block_diag_(_listed(tensors))


def _listed(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return tensors given one by one or as one sequence."""
    return tuple(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors


def _with_ndim(tensor: Any, ndim: int) -> Any:
    """Return a tensor with at least `ndim` dimensions by torch's rule for `atleast_1d`, `atleast_2d` and
    `atleast_3d`.
    """
    shape = tuple(tensor.shape)
    if len(shape) >= ndim:
        return tensor
    if ndim == 3:
        shape = {0: (1, 1, 1), 1: (1, *shape, 1), 2: (*shape, 1)}[len(shape)]
    else:
        shape = (1,) * (ndim - len(shape)) + shape
    return tensor.view(shape)


def _at_least(tensors: tuple[Any, ...], ndim: int) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], Tensor):
        return _with_ndim(tensors[0], ndim)
    return tuple(_with_ndim(t, ndim) for t in _listed(tensors))


@composite("torch")
def atleast_1d(*tensors: Any) -> Any:
    """Return the tensor with at least one dimension; of several tensors a tuple."""
    return _at_least(tensors, 1)


@composite("torch")
def atleast_2d(*tensors: Any) -> Any:
    """Return the tensor with at least two dimensions, new ones in front; of several tensors a tuple."""
    return _at_least(tensors, 2)


@composite("torch")
def atleast_3d(*tensors: Any) -> Any:
    """Return the tensor with at least three dimensions, (1, N, 1) for a vector; of several tensors a tuple."""
    return _at_least(tensors, 3)


@composite("torch")
def hstack(tensors: Any) -> Any:
    """Return the tensors side by side: along dimension 1, vectors along dimension 0."""
    full = _at_least(tuple(tensors), 1) if len(tensors) != 1 else (_with_ndim(tensors[0], 1),)
    return cat(full, 0 if full[0].ndim == 1 else 1)


@composite("torch", aliases="row_stack")
def vstack(tensors: Any) -> Any:
    """Return the tensors below one another: along dimension 0, vectors as rows."""
    return cat(tuple(_with_ndim(t, 2) for t in tensors), 0)


@composite("torch")
def dstack(tensors: Any) -> Any:
    """Return the tensors behind one another: along dimension 2, with new last dimensions where they lack them."""
    return cat(tuple(_with_ndim(t, 3) for t in tensors), 2)


@composite("torch")
def column_stack(tensors: Any) -> Any:
    """Return the tensors side by side, vectors as columns."""
    return hstack([t.reshape(t.numel(), 1) if t.ndim <= 1 else t for t in tensors])


# ---------------------------------------------------------------- taking apart


def _cut(input: Any, sizes: Iterable[int], d: int) -> tuple[Any, ...]:
    parts = []
    start = 0
    for n in sizes:
        parts.append(slice_(input, d, start, start + n, 1))
        start += n
    return tuple(parts)


def _dimension(name: str, input: Any, dim: int) -> tuple[int, int]:
    if input.ndim == 0:
        raise refuse(RuntimeError, name, f"{name} expects at least a 1-dimensional tensor")
    d = axis(name, dim, input.ndim)
    return d, input.shape[d]


def _even(name: str, input: Any, size: int, dim: int) -> tuple[Any, ...]:
    d, n = _dimension(name, input, dim)
    if size < 0:
        raise refuse(RuntimeError, name, f"split expects split_size be non-negative, but got split_size={size}")
    if size == 0:
        if n:
            raise refuse(
                RuntimeError, name, f"split_size can only be 0 if dimension size is 0, but got dimension size of {n}"
            )
        return _cut(input, [0], d)
    return _cut(input, [min(size, n - i) for i in range(0, n, size)] or [0], d)


def _sized(name: str, input: Any, sizes: Any, dim: int) -> tuple[Any, ...]:
    d, n = _dimension(name, input, dim)
    sizes = [int(s) for s in sizes]
    if any(s < 0 for s in sizes):
        raise refuse(
            RuntimeError, name, f"split_with_sizes expects split_sizes have only non-negative entries, but got {sizes}"
        )
    if sum(sizes) != n:
        raise refuse(
            RuntimeError,
            name,
            f"split_with_sizes expects split_sizes to sum exactly to {n} (input tensor's size at dimension {d}), "
            "but got "
            f"split_sizes={sizes}",
        )
    return _cut(input, sizes, d)


@composite("torch Tensor")
def split(input: Any, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None) -> tuple[Any, ...]:
    """Return views of consecutive parts along `dim`: of `split_size` entries each (the last may be smaller), or of the
    sizes in a list, which sum to the dimension.

    >>> import tapejax as tj
    >>> [tuple(p.shape) for p in tj.split(tj.zeros(5), 2)]
    [(2,), (2,), (1,)]
    """
    size = split_size_or_sections if split_size is None else split_size
    if size is None:
        raise refuse(TypeError, "split", "missing argument split_size: give an int or a list of sizes")
    if isinstance(size, (list, tuple)):
        return mark_multi_view(_sized("split", input, size, dim), "SplitWithSizesBackward0")
    return mark_multi_view(_even("split", input, size.__index__(), dim), "SplitBackward0")


@composite("torch Tensor")
def split_with_sizes(input: Any, split_sizes: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return views of consecutive parts of the given sizes along `dim`."""
    return mark_multi_view(_sized("split_with_sizes", input, split_sizes, dim), "SplitWithSizesBackward0")


def _chunked(input: Any, chunks: int, dim: int) -> tuple[Any, ...]:
    if chunks <= 0:
        raise refuse(RuntimeError, "chunk", f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    d, n = _dimension("chunk", input, dim)
    return _even("chunk", input, -(-n // chunks), dim) if n else _cut(input, [0] * chunks, d)


@composite("torch Tensor")
def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """Return views of at most `chunks` equal parts along `dim` (the last may be smaller, and there may be fewer)."""
    return mark_multi_view(_chunked(input, chunks, dim), "SplitBackward0")


@composite("torch Tensor")
def unsafe_split(input: Any, split_size: int, dim: int = 0) -> tuple[Any, ...]:
    """Return copies of what `split` gives: they may be written in place."""
    return tuple(p.clone() for p in _even("unsafe_split", input, split_size, dim))


@composite("torch Tensor")
def unsafe_split_with_sizes(input: Any, split_sizes: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return copies of what `split_with_sizes` gives: they may be written in place."""
    return tuple(p.clone() for p in _sized("unsafe_split_with_sizes", input, split_sizes, dim))


@composite("torch Tensor")
def unsafe_chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """Return copies of what `chunk` gives: they may be written in place."""
    return tuple(p.clone() for p in _chunked(input, chunks, dim))


@composite("torch Tensor")
def tensor_split(input: Any, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None,
                 sections: Any = None) -> tuple[Any, ...]:  # fmt: skip
    """Return views of parts along `dim`: a number of nearly equal ones (the first are larger), or cut at given indices.

    A tensor given for either is read.
    """
    how = next((v for v in (indices_or_sections, indices, sections) if v is not None), None)
    d, n = _dimension("tensor_split", input, dim)
    if isinstance(how, Tensor):
        how = how.tolist()
    if isinstance(how, (list, tuple)):
        edges = [0, *(slice(None, int(i)).indices(n)[1] for i in how), n]
        return tuple(slice_(input, d, a, max(a, b), 1) for a, b in pairwise(edges))
    if how is None or how <= 0:
        raise refuse(RuntimeError, "tensor_split", f"number of sections must be larger than 0, got {how}")
    small, larger = divmod(n, int(how))
    return _cut(input, [small + 1] * larger + [small] * (int(how) - larger), d)


def _split_along(name: str, input: Any, how: Any, d: int, least: int) -> tuple[Any, ...]:
    if input.ndim < least:
        raise refuse(
            RuntimeError,
            name,
            f"torch.{name} requires a tensor with at least {least} dimension, but got a tensor with {input.ndim} "
            "dimensions!",
        )
    if not isinstance(how, (list, tuple, Tensor)) and (how <= 0 or input.shape[d] % how):
        raise refuse(
            RuntimeError,
            name,
            f"torch.{name} attempted to split along dimension {d}, but the size of the dimension {input.shape[d]} "
            "is not "
            f"divisible by the split_size {how}!",
        )
    return tensor_split(input, how, d)


@composite("torch Tensor")
def hsplit(input: Any, indices_or_sections: Any) -> tuple[Any, ...]:
    """Return views of parts along dimension 1 (0 for a vector), into equal sections or at indices."""
    return _split_along("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1, 1)


@composite("torch Tensor")
def vsplit(input: Any, indices_or_sections: Any) -> tuple[Any, ...]:
    """Return views of parts along dimension 0 of a tensor with two dimensions or more."""
    return _split_along("vsplit", input, indices_or_sections, 0, 2)


@composite("torch Tensor")
def dsplit(input: Any, indices_or_sections: Any) -> tuple[Any, ...]:
    """Return views of parts along dimension 2 of a tensor with three dimensions or more."""
    return _split_along("dsplit", input, indices_or_sections, 2, 3)


@composite("torch Tensor")
def unbind(input: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return a view of each entry along `dim`, without that dimension."""
    if input.ndim == 0:
        raise refuse(IndexError, "unbind", f"Dimension specified as {dim} but tensor has no dimensions")
    d = axis("unbind", dim, input.ndim)
    return mark_multi_view(tuple(select_(input, i, d) for i in range(input.shape[d])), "UnbindBackward0")


# ---------------------------------------------------------------- to a common shape


@composite("torch")
def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """Return the tensors expanded to their common shape."""
    full = _listed(tensors)
    shape = common_shape("broadcast_tensors", full)
    return tuple(t.expand(shape) for t in full)


def common_shape(name: str, tensors: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape that the tensors broadcast to, or raise torch's error."""
    shape: tuple[int, ...] = ()
    for t in tensors:
        other = tuple(t.shape)
        try:
            shape = np.broadcast_shapes(shape, other)
        except ValueError:
            pairs = list(zip(reversed(shape), reversed(other), strict=False))
            back = next(i for i, (a, b) in enumerate(pairs) if a != b and 1 not in (a, b))
            raise refuse(
                RuntimeError,
                name,
                f"The size of tensor a ({pairs[back][0]}) must match the size of tensor b ({pairs[back][1]}) at "
                "non-singleton "
                f"dimension {max(len(shape), len(other)) - 1 - back}",
            ) from None
    return shape


@composite("torch")
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Any, ...]:
    """Return, for each of N vectors (or numbers), its values spread over the N-dimensional grid of them all.

    `indexing="ij"` gives dimension i to vector i; "xy" exchanges the first two.
    """
    full = _listed(tensors)
    if not full:
        raise refuse(RuntimeError, "meshgrid", "torch.meshgrid expects a non-empty TensorList")
    if indexing not in ("ij", "xy"):
        raise refuse(
            RuntimeError, "meshgrid", f"torch.meshgrid: indexing must be one of 'xy' or 'ij', but received: {indexing}"
        )
    for t in full:
        if t.ndim > 1:
            raise refuse(
                RuntimeError, "meshgrid", f"Expected 0D or 1D tensor in the tensor list but got: shape {tuple(t.shape)}"
            )
        if t.dtype is not full[0].dtype:
            raise refuse(RuntimeError, "meshgrid", "torch.meshgrid expects all tensors to have the same dtype")
    order = list(range(len(full)))
    if indexing == "xy" and len(full) > 1:
        order[:2] = [1, 0]
    sizes = [t.numel() for t in full]
    shape = tuple(sizes[order.index(d)] for d in range(len(full)))
    return tuple(
        t.view(tuple(n if d == order[i] else 1 for d in range(len(full)))).expand(shape)
        for i, (t, n) in enumerate(zip(full, sizes, strict=True))
    )
