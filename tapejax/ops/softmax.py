"""Sums of exponentials and what is normalised by them.

An entry of -inf has weight 0 and receives gradient 0; a slice of nothing but -inf is NaN (for `logsumexp`: -inf).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.reduce import axes, axis
from tapejax.tape.op import Array, Dims, error_sample, op, sample

_HALF = ("float16", "bfloat16")


@op("torch Tensor special", promote="float", saves="input result")
def logsumexp(input: Array, dim: Dims, keepdim: bool = False) -> Array:
    """Return `log Σ exp(x)` over `dim`, without overflow; integers become the default float type.

    The gradient is `softmax(x)`: 0 for an entry of -inf.

    >>> import tapejax as tj
    >>> tj.logsumexp(tj.tensor([1000., 1000.]), 0)
    tensor(1000.6931)
    """
    return jax.nn.logsumexp(input, axis=axes("logsumexp", dim, input.ndim), keepdims=keepdim)


@logsumexp.samples
def _(make: Any) -> Iterator[Any]:
    yield make(3, 4), 1
    yield sample(make(3, 4), (0, -1), True)
    yield np.array([[-np.inf, 2.0, 1.0], [1000.0, 999.0, -np.inf]]), 1
    yield make(), 0


def _normalised(name: str, input: Any, dim: int | None, dtype: dtypes.dtype | None, apply: Any) -> Any:
    if dim is None:  # torch.nn.functional's implicit choice
        dim = 0 if input.ndim in (0, 1, 3) else 1
    x = input if dtype is None else input.astype(dtype.np)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        given = dtypes.of(x.dtype).tensor_name
        raise refuse(NotImplementedError, name, f"not implemented for '{given}' → convert it first (.float()) or pass dtype=")
    d = axis(name, dim, x.ndim)
    wide = x.astype(np.float32) if x.dtype.name in _HALF else x
    wide = wide if x.ndim else wide[None]
    return apply(wide, axis=d).reshape(x.shape).astype(x.dtype)


@op("torch Tensor nn.functional special", saves="result")
def softmax(input: Array, dim: int | None = None, dtype: dtypes.dtype | None = None) -> Array:
    """Return `exp(x) / Σ exp(x)` along `dim`, without overflow; half precision is computed in float32.

    `dtype` converts the input first. Raises NotImplementedError for integers (NaN for a slice of only -inf).

    >>> import tapejax as tj
    >>> tj.softmax(tj.tensor([0., 0.]), 0)
    tensor([0.5000, 0.5000])
    """
    return _normalised("softmax", input, dim, dtype, jax.nn.softmax)


@op("torch Tensor nn.functional special", saves="result")
def log_softmax(input: Array, dim: int | None = None, dtype: dtypes.dtype | None = None) -> Array:
    """Return `x - log Σ exp(x)` along `dim`, without overflow; half precision is computed in float32.

    `dtype` converts the input first. Raises NotImplementedError for integers.
    """
    return _normalised("log_softmax", input, dim, dtype, jax.nn.log_softmax)


def _softmin(x: Any, axis: int) -> Any:
    return jax.nn.softmax(-x, axis=axis)


@op("nn.functional", saves="result", grad_name="Softmax", oracle="nn.functional.softmin")
def softmin(input: Array, dim: int | None = None, dtype: dtypes.dtype | None = None) -> Array:
    """Return `softmax(-x)` along `dim`."""
    return _normalised("softmin", input, dim, dtype, _softmin)


for _op in (softmax, log_softmax, softmin):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make(3, 4), 1
        yield make(3, 4), -2
        yield make(2, 3, 2), 0
        yield sample(make(3, dtype=np.float32), 0, dtype=dtypes.float64)
        yield make(), 0

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(IndexError, "Dimension out of range", make(2), 1)
        yield error_sample(NotImplementedError, "not implemented for 'Long'", make.ints(2), 0)
