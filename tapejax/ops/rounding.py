"""Rounding: to integers, to decimals, and what is left over.

Gradients are 0 where a step function is flat. Integers are returned as they are.
May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.ops.operands import is_integral, need_floating, refuse_complex
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, ErrorSample, error_sample, op, sample

_EVERYWHERE = "torch Tensor Tensor_"


def _rounded(name: str, input: jax.Array, function: Callable[[jax.Array], jax.Array]) -> jax.Array:
    refuse_complex(name, input)
    return input if is_integral(input) else function(input)


@op(_EVERYWHERE)
def floor(input: Array) -> Array:
    """Round down to an integer, kept in the input's type; the gradient is 0."""
    return _rounded("floor", input, jnp.floor)


@op(_EVERYWHERE)
def ceil(input: Array) -> Array:
    """Round up to an integer, kept in the input's type; the gradient is 0."""
    return _rounded("ceil", input, jnp.ceil)


@op(_EVERYWHERE, aliases="fix")
def trunc(input: Array) -> Array:
    """Round towards zero, in the input's type; the gradient is 0."""
    return _rounded("trunc", input, jnp.trunc)


@op(_EVERYWHERE)
def frac(input: Array) -> Array:
    """Return the part behind the point, with the sign of `input`; the gradient is 1. Raises for integers."""
    need_floating("frac", input)
    refuse_complex("frac", input)
    return input - jnp.trunc(input)


@op(_EVERYWHERE + " special")
def round(input: Array, *, decimals: int = 0) -> Array:
    """Round to the nearest integer, halves to even; or to `decimals` places (negative: tens, hundreds, ...).

    The gradient is 0. Raises NotImplementedError for integers with nonzero `decimals`.

    >>> import tapejax as tj
    >>> tj.round(tj.tensor([0.5, 1.5, 2.4])).tolist()
    [0.0, 2.0, 2.0]
    """
    refuse_complex("round", input)
    if decimals == 0:
        return input if is_integral(input) else jnp.round(input)
    need_floating("round", input)
    scale = 10.0 ** abs(decimals)
    return jnp.round(input * scale) / scale if decimals > 0 else jnp.round(input / scale) * scale


def _steps(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=-5, high=5)
    yield make.ints(3, low=-3)


def _no_complex(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(NotImplementedError, "complex", make.complex(2))


for _op in (floor, ceil, trunc):
    _op.samples(_steps)
for _op in (floor, ceil, trunc, frac, round):
    _op.error_samples(_no_complex)


@frac.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=-5, high=5)


@round.samples
def _(make: Make) -> Iterator[Any]:
    yield from _steps(make)
    yield make.ints(5, low=-3) + 0.5
    yield sample(make(3, low=-50, high=50), decimals=2)
    yield sample(make(3, low=-500, high=500), decimals=-1)
