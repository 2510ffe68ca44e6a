"""One warning when a line in a loop keeps compiling new programs that differ only in shapes, statics or length.

Counted when a program compiles, so that a hit costs nothing. A line counts while it or one of its callers is in a loop of the
user's; programs count together when they use the same operations on the same element types. Under pytest each test counts alone.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import OrderedDict
from typing import Any

from tapejax import config
from tapejax.debug.difference import difference, evicted
from tapejax.debug.lines import Line, in_a_loop, user_frame
from tapejax.engine.cache import BEFORE_COMPILE, Executable
from tapejax.tape.node import VAR
from tapejax.tape.program import Program


class RecompileWarning(RuntimeWarning):
    """A line keeps compiling new programs of one kind."""


class _Family:
    """The programs of one kind that a line compiled."""

    __slots__ = ("count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last: weakref.ref[Executable] | None = None


_MOST_LINES = 1024
_families: OrderedDict[tuple[Any, ...], _Family] = OrderedDict()
_warned: set[Line] = set()
_lock = threading.Lock()


def _before(made: Executable, linear: Any) -> None:
    limit = config.recompile_limit
    frame = user_frame() if limit else None
    if frame is None:
        return
    line = Line(frame.f_code.co_filename, frame.f_lineno)
    if line in _warned or not in_a_loop(frame):
        return
    mark = line, os.environ.get("PYTEST_CURRENT_TEST"), _signature(made.program)  # a test suite is not a loop
    with _lock:
        family = _families.setdefault(mark, _Family())
        _families.move_to_end(mark)
        if len(_families) > _MOST_LINES:
            _families.popitem(last=False)
        last = None if family.last is None else family.last()
        if last is not None and last.program == made.program:
            return  # kept alive, donated or differentiated in another way: that settles
        family.last = weakref.ref(made)
        family.count += 1
        if family.count <= limit or last is None:
            return
        _warned.add(line)
        del _families[mark]
    why = evicted(made) or difference(made, last, lambda i: "")
    remedy = f" → {why.remedy}" if why.remedy else ""
    message = (
        f"{line}: this line keeps compiling: {family.count} programs of the same operations so far. The last two differ in {why.kind}:"
        f" {why.detail}{remedy}. tapejax.debug.explain() shows every one."
    )
    warnings.warn_explicit(message, RecompileWarning, line.file, line.number)


def _signature(program: Program) -> Any:
    """What programs of a kind have in common: operations and element types, whatever the shapes, statics and repetitions."""
    names: set[str] = set()
    types: set[Any] = set()
    waiting = [program]
    while waiting:
        for kind, _, _ in waiting.pop().instructions:
            if kind is VAR:
                continue
            names.add(kind.name)
            if kind.avals is None:
                types.add(kind.aval.dtype)
            for x in kind.statics:  # a gradient or a mapped function has its program as a parameter
                inner = x if isinstance(x, Program) else getattr(x, "program", None)
                if isinstance(inner, Program):
                    waiting.append(inner)
    return frozenset(names), frozenset(types)


BEFORE_COMPILE.append(_before)
