"""How tapejax refuses: torch's exception class and key phrase, then what to type instead."""

from __future__ import annotations


def refuse(kind: type[Exception], op: str, message: str) -> Exception:
    """Build (not raise) the exception `op(): message`, so that callers write `raise refuse(...)`."""
    return kind(f"{op}(): {message}")


class OutOfMemoryError(RuntimeError):
    """The device could not hold the arrays that a program needs."""


class CompileError(RuntimeError):
    """XLA refused a program; the text names the recorded operations, not XLA's internals."""
