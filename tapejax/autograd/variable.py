"""`autograd.Variable`, the name under which tensors had gradients before torch 0.4: old programs still say it."""

from __future__ import annotations

from typing import Any

from tapejax.errors import refuse
from tapejax.tensor import Tensor


class _VariableType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor)


class Variable(metaclass=_VariableType):
    """Return a tensor that shares `data`'s values and version counter, without its history: `data.detach()`.

    `isinstance(x, Variable)` is true for every Tensor. New code wants `x.requires_grad_()` instead.

    >>> import tapejax as tj
    >>> x = tj.autograd.Variable(tj.ones(2), requires_grad=True)
    >>> (x * 3).sum().backward()
    >>> x.grad
    tensor([3., 3.])
    """

    def __new__(cls, data: Any, requires_grad: bool = False) -> Any:
        if not isinstance(data, Tensor):
            raise refuse(TypeError, "Variable", f"Variable data has to be a tensor, but got {type(data).__name__} → tapejax.tensor(data)")
        return data.detach().requires_grad_(requires_grad)
