"""Where in the user's code something happened: the innermost frame outside this package."""

from __future__ import annotations

import dis
import functools
import os
import sys
import sysconfig
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tapejax.tape import modes
from tapejax.tape.node import Node


class Line(NamedTuple):
    file: str
    number: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number}"


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_SITE = tuple({sysconfig.get_path(p) + os.sep for p in ("purelib", "platlib")})
#: Those who call code again and again without a loop of the user's: their loops are not the user's.
_RUNNERS = ("_pytest", "pluggy", "hypothesis", "xdist", "execnet", "IPython", "ipykernel", "tornado", "jax", "jaxlib", "torch", "typer", "click")


def _is_ours(frame: Any) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_PACKAGE) or (file == "<string>" and "_op" in frame.f_globals)  # generated callers


def user_frame(depth: int = 1) -> Any:
    """The innermost frame outside tapejax and JAX, None where there is none."""
    frame: Any = sys._getframe(depth)
    while frame is not None and (_is_ours(frame) or _is_runner(frame, ("jax", "jaxlib"))):
        frame = frame.f_back
    return frame


def user_line(depth: int = 2) -> Line | None:
    frame = user_frame(depth)
    return None if frame is None else Line(frame.f_code.co_filename, frame.f_lineno)


def _is_runner(frame: Any, names: tuple[str, ...] = _RUNNERS) -> bool:
    file = frame.f_code.co_filename
    for site in _SITE:
        if file.startswith(site):
            return file[len(site) :].split(os.sep, 1)[0].removesuffix(".py") in names
    return False


def in_a_loop(frame: Any) -> bool:
    """Whether `frame` or one of its callers is inside a loop: that of a test runner or the interpreter's own does not count."""
    while frame is not None:
        file = frame.f_code.co_filename
        library = file.startswith(_STDLIB) and not file.startswith(_SITE)
        if not (library or file.startswith("<frozen") or _is_ours(frame) or _is_runner(frame)) and _loops_at(frame.f_code, frame.f_lasti):
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(4096)
def _loops_at(code: Any, at: int) -> bool:
    """Whether a jump after instruction `at` leads back before it."""
    for i in dis.get_instructions(code):
        jumps = i.opcode in dis.hasjrel or i.opcode in dis.hasjabs
        if jumps and i.offset > at >= i.argval and "NO_INTERRUPT" not in i.opname:  # waiting for a coroutine is not a loop
            return True
    return False


#: The line that recorded each node, while compiles are being explained. Beside the nodes, so that explaining changes nothing on the tape.
LINES: WeakKeyDictionary[Node, Line] = WeakKeyDictionary()


def _note(node: Node, mode: int) -> None:
    if mode & modes.EXPLAIN:
        line = user_line(2)
        if line is not None:
            LINES[node] = line


modes.OBSERVERS.append(_note)
