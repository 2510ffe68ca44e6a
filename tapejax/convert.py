"""Changing a tensor's element type or device, and writing whole tensors: `to`, `float`, `cuda`, `copy_`, `fill_`.

A change of device cannot happen inside one XLA program, so it forces the value; its gradient moves back.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tapejax import devices, dtypes
from tapejax.autograd.function import Function
from tapejax.dispatch import CAST, assign, operand
from tapejax.errors import refuse
from tapejax.storage.view import check_writable
from tapejax.tape.aval import aval_of
from tapejax.tape.infer import check_broadcast
from tapejax.tape.modes import grad_enabled
from tapejax.tape.node import leaf
from tapejax.tape.op import Array, composite, op
from tapejax.tape.record import record
from tapejax.tensor import Tensor, wrap


class ToDevice(Function):
    """Move a value to another device; the gradient moves back."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, where: Any) -> Tensor:
        ctx.back = input._node.aval.device
        return moved(input, where)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return moved(grad, ctx.back) if not grad.requires_grad else ToDevice.apply(grad, ctx.back), None


def moved(input: Tensor, where: Any) -> Tensor:
    """The value on the JAX device `where` (None: the default one), as a leaf."""
    aval = input._node.aval
    target = devices.default_jax_device() if where is None else where
    with jax.enable_x64(True):
        return wrap(leaf(jax.device_put(input.array(), target), aval_of(aval.shape, aval.dtype, where)))


@composite("Tensor")
def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the tensor as another element type and/or on another device: `to(dtype)`, `to(device)`, `to(device, dtype)`, `to(other)`.

    The tensor itself if nothing changes (unless `copy=True`). The gradient is converted back.
    """
    dtype, where, copy = kwargs.pop("dtype", None), kwargs.pop("device", None), kwargs.pop("copy", False)
    for ignored in ("non_blocking", "memory_format"):
        kwargs.pop(ignored, None)
    if "other" in kwargs:
        args = (kwargs.pop("other"), *args)
    if kwargs:
        raise refuse(TypeError, "to", f"received an invalid combination of arguments: unexpected {sorted(kwargs)}")
    for a in args:
        if isinstance(a, Tensor):
            dtype, where = a.dtype, a._node.aval.device or devices.default_jax_device()
        elif isinstance(a, bool):
            continue  # non_blocking, copy
        elif isinstance(a, (str, int, devices.device, jax.Device)) and not _names_dtype(a):
            where = a
        elif a is not None:
            dtype = dtypes.of(a)
    return _converted(self, None if dtype is None else dtypes.of(dtype), where, copy)


def _names_dtype(a: Any) -> bool:
    return isinstance(a, str) and a.split(".")[-1] in {n for d in dtypes.ALL for n in (d.name, *d.aliases)}


def _converted(self: Tensor, dtype: dtypes.dtype | None, where: Any, copy: bool = False) -> Tensor:
    made = self
    if where is not None:
        target = devices.resolve(where)
        if target is not made._node.aval.device:
            made = ToDevice.apply(made, target)
    if dtype is not None and made.dtype is not dtype:
        made = wrap(record(CAST, (1,), (dtype,), (made.node,)))
    return made.clone() if copy and made is self else made  # type: ignore[attr-defined]


@composite("Tensor")
def type_(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Return the type's name (`"torch.FloatTensor"`), or the tensor converted to `dtype`."""
    if dtype is None:
        return f"torch.{self.dtype.tensor_name}Tensor"
    if isinstance(dtype, str) and dtype.endswith("Tensor"):
        name = dtype.split(".")[-1].removesuffix("Tensor")
        dtype = next(d for d in dtypes.ALL if d.tensor_name == name)
    return _converted(self, dtypes.of(dtype), None)


@composite("Tensor")
def type_as(self: Tensor, other: Tensor) -> Tensor:
    """Return the tensor with the element type of `other`."""
    return _converted(self, other.dtype, None)


def _conversion(name: str, dtype: dtypes.dtype) -> None:
    def convert(self: Tensor, memory_format: Any = None) -> Tensor:
        return _converted(self, dtype, None)

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = f"Return the tensor as {dtype.name} (itself if it is)."
    composite("Tensor", name=name)(convert)


for _name, _dtype in {
    "float": dtypes.float32, "double": dtypes.float64, "half": dtypes.float16, "bfloat16": dtypes.bfloat16, "long": dtypes.int64,
    "int": dtypes.int32, "short": dtypes.int16, "char": dtypes.int8, "byte": dtypes.uint8, "bool": dtypes.bool_,
    "cfloat": dtypes.complex64, "cdouble": dtypes.complex128,
}.items():  # fmt: skip
    _conversion(_name, _dtype)


@composite("Tensor")
def cpu(self: Tensor, memory_format: Any = None) -> Tensor:
    """Return the tensor on the CPU."""
    return _converted(self, None, "cpu")


@composite("Tensor")
def cuda(self: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    """Return the tensor on a CUDA device; RuntimeError where there is none."""
    return _converted(self, None, "cuda" if device is None else device)


@op("", grad_name="Copy", oracle=None)
def copied(source: Array, shape: Any, dtype: dtypes.dtype) -> Any:
    """The value that `copy_` writes: `source` broadcast and converted."""
    x: Any = source
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not dtype.is_complex:
        x = x.real
    return jnp.broadcast_to(x.astype(dtype.np), shape)


@op("", grad_name="Copy", oracle=None)
def copied_over(old: Array, source: Array) -> Any:
    """`copied`, with the overwritten value among the inputs."""
    target: Any = old
    return copied.impl(source, target.shape, dtypes.of(target.dtype))


@composite("Tensor", name="copy_")
def copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Write `src` (broadcast, converted) into this tensor; gradients flow to `src`."""
    check_writable(self, "copy_", isinstance(src, Tensor) and src.requires_grad)
    aval = self._node.aval
    if isinstance(src, Tensor) and src._node.aval.device is not aval.device:
        src = ToDevice.apply(src, aval.device)
    node = operand(src, CAST, "input")
    if check_broadcast("copy_", [aval, node.aval]) != aval.shape:
        raise refuse(
            RuntimeError,
            "copy_",
            f"The size of tensor a {list(aval.shape)} must match the size of tensor b {list(node.aval.shape)}: the source is larger than what it"
            " is written to",
        )
    if grad_enabled() and self.requires_grad:  # torch: what is overwritten gets a gradient of zeros, not None
        value = record(copied_over, (1, 1), (), (self.node, node))
    else:
        value = record(copied, (1,), (aval.shape, aval.dtype), (node,))
    assign(self, value, "copy_")
    return self


@composite("Tensor", name="fill_")
def fill_(self: Tensor, value: Any) -> Tensor:
    """Write the number (or 0-d tensor) `value` into every element."""
    if isinstance(value, Tensor) and value.ndim:
        raise refuse(
            RuntimeError, "fill_", f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions. → use copy_()"
        )
    return copy_(self, value)


@composite("Tensor", name="zero_")
def zero_(self: Tensor) -> Tensor:
    """Write zeros into every element."""
    return copy_(self, 0)


@composite("Tensor", name="set_")
def set_(self: Tensor, source: Tensor) -> Tensor:
    """Make this tensor share the storage of `source`."""
    self.data = source
    return self


@composite("Tensor")
def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Whether both tensors are the same view of the same storage."""
    a, b = self._alias, tensor._alias
    return self is tensor or (a is not None and b is not None and a.storage is b.storage and a.lenses == b.lenses)


__all__ = ["copy_", "moved", "to"]
