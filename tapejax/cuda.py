"""torch.cuda: what programs ask before they choose a device."""

from __future__ import annotations

from typing import Any

import jax

from tapejax.rng import manual_seed, seed


def _devices() -> list[Any]:
    try:
        return jax.devices("gpu")
    except RuntimeError:  # JAX has no such backend here
        return []


def is_available() -> bool:
    """Whether a GPU can be used."""
    return bool(_devices())


def device_count() -> int:
    """How many GPUs there are."""
    return len(_devices())


def current_device() -> int:
    """The number of the GPU that "cuda" means."""
    return 0


def get_device_name(device: Any = None) -> str:
    """The name of a GPU."""
    return str(_devices()[getattr(device, "index", device) or 0].device_kind)


def synchronize(device: Any = None) -> None:
    """Wait until the GPU has done what was launched so far."""
    for d in _devices():
        jax.device_put(0, d).block_until_ready()


def manual_seed_all(value: int) -> None:
    """Seed the default generator (there is one for all devices)."""
    manual_seed(value)


def empty_cache() -> None:
    """Nothing to do: XLA's allocator keeps no cache of its own here."""


__all__ = [
    "current_device", "device_count", "empty_cache", "get_device_name", "is_available", "manual_seed", "manual_seed_all", "seed", "synchronize",
]  # fmt: skip
