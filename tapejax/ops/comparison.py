"""Comparisons, tests of one element, and logic: boolean and bitwise.

Owns ops whose results carry no gradient. Different types are compared in their common type.
May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.ops.operands import check_broadcast, need_integral, refuse_complex
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, ErrorSample, Scalar, error_sample, op, sample

_EVERYWHERE = "torch Tensor Tensor_"


def _check_ordered(name: str, input: jax.Array, other: jax.Array) -> None:
    refuse_complex(name, input)
    check_broadcast(name, input, other)


def _pairs(make: Make) -> Iterator[Any]:
    yield make.ints(3, 4).astype(float), make.ints(4).astype(float)
    yield make.ints(3), 1.0
    yield make.ints(2, 1), make.ints(3)


def _unordered_pairs(make: Make) -> Iterator[Any]:
    yield from _pairs(make)
    yield make.complex(3), make.complex(3)
    yield make.bools(3), make.bools(3)


def _mismatched(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "must match the size of tensor b", make(3), make(2))


def _unorderable(make: Make) -> Iterator[ErrorSample]:
    yield from _mismatched(make)
    yield error_sample(RuntimeError, "not implemented for 'ComplexDouble'", make.complex(3), make.complex(3))


@op(_EVERYWHERE, promote="common", differentiable=False)
def eq(input: Array, other: Array) -> Array:
    """Return `input == other` as booleans, element by element; NaN equals nothing."""
    check_broadcast("eq", input, other)
    return input == other


@op(_EVERYWHERE, promote="common", differentiable=False, aliases="not_equal")
def ne(input: Array, other: Array) -> Array:
    """Return `input != other` as booleans, element by element; NaN differs from everything."""
    check_broadcast("ne", input, other)
    return input != other


@op(_EVERYWHERE, promote="common", differentiable=False, aliases="less")
def lt(input: Array, other: Array) -> Array:
    """Return `input < other` as booleans. Raises RuntimeError for complex tensors."""
    _check_ordered("lt", input, other)
    return input < other


@op(_EVERYWHERE, promote="common", differentiable=False, aliases="less_equal")
def le(input: Array, other: Array) -> Array:
    """Return `input <= other` as booleans. Raises RuntimeError for complex tensors."""
    _check_ordered("le", input, other)
    return input <= other


@op(_EVERYWHERE, promote="common", differentiable=False, aliases="greater")
def gt(input: Array, other: Array) -> Array:
    """Return `input > other` as booleans. Raises RuntimeError for complex tensors."""
    _check_ordered("gt", input, other)
    return input > other


@op(_EVERYWHERE, promote="common", differentiable=False, aliases="greater_equal")
def ge(input: Array, other: Array) -> Array:
    """Return `input >= other` as booleans. Raises RuntimeError for complex tensors.

    >>> import tapejax as tj
    >>> (tj.tensor([1.0, 2.0, 3.0]) >= 2).tolist()
    [False, True, True]
    """
    _check_ordered("ge", input, other)
    return input >= other


for _op in (eq, ne):
    _op.samples(_unordered_pairs)
    _op.error_samples(_mismatched)
for _op in (lt, le, gt, ge):
    _op.samples(_pairs)
    _op.error_samples(_unorderable)


@op(_EVERYWHERE, differentiable=False)
def logical_not(input: Array) -> Array:
    """Return True where an element is zero."""
    return input == 0


@op(_EVERYWHERE, differentiable=False)
def logical_and(input: Array, other: Array) -> Array:
    """Return True where both elements are nonzero, whatever their types."""
    check_broadcast("logical_and", input, other)
    return (input != 0) & (other != 0)


@op(_EVERYWHERE, differentiable=False)
def logical_or(input: Array, other: Array) -> Array:
    """Return True where an element of either is nonzero, whatever their types."""
    check_broadcast("logical_or", input, other)
    return (input != 0) | (other != 0)


@op(_EVERYWHERE, differentiable=False)
def logical_xor(input: Array, other: Array) -> Array:
    """Return True where exactly one of two elements is nonzero, whatever their types."""
    check_broadcast("logical_xor", input, other)
    return (input != 0) ^ (other != 0)


def _truths(make: Make) -> Iterator[Any]:
    yield make.bools(3, 4), make.bools(4)
    yield make.ints(3), make.ints(3).astype(float)
    yield make.complex(2), make.bools(2)


for _op in (logical_and, logical_or, logical_xor):
    _op.samples(_truths)
    _op.error_samples(_mismatched)


@logical_not.samples
def _(make: Make) -> Iterator[Any]:
    yield make.ints(3, 4)
    yield make.bools(3)
    yield make(2)


@op(_EVERYWHERE, differentiable=False)
def bitwise_not(input: Array) -> Array:
    """Flip every bit; of booleans, the logical negation. Raises RuntimeError for floating types."""
    need_integral("bitwise_not", input)
    return ~input


@bitwise_not.samples
def _(make: Make) -> Iterator[Any]:
    yield make.ints(3, high=9)
    yield make.bools(3)


@bitwise_not.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "not implemented for 'Double'", make(3))


def _check_bits(name: str, input: jax.Array, other: jax.Array) -> None:
    need_integral(name, input)
    check_broadcast(name, input, other)


@op(_EVERYWHERE, promote="common", differentiable=False)
def bitwise_and(input: Array, other: Array) -> Array:
    """Return the bits set in both (`&`); booleans are and-ed. Raises NotImplementedError for floating types."""
    _check_bits("bitwise_and", input, other)
    return input & other


@op(_EVERYWHERE, promote="common", differentiable=False)
def bitwise_or(input: Array, other: Array) -> Array:
    """Return the bits set in either (`|`); booleans are or-ed. Raises NotImplementedError for floating types."""
    _check_bits("bitwise_or", input, other)
    return input | other


@op(_EVERYWHERE, promote="common", differentiable=False)
def bitwise_xor(input: Array, other: Array) -> Array:
    """Return the bits set in exactly one (`^`). Raises NotImplementedError for floating types."""
    _check_bits("bitwise_xor", input, other)
    return input ^ other


def _bits(make: Make) -> Iterator[Any]:
    yield make.ints(3, 4, high=99), make.ints(4, high=99)
    yield make.bools(3), make.bools(3)
    yield make.ints(3, low=-9, high=9), 6


def _no_bits(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "not implemented for 'Double'", make(3), make(3))
    yield from _mismatched_ints(make)


def _mismatched_ints(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "must match the size of tensor b", make.ints(3), make.ints(2))


for _op in (bitwise_and, bitwise_or, bitwise_xor):
    _op.samples(_bits)
    _op.error_samples(_no_bits)


@op(_EVERYWHERE, promote="common", differentiable=False)
def bitwise_left_shift(input: Array, other: Array) -> Array:
    """Shift bits up by `other` places (`<<`), filling with zeros. Raises NotImplementedError for floating types."""
    _check_bits("bitwise_left_shift", input, other)
    return jnp.left_shift(input, other)


@op(_EVERYWHERE, promote="common", differentiable=False)
def bitwise_right_shift(input: Array, other: Array) -> Array:
    """Shift bits down by `other` places (`>>`), keeping the sign. Raises NotImplementedError for floating types."""
    _check_bits("bitwise_right_shift", input, other)
    return jnp.right_shift(input, other)


def _shifts(make: Make) -> Iterator[Any]:
    yield make.ints(3, 4, low=-99, high=99), make.ints(4, high=6)
    yield make.ints(3, high=99), 2


for _op in (bitwise_left_shift, bitwise_right_shift):
    _op.samples(_shifts)
    _op.error_samples(_no_bits)


@op(differentiable=False)
def isnan(input: Array) -> Array:
    """Return True where an element is NaN; of a complex number, in either part. Never for integers."""
    return jnp.isnan(input)


@op(differentiable=False)
def isinf(input: Array) -> Array:
    """Return True where an element is inf or -inf; of a complex number, in either part. Never for integers."""
    return jnp.isinf(input)


@op(differentiable=False)
def isfinite(input: Array) -> Array:
    """Return True where an element is neither infinite nor NaN. Always for integers.

    >>> import tapejax as tj
    >>> tj.isfinite(tj.tensor([1.0, float("inf"), float("nan")])).tolist()
    [True, False, False]
    """
    return jnp.isfinite(input)


@op(differentiable=False)
def isposinf(input: Array) -> Array:
    """Return True where an element is inf. Raises NotImplementedError for complex tensors."""
    refuse_complex("isposinf", input)
    return jnp.isposinf(input)


@op(differentiable=False)
def isneginf(input: Array) -> Array:
    """Return True where an element is -inf. Raises NotImplementedError for complex tensors."""
    refuse_complex("isneginf", input)
    return jnp.isneginf(input)


@op(differentiable=False)
def signbit(input: Array) -> Array:
    """Return True where the sign bit is set: below zero, and for -0.0. Raises NotImplementedError for complex tensors."""
    refuse_complex("signbit", input)
    return input < 0 if not jnp.issubdtype(input.dtype, jnp.floating) else jnp.signbit(input)


@op(differentiable=False)
def isreal(input: Array) -> Array:
    """Return True where the imaginary part is 0; always for real tensors."""
    return jnp.isreal(input)


def _specials(make: Make) -> Iterator[Any]:
    yield np.array([[1.0, np.nan, np.inf], [-np.inf, -0.0, -2.0]])
    yield make.ints(3)


def _complex_specials(make: Make) -> Iterator[Any]:
    yield from _specials(make)
    yield np.array([1 + 1j, complex(np.nan, 1), complex(1, np.inf), 2])


def _no_complex(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "not implemented for 'ComplexDouble'", make.complex(3))


for _op in (isnan, isinf, isfinite, isreal):
    _op.samples(_complex_specials)
for _op in (isposinf, isneginf, signbit):
    _op.samples(_specials)
    _op.error_samples(_no_complex)


@op(promote="common", differentiable=False)
def isclose(input: Array, other: Array, rtol: Scalar = 1e-05, atol: Scalar = 1e-08, equal_nan: bool = False) -> Array:
    """Return True where `|input - other| <= atol + rtol * |other|`; infinities must be equal, NaN equals NaN on demand."""
    check_broadcast("isclose", input, other)
    same = input == other
    if equal_nan:
        same |= jnp.isnan(input) & jnp.isnan(other)
    distance = jnp.abs(input - other) if input.dtype != jnp.bool_ else (input ^ other).astype(jnp.int32)
    size = jnp.abs(other).astype(jnp.promote_types(distance.dtype, jnp.float32))
    allowed = jnp.asarray(atol, size.dtype) + jnp.abs(jnp.asarray(rtol, size.dtype) * size)
    return same | (jnp.isfinite(distance) & (distance <= allowed))


@isclose.samples
def _(make: Make) -> Iterator[Any]:
    x = make(3, 4)
    yield x, x + 1e-7
    yield x, x + 1e-3, 1e-2
    yield sample(np.array([np.nan, np.inf, 1.0]), np.array([np.nan, np.inf, 1.0 + 1e-9]), equal_nan=True)
    yield make.ints(3), make.ints(3)
