"""Quotients and remainders: true, floored and truncated division, divisibility.

May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.operands import check_broadcast, is_integral, need_integral, refuse_complex
from tapejax.ops.samples import Make
from tapejax.tape.aval import Aval
from tapejax.tape.op import Array, ErrorSample, error_sample, op, sample

_EVERYWHERE = "torch Tensor Tensor_"


def floor_quotient(a: jax.Array, b: jax.Array) -> jax.Array:
    """The largest integer not above a / b, exact where the rounded quotient would land on the wrong side."""
    if is_integral(a):
        return jnp.floor_divide(a, b)
    zero = b == 0
    divisor = jnp.where(zero, jnp.ones_like(b), b)
    rest = lax.rem(a, divisor)
    quotient = (a - rest) / divisor - ((rest != 0) & ((rest < 0) != (divisor < 0)))
    down = jnp.floor(quotient)
    exact = jnp.where(quotient - down > 0.5, down + 1, down)
    exact = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(a), a / divisor), exact)
    return jnp.where(zero, a / b, exact)


def quotient_types(avals: Sequence[Aval | None], statics: tuple[Any, ...]) -> list[dtypes.dtype]:
    """True division turns integers into the default float type, rounded division keeps them."""
    target = dtypes.common((a.dtype, a.rank) for a in avals if a is not None)
    if target.category < 2 and statics[0] is None:
        target = dtypes.get_default_dtype()
    return [target] * len(avals)


@op(_EVERYWHERE, promote=quotient_types, saves={"input": "other", "other": "input other"}, aliases="divide true_divide")
def div(input: Array, other: Array, *, rounding_mode: str | None = None) -> Array:
    """Divide: `input / other`, with broadcasting.

    `rounding_mode`: None divides truly (integers give the default float type); "trunc" rounds towards zero and "floor"
    downwards, both in the common type and with gradient 0. Raises RuntimeError for another mode.

    >>> import tapejax as tj
    >>> tj.div(tj.tensor([-7, 7]), 2, rounding_mode="floor").tolist()
    [-4, 3]
    """
    check_broadcast("div", input, other)
    if rounding_mode is None:
        return jnp.divide(input, other)
    if rounding_mode not in ("trunc", "floor"):
        raise refuse(
            RuntimeError,
            "div",
            f"expected rounding_mode to be one of None, 'trunc', or 'floor' but found {rounding_mode!r}",
        )
    refuse_complex("div", input)
    a, b = jnp.broadcast_arrays(input, other)
    if rounding_mode == "floor":
        return lax.stop_gradient(floor_quotient(a, b))
    return lax.stop_gradient(lax.div(a, b) if is_integral(a) else jnp.trunc(a / b))


@div.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make.away(4)
    yield make.complex(3), make.complex(3)
    yield make.ints(3, low=-5, high=5), make.ints(3, low=1, high=4)
    yield sample(make(3, low=-5, high=5), make.away(3), rounding_mode="floor")
    yield sample(make(3, low=-5, high=5), make.away(3), rounding_mode="trunc")
    yield sample(make.ints(6, low=-9, high=9), 2, rounding_mode="floor")
    yield sample(make.ints(6, low=-9, high=9), 2, rounding_mode="trunc")


@div.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "expected rounding_mode to be one of", make(3), make(3), rounding_mode="up")
    yield error_sample(RuntimeError, "must match the size of tensor b", make(3), make(2))


@op(_EVERYWHERE, promote="common")
def floor_divide(input: Array, other: Array) -> Array:
    """Divide and round down: `floor(input / other)` in the operands' common type; integers stay integers.

    The gradient is 0. Floating division by 0 gives an infinity, 0 / 0 NaN.

    >>> import tapejax as tj
    >>> (tj.tensor([-7, 7]) // 2).tolist()
    [-4, 3]
    """
    refuse_complex("floor_divide", input)
    check_broadcast("floor_divide", input, other)
    return lax.stop_gradient(floor_quotient(*jnp.broadcast_arrays(input, other)))


@op(_EVERYWHERE, promote="common", saves={"other": "input other"})
def remainder(input: Array, other: Array) -> Array:
    """Return `input - floor(input / other) * other`: the rest that has the divisor's sign (Python's `%`).

    The gradient is 1 for `input` and -floor(input / other) for `other`. A floating divisor of 0 gives NaN.
    """
    refuse_complex("remainder", input)
    check_broadcast("remainder", input, other)
    return jnp.remainder(input, other)


@op(_EVERYWHERE, promote="common", saves={"other": "input other"})
def fmod(input: Array, other: Array) -> Array:
    """Return `input - trunc(input / other) * other`: the rest that has the dividend's sign (C's `fmod`).

    The gradient is 1 for `input` and -trunc(input / other) for `other`. A floating divisor of 0 gives NaN.
    """
    refuse_complex("fmod", input)
    check_broadcast("fmod", input, other)
    return lax.rem(*jnp.broadcast_arrays(input, other))


def _dividends(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=-9, high=9), make.away(4, gap=0.4)
    yield make(5, low=-9, high=9), 2.0
    yield make.ints(6, low=-9, high=9), 4
    yield make.ints(6, low=-9, high=9), make.ints(6, low=1, high=5) * -1


def _undividable(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "must match the size of tensor b", make(3), make(2))
    yield error_sample(RuntimeError, "not implemented for 'ComplexDouble'", make.complex(3), make.complex(3))


for _op in (remainder, fmod):
    _op.samples(_dividends)
for _op in (floor_divide, remainder, fmod):
    _op.error_samples(_undividable)


@floor_divide.samples
def _(make: Make) -> Iterator[Any]:  # integers: torch has no gradient to compare with, and `div` covers floats
    yield make.ints(6, low=-9, high=9), 4
    yield make.ints(3, 4, low=-9, high=9), make.ints(4, low=-5, high=0)


@op(_EVERYWHERE, promote="common", differentiable=False)
def gcd(input: Array, other: Array) -> Array:
    """Return the greatest common divisor of two integers, never negative; gcd(0, 0) is 0."""
    need_integral("gcd", input)
    check_broadcast("gcd", input, other)
    return jnp.gcd(input, other)


@op(_EVERYWHERE, promote="common", differentiable=False)
def lcm(input: Array, other: Array) -> Array:
    """Return the least common multiple of two integers, never negative; 0 if either is 0."""
    need_integral("lcm", input)
    check_broadcast("lcm", input, other)
    return jnp.lcm(input, other)


def _integers(make: Make) -> Iterator[Any]:
    yield make.ints(3, 4, low=-12, high=13), make.ints(4, high=30)
    yield make.ints(3, high=2), make.ints(3, high=2)


def _no_integers(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(NotImplementedError, "not implemented for 'Double'", make(3), make(3))


for _op in (gcd, lcm):
    _op.samples(_integers)
    _op.error_samples(_no_integers)
