"""Every setting in one place: environment variable, default, meaning."""

from __future__ import annotations

import os


def _number(name: str, default: int) -> int:
    raw = os.environ.get(name, "")
    return int(raw) if raw.isdigit() else default


#: TAPEJAX_DEBUG=1 prints every compile with its reason; 2 adds the program's text, 3 its HLO.
debug: int = _number("TAPEJAX_DEBUG", 0)

#: TAPEJAX_CACHE_SIZE: how many compiled programs are kept (the least recently used goes first).
cache_size: int = _number("TAPEJAX_CACHE_SIZE", 1024)

#: After how many further materialisations a value that is still pending is computed along with the next program.
patience: int = 16
