"""Ratios of the same work done by several contestants, measured in turn in one process.

A round runs one block of every contestant, so that whatever the machine does meanwhile hits all of them; a ratio is taken
within a round, and the median over rounds is reported. Absolute times are never reported: they belong to the machine.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

#: Seconds before every block: the previous contestant's thread pool goes to sleep (OpenMP workers spin for a while).
PAUSE = 0.05


class Row(NamedTuple):
    """One line of the table: `ratio` of `subject` to `base`, and the target it has to stay below (None: for information)."""

    name: str
    base: str
    ratio: float
    target: float | None
    spread: tuple[float, float]  # quartiles over the rounds


def race(contestants: dict[str, tuple[Callable[[], Any], Callable[[], Any]]], steps: int, rounds: int, warm: int = 5) -> dict[str, list[float]]:
    """Time blocks of `steps` calls of every contestant `(step, finish)`; `finish` forces the results. Seconds per step, per round."""
    for step, finish in contestants.values():
        for _ in range(warm):
            step()
        finish()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:  # nobody always runs behind the same neighbour
            step, finish = contestants[name]
            time.sleep(PAUSE)
            step()
            finish()
            started = time.perf_counter()
            for _ in range(steps):
                step()
            finish()
            seconds[name].append((time.perf_counter() - started) / steps)
    return seconds


def row(name: str, seconds: dict[str, list[float]], subject: str, base: str, target: float | None) -> Row:
    ratios = sorted(a / b for a, b in zip(seconds[subject], seconds[base], strict=True))
    quarter = len(ratios) // 4
    return Row(name, base, statistics.median(ratios), target, (ratios[quarter], ratios[-1 - quarter]))


def report(rows: list[Row], path: Path | None, facts: dict[str, Any] | None = None) -> None:
    """Print the table; write it as JSON."""
    width = max(len(r.name) for r in rows)
    for r in rows:
        mark = "" if r.target is None else ("  ok" if r.ratio <= r.target else "  MISSED")
        target = "" if r.target is None else f" (target ≤ {r.target:g})"
        print(f"{r.name:<{width}}  {r.ratio:7.2f} × {r.base:<10} [{r.spread[0]:.2f}, {r.spread[1]:.2f}]{target}{mark}")
    if path is not None:
        path.write_text(json.dumps({"rows": [r._asdict() for r in rows], "facts": facts or {}}, indent=1) + "\n")
