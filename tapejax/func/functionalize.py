"""functionalize: here every function is functional already, since a write is recorded as a new value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def functionalize(func: Callable[..., Any], *, remove: str = "mutations") -> Callable[..., Any]:
    """Return a function that behaves as `func`. (torch rewrites views and in-place operations; the tape never holds any.)"""
    if remove not in ("mutations", "mutations_and_views"):
        raise RuntimeError(
            f"functionalize(f, remove='mutations'): received invalid argument for remove={remove}. Valid options are: remove='mutations',"
            " remove='mutations_and_views'",
        )

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return run
