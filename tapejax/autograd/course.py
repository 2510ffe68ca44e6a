"""What a careful backward did, written down: graphs with the same key follow it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tapejax.tape.node import Kind, Node
from tapejax.tape.program import Linear


class Arrival(NamedTuple):
    """A gradient is complete; `passes`: whether the node itself runs after that."""

    slot: int
    passes: bool


class Piece(NamedTuple):
    """Nodes (`runs`) differentiated as one PULL of `kind`, all by slot; from index `inner` on, `wanted` are inside it."""

    runs: tuple[int, ...]
    kind: Kind | None
    inputs: tuple[int, ...]
    roots: tuple[int, ...]
    wanted: tuple[int, ...]
    inner: int


class Course:
    """What a careful backward did, in slots of its graph's Linear: graphs with the same key do the same."""

    def __init__(self, linear: Linear) -> None:
        self.slot = linear.slot
        self.moves: list[Arrival | Piece] = []
        self.part: tuple[int, ...] = ()  # who took part

    def _slots(self, nodes: Iterable[Node]) -> tuple[int, ...]:
        return tuple([self.slot[n] for n in nodes])

    def arrive(self, n: Node, passes: bool) -> None:
        self.moves.append(Arrival(self.slot[n], passes))

    def check(self, runs: Iterable[Node]) -> None:
        self.moves.append(Piece(self._slots(runs), None, (), (), (), 0))

    def piece(self, runs: Iterable[Node], roots: Sequence[Node], wanted: Iterable[Node], inner: int, pulled: Node) -> None:
        inputs = pulled.inputs[: len(pulled.inputs) - len(roots)]
        self.moves.append(Piece(self._slots(runs), pulled.kind, self._slots(inputs), self._slots(roots), self._slots(wanted), inner))

    def written(self, part: Iterable[Node]) -> Course:
        """The finished course; the nodes it was written down from are not its own."""
        self.part = self._slots(part)
        self.slot = {}
        return self


COURSES: dict[Any, Course] = {}

MANY_COURSES = 512

