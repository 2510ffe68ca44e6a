"""Compiles as they happen: counted, explained to those who listen, and held to a number in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tapejax.debug.difference import MODES, Difference, reason
from tapejax.debug.lines import LINES, Line, user_line
from tapejax.engine.cache import AFTER_COMPILE, BEFORE_COMPILE, CACHE, Executable
from tapejax.engine.stages import Staged
from tapejax.tape import modes


class Compile(NamedTuple):
    """One compile: which program, for what, where it was asked for, why it was not there, what it cost."""

    number: int
    made: Executable
    line: Line | None  # of the user's code that needed the value or the gradient
    why: Difference
    recorded: Line | None  # of the user's code that recorded the operation in which it differs
    seconds: float

    def __str__(self) -> str:
        return "\n".join(describe(self))


#: Called with a Compile after every compile. While there are none (and no TAPEJAX_DEBUG) no reason is looked for.
LISTENERS: list[Callable[[Compile], None]] = []

_pending: WeakKeyDictionary[Executable, tuple[Line | None, Difference, Line | None]] = WeakKeyDictionary()


def _before(made: Executable, linear: Any) -> None:
    if not LISTENERS:
        return

    def line(i: int) -> Line | None:
        return LINES.get(linear.order[i]) if i < len(linear.order) else None

    def place(i: int) -> str:
        found = line(i)
        return "" if found is None else f" ({found})"

    why = reason(made, place)
    _pending[made] = user_line(), why, None if why.at is None else line(why.at)


def _after(made: Executable, linear: Any) -> None:
    found = _pending.pop(made, None)
    if found is None:
        return
    where, why, recorded = found
    told = Compile(made.number, made, where, why, recorded, made.seconds)
    for listen in list(LISTENERS):
        listen(told)


BEFORE_COMPILE.append(_before)
AFTER_COMPILE.append(_after)


def describe(c: Compile) -> list[str]:
    """The compile as two or three lines of text."""
    program, (mode, outputs, *rest) = c.made.program, c.made.request
    n = len(program.instructions)
    what = f"{n} operation{'s' * (n != 1)}, {MODES[mode]}"
    if mode == "pull":
        g = len(rest[0].wanted)
        what += f" ({len(outputs)} kept, {g} gradient{'s' * (g != 1)})"
    if isinstance(c.made.call, Staged):
        stages, known = len(c.made.call.stages), c.made.call.known
        what += f"; in {stages} stages, {known or 'none'} of them compiled before"
    where = "" if c.line is None else f" at {c.line}"
    lines = [f"[tapejax] program {c.number} compiled in {c.seconds:.2f} s{where}: {what}"]
    lines.append(f"    why  {c.why.kind}: {c.why.detail}" if c.why.kind != "first sight" else "    why  first sight")
    if c.why.remedy:
        lines.append(f"    →    {c.why.remedy}")
    return lines


@contextmanager
def listening(listen: Callable[[Compile], None]) -> Iterator[None]:
    """Have every compile explained to `listen`, and the lines of what this thread records remembered."""
    before = modes.switch(modes.EXPLAIN, True)
    LISTENERS.append(listen)
    try:
        yield
    finally:
        LISTENERS.remove(listen)
        modes.switch(modes.EXPLAIN, before & modes.EXPLAIN > 0)


def compile_count() -> int:
    """Return how many programs were compiled since the process started.

    >>> import tapejax as tj
    >>> before = tj.debug.compile_count()
    >>> (tj.ones(3) * 2).sum().item()
    6.0
    >>> tj.debug.compile_count() - before
    1
    """
    return CACHE.compiled


@contextmanager
def assert_compiles(n: int, *, at_most: bool = False) -> Iterator[None]:
    """Context manager for tests: AssertionError unless exactly `n` programs (`at_most`: no more than `n`) are compiled inside.

    The error lists the compiles with their reasons.

    >>> import tapejax as tj
    >>> def total():
    ...     return tj.ones(3).sum().item()
    >>> total()
    3.0
    >>> with tj.debug.assert_compiles(0):
    ...     total()
    3.0
    """
    seen: list[Compile] = []
    before = CACHE.compiled
    with listening(seen.append):
        yield
    count = CACHE.compiled - before
    if count == n or (at_most and count < n):
        return
    told = "\n".join(str(c) for c in seen) or "(none)"
    limit = f"at most {n}" if at_most else f"{n}"
    raise AssertionError(f"assert_compiles(): {count} programs were compiled, expected {limit}:\n{told}")

