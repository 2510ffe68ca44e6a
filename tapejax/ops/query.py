"""Questions about tensors: equality, closeness, types; and the in-place forms that only change how a storage is viewed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.comparison import isclose
from tapejax.ops.create import tensor
from tapejax.ops.shape import squeeze, t, transpose, unsqueeze
from tapejax.storage.view import check_writable
from tapejax.tape.node import SCALAR, VAR
from tapejax.tape.op import composite
from tapejax.tensor import Tensor


@composite("torch Tensor")
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Return whether all elements satisfy |input - other| ≤ atol + rtol · |other|. Reads the values."""
    if input.dtype is not other.dtype:
        raise refuse(RuntimeError, "allclose", f"{input.dtype.tensor_name} did not match {other.dtype.tensor_name} → convert one with .to()")
    return bool(isclose(input, other, rtol=rtol, atol=atol, equal_nan=equal_nan).all().item())


@composite("torch Tensor")
def equal(input: Tensor, other: Tensor) -> bool:
    """Return whether both tensors have the same shape and equal elements. Reads the values."""
    return tuple(input.shape) == tuple(other.shape) and bool((input == other).all().item())


@composite("torch")
def is_tensor(obj: Any) -> bool:
    """Return whether `obj` is a Tensor."""
    return isinstance(obj, Tensor)


@composite("torch")
def is_floating_point(input: Tensor) -> bool:
    """Return whether the element type is a real floating-point one."""
    return input.dtype.is_floating_point


@composite("torch")
def is_complex(input: Tensor) -> bool:
    """Return whether the element type is complex."""
    return input.dtype.is_complex


@composite("torch Tensor")
def is_nonzero(input: Tensor) -> bool:
    """Return whether the single element is not zero."""
    return bool(input)


@composite("torch")
def numel(input: Tensor) -> int:
    """Return the number of elements."""
    return input.numel()


@composite("torch")
def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Return whether both shapes are the same."""
    return tuple(input.shape) == tuple(other.shape)


def _operand_kind(x: Any) -> tuple[dtypes.dtype, int]:
    if isinstance(x, Tensor):
        aval = x._node.aval
        return aval.dtype, 0 if x._node.kind is SCALAR else aval.rank
    return dtypes.of(type(x)), 0


@composite("torch")
def result_type(tensor1: Any, tensor2: Any) -> dtypes.dtype:
    """Return the element type that arithmetic on the two (tensors or numbers) gives."""
    return dtypes.common([_operand_kind(tensor1), _operand_kind(tensor2)])


@composite("torch")
def promote_types(type1: dtypes.dtype, type2: dtypes.dtype) -> dtypes.dtype:
    """Return the smallest type that holds both."""
    return dtypes.promote_types(dtypes.of(type1), dtypes.of(type2))


@composite("torch")
def can_cast(from_: dtypes.dtype, to: dtypes.dtype) -> bool:
    """Return whether an in-place operation may write `from_` into a tensor of type `to`."""
    return dtypes.of(from_).category <= dtypes.of(to).category


class finfo:
    """Limits of a floating-point type (`eps`, `max`, `min`, `tiny`, `smallest_normal`, `resolution`, `bits`)."""

    def __init__(self, type: Any = None) -> None:
        d = dtypes.get_default_dtype() if type is None else dtypes.of(type).to_real()
        info = ml_dtypes.finfo(d.np)
        self.dtype = d.name
        self.bits = d.itemsize * 8
        self.eps, self.max, self.min = float(info.eps), float(info.max), float(info.min)
        self.tiny = self.smallest_normal = float(info.tiny)
        self.resolution = float(info.resolution)


class iinfo:
    """Limits of an integral type (`min`, `max`, `bits`)."""

    def __init__(self, type: Any) -> None:
        info = np.iinfo(dtypes.of(type).np)
        self.min, self.max, self.bits, self.dtype = int(info.min), int(info.max), info.bits, dtypes.of(type).name


composite("torch")(finfo)
composite("torch")(iinfo)


def _typed(d: dtypes.dtype) -> Any:
    def make(*data: Any) -> Tensor:
        if len(data) == 1 and not isinstance(data[0], int):
            return tensor(data[0], dtype=d)
        return tensor(np.zeros(data if data else (0,), d.np))

    make.__name__ = make.__qualname__ = f"{d.tensor_name}Tensor"
    make.__doc__ = f"Return a tensor of {d.name} from data or of a size (torch's legacy constructor)."
    return make


for _d in (*dtypes.ALL[:6], *dtypes.ALL[9:13]):
    composite("torch", name=f"{_d.tensor_name}Tensor")(_typed(_d))


def _reshaped_in_place(name: str, function: Callable[..., Tensor], doc: str) -> None:
    def twin(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        check_writable(self, name, False)
        if self._node.kind is VAR:
            meta = self._node.note
            seen = function(self.detach(), *args, **kwargs)
            self._alias = None
            self._set_leaf(seen.clone()._node, meta)  # type: ignore[attr-defined]
            return self
        seen = function(self, *args, **kwargs)
        self._node, self._alias = seen._node, seen._alias
        return self

    twin.__name__ = twin.__qualname__ = name
    twin.__doc__ = doc
    composite("Tensor", name=name)(twin)


for _name, _function in {
    "t_": t, "transpose_": transpose, "swapaxes_": transpose, "swapdims_": transpose, "squeeze_": squeeze, "unsqueeze_": unsqueeze,
}.items():  # fmt: skip
    _reshaped_in_place(_name, _function, f"Make this tensor the view that `{_name[:-1]}` gives, in place.")
