"""Layers, activations and losses as functions: what the op table exposes under `nn.functional`.

Names are looked up in the table when they are first used.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tapejax.dispatch import exposures


@cache
def _table() -> dict[str, Any]:
    return exposures().get("nn.functional", {})


def __getattr__(name: str) -> Any:
    found = _table().get(name)
    if found is None:
        raise AttributeError(f"module 'tapejax.nn.functional' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(n for n in {*_table(), *globals()} if not n.startswith("_"))
