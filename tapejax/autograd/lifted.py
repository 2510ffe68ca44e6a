"""Inputs of gradient levels, and what may be seen of them outside.

`grad` and `vjp` differentiate by identity nodes over the caller's values (`lifted`). A value that requires grad only for
the sake of a level that is over is cut loose (`lowered`) where it reaches the outside, so that nobody there sees the level.
"""

from __future__ import annotations

from typing import Any

from tapejax.autograd.checks import edges_or_none
from tapejax.tape import modes
from tapejax.tape.node import VAR, Node
from tapejax.tape.note import Note
from tapejax.tape.op import Array, op
from tapejax.tape.record import record


@op("", oracle=None, grad_name="Alias")
def lifted(input: Array) -> Any:
    """The value of an input as a gradient level sees it."""
    return input


@op("", oracle=None, differentiable=False)
def lowered(input: Array) -> Any:
    """A value outside a level, where nothing it depends on requires grad."""
    return input


class Lifted(Note):
    """What hangs on a level's input node."""

    __slots__ = ("level",)

    level: Any


def lower(node: Node, start: int, hidden: set[Node] | None = None) -> Node:
    """`node` as it is seen outside the levels that are over; what was recorded before `start` is outside anyway.

    `hidden` remembers, between calls, what depends on such levels alone.
    """
    return node if not node.requires_grad or seen(node, start, hidden) else record(lowered, (1,), (), (node,))


def seen(node: Node, start: int, hidden: set[Node] | None = None) -> bool:
    """Whether the value depends on anything that requires grad for other reasons than a level that is over."""
    if hidden is None:
        hidden = set()
    if node in hidden:
        return False
    running = modes.TRANSFORMS.get()
    known = {node}
    stack = [node]
    while stack:
        n = stack.pop()
        if n.kind is VAR or n.seq < start:
            return True
        note = n.note
        is_input = note.__class__ is Lifted
        if is_input and note.level in running:
            return True
        inputs = n.inputs if note is None or is_input else edges_or_none(n)
        root = not is_input
        for x in inputs or ():
            if x is not None and x.requires_grad:
                root = False
                if x not in known and x not in hidden:
                    known.add(x)
                    stack.append(x)
        if root:
            return True  # it requires grad by itself, or its graph was freed
    hidden |= known
    return False
