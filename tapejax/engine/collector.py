"""Python's collector of cycles and long tapes: a tape is freed by reference counts and has no cycles, but what it allocates makes
the collector search the whole heap every few steps, and again and again while a long program is traced.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from tapejax import config

#: From so many instructions on a program is long.
LONG = 2000


def pace(instructions: int) -> None:
    """After a long program, have Python search its whole heap less often."""
    young, middle, full = gc.get_threshold()
    if instructions > LONG and 0 < full <= 10 < config.gc_full:
        gc.set_threshold(young, middle, config.gc_full)


@contextmanager
def at_rest(instructions: int) -> Iterator[None]:
    """Keep the collector from running while a long program is read, traced and compiled."""
    if instructions <= LONG or not config.gc_full or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


__all__ = ["LONG", "at_rest", "pace"]
