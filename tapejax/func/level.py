"""Gradient levels: what `grad` and `vjp` differentiate by, and what they leave behind.

A level's inputs are identity nodes over the caller's values that require grad (`lifted`). What comes out of a level is
differentiable to the outside only as far as it depends on something that required grad there; otherwise it is cut loose,
so that nobody outside sees the level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapejax.autograd.backward import run_backward
from tapejax.autograd.batch import running
from tapejax.autograd.lifted import Lifted, lifted, lower, lowered
from tapejax.autograd.walk import Target
from tapejax.errors import refuse
from tapejax.tape import modes
from tapejax.tape.node import NEVER, Node
from tapejax.tape.note import Meta
from tapejax.tape.record import record
from tapejax.tensor import Tensor, wrap


class GradLevel:
    """One run of a function for its gradient."""

    stands_in = False

    def __init__(self) -> None:
        self.inputs: list[Node] = []
        self.start = 0
        self._hidden: set[Node] = set()

    def before_draw(self) -> None:
        pass

    def lift(self, x: Any, where: str) -> Tensor:
        """A tensor of the same value that requires grad at this level."""
        if not isinstance(x, Tensor):
            raise refuse(ValueError, where, f"Thing passed to transform API must be Tensor, got {type(x)}")
        node = x.node
        if not node.aval.differentiable:
            raise refuse(
                RuntimeError,
                where,
                f"only Tensors of floating point dtype can require gradients, this one is {x.dtype} → convert with .float()",
            )
        made = record(lifted, (1,), (), (node,))
        made.requires_grad = True
        if node.value is not None:
            made.value, made.oldest = node.value, NEVER
        note = made.note = Lifted()
        note.level = self
        self.start = self.start or made.seq
        self.inputs.append(made)
        return wrap(made)

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call `function` recording for this level, whatever mode is outside."""
        before = modes.switch(modes.GRAD, True)
        try:
            with running(self):
                return function(*args, **kwargs)
        finally:
            modes.MODE.set(before)

    def gradients(
        self, roots: Sequence[Node], seeds: Sequence[Node | None], wanted: Sequence[Node]
    ) -> list[Node | None]:
        """Gradients of `roots` at the level's inputs, as nodes of the surrounding tape."""
        pairs = [(r, s) for r, s in zip(roots, seeds, strict=True) if r.requires_grad]
        if not pairs:
            return [None] * len(wanted)
        targets = [Target(w, _NOWHERE) for w in wanted]
        found = run_backward(
            [r for r, _ in pairs], [s for _, s in pairs], targets, accumulate=False, retain=True, create=True
        )
        return [None if g is None else self.lower(g.node) for g in found]

    def lower(self, node: Node) -> Node:
        """`node` as the outside sees it."""
        if not node.requires_grad or modes.grad_enabled():
            return lower(node, self.start, self._hidden)
        return record(lowered, (1,), (), (node,))

    def lower_tensor(self, tensor: Tensor) -> Tensor:
        node = tensor.node
        low = self.lower(node)
        return tensor if low is node else wrap(low)


_NOWHERE = Meta()


def _check_write(tensor: Tensor, value: Node) -> None:
    if type(tensor._node.note) is Lifted:
        raise refuse(
            RuntimeError,
            "write",
            "a leaf Variable that requires grad is being used in an in-place operation. → this is an input of grad() or vjp(): write into a"
            " .clone()",
        )


modes.WRITE_CHECKS.append(_check_write)
