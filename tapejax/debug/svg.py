"""A program as a drawing: layers from inputs down to results, loops as boxes with their body inside.

The layout is the classical one for layered graphs (Sugiyama, Tagawa, Toda 1981): longest-path layers, edges split by dummy
points, order by barycentres, positions by averaging. A loop is laid out first and is then one large vertex of what is around it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from typing import Any

from tapejax.debug.outline import Block, Outline

_CHAR, _ROW, _PAD = 6.3, 14.0, 7.0  # width of a character, height of a row of text, padding: pixels
_GAP_X, _GAP_Y = 18.0, 34.0
_MOST = 400  # operations drawn; the rest is cut off

_STYLE = """
  text { font: 11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2933; }
  .small { font-size: 9.5px; fill: #61707f; }
  .op { fill: #ffffff; stroke: #8796a5; }
  .stopped { stroke-dasharray: 3 2; }
  .input { fill: #e6f0fa; stroke: #6b9bc7; }
  .port { fill: #f3eefb; stroke: #a48bc9; }
  .output { fill: #e7f5ea; stroke: #6fae7c; }
  .loop { fill: #7a5fa7; fill-opacity: 0.05; stroke: #a48bc9; stroke-width: 1.2; }
  .edge { fill: none; stroke: #8796a5; }
  .back { fill: none; stroke: #a48bc9; stroke-dasharray: 4 3; }
"""


class _Vertex:
    """A box of text lines, a loop, or a dummy point of a long edge; (x, y) is its middle at the top, in its box."""

    def __init__(self, key: Any, lines: Sequence[str] = (), style: str = "", inner: _Box | None = None) -> None:
        self.key = key
        self.lines = lines
        self.style = style
        self.inner = inner
        self.layer = 0
        self.x = self.y = 0.0
        if inner is not None:
            self.width, self.height = inner.width, inner.height
        elif lines:
            self.width = max(len(t) for t in lines) * _CHAR + 2 * _PAD
            self.height = len(lines) * _ROW + _PAD
        else:
            self.width, self.height = 2.0, 0.0


class _Box:
    """Vertices and edges of one level, laid out. `title`: rows of text above (a loop's)."""

    def __init__(self, title: str = "") -> None:
        self.title = title
        self.vertices: dict[Any, _Vertex] = {}
        self.edges: list[tuple[Any, Any, Any]] = []  # from, to, port inside `to` or None
        self.backs: list[tuple[Any, Any]] = []  # from a step to a port: values of earlier rounds
        self.paths: list[list[tuple[float, float]]] = []
        self.width = self.height = 0.0

    def add(self, v: _Vertex) -> None:
        self.vertices[v.key] = v

    def point(self, key: Any, port: Any = None) -> tuple[float, float]:
        """Where an edge ends: the top of the vertex, or of a port inside it."""
        v = self.vertices[key]
        if port is None or v.inner is None:
            return v.x, v.y
        x, y = v.inner.point(port)
        return v.x - v.width / 2 + x, v.y + y

    # -- layout ---------------------------------------------------------------------------------------------------

    def lay_out(self) -> None:
        edges = [(a, b, p) for a, b, p in dict.fromkeys(self.edges) if a in self.vertices and b in self.vertices]
        self._find_layers(edges)
        layers, chains = self._with_dummies(edges)
        self._order(layers, chains)
        self._place(layers, chains)
        margin = _PAD * 2 if self.title else 4.0
        left = min((v.x - v.width / 2 for row in layers for v in row), default=0.0)
        right = max((v.x + v.width / 2 for row in layers for v in row), default=0.0)
        lanes = 14.0 * len(self.backs) + (8.0 if self.backs else 0.0)
        self.inner_right = right - left + margin
        self.width = max(right - left + 2 * margin + lanes, len(self.title) * _CHAR + 2 * _PAD)
        y = margin + (6.0 if self.title else 0.0)
        for row in layers:
            for v in row:
                v.x += margin - left
                v.y = y
            y += max((v.height for v in row), default=0.0) + _GAP_Y
        self.height = y - _GAP_Y + margin + (_ROW if self.title else 0.0)
        for (_, b, port), chain in chains:
            start, *middle = chain[:-1]
            points = [(start.x, start.y + start.height)]
            for v in middle:  # a dummy point goes straight down through its layer
                points += [(v.x, v.y), (v.x, v.y + max(w.height for w in layers[v.layer]))]
            self.paths.append([*points, self.point(b, port)])

    def _find_layers(self, edges: list[Any]) -> None:
        into: dict[Any, list[Any]] = {}
        out: dict[Any, list[Any]] = {}
        for a, b, _ in edges:
            into.setdefault(b, []).append(a)
            out.setdefault(a, []).append(b)
        for key, v in self.vertices.items():  # recorded order is topological
            v.layer = max((self.vertices[a].layer + 1 for a in into.get(key, ())), default=0)
        for key, v in self.vertices.items():  # inputs go near to who reads them
            if key not in into and key in out and v.style == "input":
                v.layer = max(min(self.vertices[b].layer for b in out[key]) - 1, 0)

    def _with_dummies(self, edges: list[Any]) -> tuple[list[list[_Vertex]], list[Any]]:
        layers: list[list[_Vertex]] = [[] for _ in range(1 + max((v.layer for v in self.vertices.values()), default=0))]
        for v in self.vertices.values():
            layers[v.layer].append(v)
        chains: list[Any] = []
        shared: dict[Any, _Vertex] = {}  # edges from one vertex run together
        for a, b, port in edges:
            start, end = self.vertices[a], self.vertices[b]
            chain = [start]
            for layer in range(start.layer + 1, end.layer):
                dummy = shared.get((a, layer))
                if dummy is None:
                    dummy = shared[(a, layer)] = _Vertex(None)
                    dummy.layer = layer
                    layers[layer].append(dummy)
                chain.append(dummy)
            chains.append(((a, b, port), [*chain, end]))
        return layers, chains

    def _order(self, layers: list[list[_Vertex]], chains: list[Any]) -> None:
        up: dict[_Vertex, list[tuple[_Vertex, float]]] = {}  # neighbours, and where beside their middle the edge ends
        down: dict[_Vertex, list[tuple[_Vertex, float]]] = {}
        for (_, _, port), chain in chains:
            for a, b in itertools.pairwise(chain):
                beside = 0.0
                if b is chain[-1] and port is not None and b.inner is not None:
                    beside = b.inner.point(port)[0] - b.width / 2
                down.setdefault(a, []).append((b, beside))
                up.setdefault(b, []).append((a, -beside))
        for row in layers:
            self._spread(row)
        for sweep in range(8):
            for row in layers if sweep % 2 == 0 else reversed(layers):
                near = up if sweep % 2 == 0 else down
                row.sort(key=lambda v: _mean(near[v]) if v in near else v.x)
                self._spread(row)
        self.up, self.down = up, down

    def _spread(self, row: list[_Vertex]) -> None:
        x = 0.0
        for v in row:
            v.x = x + v.width / 2
            x += v.width + _GAP_X
        for v in row:
            v.x -= (x - _GAP_X) / 2

    def _place(self, layers: list[list[_Vertex]], chains: list[Any]) -> None:
        """Move every vertex towards the mean of its neighbours; neighbours in a row keep their order and distance."""
        for sweep in range(12):
            for row in layers if sweep % 2 == 0 else reversed(layers):
                wish = []
                for v in row:
                    near = (self.up if sweep % 2 == 0 else self.down).get(v) or (self.down if sweep % 2 == 0 else self.up).get(v, [])
                    wish.append(_mean(near) if near else v.x)
                right, left = list(wish), list(wish)
                for i in range(1, len(row)):
                    right[i] = max(right[i], right[i - 1] + (row[i - 1].width + row[i].width) / 2 + _GAP_X)
                for i in range(len(row) - 2, -1, -1):
                    left[i] = min(left[i], left[i + 1] - (row[i + 1].width + row[i].width) / 2 - _GAP_X)
                for v, a, b in zip(row, right, left, strict=True):
                    v.x = (a + b) / 2

    # -- drawing --------------------------------------------------------------------------------------------------

    def draw(self, x: float, y: float, out: list[str]) -> None:
        if self.title:
            out.append(f'<rect class="loop" x="{x:.1f}" y="{y:.1f}" width="{self.width:.1f}" height="{self.height:.1f}" rx="10"/>')
            out.append(f'<text x="{x + _PAD:.1f}" y="{y + self.height - _PAD:.1f}">{escape(self.title)}</text>')
        for path in self.paths:
            out.append(f'<path class="edge" d="{_curve([(x + a, y + b) for a, b in path])}" marker-end="url(#arrow)"/>')
        for n, (a, b) in enumerate(self.backs):
            if a in self.vertices and b in self.vertices:
                out.append(f'<path class="back" d="{self._back(self.vertices[a], self.vertices[b], n, x, y)}" marker-end="url(#arrow)"/>')
        for v in self.vertices.values():
            left, top = x + v.x - v.width / 2, y + v.y
            if v.inner is not None:
                v.inner.draw(left, top, out)
                continue
            radius = v.height / 2 if v.style in ("input", "port", "output") else 4
            out.append(
                f'<rect class="{v.style}" x="{left:.1f}" y="{top:.1f}" width="{v.width:.1f}" height="{v.height:.1f}" rx="{radius:.1f}"/>'
            )
            for i, t in enumerate(v.lines):
                small = ' class="small"' if i else ""
                at = top + _PAD / 2 + _ROW * i + 10.5
                out.append(f'<text{small} x="{x + v.x:.1f}" y="{at:.1f}" text-anchor="middle">{escape(t)}</text>')

    def _back(self, a: _Vertex, b: _Vertex, n: int, x: float, y: float) -> str:
        lane = x + self.inner_right + 14.0 * (n + 1)
        ax, ay = x + a.x, y + a.y + a.height
        bx, by = x + b.x, y + b.y
        low, high = ay + 9 + 3 * n, by - 9 - 3 * n
        return f"M{ax:.1f},{ay:.1f} V{low:.1f} H{lane:.1f} V{high:.1f} H{bx:.1f} V{by:.1f}"


def _mean(near: Sequence[tuple[_Vertex, float]]) -> float:
    return sum(w.x + beside for w, beside in near) / len(near)


def _curve(points: list[tuple[float, float]]) -> str:
    text = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (a, b), (c, d) in itertools.pairwise(points):
        if abs(a - c) < 0.5:
            text += f" L{c:.1f},{d:.1f}"
        else:
            bend = min(abs(d - b) * 0.6, 40.0)
            text += f" C{a:.1f},{b + bend:.1f} {c:.1f},{d - bend:.1f} {c:.1f},{d:.1f}"
    return text


def svg(found: Outline) -> str:
    """The drawing as one SVG element."""
    box = _Box()
    read = set(_read(found.items))
    for key, name, what in found.inputs:
        if key in read:
            box.add(_Vertex(key, (name, what), "input"))
    drawn = _fill(box, found.items, _MOST)
    for i, o in enumerate(found.outputs):
        if o.key in box.vertices:
            box.add(_Vertex(("output", i), (f"return {o.text}",), "output"))
            box.edges.append((o.key, ("output", i), None))
    box.lay_out()
    out: list[str] = []
    margin = 12.0
    box.draw(margin, margin, out)
    width, height = box.width + 2 * margin, box.height + 2 * margin
    if drawn >= _MOST:
        height += 2 * _ROW
        out.append(f'<text x="{margin}" y="{height - _ROW:.1f}">… and more operations, not drawn</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
    arrow = (
        '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,1 L7,4 L0,7 z" fill="#8796a5"/></marker>'
    )
    return "\n".join([head, f"<style>{_STYLE}</style>", f"<defs>{arrow}</defs>", '<rect width="100%" height="100%" fill="#ffffff"/>', *out, "</svg>"])


def _fill(box: _Box, items: Sequence[Any], room: int) -> int:
    """Put steps and loops into `box`; return how many operations were."""
    drawn = 0
    for x in items:
        if drawn >= room:
            break
        if isinstance(x, Block):
            inner = _Box(f"{x.rounds} rounds · {x.name}")
            for p in x.ports:
                inner.add(_Vertex(p.key, (p.text,), "port"))
                box.edges += [(k, x.key, p.key) for k in p.feeds]
            for _, steps in x.parts:
                drawn += _fill(inner, steps, room - drawn)
            inner.backs = [(p.back, p.key) for p in x.ports if p.back is not None]
            inner.lay_out()
            box.add(_Vertex(x.key, inner=inner))
        else:
            level = x.level if x.level != "round by round" else ""
            lines = [f"{x.name} {x.op}", *(t for t in (x.statics, x.result, level, x.note) if t)]
            box.add(_Vertex(x.key, [t if len(t) <= 44 else t[:43] + "…" for t in lines], "op stopped" if "no gradient" in x.note else "op"))
            box.edges += [(o.key, x.key, None) for o in x.operands]
            drawn += 1
    return drawn


def _read(items: Sequence[Any]) -> Any:
    for x in items:
        if isinstance(x, Block):
            for p in x.ports:
                yield from p.feeds
        else:
            for o in x.operands:
                yield o.key


__all__ = ["svg"]
