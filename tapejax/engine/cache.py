"""Compiled programs by key: bounded by count and by bytes, counted, and watched when they compile.

Why a lookup missed is told by `tapejax.debug`, which watches here; the engine itself only keeps what is needed to tell it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from tapejax import config
from tapejax.engine.collector import at_rest
from tapejax.engine.stages import Staged, staged
from tapejax.tape.program import Program

#: What XLA's host code and its bookkeeping take (measured: the resident set grows by 2 to 3 MB a program, little of it per instruction).
PROGRAM_BYTES, INSTRUCTION_BYTES = 2 << 20, 12 << 10


class Executable:
    """One compiled program: the jitted call, what its outputs mean, and what it was compiled for."""

    __slots__ = ("__weakref__", "call", "donate", "facts", "key", "nbytes", "number", "program", "request", "seconds", "specs", "used")

    def __init__(self, key: Any, call: Any, facts: dict[str, Any], program: Program, request: Any, donate: tuple[int, ...]) -> None:
        self.key = key
        self.call = call
        self.facts = facts  # what tracing found out (e.g. the residual tree)
        self.program = program
        self.request = request
        self.donate = donate
        self.nbytes = PROGRAM_BYTES + INSTRUCTION_BYTES * min(len(program.instructions), 1000)  # longer ones are mostly loops
        self.number = 0  # the how many-th compile it was
        self.used = 0
        self.seconds = 0.0  # tracing, compiling and the first launch
        self.specs: Any = None  # shapes and dtypes of the arguments it was first called with

    def compiled(self) -> list[Any]:
        """JAX's view of the executable (`as_text`, `memory_analysis`) or of those of its stages, for reading only. None of it inside another trace."""
        if self.specs is None:
            return []
        with jax.enable_x64(True):
            return self.call.compiled(self.specs) if isinstance(self.call, Staged) else [self.call.lower(*self.specs).compile()]


#: Called with (executable, linear) before a new program compiles; may raise: nothing has run yet.
BEFORE_COMPILE: list[Callable[[Executable, Any], None]] = []
#: Called with (executable, linear) after it compiled and ran for the first time; must not raise.
AFTER_COMPILE: list[Callable[[Executable, Any], None]] = []


class Cache:
    """A dict with least-recently-used eviction. Lookups take no lock, insertions do."""

    def __init__(self) -> None:
        self.entries: dict[Any, Executable] = {}
        self.lock = threading.Lock()
        self.tick = 0
        self.hits = 0
        self.compiled = 0  # programs compiled since the start: what tests count
        self.seconds = 0.0  # spent compiling
        self.launches = 0
        self.evicted = 0
        self.nbytes = 0
        self.gone: dict[int, int] = {}  # hash of an evicted key -> its number

    def get(self, key: Any) -> Executable | None:
        found = self.entries.get(key)
        if found is not None:
            self.hits += 1
            self.tick += 1
            found.used = self.tick
        return found

    def put(self, made: Executable) -> Executable:
        """Keep `made`, or what another thread kept under its key; make room for it."""
        with self.lock:
            there = self.entries.setdefault(made.key, made)
            if there is made:
                self.compiled += 1
                made.number = self.compiled
                self.tick += 1
                made.used = self.tick
                self.nbytes += made.nbytes
                self._trim(made)
        return there

    def weigh(self, made: Executable, nbytes: int) -> None:
        """Correct the bytes of an entry."""
        with self.lock:
            if self.entries.get(made.key) is made:
                self.nbytes += nbytes - made.nbytes
                made.nbytes = nbytes
                self._trim(made)

    def _trim(self, newest: Executable) -> None:
        while len(self.entries) > 1 and (len(self.entries) > config.cache_size or self.nbytes > config.cache_bytes):
            oldest = min((e for e in self.entries.values() if e is not newest), key=lambda e: e.used)
            del self.entries[oldest.key]
            self.nbytes -= oldest.nbytes
            self.evicted += 1
            if len(self.gone) >= 4096:
                del self.gone[next(iter(self.gone))]
            self.gone[hash(oldest.key)] = oldest.number

    def clear(self) -> None:
        with self.lock:
            self.entries.clear()
            self.gone.clear()
            self.nbytes = 0


CACHE = Cache()


def first_call(made: Executable, linear: Any) -> Callable[..., Any]:
    """The call that compiles: timed, weighed and told to those who watch."""

    def call(*args: Any) -> Any:
        made.specs = _specs(args)
        started = time.perf_counter()
        with at_rest(len(linear.order)):
            if made.specs is not None:
                made.call = staged(made.call, args) or made.call  # in stages, if it has long loops
            result = made.call(*args)
        made.seconds = time.perf_counter() - started
        CACHE.seconds += made.seconds
        if made.specs is not None and jax.default_backend() != "cpu" and not isinstance(made.call, Staged):  # there the code's size is known
            stats = made.compiled()[0].memory_analysis()
            if stats is not None:
                CACHE.weigh(made, made.nbytes + stats.generated_code_size_in_bytes)
        for watch in AFTER_COMPILE:
            watch(made, linear)
        return result

    return call


def _specs(args: Any) -> Any:
    def spec(x: Any) -> Any:
        sharding = getattr(x, "sharding", None)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) if sharding is not None else jax.ShapeDtypeStruct(x.shape, x.dtype)

    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(args)):
        return None
    return jax.tree.map(spec, args)
