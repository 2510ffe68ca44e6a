"""Python's collector of cycles and long tapes: a tape is freed by reference counts and has no cycles, but what it allocates makes
the collector search the whole heap every few steps, and again and again while a long program is traced.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tapejax import config
from tapejax.tape.node import next_seq
from tapejax.tape.waiting import HORIZON

#: From so many instructions on a program is long.
LONG = 2000


_ours = 10  # the threshold of full searches as Python or `pace` set it: one that somebody else chose stays


def pace(instructions: int) -> None:
    """After a long program, have Python search its whole heap less often: once in some seventy runs of it."""
    global _ours
    young, middle, full = gc.get_threshold()
    wanted = max(config.gc_full, instructions // 32)
    if instructions > LONG and config.gc_full and (full == 10 or full == _ours) and full < wanted:
        gc.set_threshold(young, middle, wanted)
        _ours = wanted


def _look(phase: str, info: dict[str, Any]) -> None:
    """Called by the collector: a tape that is still being recorded makes it search the whole heap as well."""
    if phase == "stop" and info["generation"] == 2 and (recorded := next_seq() - HORIZON[-1]) > 10 * LONG:
        pace(recorded)


gc.callbacks.append(_look)


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
