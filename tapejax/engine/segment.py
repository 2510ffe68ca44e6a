"""Where a program too long to compile in one piece is cut: few values cross a cut, and no loop has one inside.

The length that counts is what would be compiled: a loop counts as its body, however often it runs. Within the window in which
a segment must end the cut is where the fewest bytes cross, the last such place of several; so a program made of equal
pieces is cut where pieces end, at the same distance every time, and its segments are the same program.
"""

from __future__ import annotations

from typing import Any

from tapejax import config
from tapejax.engine.loop import Loop, aval_at, nbytes
from tapejax.engine.reroll import loops_of
from tapejax.tape.node import VAR
from tapejax.tape.program import Linear, Program

_known: dict[tuple[int, tuple[Any, ...]], tuple[int, ...]] = {}


def cuts_of(linear: Linear) -> tuple[int, ...]:
    """The instructions before which a program must be cut; none if it is short enough. Found once per program and limit."""
    limit = config.segment_limit
    if len(linear.order) <= limit:
        return ()
    key = (limit, linear.key)
    found = _known.get(key)
    if found is None:
        if len(_known) > 64:
            _known.clear()
        found = _known[key] = cuts(linear.program(), limit)
    return found


def weight(program: Program) -> int:
    """How many instructions a program compiles as, those of its loops' bodies counted once."""
    return sum(_weights(program, loops_of(program))[1])


def cuts(program: Program, limit: int) -> tuple[int, ...]:
    """Where to cut so that no segment compiles as more than `limit` instructions (if no single loop or operation does)."""
    ends, weights = _weights(program, loops_of(program))
    if sum(weights) <= limit:
        return ()
    crossing = _crossing(program)
    found: list[int] = []
    first, total = 0, sum(weights)  # the unit at which the segment starts; what is left from there
    while total > limit:
        best, size = first, 0
        last = first
        while last < len(ends) - 1 and (last == first or size + weights[last] <= limit):
            size += weights[last]
            if best == first or 2 * size <= limit or crossing[ends[last]] <= crossing[ends[best - 1]]:
                best = last + 1
            last += 1
        if best == first or last >= len(ends):
            break
        found.append(ends[best - 1])
        total -= sum(weights[first:best])
        first = best
    return tuple(found)


def _weights(program: Program, loops: list[Loop]) -> tuple[list[int], list[int]]:
    """The pieces that can be told apart, in order: where each ends, and what it counts."""
    ends: list[int] = []
    weights: list[int] = []
    i = 0
    for loop in (*loops, None):
        stop = len(program.instructions) if loop is None else loop.start
        for j in range(i, stop):
            ends.append(j + 1)
            weights.append(_weight(program.instructions[j][0]))
        if loop is not None:
            i = loop.stop
            ends.append(i)
            weights.append(sum(weight(part.program) for part in loop.parts(frozenset()).values()))
    return ends, weights


def _weight(kind: Any) -> int:
    """An operation counts one, a variable nothing, a gradient as much as what it differentiates."""
    if kind is VAR:
        return 0
    return 2 * weight(kind.statics[0].program) if kind.op.name == "pull" else 1


def _crossing(program: Program) -> list[int]:
    """Per place the bytes that are computed before it and read at it or later. Several outputs of one node stay together."""
    n = len(program.instructions)
    last = list(range(n))
    for i, (_, slots, _) in enumerate(program.instructions):
        for s in slots:
            if s >= 0:
                last[s] = i
    steps = [0] * (n + 2)
    for j, end in enumerate(last):
        if end > j:
            aval = aval_at(program, j)
            size = 1 << 60 if isinstance(aval, tuple) else nbytes(aval) + 1
            steps[j + 1] += size
            steps[end + 1] -= size
    for i in range(1, n + 2):
        steps[i] += steps[i - 1]
    return steps
