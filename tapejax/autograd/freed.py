"""What a freed graph still knows: where each of its nodes led, so that walking it again is refused exactly where torch refuses.

Holds no node and no array: only sequence numbers, the program's key and weak references to leaves.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from tapejax.tape.node import VAR, Node
from tapejax.tape.note import Meta
from tapejax.tape.program import STOP, Linear

#: Beyond this many nodes a run only remembers its leaves: every freed node of it is taken to lead to all of them.
_EXACT_UP_TO = 2000


class FreedRun:
    """One backward's graph after it was freed."""

    __slots__ = ("_links", "key", "leaves", "seqs")

    def __init__(self, leaves: dict[int, weakref.ref[Meta]], seqs: list[int] | None, key: tuple[Any, ...], links: Any = None) -> None:
        self.leaves = leaves  # by sequence number, or by (negative) input slot of the key
        self.seqs = seqs  # of the key's instructions, in order
        self.key = key
        self._links: dict[int, tuple[int, ...]] | None = links

    @classmethod
    def of_program(cls, linear: Linear, variables: Iterable[Node]) -> FreedRun:
        """The everyday backward's graph: its structure is the program's key."""
        small = len(linear.order) <= _EXACT_UP_TO
        slot = linear.slot
        leaves = {slot[v]: weakref.ref(v.note) for v in variables if v in slot}
        return cls(leaves, [n.seq for n in linear.order] if small else None, linear.key if small else ())

    @classmethod
    def of_block(cls, nodes: Iterable[Node], wanted: Iterable[Node]) -> FreedRun:
        """A graph that was pulled through as a whole, down to its leaves `wanted`."""
        return cls({v.seq: weakref.ref(v.note) for v in wanted}, None, (), {n.seq: tuple([x.seq for x in n.inputs]) for n in nodes})

    @classmethod
    def of_nodes(cls, below: dict[Node, Any]) -> FreedRun:
        """Any graph: node -> the nodes its gradient went to, beside its inputs."""
        leaves: dict[int, weakref.ref[Meta]] = {}
        links: dict[int, tuple[int, ...]] = {}
        for n, xs in below.items():
            own = n.kind is not VAR and n.inputs and (n.note is None or n.note.cut is None)
            onward = [x for x in n.inputs if x.requires_grad] if own else []
            onward += xs  # a region with residuals knows only its ends
            links[n.seq] = tuple(x.seq for x in onward)
            leaves.update((x.seq, weakref.ref(x.note)) for x in (n, *onward) if x.kind is VAR)
        return cls(leaves, None, (), links)

    def leads(self, node: Node, goals: Iterable[Any]) -> bool:
        """Whether the gradient of `node` went (through freed nodes) to one of `goals`, leaves' metas or nodes."""
        wanted = set(goals)
        metas = {g for g in wanted if isinstance(g, Meta)}
        if self._links is None and self.seqs is None:
            return any(ref() in metas for ref in self.leaves.values())
        numbers = {g.seq for g in wanted if isinstance(g, Node)}
        links = self._links if self._links is not None else self._decode()
        stack = [node.seq]
        seen = set()
        while stack:
            s = stack.pop()
            if s in seen:
                continue
            seen.add(s)
            if s != node.seq and s in numbers:
                return True
            leaf = self.leaves.get(s)
            if leaf is not None and leaf() in metas:
                return True
            stack += links.get(s, ())
        return False

    def _decode(self) -> dict[int, tuple[int, ...]]:
        """Links between sequence numbers (and leaf slots) from the key."""
        assert self.seqs is not None
        seqs, links = self.seqs, {}
        leaves = dict(self.leaves)
        words = iter(self.key)
        for i, word in enumerate(words):
            stop = word == STOP
            kind = next(words) if stop else word
            arity = 1 if kind is VAR else len(kind.inputs)
            slots = [next(words) for _ in range(arity)]
            if i in leaves:  # a pending variable: an instruction of its own
                self.leaves[seqs[i]] = leaves[i]
            links[seqs[i]] = () if stop else tuple(seqs[s] if s >= 0 else s for s in slots)
        self._links = links
        return links
