"""Python's operators on Tensors, each through the op's own caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapejax.dispatch import assign
from tapejax.ops.index import getitem, setitem
from tapejax.storage.view import check_writable, write
from tapejax.tape.modes import GRAD, MODE
from tapejax.tensor import Tensor

_BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "pow": "pow",
    "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}  # fmt: skip
_COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_UNARY = {"neg": "neg", "abs": "abs", "invert": "bitwise_not", "pos": "positive"}
_ACCEPTED = (Tensor, int, float, complex, np.generic)


def install(functions: dict[str, Any]) -> None:
    """Set the dunder methods from the functions by torch's name."""
    for python, name in _BINARY.items():
        function = getattr(functions[name], "short", functions[name])
        setattr(Tensor, f"__{python}__", _forward(function, f"__{python}__"))
        setattr(Tensor, f"__r{python}__", _reflected(function, f"__r{python}__"))
        setattr(Tensor, f"__i{python}__", _augmented(function, f"__i{python}__"))
    for python, name in _COMPARE.items():
        setattr(Tensor, f"__{python}__", _comparison(getattr(functions[name], "short", functions[name]), f"__{python}__"))
    for python, name in _UNARY.items():
        setattr(Tensor, f"__{python}__", functions[name])
    Tensor.__getitem__ = getitem  # type: ignore[method-assign]
    Tensor.__setitem__ = setitem  # type: ignore[method-assign]
    Tensor.__hash__ = _identity_hash  # type: ignore[method-assign]  # defining __eq__ afterwards does not clear it


def dunder_names() -> list[str]:
    """The two-operand methods that `install` sets."""
    return [f"__{p}{n}__" for n in _BINARY for p in ("", "r", "i")] + [f"__{n}__" for n in _COMPARE]


def _identity_hash(self: Tensor) -> int:
    return id(self)


def _forward(function: Callable[[Any, Any], Any], name: str) -> Any:
    def operator(self: Any, other: Any) -> Any:
        if other.__class__ is Tensor or isinstance(other, _ACCEPTED):
            return function(self, other)
        return _foreign(function, self, other)

    operator.__name__ = name
    return operator


def _reflected(function: Callable[[Any, Any], Any], name: str) -> Any:
    def operator(self: Any, other: Any) -> Any:
        if other.__class__ is float or isinstance(other, _ACCEPTED):
            return function(other, self)
        return NotImplemented

    operator.__name__ = name
    return operator


def _foreign(function: Callable[[Any, Any], Any], self: Any, other: Any) -> Any:
    import jax

    return function(self, other) if isinstance(other, jax.Array) else NotImplemented


def _comparison(function: Callable[[Any, Any], Any], name: str) -> Any:
    def operator(self: Any, other: Any) -> Any:
        if isinstance(other, _ACCEPTED):
            return function(self, other)
        return NotImplemented

    operator.__name__ = name
    return operator


def _augmented(function: Callable[[Any, Any], Any], name: str) -> Any:
    def operator(self: Any, other: Any) -> Any:
        if not isinstance(other, _ACCEPTED):
            return NotImplemented
        if self._node.aval.inference or MODE.get() & GRAD:
            check_writable(self, name, isinstance(other, Tensor) and other.requires_grad)
        value = function(self, other)._node
        if value.aval is self._node.aval:
            write(self, value)
        else:
            assign(self, value, name)
        return self

    operator.__name__ = name
    return operator
