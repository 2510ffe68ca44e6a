"""The one exception that commands raise for what the user must change."""

from __future__ import annotations


class Unusable(Exception):
    """The target or its arguments cannot be used: shown as one line, exit code 2."""


def first_line(error: BaseException) -> str:
    """`TypeError: what it said`, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
