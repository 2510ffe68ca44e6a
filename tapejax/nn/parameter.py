"""Tensors that a Module keeps: parameters, which are trained, and buffers, which are only stored."""

from __future__ import annotations

from typing import Any

import jax

from tapejax.errors import refuse
from tapejax.storage.view import alias_of, show
from tapejax.tensor import Tensor, from_array


def _adopt(made: Tensor, data: Any) -> None:
    """Share the memory of `data`, cut off from its history."""
    if data is None:
        Tensor.__init__(made, 0)
        return
    if not isinstance(data, Tensor):
        raise refuse(TypeError, type(made).__name__, f"data must be a Tensor, not {type(data).__name__} → tapejax.tensor(data)")
    node = data.node if not data.requires_grad else data.detach().node
    show(made, data, alias_of(data).storage.counter, node)


class Parameter(Tensor):
    """A tensor that its Module trains: assigned as an attribute it appears in `parameters()`.

    `data` gives the initial value; gradients are recorded unless `requires_grad=False` (required for integer data).

    >>> import tapejax as tj
    >>> tj.nn.Parameter(tj.zeros(1)).requires_grad
    True
    """

    def __init__(self, data: Any = None, requires_grad: bool = True) -> None:
        _adopt(self, data)
        if requires_grad:
            self.requires_grad_()

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        """The value anew; the copy has no gradient yet, and none of the attributes that were set on this parameter."""
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.detach().clone(), self.requires_grad)
        return memo[id(self)]

    def __repr__(self) -> str:
        return "Parameter containing:\n" + Tensor.__repr__(self)


class Buffer(Tensor):
    """A tensor that its Module stores but does not train; with `persistent` it is part of the `state_dict`."""

    def __init__(self, data: Any = None, *, persistent: bool = True) -> None:
        _adopt(self, data)
        self.persistent = persistent

    def __repr__(self) -> str:
        return "Buffer containing:\n" + Tensor.__repr__(self)


def _flatten(t: Tensor) -> Any:
    return (t.array(),), None


def _unflatten(_: None, children: Any) -> Any:
    (value,) = children
    # JAX unflattens with arbitrary objects while it inspects trees
    return from_array(value) if isinstance(value, jax.Array) else value


for _kind in (Parameter, Buffer):
    jax.tree_util.register_pytree_node(_kind, _flatten, _unflatten)
