"""The recording mode of the running thread: one small integer, read once per recorded op.

Bit `GRAD` alone is the everyday case; any higher bit sends recording down the careful path.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from tapejax import config

GRAD = 1  # recorded nodes may require grad
INFERENCE = 2  # inference_mode: no versions, no views tracked
ANOMALY = 4  # remember the user's line of every node
FORWARD = 8  # a forward-mode level is open: tangents are recorded beside values
ALLOW_MUTATION = 16  # a saved value may be written before backward
SAVED_HOOKS = 32  # saved_tensors_hooks are active
EXPLAIN = 64  # compiles are explained: remember the user's line of every node; nothing else may depend on it

MODE: ContextVar[int] = ContextVar("tapejax_mode", default=GRAD | EXPLAIN if config.debug else GRAD)


def grad_enabled() -> bool:
    return MODE.get() & GRAD == GRAD


def switch(bit: int, on: bool) -> int:
    """Set or clear `bit`; return the mode before, to be restored with `MODE.set`."""
    before = MODE.get()
    MODE.set(before | bit if on else before & ~bit)
    return before


#: Called as `observe(node, mode)` after every node recorded while any bit above GRAD is set.
OBSERVERS: list[Callable[[Any, int], None]] = []

#: The function transforms that are running, outermost first: objects of autograd/batch.py and func/level.py.
TRANSFORMS: ContextVar[tuple[Any, ...]] = ContextVar("tapejax_transforms", default=())

#: Called as `check(tensor, value)` before a value is written into a tensor's storage while a transform runs.
WRITE_CHECKS: list[Callable[[Any, Any], None]] = []


def tracing() -> bool:
    """Whether a function is running on stand-ins for its arguments, so that nothing it records has a value yet."""
    return any(t.stands_in for t in TRANSFORMS.get())
