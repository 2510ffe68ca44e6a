"""inference_mode: nothing is recorded for gradients, and what is made inside may never take part in recording later.

A tensor made in the mode carries an `inference` mark in its aval. Kinds are cached per avals, so what is forbidden for
such operands is decided once per kind, and a step without inference tensors pays nothing (see `tape/infer.py`).
"""

from __future__ import annotations

from typing import Any

from tapejax.autograd.grad_mode import _Switch
from tapejax.storage.view import detach_value, same_value
from tapejax.tape import modes
from tapejax.tape.node import Node
from tapejax.tape.op import composite
from tapejax.tensor import Tensor


def is_inference_mode_enabled() -> bool:
    """Whether inference mode is on in this thread."""
    return modes.MODE.get() & modes.INFERENCE > 0


class inference_mode(_Switch):
    """Record nothing and mark what is made as unusable for gradients: `with inference_mode():` or as a decorator.

    `mode=False` is normal recording (also inside `no_grad`). Outside the mode an inference tensor may be read, but not
    written in place, and no operation may save it for backward: RuntimeError; `clone()` makes a normal tensor of it.
    """

    _bits = modes.GRAD | modes.INFERENCE | modes.FORWARD

    def __new__(cls, mode: Any = True) -> Any:
        made = object.__new__(cls)
        if not callable(mode):
            return made
        inference_mode.__init__(made, True)
        return made(mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self.mode = bool(mode)

    def __enter__(self) -> None:
        before = modes.MODE.get()
        self._before.append(before)
        if self.mode:
            modes.MODE.set(before & ~(modes.GRAD | modes.FORWARD) | modes.INFERENCE)
        else:
            modes.MODE.set(before & ~modes.INFERENCE | modes.GRAD)

    def __exit__(self, *exc: object) -> None:
        before = self._before.pop()
        modes.MODE.set(modes.MODE.get() & ~self._bits | before & self._bits)

    def _again(self) -> inference_mode:
        return type(self)(self.mode)


@composite("torch Tensor")
def is_inference(input: Tensor) -> bool:
    """Whether the tensor was made in inference mode (or is a view of one that was)."""
    return input._node.aval.inference


def _observe(node: Node, mode: int) -> None:
    if not mode & modes.INFERENCE:
        return
    kind = node.kind
    if kind.avals is None and kind.op.put is None and kind.op is not detach_value and kind.op is not same_value:
        node.aval = node.aval.marked(True)


modes.OBSERVERS.append(_observe)

__all__ = ["inference_mode", "is_inference", "is_inference_mode_enabled"]
