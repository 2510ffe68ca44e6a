"""What is known of a value before it exists: shape, element type, device. Interned, so `is` compares."""

from __future__ import annotations

from typing import Any

from tapejax import dtypes


class Aval:
    """The abstract value of a node. Make one with `aval_of`; equal ones are the same object.

    `weak` marks a Python number (it promotes by category only); `device` is None for the default device; `inference` marks
    a value made in inference mode.
    """

    __slots__ = ("device", "differentiable", "dtype", "inference", "ndim", "shape", "weak")

    def __init__(self, shape: tuple[int, ...], dtype: dtypes.dtype, weak: bool, device: Any, inference: bool = False) -> None:
        self.shape = shape
        self.dtype = dtype
        self.weak = weak
        self.device = device
        self.inference = inference
        self.ndim = len(shape)
        self.differentiable = dtype.is_differentiable

    @property
    def rank(self) -> int:
        """How strongly this operand takes part in promotion (see `dtypes.common`)."""
        return 0 if self.weak else 2 if self.shape else 1

    @property
    def size(self) -> int:
        n = 1
        for s in self.shape:
            n *= s
        return n

    def marked(self, inference: bool) -> Aval:
        """The same with the given `inference`."""
        return self if self.inference is inference else aval_of(self.shape, self.dtype, self.device, self.weak, inference)

    def __repr__(self) -> str:
        where = "" if self.device is None else f"@{self.device}"
        return f"{self.dtype.name}{'*' if self.weak else ''}[{','.join(map(str, self.shape))}]{where}"


#: Devices that were named, beside the default one: while there is none, nothing needs to be told apart by device.
NAMED_DEVICES: set[Any] = set()

_interned: dict[tuple[Any, ...], Aval] = {}


def aval_of(shape: tuple[int, ...], dtype: dtypes.dtype, device: Any = None, weak: bool = False, inference: bool = False) -> Aval:
    """The one Aval with these properties."""
    key = (shape, dtype, device, weak, inference)
    found = _interned.get(key)
    if found is None:
        if device is not None:
            NAMED_DEVICES.add(device)
        found = _interned.setdefault(key, Aval(shape, dtype, weak, device, inference))
    return found


WEAK_BOOL = aval_of((), dtypes.bool_, weak=True)
WEAK_INT = aval_of((), dtypes.int64, weak=True)
WEAK_FLOAT = aval_of((), dtypes.float64, weak=True)
WEAK_COMPLEX = aval_of((), dtypes.complex128, weak=True)
