"""The one check that every op on several operands needs: do their shapes fit together?"""

from __future__ import annotations

import jax
import numpy as np

from tapejax.errors import refuse


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
