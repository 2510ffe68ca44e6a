"""The compile cache from outside: what is in it, emptying it, and keeping programs on disk between processes."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache

from tapejax import config
from tapejax.engine.cache import CACHE
from tapejax.tape.op import TABLE


class CacheInfo(NamedTuple):
    """What `cache_info` returns; see there."""

    entries: int
    limit: int
    bytes: int
    bytes_limit: int
    hits: int
    misses: int
    evicted: int
    launches: int
    seconds: float
    kinds: int
    directory: str | None


def cache_info() -> CacheInfo:
    """Return what the compile cache holds and has done since the process started.

    `entries` programs of at most `limit`, `bytes` of at most `bytes_limit` (an estimate; exact for the code on devices
    where JAX tells its size), `hits` and `misses` (compiles) of lookups, `evicted` programs, `launches` of programs,
    `seconds` spent compiling, `kinds`: remembered (operation, shapes, statics), `directory` of the persistent cache or None.

    >>> import tapejax as tj
    >>> info = tj.debug.cache_info()
    >>> info.entries <= info.limit and info.bytes <= info.bytes_limit
    True
    """
    kinds = sum(len(op.kinds) for op in TABLE.values())
    return CacheInfo(
        len(CACHE.entries), config.cache_size, CACHE.nbytes, config.cache_bytes, CACHE.hits, CACHE.compiled, CACHE.evicted, CACHE.launches,
        CACHE.seconds, kinds, getattr(jax.config, "jax_compilation_cache_dir", None),
    )  # fmt: skip


def clear_cache() -> None:
    """Forget every compiled program; what runs next compiles again (or comes from the persistent cache)."""
    CACHE.clear()


def set_cache_dir(path: Any) -> None:
    """Keep compiled programs in the folder `path` (made if it is not there), so that a later process starts warm; None: stop.

    This is JAX's persistent compilation cache, and holds for every program that JAX compiles in this process. Programs of
    any size and compile time are kept, since most of tapejax's are small. The same as TAPEJAX_CACHE_DIR. Importing tapejax
    without either changes nothing in JAX.
    """
    folder = None if path is None else os.path.abspath(os.fspath(path))
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", folder)
    if folder is not None:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX decides once, at its first compile, whether it has a cache


if config.cache_dir:
    set_cache_dir(config.cache_dir)
