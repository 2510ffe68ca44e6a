"""One loop of a program: a body that was recorded again and again, told apart into what each round reads and leaves behind.

Found by `reroll`, run by `replay`. The body's operands come from five places: the same value in every round (constant),
another one in each round (row), the same round, an earlier round (register), or what was hoisted out of the loop.
What depends on constants alone is computed once, what depends on rows but not on earlier rounds is computed for all
rounds at once; only the rest is scanned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tapejax.tape.aval import Aval
from tapejax.tape.node import VAR
from tapejax.tape.program import STOP, Program

CONSTANT, RELATIVE, ROW = 0, 1, 2  # classes of an operand: see `reroll.classify`
ONCE, BATCHED, SCANNED = 0, 1, 2  # levels of an instruction

#: A batched instruction of a loop may hold this many bytes; beyond that it stays in the loop, which holds one round at a time.
FREE_BYTES = 1 << 22


class Part(NamedTuple):
    """The instructions of one level as a program of their own."""

    program: Program
    inputs: tuple[Any, ...]  # per input slot: ("constant", slot), ("row", column), ("body", position), ("register", n, age)
    slot: dict[int, int]  # position in the body -> slot in `program`


class Register(NamedTuple):
    """A value carried from round to round: what `position` gave in the last `len(start)` rounds (youngest first)."""

    position: int
    start: tuple[int | None, ...]  # slots that hold the values before the first round; None: zeros that nobody reads


class Loop:
    """`rounds` rounds of `period` instructions, the first of which is instruction `start`.

    `slots`: (rounds, operands of one body) input slots as recorded; `classes`: the class of each operand.
    """

    def __init__(self, program: Program, start: int, period: int, slots: np.ndarray, classes: np.ndarray) -> None:
        self.start = start
        self.period = period
        self.rounds = len(slots)
        self.stop = start + self.rounds * period
        self.slots = slots
        self.classes = classes
        self._program = program
        self._last = program.instructions[self.stop - period : self.stop]  # a round that reads no initial value
        self.registers: list[Register] = []
        self.columns: list[tuple[int, ...]] = []  # rows: per column the slot of each round
        self._sources: list[tuple[Any, ...]] = []
        self._find_sources()
        self._parts: dict[frozenset[int], dict[int, Part]] = {}

    # -- what each operand is -------------------------------------------------------------------------------------

    def _find_sources(self) -> None:
        columns: dict[tuple[int, ...], int] = {}
        registers: dict[tuple[int, int], int] = {}
        depth: dict[int, int] = {}  # deepest reach back to each position
        reads: list[tuple[int, int, int, int]] = []
        column = 0
        for j, (_, operands, _) in enumerate(self._last):
            for p in range(len(operands)):
                if self.classes[column] == RELATIVE:
                    position, back = self._producer(j, int(self.slots[-1, column]))
                    if back:
                        depth[position] = max(depth.get(position, 0), back)
                        reads.append((j, p, column, back))
                column += 1
        starts: dict[int, list[dict[int, int]]] = {}  # position -> registers as {age: initial slot}
        which: dict[tuple[int, int], tuple[int, int]] = {}
        for j, p, column, back in reads:
            position, _ = self._producer(j, int(self.slots[-1, column]))
            mine = {back - r - 1: int(self.slots[r, column]) for r in range(min(back, self.rounds))}
            candidates = starts.setdefault(position, [])
            agreeing = (n for n, known in enumerate(candidates) if all(known.get(age, s) == s for age, s in mine.items()))
            n = next(agreeing, len(candidates))
            if n == len(candidates):
                candidates.append({})
            candidates[n].update(mine)
            which[(j, p)] = (position, n)
        for position, candidates in starts.items():
            for n, known in enumerate(candidates):
                registers[(position, n)] = len(self.registers)
                self.registers.append(Register(position, tuple(known.get(age) for age in range(depth[position]))))

        column = 0
        for j, (_, operands, _) in enumerate(self._last):
            sources: list[Any] = []
            for p in range(len(operands)):
                s = int(self.slots[-1, column])
                if self.classes[column] == CONSTANT:
                    sources.append(("constant", s))
                elif self.classes[column] == ROW:
                    row = tuple(self.slots[:, column].tolist())
                    sources.append(("row", columns.setdefault(row, len(columns))))
                else:
                    position, back = self._producer(j, s)
                    if back:
                        sources.append(("register", registers[which[(j, p)]], back - 1))
                    else:
                        sources.append(("body", position))
                column += 1
            self._sources.append(tuple(sources))
        self.columns = list(columns)

    def _producer(self, j: int, slot: int) -> tuple[int, int]:
        """Position in the body and rounds back of what position `j` of the last round reads at `slot`."""
        distance = self.stop - self.period + j - slot
        back = -((j - distance) // self.period)
        return (j - distance) % self.period, max(back, 0)

    def aval_of_operand(self, j: int, p: int) -> Any:
        kind, operands, _ = self._last[j]
        return kind.inputs[p] if kind is not VAR else aval_at(self._program, operands[0])

    def aval_of(self, position: int) -> Any:
        return aval_at(self._program, self.stop - self.period + position)

    # -- levels ---------------------------------------------------------------------------------------------------

    def constants(self) -> set[int]:
        """The slots outside that every round reads."""
        return {x[1] for sources in self._sources for x in sources if x[0] == "constant"}

    def parts(self, tracked: frozenset[int]) -> dict[int, Part]:
        """Level -> the instructions of that level; `tracked`: the constants whose gradient is wanted."""
        made = self._parts.get(tracked)
        if made is None:
            levels = self._find_levels(tracked)
            made = self._parts[tracked] = {level: self._part(levels, level) for level in (ONCE, BATCHED, SCANNED)}
        return made

    def _find_levels(self, tracked: frozenset[int]) -> list[int]:
        levels: list[int] = []
        for j, sources in enumerate(self._sources):
            level = ONCE
            by_round = whole = gathered = 0  # bytes read that differ per round; of constants; of constants with gradients
            for p, source in enumerate(sources):
                what = source[0]
                below = SCANNED if what == "register" else BATCHED if what == "row" else ONCE if what == "constant" else levels[source[1]]
                level = max(level, below)
                size = nbytes(self.aval_of_operand(j, p))
                if below == BATCHED:
                    by_round += size * self.rounds
                elif below == ONCE:
                    whole += size
                    gathered += size if source[0] == "constant" and source[1] in tracked else 0
            if level == BATCHED:
                made = self.rounds * nbytes(self.aval_of(j))
                # The gradient of an entry is as large as what it is an entry of: taken together, all rounds make one such
                # gradient, one by one they would make one each.
                if made > FREE_BYTES and made > 2 * gathered and (self.registers or made > 4 * (by_round + whole)):
                    level = SCANNED
            levels.append(level)
        return levels

    def _part(self, levels: list[int], level: int) -> Part:
        inputs: dict[Any, int] = {}
        avals: list[Any] = []
        slot: dict[int, int] = {}
        words: list[Any] = []
        for j, (kind, _, stop) in enumerate(self._last):
            if levels[j] != level:
                continue
            if stop:
                words.append(STOP)
            words.append(kind)
            for p, source in enumerate(self._sources[j]):
                inner = slot.get(source[1]) if source[0] == "body" else None
                if inner is None:
                    inner = inputs.get(source)
                    if inner is None:
                        inputs[source] = inner = -len(inputs) - 1
                        avals.append(self.aval_of_operand(j, p))
                words.append(inner)
            slot[j] = len(slot)
        return Part(Program(tuple(words), tuple(avals)), tuple(inputs), slot)

    # -- what others see of it ------------------------------------------------------------------------------------

    def place(self, slot: int) -> tuple[int, int]:
        """(position in the body, round) of a slot of this loop."""
        return (slot - self.start) % self.period, (slot - self.start) // self.period

    def slot(self, position: int, r: int) -> int:
        return self.start + r * self.period + position

    def reads(self) -> set[int]:
        """The slots outside that the loop reads."""
        found = self.constants().union(*self.columns)
        for x in self.registers:
            found.update(s for s in x.start if s is not None)
        return found

    def without(self, rounds: Sequence[int]) -> list[Loop]:
        """The loops that are left when some rounds must stand alone."""
        found = []
        first = 0
        for r in (*sorted(rounds), self.rounds):
            if r - first >= MIN_ROUNDS:
                found.append(Loop(self._program, self.start + first * self.period, self.period, self.slots[first:r], self.classes))
            first = r + 1
        return found


MIN_ROUNDS = 8


def nbytes(aval: Any) -> int:
    if isinstance(aval, tuple):
        return sum(nbytes(a) for a in aval)
    return aval.size * getattr(aval.dtype, "itemsize", 8)


def aval_at(program: Program, slot: int) -> Aval | tuple[Aval, ...]:
    """What is known of the value at a slot; a variable's is that of what it reads."""
    while slot >= 0:
        kind, slots, _ = program.instructions[slot]
        if kind is not VAR:
            return kind.aval
        slot = slots[0]
    return program.inputs[-slot - 1]


__all__ = ["BATCHED", "CONSTANT", "MIN_ROUNDS", "ONCE", "RELATIVE", "ROW", "SCANNED", "Loop", "Part", "Register", "aval_at", "nbytes"]
