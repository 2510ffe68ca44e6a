"""Arrays of other libraries: NumPy and everything that speaks DLPack."""

from __future__ import annotations

from typing import Any

import jax
import jax.dlpack

from tapejax.ops.create import from_numpy
from tapejax.tensor import Tensor, from_array


def from_dlpack(ext_tensor: Any) -> Tensor:
    """Return a Tensor around the memory of `ext_tensor` (an object with `__dlpack__`: torch, NumPy, CuPy, JAX), without a copy where JAX can.

    The memory must not be written afterwards: values on the tape are immutable.
    """
    with jax.enable_x64(True):
        return from_array(jax.dlpack.from_dlpack(ext_tensor))


def to_dlpack(tensor: Tensor) -> Any:
    """Return a DLPack capsule of the tensor's value. BufferError if it requires grad: pass `.detach()`."""
    return tensor.__dlpack__()


__all__ = ["from_dlpack", "from_numpy", "to_dlpack"]
