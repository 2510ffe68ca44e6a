"""Random numbers: a generator is a seed and a counter, and both are leaves of the program that draws.

Replaying a program, retaining its graph or recomputing it sees the same numbers; the next draw sees others.
"""

from __future__ import annotations

import secrets
import threading
from typing import Any

import numpy as np

from tapejax.errors import refuse
from tapejax.tape.modes import TRANSFORMS

_WORD = (1 << 63) - 1


class Generator:
    """torch.Generator's interface over (seed, counter)."""

    def __init__(self, device: Any = "cpu") -> None:
        self.device = device
        self._seed = 67280421310721
        self._counter = 0
        self._lock = threading.Lock()

    def manual_seed(self, seed: int) -> Generator:
        if not isinstance(seed, (int, np.integer)):
            raise refuse(RuntimeError, "manual_seed", f"expected a long value, but got {type(seed).__name__} → pass an int")
        with self._lock:
            self._seed = int(seed) & _WORD
            self._counter = 0
        return self

    def initial_seed(self) -> int:
        return self._seed

    def seed(self) -> int:
        fresh = secrets.randbits(63)
        self.manual_seed(fresh)
        return fresh

    def draw(self) -> tuple[int, int]:
        """The next (seed, counter)."""
        for transform in TRANSFORMS.get():
            transform.before_draw()
        with self._lock:
            self._counter += 1
            return self._seed, self._counter

    def get_state(self) -> tuple[int, int]:
        return self._seed, self._counter

    def set_state(self, state: tuple[int, int]) -> Generator:
        with self._lock:
            self._seed, self._counter = int(state[0]), int(state[1])
        return self

    def __repr__(self) -> str:
        return f"<tapejax.Generator seed={self._seed} drawn={self._counter}>"


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Seed the default generator; the same seed gives the same stream."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seed the default generator from the operating system and return the seed."""
    return default_generator.seed()


def initial_seed() -> int:
    return default_generator.initial_seed()


def get_rng_state() -> tuple[int, int]:
    return default_generator.get_state()


def set_rng_state(state: tuple[int, int]) -> None:
    default_generator.set_state(state)
