"""What an op's `samples` generator receives: a maker of reproducible random NumPy inputs."""

from __future__ import annotations

from typing import Any

import numpy as np


class Make:
    """`make(3, 4)` draws a float64 array; `make.ints(3, high=5)`, `make.bools(3)`, `make.complex(3)`, `make.spd(3)`.

    Samples are plain NumPy arrays and Python values: each test turns them into tensors of its own library.
    """

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, low: float = -2.0, high: float = 2.0, dtype: Any = np.float64) -> np.ndarray:
        return np.asarray(self.rng.uniform(low, high, shape)).astype(dtype)

    def away(self, *shape: int, gap: float = 0.1, high: float = 2.0) -> np.ndarray:
        """Values of either sign with magnitude in [gap, high]: away from a kink at 0."""
        sign = np.where(self.rng.random(shape) < 0.5, -1.0, 1.0)
        return np.asarray(self.rng.uniform(gap, high, shape) * sign)

    def distinct(self, *shape: int) -> np.ndarray:
        """Well separated values (no ties, so sorting and max are smooth nearby)."""
        n = int(np.prod(shape))
        return np.asarray((self.rng.permutation(n) - n / 2 + 0.25) * 0.37).reshape(shape)

    def complex(self, *shape: int) -> np.ndarray:
        return np.asarray(self.rng.uniform(-2, 2, shape) + 1j * self.rng.uniform(-2, 2, shape))

    def ints(self, *shape: int, low: int = 0, high: int = 3) -> np.ndarray:
        return np.asarray(self.rng.integers(low, high, shape))

    def bools(self, *shape: int) -> np.ndarray:
        return np.asarray(self.rng.random(shape) < 0.5)

    def spd(self, *batch_and_n: int) -> np.ndarray:
        """Symmetric positive definite matrices, well conditioned."""
        *batch, n = batch_and_n
        a = self.rng.uniform(-1, 1, (*batch, n, n))
        return np.asarray(a @ np.swapaxes(a, -1, -2) + n * np.eye(n))
