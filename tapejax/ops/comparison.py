"""Comparisons, tests of one element, and logic: boolean and bitwise.

Owns ops whose results carry no gradient. Different types are compared in their common type.
May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.broadcasting import check_broadcast
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, ErrorSample, error_sample, op

_EVERYWHERE = "torch Tensor Tensor_"


def _check_ordered(name: str, input: jax.Array, other: jax.Array) -> None:
    if jnp.issubdtype(input.dtype, jnp.complexfloating):
        raise refuse(
            RuntimeError, name, f"not implemented for {dtypes.of(input.dtype)}: complex numbers have no order → compare .abs()"
        )
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
    yield error_sample(RuntimeError, "not implemented for", make.complex(3), make.complex(3))


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


def _check_bits(name: str, *operands: jax.Array) -> None:
    for x in operands:
        if jnp.issubdtype(x.dtype, jnp.inexact):
            kind = dtypes.of(x.dtype)
            raise refuse(RuntimeError, name, f"not implemented for '{kind.tensor_name}' → bits need integers or booleans: .to(tapejax.int64)")
    check_broadcast(name, *operands)


@op(_EVERYWHERE, differentiable=False)
def bitwise_not(input: Array) -> Array:
    """Flip every bit; of booleans, the logical negation. Raises RuntimeError for floating types."""
    _check_bits("bitwise_not", input)
    return ~input


@bitwise_not.samples
def _(make: Make) -> Iterator[Any]:
    yield make.ints(3, high=9)
    yield make.bools(3)


@bitwise_not.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "not implemented for 'Double'", make(3))
