"""From nodes to a Program: the linear, canonical, hashable form of a piece of the tape.

`linearise` gives the key (a flat tuple) and the leaves in one pass over the nodes; a `Program` object is only built from
the key when the key is new. Iterative throughout: a tape of 100,000 nodes must not recurse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from sys import getrefcount
from typing import Any

from tapejax.tape.aval import NAMED_DEVICES, Aval
from tapejax.tape.node import ARGUMENT, LEAF, SCALAR, VAR, Kind, Node

_by_seq = attrgetter("seq")


class Program:
    """Instructions over numbered slots: inputs are negative (-1 the first), results count from 0.

    An instruction is `(kind, slots, stop)`; kind is a `Kind` or VAR (the identity), `stop` says that no gradient flows
    through it. Equal keys mean equal programs.
    """

    __slots__ = ("_hash", "inputs", "instructions", "key")

    def __init__(self, key: tuple[Any, ...], inputs: tuple[Aval, ...]) -> None:
        self.key = key
        self.inputs = inputs  # avals of the input slots, in order
        self._hash = hash(key)
        self.instructions: list[tuple[Any, tuple[int, ...], bool]] = []
        at, end = 0, len(key)
        while at < end:
            kind = key[at]
            stop = kind == STOP
            if stop:
                at += 1
                kind = key[at]
            first = at + 1
            at = first + (1 if kind is VAR else len(kind.inputs))
            self.instructions.append((kind, key[first:at], stop))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Program) and self.key == other.key and self.inputs == other.inputs)

    def __repr__(self) -> str:
        return f"<program of {len(self.instructions)} instructions, {len(self.inputs)} inputs>"


STOP = "stop"


class Linear:
    """What one pass over the tape finds: the key, and the nodes behind its slots."""

    __slots__ = ("input_uses", "inputs", "key", "order", "region", "slot", "uses", "variables")  # uses: references from within

    def __init__(self, order: list[Node], region: Any = None) -> None:
        """Number `order` (sorted); with `region`, nodes outside it are marked as letting no gradient through."""
        self.order: list[Node] = []
        self.region = region
        self.slot: dict[Node, int] = {}
        self.inputs: list[Node] = []
        self.input_uses: list[int] = []
        self.uses: list[int] = []
        self.variables: list[Node] = []
        self.key: tuple[Any, ...] = ()
        self.extend(order)

    def extend(self, order: list[Node]) -> None:
        """Number more nodes, which what is numbered already does not depend on."""
        region, slot, inputs, input_uses, variables, uses = self.region, self.slot, self.inputs, self.input_uses, self.variables, self.uses
        words: list[Any] = []
        first = len(uses)
        uses += [0] * len(order)
        word, find = words.append, slot.get
        for i, node in enumerate(order, first):
            kind = node.kind
            if kind is VAR:
                variables.append(node)
            elif region is not None:
                if node in region:
                    uses[i] += 1
                elif any([x.requires_grad for x in node.inputs]):  # noqa: C419 (short, and faster)
                    word(STOP)  # elsewhere there is no gradient to stop, and a JAX transform around the program must get through
            word(kind)
            for x in node.inputs:
                s = find(x)
                if s is None:
                    inputs.append(x)
                    input_uses.append(1)
                    slot[x] = s = -len(inputs)
                elif s >= 0:
                    uses[s] += 1
                else:
                    input_uses[-s - 1] += 1
                word(s)
            slot[node] = i
        if first:
            self.order += order
            self.key += tuple(words)
        else:
            self.order = order
            self.key = tuple(words)

    def mark(self, region: Any) -> None:
        """Say in the key that no gradient flows through what is outside `region`."""
        slot = self.slot
        words: list[Any] = []
        for node in self.order:
            if node.kind is not VAR and node not in region:
                words.append(STOP)
            words.append(node.kind)
            words += [slot[x] for x in node.inputs]
        self.key = tuple(words)

    def slot_of(self, node: Node) -> int:
        """The slot of a root that may be an input nobody in `order` uses yet."""
        s = self.slot.get(node)
        if s is None:
            self.inputs.append(node)
            self.input_uses.append(0)
            self.slot[node] = s = -len(self.inputs)
        return s

    def held(self) -> list[int]:
        """The results that somebody outside still holds: their values must be kept.

        A node is referenced by its consumers here and by the region (counted), by this object and its maker (constant), and by
        whoever else wants it: a tensor, a storage, another part of the tape.
        """
        return [i for i, (node, uses) in enumerate(zip(self.order, self.uses, strict=True)) if getrefcount(node) - uses > _OWN_REFERENCES]

    def program(self) -> Program:
        return Program(self.key, tuple(x.aval for x in self.inputs))


def pending(roots: Iterable[Node], seen: dict[Node, bool] | None = None) -> dict[Node, bool]:
    """All nodes without a value that `roots` wait for (insertion order is arbitrary). Adds to `seen` with False."""
    found: dict[Node, bool] = {} if seen is None else seen
    stack = []
    for r in roots:
        if r.value is None and r not in found:
            found[r] = False
            stack.append(r)
    while stack:
        for x in stack.pop().inputs:
            if x.value is None and x not in found:
                found[x] = False
                stack.append(x)
    return found


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """Sorted as recorded, which is a topological order; function arguments are inputs, not instructions."""
    return sorted((n for n in nodes if n.kind is not ARGUMENT), key=_by_seq)


def by_device(found: dict[Node, bool]) -> list[dict[Node, bool]]:
    """`found` in parts that one program can compute: a program runs on one device. No part waits for another: a transfer is a leaf."""
    if not NAMED_DEVICES:
        return [found]
    parts: dict[Any, dict[Node, bool]] = {}
    for n in found:
        aval = n.aval
        while isinstance(aval, tuple):
            aval = aval[0]
        parts.setdefault(aval.device, {})[n] = found[n]
    return list(parts.values())


def _own_references() -> int:
    """References to a node that `held` sees when nobody outside has one (measured: it depends on the interpreter)."""

    def probe() -> int:
        read = Node(LEAF, (), None, False, 0, 0)  # type: ignore[arg-type]
        seen = {Node("probe", (read,), None, False): False}  # type: ignore[arg-type]
        linear = Linear(in_order(seen))
        return [getrefcount(node) - uses for i, (node, uses) in enumerate(zip(linear.order, linear.uses, strict=True))][0]  # noqa: RUF015 (as in `held`)

    return probe()


_OWN_REFERENCES = _own_references()


def text(program: Program, outputs: Sequence[int] = ()) -> str:
    """The program as lines `%3: float32[4,8] = tanh(%2)`; inputs are `%a0, %a1, ...`."""

    def name(s: int) -> str:
        return f"%{s}" if s >= 0 else f"%a{-s - 1}"

    lines = [f"{name(-i - 1)}: {a}" for i, a in enumerate(program.inputs)]
    for i, (kind, slots, stop) in enumerate(program.instructions):
        args = [name(s) for s in slots]
        if isinstance(kind, Kind):
            args += [f"{n}={v!r}" for n, v in zip(kind.op.statics, kind.statics, strict=True) if v is not None]
            lines.append(f"%{i}: {kind.aval} = {kind.name}({', '.join(args)}){'  # no gradient' if stop else ''}")
        else:
            lines.append(f"%{i} = variable({', '.join(args)})")
    if outputs:
        lines.append("return " + ", ".join(name(s) for s in outputs))
    return "\n".join(lines)


__all__ = ["SCALAR", "STOP", "Linear", "Program", "in_order", "pending", "text"]
