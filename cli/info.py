"""`tapejax info`: what is installed, where programs run, what is cached."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import Annotated, Any

import jax
import jaxlib
import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from tapejax import config, dtypes
from tapejax.devices import of_aval, spelling
from tapejax.engine.cache import CACHE

from .table import console, put


def info(as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False) -> None:
    """Show versions, devices, element types and the program cache."""
    facts = gather()
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in (
        ("versions", "  ".join(f"{k} {v}" for k, v in facts["versions"].items())),
        ("devices", "  ".join(facts["devices"])),
        ("default device", facts["default_device"]),
        ("dtypes", " ".join(facts["dtypes"])),
        ("default dtype", facts["default_dtype"]),
        ("program cache", "{programs} of {limit} programs, {compiled} compiled, {launches} launches".format(**facts["cache"])),
        ("XLA disk cache", facts["disk_cache"] or "off (set TAPEJAX_CACHE_DIR to keep programs between runs)"),
    ):
        table.add_row(name, Text(value))
    put(table, console())


def gather() -> dict[str, Any]:
    """The same as data."""
    try:
        own = metadata.version("tapejax")
    except metadata.PackageNotFoundError:
        own = "not installed (running from the source folder)"
    return {
        "versions": {
            "tapejax": own,
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "devices": [f"{spelling(d)}:{d.id} ({d.device_kind})" for d in jax.devices()],
        "default_device": str(of_aval(None)),
        "dtypes": [d.name for d in dtypes.ALL],
        "default_dtype": dtypes.get_default_dtype().name,
        "cache": {
            "programs": len(CACHE.entries),
            "limit": config.cache_size,
            "compiled": CACHE.compiled,
            "launches": CACHE.launches,
        },
        "disk_cache": getattr(jax.config, "jax_compilation_cache_dir", None),
    }
