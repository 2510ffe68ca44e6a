"""Sliding-window arithmetic shared by convolutions, pooling and patches. Owns no op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.errors import refuse


def per_axis(op: str, name: str, value: Any, n: int) -> tuple[int, ...]:
    """`value` as one int per spatial axis: an int (or 1-tuple) is repeated."""
    found = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(found) == 1:
        found *= n
    if len(found) != n:
        raise refuse(RuntimeError, op, f"{name} must be one int or {n} ints, but got {value}")
    return tuple(int(v) for v in found)


def batched(op: str, x: jax.Array, n: int) -> tuple[jax.Array, bool]:
    """`x` as (N, C, *spatial) and whether a batch axis was added."""
    if x.ndim == n + 2:
        return x, False
    if x.ndim == n + 1:
        return x[None], True
    raise refuse(
        RuntimeError,
        op,
        f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {op}, but got input of size: {list(x.shape)}",
    )


def pooled_size(op: str, size: int, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> int:
    """How many windows fit; with `ceil_mode` a last one may hang over, if it starts inside the input or left padding."""
    out = (size + 2 * pad - dilation * (kernel - 1) - 1 + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (out - 1) * stride >= size + pad:
        out -= 1
    if out < 1:
        raise refuse(
            RuntimeError,
            op,
            f"a window of {kernel} (dilation {dilation}) on an axis of {size} padded by {pad}: Output size is too small",
        )
    return out


def shifted(x: jax.Array, offset: Sequence[int], out: Sequence[int], stride: Sequence[int]) -> jax.Array:
    """The elements at `offset` of every window: a strided slice of the trailing axes, `out` elements each."""
    lead = x.ndim - len(out)
    stop = [o + s * (n - 1) + 1 for o, s, n in zip(offset, stride, out, strict=True)]
    return jax.lax.slice(x, (0,) * lead + tuple(offset), x.shape[:lead] + tuple(stop), (1,) * lead + tuple(stride))


def wide(x: jax.Array) -> jax.Array:
    """Half precision as float32: statistics are accumulated there, as in torch."""
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x
