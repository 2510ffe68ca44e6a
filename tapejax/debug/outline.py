"""A program as nested steps and loops, with every name spelled: what the text, DOT and SVG forms are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapejax.engine.loop import BATCHED, ONCE, SCANNED, Loop
from tapejax.engine.reroll import loops_of
from tapejax.tape.node import VAR
from tapejax.tape.program import Program

LEVELS = {ONCE: "once", BATCHED: "all rounds at once", SCANNED: "round by round"}

Key = Any  # hashable name of a step, loop, port or input


@dataclass
class Operand:
    text: str
    key: Key


@dataclass
class Step:
    """One operation."""

    key: Key
    name: str
    op: str
    operands: list[Operand]
    statics: str
    result: str
    note: str  # `no gradient`, the user's line
    level: str = ""


@dataclass
class Port:
    """How a loop's body sees a value from outside, or one of an earlier round."""

    key: Key
    text: str
    feeds: list[Key]
    back: Key | None = None  # the step whose value of an earlier round it is


@dataclass
class Block:
    """A loop."""

    key: Key
    name: str
    rounds: int
    period: int
    ports: list[Port] = field(default_factory=list)
    parts: list[tuple[str, list[Any]]] = field(default_factory=list)


@dataclass
class Outline:
    inputs: list[tuple[Key, str, str]]  # key, name, type; equal neighbours stand together
    items: list[Any]
    outputs: list[Operand]
    program: Program


def outline(program: Program, outputs: Sequence[int] = (), line: Callable[[int], str] = lambda i: "") -> Outline:
    """`line(i)`: where instruction `i` was recorded, or ""."""
    inputs, key_of = _inputs(program)
    scope = _Scope(program, (), lambda s: Operand(f"%{s}" if s >= 0 else f"%a{-s - 1}", key_of[-s - 1] if s < 0 else None), line)
    items = list(scope.items())
    return Outline(inputs, items, [scope.operand(s) for s in outputs], program)


def _inputs(program: Program) -> tuple[list[tuple[Key, str, str]], list[Key]]:
    found: list[tuple[Key, str, str]] = []
    keys: list[Key] = []
    i, n = 0, len(program.inputs)
    while i < n:
        end = i + 1
        while end < n and program.inputs[end] is program.inputs[i]:
            end += 1
        if end - i < 4:
            end = i + 1
        key = ("input", i)
        what = _typed(program.inputs[i])
        found.append((key, f"%a{i}", what) if end == i + 1 else (key, f"%a{i} … %a{end - 1}", f"{end - i} × {what}"))
        keys += [key] * (end - i)
        i = end
    return found, keys


def _typed(aval: Any) -> str:
    if isinstance(aval, tuple):
        return "(" + ", ".join(map(_typed, aval)) + ")"
    return repr(aval).removesuffix("[]")


class _Scope:
    """A program at one depth: how its slots are called, and its steps and loops."""

    def __init__(self, program: Program, path: Key, outer: Callable[[int], Operand], line: Callable[[int], str], level: str = "") -> None:
        self.program = program
        self.path = path
        self.outer = outer  # slot -> its text, and its key unless it is a result in this scope
        self.line = line
        self.level = level
        self.loops = loops_of(program)

    def key(self, s: int) -> Key:
        for n, loop in enumerate(self.loops):
            if loop.start <= s < loop.stop:
                return (*self.path, self.level, "loop", n)
        return (*self.path, self.level, s)

    def operand(self, s: int) -> Operand:
        found = self.outer(s)
        return Operand(found.text, self.key(s) if s >= 0 else found.key)

    def items(self) -> Iterator[Any]:
        i = 0
        for n, loop in enumerate(self.loops):
            yield from (self.step(j) for j in range(i, loop.start))
            yield self.block(n, loop)
            i = loop.stop
        yield from (self.step(j) for j in range(i, len(self.program.instructions)))

    def step(self, i: int) -> Step:
        kind, slots, stop = self.program.instructions[i]
        operands = [self.operand(s) for s in slots]
        note = ", ".join(x for x in ("no gradient" if stop else "", self.line(i)) if x)
        name = self.outer(i).text
        if kind is VAR:
            return Step(self.key(i), name, "variable", operands, "", "", note, self.level)
        statics = ", ".join(f"{n}={_short(v)}" for n, v in zip(kind.op.statics, kind.statics, strict=True) if v is not None)
        return Step(self.key(i), name, kind.name, operands, statics, _typed(kind.aval), note, self.level)

    def block(self, n: int, loop: Loop) -> Block:
        key = self.key(loop.start)
        made = Block(key, f"{self.outer(loop.start).text} … {self.outer(loop.stop - 1).text}", loop.rounds, loop.period)
        dots = "." * (sum(x == "loop" for x in key))
        where: dict[int, Key] = {}  # position in the body -> the step or inner loop that gives it
        ports: dict[Any, Port] = {}

        def port(source: tuple[Any, ...]) -> Port:
            found = ports.get(source)
            if found is not None:
                return found
            what, at, *rest = source
            if what == "constant":
                o = self.operand(at)
                found = Port((*key, source), o.text, [o.key])
            elif what == "row":
                ends = [self.operand(s) for s in loop.columns[at]]
                found = Port((*key, source), f"each of {ends[0].text} … {ends[-1].text}", list(dict.fromkeys(o.key for o in ends)))
            else:
                register, age = loop.registers[at], rest[0]
                first = register.start[age] if age < len(register.start) else None
                back = "before" if age == 0 else f"{age + 1} rounds before"
                text = f"{dots}{register.position} {back}" + ("" if first is None else f" (first {self.operand(first).text})")
                found = Port((*key, source), text, [] if first is None else [self.operand(first).key], register.position)
            ports[source] = found
            made.ports.append(found)
            return found

        parts = loop.parts(frozenset())
        for level, title in LEVELS.items():
            part = parts[level]
            if not part.slot:
                continue
            position = {s: j for j, s in part.slot.items()}

            def outer(s: int, part: Any = part, position: Any = position) -> Operand:
                if s >= 0:
                    return Operand(f"{dots}{position[s]}", None)
                source = part.inputs[-s - 1]
                if source[0] == "body":
                    return Operand(f"{dots}{source[1]}", where.get(source[1]))
                found = port(source)
                return Operand(found.text, found.key)

            def line(s: int, position: Any = position) -> str:
                return self.line(loop.stop - loop.period + position[s])

            scope = _Scope(part.program, key, outer, line, title)
            made.parts.append((title, list(scope.items())))
            where.update((j, scope.key(s)) for s, j in position.items())
        for p in made.ports:
            if p.back is not None:
                p.back = where.get(p.back)
        return made


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 80 else text[:79] + "…"


__all__ = ["Block", "Operand", "Outline", "Port", "Step", "outline"]
