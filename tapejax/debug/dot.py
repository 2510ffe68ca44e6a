"""A program in Graphviz's DOT language, loops as clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tapejax.debug.outline import Block, Outline


def dot(found: Outline) -> str:
    ids: dict[Any, str] = {}

    def name(key: Any) -> str:
        return ids.setdefault(key, f"n{len(ids)}")

    lines = ["digraph program {", '  node [fontname="Helvetica", fontsize=11, shape=box, style="rounded"];', "  compound=true;"]
    read = {o for x in _all(found.items) for o in x}
    for key, what, aval in found.inputs:
        if key in read:
            lines.append(f'  {name(key)} [label="{_quoted(what)}\\n{_quoted(aval)}", shape=ellipse];')
    edges: list[str] = []
    lines += _items(found.items, "  ", name, edges)
    for i, o in enumerate(found.outputs):
        lines.append(f'  out{i} [label="return {_quoted(o.text)}", shape=plaintext];')
        edges.append(f"  {name(o.key)} -> out{i};")
    return "\n".join([*lines, *edges, "}"])


def _items(items: Iterable[Any], indent: str, name: Any, edges: list[str]) -> Iterator[str]:
    for x in items:
        if isinstance(x, Block):
            yield f"{indent}subgraph cluster_{name(x.key)} {{"
            yield f'{indent}  label="{_quoted(x.name)}: {x.rounds} rounds"; style="rounded"; fontname="Helvetica"; fontsize=11;'
            for p in x.ports:
                yield f'{indent}  {name(p.key)} [label="{_quoted(p.text)}", shape=ellipse, fontsize=10];'
                edges += [f"  {name(k)} -> {name(p.key)};" for k in p.feeds]
                if p.back is not None:
                    edges.append(f"  {name(p.back)} -> {name(p.key)} [style=dashed, constraint=false];")
            for _, inner in x.parts:
                yield from _items(inner, indent + "  ", name, edges)
            yield f'{indent}  {name(x.key)} [label="{_quoted(x.name)}", shape=plaintext, fontsize=10];'
            yield f"{indent}}}"
            last = next((y for _, inner in reversed(x.parts) for y in reversed(inner)), None)
            if last is not None:
                edges.append(f"  {name(last.key)} -> {name(x.key)} [style=dotted, arrowhead=none];")
        else:
            label = "\\n".join(_quoted(t) for t in (f"{x.name} {x.op}", x.statics, x.result, x.note) if t)
            yield f'{indent}{name(x.key)} [label="{label}"];'
            edges += [f"  {name(o.key)} -> {name(x.key)};" for o in x.operands]


def _all(items: Iterable[Any]) -> Iterator[list[Any]]:
    for x in items:
        if isinstance(x, Block):
            for p in x.ports:
                yield p.feeds
            for _, inner in x.parts:
                yield from _all(inner)
        else:
            yield [o.key for o in x.operands]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


__all__ = ["dot"]
