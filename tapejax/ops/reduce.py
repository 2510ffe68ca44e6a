"""Sums, products, extremes and logical reductions.

Every `dim` here is None (all axes), an int or a tuple; a 0-d input accepts the axes 0 and -1, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.tape.op import Array, Dims, error_sample, op, sample


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
