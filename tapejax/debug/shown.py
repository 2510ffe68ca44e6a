"""The pending or the last program, to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapejax.debug.dot import dot
from tapejax.debug.lines import LINES
from tapejax.debug.outline import outline
from tapejax.debug.svg import svg
from tapejax.debug.text import written
from tapejax.engine.cache import CACHE
from tapejax.errors import refuse
from tapejax.tape.node import ARGUMENT
from tapejax.tape.program import Linear, Program, in_order, pending
from tapejax.tensor import Tensor


class Shown:
    """A program to look at: printing gives its text, a notebook draws it. `dot()` and `svg()` return the drawing."""

    def __init__(self, program: Program, outputs: tuple[int, ...], line: Callable[[int], str]) -> None:
        self.program = program
        self._outline = outline(program, outputs, line)

    def __repr__(self) -> str:
        return written(self._outline)

    @property
    def text(self) -> str:
        return repr(self)

    def dot(self) -> str:
        """The program in Graphviz's DOT language."""
        return dot(self._outline)

    def svg(self) -> str:
        """The program drawn, as an SVG element."""
        return svg(self._outline)

    def _repr_svg_(self) -> str:
        return self.svg()


def program(*tensors: Any) -> Shown:
    """Return the program that would compute `tensors` now; where nothing is pending (or none is named), the last one that ran.

    Print it for its text, loops as loops; `.dot()` and `.svg()` draw it. Inside `explain()` each operation names the line
    that recorded it. Nothing is computed. RuntimeError if nothing is pending and no program has run.

    >>> import tapejax as tj
    >>> x = tj.ones(3)
    >>> print(tj.debug.program((x * 2).sin()))
    %a0: int64*
    %0: float32[3] = ones(size=(3,), dtype=tapejax.float32)
    %1: float32[3] = mul(%0, %a0)
    %2: float32[3] = sin(%1)
    return %2
    """
    nodes = []
    for t in tensors:
        if not isinstance(t, Tensor):
            raise refuse(TypeError, "program", f"expected Tensors, got {type(t).__name__} → pass the tensors whose program you want to see")
        nodes.append(t.node)
    waiting = [n for n in nodes if n.value is None and n.kind is not ARGUMENT]
    if waiting:
        linear = Linear(in_order(pending(waiting)))
        where = [LINES.get(n) for n in linear.order]
        outputs = tuple(linear.slot_of(n) for n in waiting)
        return Shown(linear.program(), outputs, lambda i: "" if where[i] is None else str(where[i]))
    last = max(list(CACHE.entries.values()), key=lambda e: e.used, default=None)
    if last is None:
        raise refuse(RuntimeError, "program", "nothing is pending and no program has run yet → pass a tensor that was not computed yet")
    return Shown(last.program, tuple(last.request[1]), lambda i: "")


__all__ = ["Shown", "program"]
