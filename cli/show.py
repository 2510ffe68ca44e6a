"""`tapejax show`: the program that a function records, as text or as a drawing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import numpy as np
import typer

from tapejax.debug import Shown, explain, program
from tapejax.func.tree import flatten
from tapejax.tensor import Tensor

from .errors import Unusable, first_line
from .inputs import random_input
from .targets import _examples, _function, _load

_Path = Optional[Path]  # noqa: UP045
_Texts = Optional[list[str]]  # noqa: UP045


def show(
    target: Annotated[str, typer.Argument(help="path.py:function or module:function")],
    input: Annotated[_Texts, typer.Option("--input", "-i", help="dtype[shape] or dtype[shape]@low:high; once per input")] = None,
    dot: Annotated[bool, typer.Option("--dot", help="Graphviz DOT instead of text")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="a drawing instead of text")] = False,
    output: Annotated[_Path, typer.Option("--output", "-o", help="write to this file [default: stdout]")] = None,
    lines: Annotated[bool, typer.Option("--lines/--no-lines", help="name the line that recorded each operation")] = True,
    seed: Annotated[int, typer.Option("--seed", help="of the random inputs")] = 0,
) -> None:
    """Show the program that a function records, loops as loops.

    Nothing is computed, unless the function itself asks for a value: then what follows is shown.
    """
    if dot and svg:
        raise Unusable("--dot and --svg are two drawings → choose one")
    found = shown(target, input or (), seed, lines)
    text = found.svg() if svg or (output is not None and output.suffix == ".svg") else found.dot() if dot else found.text
    if output is None:
        sys.stdout.write(text + "\n")
        return
    try:
        output.write_text(text + "\n")
    except OSError as e:
        raise Unusable(f"{output} cannot be written: {e.strerror}") from None


def shown(target: str, inputs: list[str] | tuple[str, ...], seed: int, lines: bool) -> Shown:
    place, _, name = target.rpartition(":")
    if not place:
        raise Unusable(f"{target} names no function → tapejax show {target}:function")
    module = _load(place)
    function = _function(module, place, name)
    given = tuple(random_input(i, np.random.default_rng([seed, n])) for n, i in enumerate(inputs)) or _examples(module, place, name)
    for x in given:
        if isinstance(x, Tensor):
            x.array()  # an input is where the program begins
    try:
        if lines:
            with explain(file=_Nowhere()):
                return _of(target, function(*given))
        return _of(target, function(*given))
    except Unusable:
        raise
    except Exception as e:
        takes = "" if given else " → give its inputs: --input 'float32[3,4]' for each"
        raise Unusable(f"{target} called with {len(given)} inputs raised {first_line(e)}{takes}") from None


def _of(target: str, result: object) -> Shown:
    tensors = [x for x in flatten(result)[0] if isinstance(x, Tensor)]
    if not tensors:
        raise Unusable(f"{target} returned {type(result).__name__} → it must return a Tensor, or several, in any nesting")
    return program(*tensors)


class _Nowhere:
    """Compiles that the function causes are not what is asked for."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass
