"""A program as text: one line per operation, loops as indented bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tapejax.debug.outline import Block, Outline, outline
from tapejax.tape.program import Program

_MANY = 12  # operands written out


def program_text(program: Program, outputs: Sequence[int] = (), line: Callable[[int], str] = lambda i: "") -> str:
    """`%3: float32[4,8] = tanh(%2)` per operation; inputs are `%a0, %a1, …` (`*` marks a Python number).

    In a loop `.3` is what operation 3 of its body gives, and `.3 before` what it gave a round earlier.
    """
    return written(outline(program, outputs, line))


def written(found: Outline) -> str:
    lines = [f"{name}: {what}" for _, name, what in found.inputs]
    lines += _items(found.items, "")
    if found.outputs:
        lines.append("return " + ", ".join(o.text for o in found.outputs))
    return "\n".join(lines)


def _items(items: Iterable[Any], indent: str) -> Iterator[str]:
    for x in items:
        if isinstance(x, Block):
            yield f"{indent}{x.name}: loop of {x.rounds} rounds over {x.period} operations"
            for title, inner in x.parts:
                yield f"{indent}  {title}"
                yield from _items(inner, indent + "    ")
        else:
            names = [o.text for o in x.operands]
            if len(names) > _MANY:
                names = [*names[:3], f"… {names[-1]} ({len(names)} values)"]
            arguments = ", ".join([*names, *([x.statics] if x.statics else ())])
            result = f": {x.result}" if x.result else ""
            note = f"  # {x.note}" if x.note else ""
            yield f"{indent}{x.name}{result} = {x.op}({arguments}){note}"
