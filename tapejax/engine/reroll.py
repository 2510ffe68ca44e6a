"""Find the loops that a program was recorded from, so that they compile as loops.

A repeat of period P shows when the instructions are compared with themselves shifted by P. The periods worth trying are
the distances from each instruction to the next one that reads alike (its inputs written as "leaf" or "k instructions
back"); the one that saves most is taken, then what lies between its loops is searched again. The body of a loop is a
program too, and is searched when it is replayed: that is how nests come out. Everything works on integer arrays, so that
a program of 100,000 instructions takes a tenth of a second, once per compile.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

from tapejax.engine.loop import CONSTANT, MIN_ROUNDS, RELATIVE, ROW, Loop, aval_at, nbytes
from tapejax.tape.node import VAR
from tapejax.tape.program import Program

#: Shorter programs are compiled flat: they cost less than the search and the loop would save.
MIN_PROGRAM = 64
#: A loop must replace at least this many instructions, and this many if arrays must be stacked for it.
MIN_SAVED, MIN_SAVED_STACKING = 40, 200
#: A value may be carried over this many rounds; what is older is a row.
MAX_REACH = 8
#: Periods tried per stretch of program.
MAX_TRIES = 12


def loops_of(program: Program) -> list[Loop]:
    """The program's loops in order, found once."""
    found = _known.get(program)
    if found is None:
        if len(_known) > 256:
            _known.clear()
        found = _known[program] = Finder(program).loops() if len(program.instructions) >= MIN_PROGRAM else []
    return found


_known: dict[Program, list[Loop]] = {}


