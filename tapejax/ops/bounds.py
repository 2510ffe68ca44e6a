"""Limits and extremes: clamp, and the larger or smaller of two.

The conventions at ties and bounds are torch's. May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.errors import refuse
from tapejax.ops.operands import check_broadcast, is_complex, is_integral, refuse_complex
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, ErrorSample, Scalar, error_sample, op, sample

_EVERYWHERE = "torch Tensor Tensor_"


@op(_EVERYWHERE, promote="common", saves="input min max", aliases="clip")
def clamp(input: Array, min: Array | None = None, max: Array | None = None) -> Array:
    """Limit each element to [min, max]; either bound may be missing, a number or a tensor that broadcasts.

    The result is `max` where `min` exceeds it. The gradient passes where min <= input <= max (1 at a bound); a
    tensor bound receives it where it was applied. Raises RuntimeError if both bounds are missing.

    >>> import tapejax as tj
    >>> tj.clamp(tj.tensor([-1.0, 0.5, 2.0]), 0, 1).tolist()
    [0.0, 0.5, 1.0]
    """
    if min is None and max is None:
        raise refuse(RuntimeError, "clamp", "At least one of 'min' or 'max' must not be None")
    bounds = [b for b in (min, max) if b is not None]
    refuse_complex("clamp", input)
    check_broadcast("clamp", input, *bounds)
    result = input
    if min is not None:
        result = jnp.where((result < min) | jnp.isnan(min), min, result)
    if max is not None:
        result = jnp.where((result > max) | jnp.isnan(max), max, result)
    return result


@clamp.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), -0.5, 0.7
    yield make(3), None, 0.3
    yield make(3), 0.1
    yield make(3, 4), make(4, high=-0.5), make(3, 1, low=0.5)
    yield make.ints(4, high=9), 2, 5
    yield make.ints(4, high=9), 2.5


@clamp.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "At least one of", make(3))
    yield error_sample(RuntimeError, "complex", make.complex(3), 0)


@op(_EVERYWHERE, promote="common", saves="input min")
def clamp_min(input: Array, min: Array) -> Array:
    """Raise elements below `min` (a number or a tensor) to it; the gradient at the bound goes to `input`."""
    refuse_complex("clamp_min", input)
    check_broadcast("clamp_min", input, min)
    return jnp.where((input < min) | jnp.isnan(min), min, input)


@clamp_min.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), 0.2
    yield make(3), make(3)


@op(_EVERYWHERE, promote="common", saves="input max")
def clamp_max(input: Array, max: Array) -> Array:
    """Lower elements above `max` (a number or a tensor) to it; the gradient at the bound goes to `input`."""
    refuse_complex("clamp_max", input)
    check_broadcast("clamp_max", input, max)
    return jnp.where((input > max) | jnp.isnan(max), max, input)


@clamp_max.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), 0.2
    yield make(3), make(3)


@op("torch Tensor", promote="common", saves="input other")
def maximum(input: Array, other: Array) -> Array:
    """Return the larger of two elements, with broadcasting; NaN wins. Ties share the gradient, ½ each."""
    refuse_complex("maximum", input)
    check_broadcast("maximum", input, other)
    return jnp.maximum(input, other)


@maximum.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield make.ints(3, high=9), make.ints(3, high=9)


@maximum.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "complex", make.complex(3), make.complex(3))


@op("torch Tensor", promote="common", saves="input other")
def minimum(input: Array, other: Array) -> Array:
    """Return the smaller of two elements, with broadcasting; NaN wins. Ties share the gradient, ½ each."""
    refuse_complex("minimum", input)
    check_broadcast("minimum", input, other)
    return jnp.minimum(input, other)


@minimum.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield make.ints(3, high=9), make.ints(3, high=9)


@op("torch Tensor", promote="common", saves="input other")
def fmax(input: Array, other: Array) -> Array:
    """Return the larger of two elements, with broadcasting, or the one that is not NaN.

    The whole gradient goes to the element returned; at a tie to `input`.
    """
    refuse_complex("fmax", input)
    check_broadcast("fmax", input, other)
    return jnp.where((input >= other) | jnp.isnan(other), input, other)


@op("torch Tensor", promote="common", saves="input other")
def fmin(input: Array, other: Array) -> Array:
    """Return the smaller of two elements, with broadcasting, or the one that is not NaN.

    The whole gradient goes to the element returned; at a tie to `input`.
    """
    refuse_complex("fmin", input)
    check_broadcast("fmin", input, other)
    return jnp.where((input <= other) | jnp.isnan(other), input, other)


def _with_nan(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield np.array([np.nan, 1.0, 2.0]), np.array([0.5, np.nan, 2.0])
    yield make.ints(3, high=9), make.ints(3, high=9)


for _op in (fmax, fmin):
    _op.samples(_with_nan)


@op(_EVERYWHERE, saves="input")
def nan_to_num(input: Array, nan: Scalar = None, posinf: Scalar = None, neginf: Scalar = None) -> Array:
    """Replace NaN by `nan` (None: 0), inf by `posinf` and -inf by `neginf` (None: the type's largest and smallest value).

    The gradient is 0 where something was replaced, else 1. Integers are returned as they are; of complex numbers
    both parts are treated.
    """
    if is_integral(input):
        return input
    if is_complex(input):
        real, imag = (_finite(part, nan, posinf, neginf) for part in (jnp.real(input), jnp.imag(input)))
        return lax.complex(real, imag)
    return _finite(input, nan, posinf, neginf)


def _finite(x: jax.Array, nan: Any, posinf: Any, neginf: Any) -> jax.Array:
    limits = jnp.finfo(x.dtype)
    largest = jnp.asarray(limits.max if posinf is None else posinf, x.dtype)
    smallest = jnp.asarray(limits.min if neginf is None else neginf, x.dtype)
    x = jnp.where(jnp.isnan(x), jnp.asarray(0.0 if nan is None else nan, x.dtype), x)
    return jnp.where(jnp.isposinf(x), largest, jnp.where(jnp.isneginf(x), smallest, x))


@nan_to_num.samples
def _(make: Make) -> Iterator[Any]:
    broken = np.array([1.0, np.nan, np.inf, -np.inf])
    yield broken
    yield sample(broken, nan=2.0, posinf=5.0, neginf=-5.0)
    yield make.ints(3)
