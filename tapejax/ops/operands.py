"""What element-wise ops require of their operands: shapes that fit, types that make sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from tapejax import dtypes
from tapejax.errors import refuse


def is_complex(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def is_integral(x: jax.Array) -> bool:
    """True for integers and booleans."""
    return not jnp.issubdtype(x.dtype, jnp.inexact)


def refuse_complex(name: str, *operands: jax.Array) -> None:
    """Complex numbers have no order: refuse them where one is needed."""
    for x in operands:
        if is_complex(x):
            kind = dtypes.of(x.dtype).tensor_name
            raise refuse(NotImplementedError, name, f"not implemented for '{kind}': complex numbers have no order → .real or .abs()")


def need_floating(name: str, *operands: jax.Array) -> None:
    """Refuse integers and booleans, as torch does for functions it only has in floating point."""
    for x in operands:
        if is_integral(x):
            kind = dtypes.of(x.dtype).tensor_name
            raise refuse(NotImplementedError, name, f"not implemented for '{kind}' → convert with .float() or .double()")


def need_integral(name: str, *operands: jax.Array) -> None:
    """Refuse types without bits to work on."""
    for x in operands:
        if not is_integral(x):
            kind = dtypes.of(x.dtype).tensor_name
            raise refuse(NotImplementedError, name, f"not implemented for '{kind}' → integers are needed: .to(tapejax.int64)")


def check_broadcast(op: str, *operands: jax.Array) -> tuple[int, ...]:
    """Return the common shape of `operands`, or refuse as torch does when two sizes differ and neither is 1."""
    shapes = [operand.shape for operand in operands]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise _mismatch(op, shapes) from None


def _mismatch(op: str, shapes: list[tuple[int, ...]]) -> Exception:
    seen: tuple[int, ...] = shapes[0]
    for shape in shapes[1:]:
        rank = max(len(seen), len(shape))
        a, b = (1,) * (rank - len(seen)) + seen, (1,) * (rank - len(shape)) + shape
        for axis in reversed(range(rank)):
            if a[axis] != b[axis] and 1 not in (a[axis], b[axis]):
                return refuse(
                    RuntimeError,
                    op,
                    f"The size of tensor a ({a[axis]}) must match the size of tensor b ({b[axis]}) at non-singleton "
                    f"dimension {axis}: shapes {seen} and {shape} → sizes are compared from the last axis and must be "
                    "equal or 1",
                )
        seen = tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))
    return refuse(RuntimeError, op, f"shapes {shapes} do not broadcast")


def tangent_of(value: jax.Array, *terms: tuple[Any, Callable[[], jax.Array]]) -> jax.Array:
    """Add up `slope() * tangent` over the operands that vary, for a `custom_jvp` rule with symbolic zeros.

    An operand that does not vary must not enter as slope * 0: its slope may be infinite or NaN.
    """
    moving = [slope() * tangent for tangent, slope in terms if not isinstance(tangent, SymbolicZero)]
    return sum(moving[1:], moving[0]) if moving else jnp.zeros_like(value)