class Finder:
    """A program as integer arrays, and the search on them."""

    def __init__(self, program: Program) -> None:
        instructions = program.instructions
        self.program = program
        ids: dict[Any, int] = {}
        self.kinds = np.array([2 * ids.setdefault(self._name(k, s), len(ids)) + stop for k, s, stop in instructions], np.int64)
        self.distinct = len(ids)
        arity = np.array([len(s) for _, s, _ in instructions], np.int64)
        self.arity = arity
        self.first = np.concatenate([np.zeros(1, np.int64), np.cumsum(arity)])
        self.slots = np.fromiter(chain.from_iterable(s for _, s, _ in instructions), np.int64, int(self.first[-1]))
        self.owner = np.repeat(np.arange(len(instructions)), arity)
        self.is_array = np.array([not a.weak for a in program.inputs] + [False], bool)

    def _name(self, kind: Any, slots: tuple[int, ...]) -> Any:
        return (kind, aval_at(self.program, slots[0])) if kind is VAR else kind

    def loops(self) -> list[Loop]:
        n = len(self.kinds)
        if 2 * self.distinct > n:
            return []
        self._words = self._spell()
        found: list[Loop] = []
        stretches = [(0, n)]
        while stretches:
            low, high = stretches.pop()
            if high - low < MIN_PROGRAM:
                continue
            best = self._best(low, high)
            found += best
            edges = [low, *chain.from_iterable((x.start, x.stop) for x in best), high]
            if best:
                stretches += list(zip(edges[::2], edges[1::2], strict=True))
        return sorted(found, key=lambda x: x.start)

    # -- which periods --------------------------------------------------------------------------------------------

    def _spell(self) -> np.ndarray:
        """A word per instruction: equal words have equal kinds and read alike."""
        s = self.slots
        place = np.arange(len(s)) - self.first[self.owner]
        code = np.where(s >= 0, self.owner - s, np.where(self.is_array[np.maximum(-s - 1, 0)], s, 0))
        mixed = _mix(code.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + place.astype(np.uint64))
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        return _mix(self.kinds.astype(np.uint64)) + total[self.first[1:]] - total[self.first[:-1]]

    def _periods(self, low: int, high: int) -> list[int]:
        votes = np.zeros((high - low) // MIN_ROUNDS + 1, np.int64)
        for words in (self._words[low:high], self.kinds[low:high]):
            order = np.argsort(words, kind="stable")
            same = words[order[1:]] == words[order[:-1]]
            distance = (order[1:] - order[:-1])[same]
            votes += np.bincount(distance[distance < len(votes)], minlength=len(votes))
        likely = np.argsort(-votes, kind="stable")[:MAX_TRIES]
        return sorted(int(p) for p in likely if votes[p] >= MIN_ROUNDS - 1)

    def _best(self, low: int, high: int) -> list[Loop]:
        """The loops of the period that saves most between two instructions; where another saves more locally, its loops."""
        found: list[list[Loop]] = []
        worth: dict[Loop, float] = {}
        density = 0.0  # how much of any stretch shorter periods save: a nest counts as saving that in its body as well
        for p in self._periods(low, high):
            loops = [x for run in self._runs(p, low, high) for x in self._loops_in(p, *run)]
            saved = [self._saving(x) for x in loops]
            worth.update((x, s + p * density) for x, s in zip(loops, saved, strict=True))
            density = max(density, sum(saved) / (high - low))
            found.append(loops)
        if not worth:
            return []
        best = max(found, key=lambda loops: sum(worth[x] for x in loops))
        chosen: list[Loop] = []
        for mine in best:
            others = [[x for x in loops if x.start < mine.stop and mine.start < x.stop] for loops in found if loops is not best]
            others = [xs for xs in others if not any(x.start < y.stop and y.start < x.stop for x in xs for y in best if y is not mine)]
            chosen += max([[mine], *others], key=lambda loops: sum(worth[x] for x in loops))
        return [x for i, x in enumerate(chosen) if i == 0 or chosen[i - 1].stop <= x.start]

    def _saving(self, loop: Loop) -> float:
        """Instructions that need not be compiled, less what leads into the loop and out of it."""
        stacked = sum(len(c) if len(set(c)) < len(c) else len(c) / 4 for c in loop.columns if self._must_stack(c))
        return (loop.rounds - 1) * loop.period - len(loop.registers) - stacked

    def _must_stack(self, column: tuple[int, ...]) -> bool:
        """Whether a row's values come one by one: arrays, or results that are not evenly spaced (as a loop's are)."""
        if column[0] < 0:
            return bool(self.is_array[-column[0] - 1])
        steps = np.diff(column)
        return bool(column[-1] < 0 or (steps != steps[0]).any())

    # -- where a period holds --------------------------------------------------------------------------------------

    def _runs(self, p: int, low: int, high: int) -> Iterable[tuple[int, int]]:
        """Stretches in which every instruction is of the kind of the one `p` earlier."""
        kinds = self.kinds
        equal = kinds[low : high - p] == kinds[low + p : high]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], equal, [False]]).astype(np.int8)))
        for begin, end in edges.reshape(-1, 2):
            if end - begin >= (MIN_ROUNDS - 1) * p:
                yield low + int(begin), low + int(end) + p

    def _loops_in(self, p: int, begin: int, end: int) -> list[Loop]:
        begin = self._where_bodies_end(p, begin, end)
        rounds = (end - begin) // p
        if rounds < MIN_ROUNDS:
            return []
        width = int(self.first[begin + p] - self.first[begin])
        slots = self.slots[self.first[begin] : self.first[begin] + rounds * width].reshape(rounds, width)
        place = self.owner[self.first[begin] : self.first[begin + p]] - begin
        distance = begin + place + p * np.arange(rounds)[:, None] - slots
        classes, linked = classify(slots, distance, p)
        found: list[Loop] = []
        free = 0  # rounds before this one belong to a loop
        edges = np.flatnonzero(np.diff(np.concatenate([[False], linked, [False]]).astype(np.int8)))
        for first, last in edges.reshape(-1, 2):
            last += 1
            while last - first >= MIN_ROUNDS:
                loop, after = self._fit(p, begin, slots, distance, place, classes, int(first), int(last), free)
                if loop is not None:
                    found.append(loop)
                    free = after
                first = after
        return found

    def _where_bodies_end(self, p: int, begin: int, end: int) -> int:
        """Shift the start of a run so that as little as possible crosses from one round to the next."""
        middle = begin + (end - begin) // 2 // p * p
        low, high = self.first[middle], self.first[min(middle + 2 * p, end)]
        s, owner = self.slots[low:high], self.owner[low:high]
        near = (s >= middle) & (s < middle + p) & (owner - s <= p)
        s, owner = s[near] - middle, owner[near] - middle
        last = np.arange(p)
        np.maximum.at(last, s, owner)
        crossing = np.zeros(2 * p + 1, np.int64)
        size = np.array([nbytes(aval_at(self.program, middle + int(j))) + 1 if last[j] > j else 0 for j in range(p)])
        np.add.at(crossing, np.arange(p) + 1, size)
        np.add.at(crossing, last + 1, -size)
        weight = np.cumsum(crossing)[: 2 * p]
        weight = weight[:p] + weight[p:]
        return begin + int(np.argmin(weight))

    def _fit(
        self, p: int, begin: int, slots: Any, distance: Any, place: Any, classes: Any, first: int, last: int, free: int
    ) -> tuple[Loop | None, int]:
        """The loop of rounds `first` to `last` (linked to one another); also the round at which to go on looking."""
        constant, relative, row = classes == CONSTANT, classes == RELATIVE, classes == ROW
        steady, reach = distance[last - 1], np.where(relative, -((place - distance[last - 1]) // p), 0)
        linked = first
        # rounds before, in which values that are carried later still come from outside, belong to the loop as well
        for r in range(max(free, first - int(reach.max(initial=0))), first):
            read, start = slots[r:first], begin + r * p
            if (constant & (slots[r] >= start)).any():
                continue
            initial = relative & (reach > np.arange(len(read))[:, None]) & (read < start)
            if (initial | np.where(relative, distance[r:first] == steady, np.where(row, read < start, read == slots[first]))).all():
                first = r
                break
        start = begin + first * p
        if (constant & (slots[first] >= start)).any():
            return None, first + 1  # a value of the first round is used by all others: that round stands alone
        outside = (slots[first:last][:, row] < start).all(axis=1)
        if not outside.all():
            last = first + int(np.argmin(outside))
        if last - first < max(MIN_ROUNDS, int(reach.max(initial=0)) + 1):
            return None, max(last, linked + 1)
        loop = Loop(self.program, start, p, slots[first:last], classes)
        return (loop if self._worth_it(loop) else None), max(last, linked + 1)

    def _worth_it(self, loop: Loop) -> bool:
        saved = self._saving(loop)
        stacks = any(c[0] < 0 and self.is_array[-c[0] - 1] for c in loop.columns)
        if stacks and (not loop.registers or saved < MIN_SAVED_STACKING):
            return False  # e.g. an optimizer's update of many equal parameters: stacking would only move memory
        return saved >= MIN_SAVED


def classify(slots: np.ndarray, distance: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Per operand its class (what holds for most rounds), per pair of rounds whether all operands keep to theirs."""
    constant = slots[1:] == slots[:-1]
    relative = (distance[1:] == distance[:-1]) & (slots[1:] >= 0) & (slots[:-1] >= 0) & (distance[1:] <= MAX_REACH * p)
    rounds = len(slots)
    n_constant, n_relative = constant.sum(axis=0), relative.sum(axis=0)
    classes = np.where(
        (n_relative >= n_constant) & (2 * n_relative >= rounds - 1), RELATIVE, np.where(2 * n_constant >= rounds - 1, CONSTANT, ROW)
    )
    linked = np.where(classes == CONSTANT, constant, np.where(classes == RELATIVE, relative, True)).all(axis=1)
    return classes, np.asarray(linked)


def _mix(x: np.ndarray) -> np.ndarray:
    """Scatter the bits of every number (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
