"""Which nodes take part in a careful backward, and in which piece each of them is differentiated.

A *cut* is a node where Python must see the gradient: a hook, a custom Function, a value whose forward already ran and
kept its residuals. Every node gets a level, one more than that of a cut below it; the nodes of one level form a piece,
which is differentiated as one program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tapejax.autograd.checks import edges, edges_or_none
from tapejax.autograd.pull import is_pulled, reached_inputs
from tapejax.autograd.walk import Target, floor_of
from tapejax.engine.materialise import Block
from tapejax.tape.node import VAR, Node
from tapejax.tape.note import Meta
from tapejax.tape.record import PICK


def has_python(node: Node) -> bool:
    note = node.note
    return node.kind is not VAR and note is not None and bool(note.hooks or note.pre_hooks or note.post_hooks or note.cut)


def frame_of(node: Node) -> Any:
    """The checkpointed call that recorded `node`, if its values are to be computed again."""
    note = node.note
    return getattr(note.saved, "frame", None) if note is not None and node.kind is not VAR and note.saved is not None else None


def _other_frame(n: Node, x: Node) -> bool:
    """Whether a checkpointed call ends between `n` and its input `x`, or `x` is what a selective one keeps and differentiates from."""
    frame = frame_of(x)
    return frame is not frame_of(n) or (frame is not None and x.seq in frame.kept and n.kind.op is not PICK)




class Plan:
    """The course of one backward through the graph: made by `make`, or read off a known course."""

    def __init__(self, targets: Sequence[Target] | None, accumulate: bool, retain: bool, create: bool, watched: bool) -> None:
        """`watched`: anomaly mode looks at every gradient."""
        self.targets = targets
        self.accumulate = accumulate
        self.retain = retain
        self.create = create
        self.watched = watched
        self.wanted_nodes: set[Node] = set() if targets is None else {t.key for t in targets if isinstance(t.key, Node)}
        self.wanted_metas = None if targets is None else {t.key for t in targets if isinstance(t.key, Meta)}
        self.order: list[Node] = []
        self.level: dict[Node, int] = {}
        self.taking_part: set[Node] = set()
        self.below: dict[Node, list[Node]] = {}
        self._leads_to: set[Any] = set()  # the targets, for what was freed and tells where it led
        self._blocks: dict[Node, Block | None] = {}  # as found when the plan was made: hooks may make new ones
        self._reach: dict[Block, dict[Node, list[Node]]] = {}  # what each output of a region with residuals leads to

    def clear(self) -> None:
        """Let go of the graph."""
        for table in (self.order, self.level, self.taking_part, self.below, self._blocks, self._reach):
            table.clear()  # type: ignore[attr-defined]

    def make(self, roots: Iterable[Node]) -> None:
        """Walk from `roots` and give every node on a way to a target its level."""
        reached: dict[Node, list[Node]] = {r: [] for r in roots}
        stack = list(reached)
        oldest = floor_of(self.targets, self.retain)
        while stack:
            n = stack.pop()
            if n.kind is VAR or (n.inputs is None and (n.note is None or n.note.cut is None)):
                continue  # freed: raises when (and only if) it must run
            below = self._below(n)
            if is_pulled(n) and self.block_of(n) is None:  # a PULL node leads only to what its reached gradients depend on
                onward = reached.setdefault(below[0], [])
                more = [x for x in reached_inputs(n) if x.requires_grad and x not in onward]
                onward += more
                reached[n] = below
                below = more
            else:
                reached[n] = below
            for x in below:
                if x not in reached and x.seq >= oldest:
                    reached[x] = []
                    stack.append(x)
        order = sorted(reached, key=lambda n: n.seq)
        if self.targets is not None:
            goals = set(self.wanted_nodes)
            goals.update(n for n in order if n.kind is VAR and n.note in self.wanted_metas)  # type: ignore[operator]
            keep = set(goals)
            self._leads_to = {*goals, *self.wanted_metas} if self.wanted_metas is not None else goals
            for n in order:
                if n not in keep and (any(x in keep for x in reached[n]) or self._freed_way(n)):
                    keep.add(n)
            order = [n for n in order if n in keep]
        self.taking_part = set(order)
        self.below = reached
        floor: dict[Node, int] = {}
        while self._levels(order, reached, floor):
            pass
        self.order = order

    @property
    def one_by_one(self) -> bool:
        """Whether every op's gradient is a node of its own, so that an anomaly in a later backward can name it."""
        return self.watched and self.create

    def levels(self) -> Iterator[list[Node]]:
        """The nodes that are no leaves, by level from the highest down; each level in the order of recording."""
        by_level: dict[int, list[Node]] = {}
        for n in self.order:
            if n.kind is not VAR:
                by_level.setdefault(self.level[n], []).append(n)
        for number in sorted(by_level, reverse=True):
            yield by_level[number]

    def _levels(self, order: list[Node], reached: dict[Node, list[Node]], floor: dict[Node, int]) -> bool:
        """Give every node its level, `floor` at least; whether that must be done again with the floors that were raised.

        The outputs of a region with residuals are pulled together, when the gradients of all of them are complete: on one level.
        """
        level = self.level
        split = self.one_by_one
        for n in order:
            if n.kind is VAR:
                level[n] = 0
                continue
            own = floor.get(n, 1)
            alone = self._alone(n)
            for x in reached[n]:
                if x in level:
                    apart = alone or self._alone(x) or self.python(x) or x.kind is VAR or self.read(x) or _other_frame(n, x)
                    own = max(own, level[x] + (1 if apart or (split and n.kind.op is not PICK) else 0))
            level[n] = own
        again = False
        for outputs in self._reach.values():
            together = [o for o in outputs if o in level]
            highest = max((level[o] for o in together), default=0)
            for o in together:
                if level[o] < highest:
                    floor[o] = highest
                    again = True
        return again

    def _below(self, n: Node) -> list[Node]:
        block = self.block_of(n)
        if block is not None:
            if len(block.outputs) == 1:
                return list(block.wanted)
            if block not in self._reach:
                self._reach[block] = _reach_of(block)
            return self._reach[block][n]
        return [x for x in edges(n) if x is not None and x.requires_grad]

    def read(self, n: Node) -> bool:
        """Whether the gradient must depend on `n` itself, not on what it was computed from: it may be differentiated by `n` again."""
        return self.create and n in self.wanted_nodes

    def _alone(self, n: Node) -> bool:
        """Whether `n` is a piece of its own: a Function, a region with residuals, a node that a post hook watches."""
        note = n.note
        return note is not None and n.kind is not VAR and bool(note.cut or note.post_hooks or self.block_of(n))

    def block_of(self, n: Node) -> Block | None:
        """The residuals that stand for `n`'s region in this backward, as found when it was planned."""
        if n not in self._blocks:
            self._blocks[n] = self._found_block(n)
        return self._blocks[n]

    def _found_block(self, n: Node) -> Block | None:
        """The residuals that can stand for `n`'s region: not when a gradient inside it is asked for, or must be differentiable."""
        if n.kind is VAR or n.note is None or n.note.block is None or self.create or self.watched:
            return None
        block: Block = n.note.block
        for o in block.nodes:
            if o.note is None or (o is n and len(block.outputs) == 1):
                continue
            if o in self.wanted_nodes or self.python(o) or o.note.retained_by is not None:
                return None
        return None if n.note.post_hooks or n.note.cut else block

    def passes(self, n: Node) -> bool:
        """Whether the node itself must run (a captured target of `grad` need not)."""
        return self.accumulate or self.targets is None or n not in self.wanted_nodes or self._leads_on(n)

    def _leads_on(self, n: Node) -> bool:
        return self._needed_below(n) if n.inputs is None else any(x in self.taking_part for x in self._below(n))

    def python(self, n: Node) -> bool:
        """Whether Python must see the gradient of `n` itself; one that is kept and differentiated again is a node of its own."""
        return has_python(n) or (self.create and n.kind is not VAR and n.note is not None and n.note.retained_by is not None)

    def _freed_way(self, n: Node) -> bool:
        """Whether a freed node led to a target: then its backward is needed, and is refused."""
        return n.kind is not VAR and n.inputs is None and n.freed is not None and n.freed.leads(n, self._leads_to)

    def only_read(self, n: Node) -> bool:
        """Whether `grad` only reads the gradient at `n`, which neither runs nor is freed; `backward(inputs=)` runs it, as in torch."""
        return not self.accumulate and n in self.wanted_nodes and not self._needed_below(n)

    def _needed_below(self, n: Node) -> bool:
        if self.targets is not None and self._freed_way(n):
            return True
        return any(x in self.taking_part for x in edges_or_none(n) if x is not None and x.requires_grad)


def _reach_of(block: Block) -> dict[Node, list[Node]]:
    """Per output of a block the values at its start that it depends on; a freed node may lead to any."""
    bits = {x: 1 << i for i, x in enumerate(block.wanted)}
    for n in sorted(block.nodes, key=lambda n: n.seq):
        found = 0
        for x in block.wanted if n.inputs is None else n.inputs:
            found |= bits.get(x, 0)
        bits[n] = found
    return {o: [x for i, x in enumerate(block.wanted) if bits[o] >> i & 1] for o in block.outputs}
