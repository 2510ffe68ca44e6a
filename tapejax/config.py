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

#: TAPEJAX_CACHE_BYTES: how many bytes compiled programs may take together (an estimate where JAX does not say).
cache_bytes: int = _number("TAPEJAX_CACHE_BYTES", 4 << 30)

#: TAPEJAX_CACHE_DIR: where JAX keeps compiled programs between processes; empty: nowhere, and JAX's settings stay as they are.
cache_dir: str = os.environ.get("TAPEJAX_CACHE_DIR", "")

#: TAPEJAX_RECOMPILE_LIMIT: how many programs of one kind a line in a loop may compile before it is warned about; 0: never warn.
recompile_limit: int = _number("TAPEJAX_RECOMPILE_LIMIT", 8)

#: TAPEJAX_SEGMENT_LIMIT: into pieces of how many equations a traced program is cut that has more than twice as many (a loop's body counted
#: once; an operation and its gradient make some four). 0: never cut.
segment_limit: int = _number("TAPEJAX_SEGMENT_LIMIT", 4000) or 1 << 62

#: TAPEJAX_GC_FULL: after the first long program, Python's collector looks at the whole heap after so many collections of younger
#: objects (Python: 10) or more, unless its threshold was changed already; 0: leave it. A long tape makes it look all the time, for nothing.
gc_full: int = _number("TAPEJAX_GC_FULL", 100)

#: How many shapes and statics are remembered per operation before they are forgotten together.
kinds_limit: int = 1 << 16

#: After how many further materialisations a value that is still pending is computed along with the next program.
patience: int = 16
