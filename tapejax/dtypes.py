"""Element types: torch's names, torch's promotion rules, JAX's storage.

Owns `dtype` (one object per element type), the promotion lattice and the default float type.
Imports only `errors`. Invariant: a `dtype` is a singleton, so `is` compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from tapejax.errors import refuse

_CATEGORIES = ("bool", "integral", "floating", "complex")


class dtype:
    """An element type, spelled as in torch (`tapejax.float32`, `tapejax.int64`, ...)."""

    __slots__ = ("aliases", "category", "itemsize", "name", "np", "tensor_name")

    def __init__(self, name: str, storage: Any, category: int, tensor_name: str, *aliases: str) -> None:
        self.name = name
        self.np = np.dtype(storage)
        self.itemsize = self.np.itemsize
        self.category = category  # index into _CATEGORIES: a higher one wins a promotion
        self.tensor_name = tensor_name  # torch's spelling in error messages ("Float", "Long")
        self.aliases = aliases

    @property
    def is_floating_point(self) -> bool:
        return self.category == 2

    @property
    def is_complex(self) -> bool:
        return self.category == 3

    @property
    def is_signed(self) -> bool:
        return self.name not in ("bool", "uint8", "uint16", "uint32", "uint64")

    @property
    def is_differentiable(self) -> bool:
        """True for the types that may require grad (floating and complex)."""
        return self.category >= 2

    def to_real(self) -> dtype:
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    def to_complex(self) -> dtype:
        if self.is_complex:
            return self
        return complex128 if self.name == "float64" else complex64

    def __repr__(self) -> str:
        return f"tapejax.{self.name}"

    def __reduce__(self) -> str | tuple[Any, ...]:
        return (of, (self.name,))


bool_ = dtype("bool", np.bool_, 0, "Bool")
uint8 = dtype("uint8", np.uint8, 1, "Byte")
int8 = dtype("int8", np.int8, 1, "Char")
int16 = dtype("int16", np.int16, 1, "Short", "short")
int32 = dtype("int32", np.int32, 1, "Int", "int")
int64 = dtype("int64", np.int64, 1, "Long", "long")
uint16 = dtype("uint16", np.uint16, 1, "UInt16")
uint32 = dtype("uint32", np.uint32, 1, "UInt32")
uint64 = dtype("uint64", np.uint64, 1, "UInt64")
float16 = dtype("float16", np.float16, 2, "Half", "half")
bfloat16 = dtype("bfloat16", ml_dtypes.bfloat16, 2, "BFloat16")
float32 = dtype("float32", np.float32, 2, "Float", "float")
float64 = dtype("float64", np.float64, 2, "Double", "double")
complex64 = dtype("complex64", np.complex64, 3, "ComplexFloat", "cfloat")
complex128 = dtype("complex128", np.complex128, 3, "ComplexDouble", "cdouble")

ALL: tuple[dtype, ...] = (
    bool_, uint8, int8, int16, int32, int64, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip
_BY_NAME = {n: d for d in ALL for n in (d.name, *d.aliases)}
_BY_NUMPY = {d.np: d for d in ALL}

_default: dtype = float32
_on_default_change: list[Any] = []


def get_default_dtype() -> dtype:
    """The type of `tensor(1.0)` and of integer division: float32 until set."""
    return _default


def set_default_dtype(d: dtype) -> None:
    """Make `d` (a floating type) the type that Python floats become."""
    global _default
    if not isinstance(d, dtype) or not d.is_floating_point:
        raise refuse(TypeError, "set_default_dtype", f"only floating-point types are supported as the default type, got {d}")
    _default = d
    for forget in _on_default_change:  # cached inference depends on it
        forget()


def of(spec: Any) -> dtype:
    """The `dtype` that `spec` names: a dtype, a NumPy/JAX type, a Python type or a name."""
    if isinstance(spec, dtype):
        return spec
    if isinstance(spec, str):
        found = _BY_NAME.get(spec.removeprefix("torch.").removeprefix("tapejax."))
        if found is not None:
            return found
    elif spec is float:
        return _default
    elif spec is int:
        return int64
    elif spec is bool:
        return bool_
    elif spec is complex:
        return _default.to_complex()
    try:
        return _BY_NUMPY[np.dtype(spec)]
    except (TypeError, KeyError):
        names = ", ".join(d.name for d in ALL)
        raise refuse(TypeError, "dtype", f"{spec!r} is not an element type → use one of {names}") from None


_SIZED_INTS = {(1, True): int8, (2, True): int16, (4, True): int32, (8, True): int64}


def promote_types(a: dtype, b: dtype) -> dtype:
    """The smallest type that holds both, by torch's table (`torch.promote_types`)."""
    if a is b:
        return a
    if a.category != b.category:
        low, high = (a, b) if a.category < b.category else (b, a)
        if high.is_complex and low is float64:
            return complex128
        return high
    if a.category == 1:
        if a.is_signed == b.is_signed:
            return a if a.itemsize > b.itemsize else b
        signed, unsigned = (a, b) if a.is_signed else (b, a)
        if signed.itemsize > unsigned.itemsize:
            return signed
        if unsigned is not uint8:
            raise refuse(
                RuntimeError, "promote_types", f"Promotion for {a} and {b} is not supported → convert one of them with .to()"
            )
        return int16
    if a.category == 2 and a.itemsize == b.itemsize:  # float16 with bfloat16
        return float32
    return a if a.itemsize > b.itemsize else b


def common(kinds: Iterable[tuple[dtype, int]]) -> dtype:
    """Torch's result type of operands given as `(dtype, rank)`.

    `rank` is 2 for tensors with dimensions, 1 for 0-d tensors, 0 for Python numbers: a lower rank
    promotes a higher one only across categories (bool < integral < floating < complex).
    """
    best: list[dtype | None] = [None, None, None]
    for d, rank in kinds:
        if rank == 0:
            d = (bool_, int64, _default, _default.to_complex())[d.category]
        seen = best[rank]
        best[rank] = d if seen is None else promote_types(seen, d)
    result = _yield_to(best[2], _yield_to(best[1], best[0]))
    assert result is not None
    return result


def _yield_to(high: dtype | None, low: dtype | None) -> dtype | None:
    """Combine two ranks: the lower one matters only where its category is above the higher one's."""
    if high is None or low is None:
        return high or low
    if low.category <= high.category:
        return high
    if high.is_floating_point:  # a complex number keeps the tensor's precision
        return high.to_complex()
    return promote_types(high, low)
