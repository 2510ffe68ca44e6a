"""Explained compiles on the screen: `TAPEJAX_DEBUG=1` or `with tapejax.debug.explain():`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tapejax import config
from tapejax.debug.compiles import LISTENERS, Compile, describe, listening
from tapejax.debug.text import program_text


class Printer:
    """Prints compiles; from level 2 on with the program's text, from level 3 on with its HLO."""

    def __init__(self, level: int, file: Any = None) -> None:
        self.level = level
        self.file = file

    def __call__(self, c: Compile) -> None:
        lines = describe(c)
        if self.level > 1:
            lines += ["    " + x for x in program_text(c.made.program, c.made.request[1]).splitlines()]
        if self.level > 2:
            lines += ["    " + x for part in c.made.compiled() for x in part.as_text().splitlines()]
        print("\n".join(lines), file=self.file or sys.stderr, flush=True)


@contextmanager
def explain(level: int = 1, file: Any = None) -> Iterator[None]:
    """Print, for every program compiled inside, why it was not there, where it was asked for and recorded, and what it cost.

    `level`: 1 the reason, 2 also the program's text, 3 also its HLO. `file`: where to (default: stderr). The reason names
    the first difference from the nearest cached program. The same as TAPEJAX_DEBUG=level for a whole process. Results,
    programs and gradients are the same as without; recording is slower, since lines are looked up.

    >>> import sys, tapejax as tj
    >>> with tj.debug.explain(file=sys.stdout):
    ...     tj.ones(7).cumsum(0)[-1].item()
    [tapejax] program ... compiled in ... s...
        why  ...
    7.0
    """
    with listening(Printer(level, file)):
        yield


if config.debug:
    LISTENERS.append(Printer(config.debug))
