"""Central differences of a Python function of tensors, one coordinate or one direction at a time.

A complex element is two coordinates, its real and its imaginary part, so everything here is a real matrix. The function
sees the caller's own tensors holding shifted values, which are leaves: every evaluation runs the same compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tapejax.engine.materialise import force
from tapejax.errors import refuse
from tapejax.tape.node import VAR, variable
from tapejax.tape.note import Meta
from tapejax.tensor import Tensor, leaf_node


def as_tuple(x: Any) -> tuple[Any, ...]:
    """A function's result (or its inputs) as a tuple: one tensor, a tuple or a list of them."""
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def tensors_of(result: Any) -> list[Tensor]:
    return [t for t in as_tuple(result) if isinstance(t, Tensor)]


def host(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.array())


def coordinates(array: Any) -> np.ndarray:
    """The elements as one float64 vector; complex ones as (real, imaginary) pairs."""
    array = np.asarray(array)
    if np.iscomplexobj(array):
        return np.ascontiguousarray(array, np.complex128).reshape(-1).view(np.float64)
    return array.astype(np.float64).reshape(-1)


def array_of(coords: np.ndarray, like: Tensor) -> np.ndarray:
    """The inverse of `coordinates`, with the shape and element type of `like`."""
    if like.dtype.is_complex:
        coords = np.ascontiguousarray(coords, np.float64).view(np.complex128)
    return coords.reshape(tuple(like.shape)).astype(like.dtype.np)


def tensor_of(coords: np.ndarray, like: Tensor) -> Tensor:
    """A constant tensor with these coordinates, of the shape, element type and device of `like`."""
    made = like.detach()
    made._alias = None
    made._node = leaf_node(array_of(coords, like), like.dtype, like.node.aval.device)
    return made


@contextmanager
def holding(tensor: Tensor, coords: np.ndarray) -> Iterator[None]:
    """Let `tensor` hold other values inside the block; afterwards it is what it was, to the bit."""
    before = tensor._node, tensor._alias
    node = tensor.node
    made = leaf_node(array_of(coords, tensor), tensor.dtype, node.aval.device)
    if node.requires_grad:
        made = variable(made, node.note if node.kind is VAR else Meta())
    tensor._node, tensor._alias = made, None
    try:
        yield
    finally:
        tensor._node, tensor._alias = before


class Evaluator:
    """`func(*inputs)` as a map between coordinate vectors; the tensors in `inputs` may be shifted one at a time."""

    def __init__(self, func: Callable[..., Any], inputs: Sequence[Any]) -> None:
        self.func = func
        self.inputs = tuple(inputs)
        self.at = {k: coordinates(host(x)) for k, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad}
        self.shapes: list[Any] | None = None

    def values(self) -> list[np.ndarray]:
        """The coordinates of every tensor that the function returns, computed in one program and without residuals."""
        outputs = tensors_of(self.func(*self.inputs))
        force([t.node for t in outputs], keep_residuals=False)
        shapes = [(tuple(t.shape), t.dtype) for t in outputs]
        if self.shapes is None:
            self.shapes = shapes
        elif shapes != self.shapes:
            raise refuse(
                RuntimeError,
                "gradcheck",
                f"Expected the function to return outputs of the same shape and dtype when its inputs are perturbed, but got {shapes} after"
                f" {self.shapes} → return the same outputs for every value of the inputs",
            )
        return [coordinates(host(t)) for t in outputs]

    def shifted(self, k: int, offset: Any, index: int | None = None) -> list[np.ndarray]:
        """Values with input `k` moved by the vector `offset`, or its coordinate `index` by the number `offset`."""
        coords = self.at[k].copy()
        if index is None:
            coords += offset
        else:
            coords[index] += offset
        with holding(self.inputs[k], coords):
            return self.values()

    def slope(self, k: int, eps: float, index: int | None = None, direction: Any = 1.0) -> list[np.ndarray]:
        """Central difference along coordinate `index` or along `direction`: one vector per output."""
        step = eps * direction
        above, below = self.shifted(k, step, index), self.shifted(k, -step, index)
        # where both are the same infinity (a masked score, say) the value does not move
        return [np.subtract(a, b, where=a != b, out=np.zeros_like(a)) / (2 * eps) for a, b in zip(above, below, strict=True)]

    def one_sided(self, k: int, eps: float, index: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Differences to the right and to the left of coordinate `index`."""
        here = self.values()
        above, below = self.shifted(k, eps, index), self.shifted(k, -eps, index)
        right = [(a - h) / eps for a, h in zip(above, here, strict=True)]
        left = [(h - b) / eps for h, b in zip(here, below, strict=True)]
        return right, left

    def jacobian(self, k: int, eps: float, tick: Callable[[], None] | None = None) -> list[np.ndarray]:
        """Per output, the (output coordinates, coordinates of input `k`) matrix of central differences."""
        columns = []
        for index in range(len(self.at[k])):
            columns.append(self.slope(k, eps, index))
            if tick is not None:
                tick()
        if not columns:
            return [np.zeros((len(v), 0)) for v in self.values()]
        return [np.stack(c, axis=1) for c in zip(*columns, strict=True)]


__all__ = ["Evaluator", "array_of", "as_tuple", "coordinates", "holding", "host", "tensor_of", "tensors_of"]
