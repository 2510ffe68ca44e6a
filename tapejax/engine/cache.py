"""Compiled programs by key: bounded, counted, and able to say why a lookup missed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tapejax import config


class Executable:
    """One compiled program: the jitted call and what its outputs mean."""

    __slots__ = ("call", "compile_seconds", "facts", "key", "used")

    def __init__(self, key: Any, call: Callable[..., Any], facts: dict[str, Any]) -> None:
        self.key = key
        self.call = call
        self.facts = facts  # what tracing found out (e.g. the residual tree)
        self.used = 0
        self.compile_seconds = 0.0


class Cache:
    """A dict with least-recently-used eviction. Lookups take no lock, insertions do."""

    def __init__(self) -> None:
        self.entries: dict[Any, Executable] = {}
        self.lock = threading.Lock()
        self.tick = 0
        self.compiled = 0  # programs compiled since the start: what tests count
        self.launches = 0

    def get(self, key: Any) -> Executable | None:
        found = self.entries.get(key)
        if found is not None:
            self.tick += 1
            found.used = self.tick
        return found

    def put(self, made: Executable) -> Executable:
        with self.lock:
            there = self.entries.setdefault(made.key, made)
            if there is made:
                self.compiled += 1
                while len(self.entries) > config.cache_size:
                    oldest = min((e for e in self.entries.values() if e is not made), key=lambda e: e.used)
                    del self.entries[oldest.key]
        return there

    def clear(self) -> None:
        with self.lock:
            self.entries.clear()


CACHE = Cache()


def announce(what: str, started: float) -> None:
    """Tell about a compile when TAPEJAX_DEBUG asks for it."""
    if config.debug:
        print(f"[tapejax] compiled {what} in {time.perf_counter() - started:.2f} s", file=sys.stderr)
