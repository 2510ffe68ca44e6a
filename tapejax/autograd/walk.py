"""One walk over the graph below the roots: which nodes take part, and how much Python must see of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tapejax.autograd.checks import freed_error
from tapejax.autograd.pull import is_pulled, reached_inputs
from tapejax.tape.node import VAR, Node
from tapejax.tape.note import Meta
from tapejax.tape.record import PICK


class Target(NamedTuple):
    """Whose gradient is wanted: `key` is a leaf's Meta or a non-leaf's node, `sink` where `backward(inputs=)` puts it."""

    key: Meta | Node
    sink: Meta


class Walk:
    """The grad-requiring nodes below the roots (`region`), the leaves they start from, and pending values they read besides."""

    __slots__ = ("outside", "plain", "region", "variables")

    def __init__(self) -> None:
        self.region: dict[Node, bool] = {}
        self.variables: dict[Node, bool] = {}
        self.outside: list[Node] = []
        self.plain = True  # no hook anywhere


def floor_of(targets: Sequence[Target] | None, retain: bool) -> int:
    """The sequence number below which no node leads to a target; 0 if all must be walked: a graph that is freed notes where it led."""
    if not targets or not retain:
        return 0
    return min([t.key.seq if isinstance(t.key, Node) else 0 for t in targets])


def explore(roots: Sequence[Node], targets: Sequence[Target] | None, retain: bool, create: bool) -> Walk | None:
    """Walk down from `roots` to the oldest target; None for a graph whose course only running it tells.

    Such are custom Functions, values kept by somebody else, hooks of graph nodes, residuals of an early forward (unless the
    gradients are to be differentiated: `create`), and freed parts. Without targets a freed part is refused here.
    """
    walk = Walk()
    floor = floor_of(targets, retain)
    region, variables, outside = walk.region, walk.variables, walk.outside
    stack: list[Node] = []
    inputs: Sequence[Node] = roots
    while True:
        for x in inputs:
            if x.requires_grad and (not floor or x.seq >= floor):
                if x.kind is VAR:
                    if x not in variables:
                        variables[x] = True
                        if not x.note.plain:
                            walk.plain = False
                elif x not in region:
                    region[x] = True
                    stack.append(x)
            elif x.value is None:
                outside.append(x)
        if not stack:
            return walk
        n = stack.pop()
        note = n.note
        if note is not None:
            if note.saved or note.cut or note.pre_hooks or note.post_hooks or (note.block and not create):
                return None
            if note.hooks or note.retained_by or note.block:
                walk.plain = False
        inputs = n.inputs
        if inputs is None:
            if targets is None and walk.plain:
                raise freed_error(n)
            return None
        if n.kind.op is PICK and is_pulled(n):  # follow only what this gradient depends on
            pulled = inputs[0]
            if pulled.note is not None:
                return None
            region[pulled] = True
            outside += [x for x in pulled.inputs if x.value is None]
            inputs = reached_inputs(n)
