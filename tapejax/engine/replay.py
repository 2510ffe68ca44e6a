"""A Program as a pure JAX function of its inputs: instructions one by one, loops as `lax.scan`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from tapejax.engine.loop import BATCHED, ONCE, SCANNED, Loop
from tapejax.engine.reroll import loops_of
from tapejax.tape.infer import apply
from tapejax.tape.node import VAR
from tapejax.tape.program import Program


@jax.custom_jvp
def tap(x: Any, probe: Any) -> Any:
    """`x`, with a derivative 1 in `probe`: how the gradient of an inner value is read off."""
    return x


def _tap_jvp(primals: Any, tangents: Any) -> Any:
    def total(x: Any, probe: Any) -> Any:
        if isinstance(x, SymbolicZero):
            return probe
        return x if isinstance(probe, SymbolicZero) else x + probe

    return primals[0], jax.tree.map(total, *tangents, is_leaf=lambda t: isinstance(t, SymbolicZero))


tap.defjvp(_tap_jvp, symbolic_zeros=True)  # a zero that was made an array would become a residual


class Entry:
    """One element of a packed vector, not read yet: a loop takes its entries as a slice of the vector."""

    __slots__ = ("index", "truth", "vector")

    def __init__(self, vector: Any, index: int, truth: bool = False) -> None:
        self.vector = vector
        self.index = index
        self.truth = truth  # a bool kept as an integer

    def read(self) -> Any:
        x = self.vector[self.index]
        return x != 0 if self.truth else x


class Row:
    """One row of a stacked array: the value of a node in a loop, not taken out until somebody wants it."""

    __slots__ = ("index", "stack")

    def __init__(self, stack: Any, index: int) -> None:
        self.stack = stack
        self.index = index

    def read(self) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(lambda x: x[self.index], self.stack)


def unpacked(arrays: Sequence[Any], layout: Sequence[tuple[int, int | None]]) -> tuple[Any, ...]:
    """Outputs from what `Replay.packed` returned."""
    return tuple(arrays[k] if r is None else Row(arrays[k], r) for k, r in layout)


def replay(
    program: Program, inputs: Sequence[Any], probes: Mapping[int, Any] | None = None, needed: Iterable[int] | None = None
) -> Callable[[int], Any]:
    """Run every instruction; return the function from slot to value.

    `probes`: slot -> array of the slot's shape; the slot's value passes through `tap` with it. `needed`: the slots that
    will be asked for; without it every slot may be, and nothing is run as a loop.
    """
    return Replay(program, inputs, probes or {}, needed).value


class Replay:
    """One replay: the values so far, and the loops' values by position in their bodies."""

    def __init__(self, program: Program, inputs: Sequence[Any], probes: Mapping[int, Any], needed: Iterable[int] | None) -> None:
        self.program = program
        self.inputs = list(inputs)
        self.results: list[Any] = [None] * len(program.instructions)
        self.probes = probes
        for s, probe in probes.items():
            if s < 0:
                self.inputs[-s - 1] = tap(self.value(s), probe)
        self.loops = [] if needed is None else _apart(loops_of(program), probes)
        self.done: list[Done] = []
        self._starts = np.array([x.start for x in self.loops], np.int64)
        self._stops = np.array([x.stop for x in self.loops], np.int64)
        if self.loops:
            assert needed is not None
            self._wanted = self._read_from_outside(needed)
            tracked = self._tracked()
        i = 0
        for n, loop in enumerate(self.loops):
            self._run(i, loop.start)
            self.done.append(Done(self, loop, self._wanted[n], frozenset(loop.constants() & tracked)))
            i = loop.stop
        self._run(i, len(program.instructions))

    def _run(self, start: int, stop: int) -> None:
        instructions, results = self.program.instructions, self.results
        for i in range(start, stop):
            kind, slots, fenced = instructions[i]
            if kind is VAR:
                value = self.value(slots[0])
            elif len(slots) >= MANY and _is_join(kind) and self.loops:
                value = self._join(kind, slots)
            elif kind.op.name == "pull":  # a program inside the program reads its entries itself
                value = apply(kind, [self.inputs[-s - 1] if s < 0 else self.value(s) for s in slots])
            else:
                value = apply(kind, [self.value(s) for s in slots])
            if fenced:
                value = jax.tree.map(jax.lax.stop_gradient, value)
            if i in self.probes:
                value = tap(value, self.probes[i])
            results[i] = value

    def packed(self, slots: Sequence[int]) -> tuple[tuple[Any, ...], tuple[tuple[int, int | None], ...] | None]:
        """The values of `slots`, those that lie in one stack as that stack; the layout says where each is (None: in order)."""
        groups: dict[tuple[int, int], list[int]] = {}
        if len(slots) >= MANY and self.loops:
            for s in slots:
                n = self._loop_at(s) if s >= 0 else None
                if n is not None:
                    position, r = self.loops[n].place(s)
                    if self.done[n].has_all(position):
                        groups.setdefault((n, position), []).append(r)
        groups = {k: v for k, v in groups.items() if len(v) >= MANY}
        if not groups:
            return tuple(self.value(s) for s in slots), None
        arrays: list[Any] = [self.done[n].take(position, rounds) for (n, position), rounds in groups.items()]
        where = {self.loops[n].slot(position, r): (k, i) for k, ((n, position), rounds) in enumerate(groups.items()) for i, r in enumerate(rounds)}
        layout: list[tuple[int, int | None]] = []
        for s in slots:
            if s in where:
                layout.append(where[s])
            else:
                layout.append((len(arrays), None))
                arrays.append(self.value(s))
        return tuple(arrays), tuple(layout)

    # -- values ---------------------------------------------------------------------------------------------------

    def value(self, s: int) -> Any:
        if s < 0:
            x = self.inputs[-s - 1]
            if x.__class__ is Entry:
                x = self.inputs[-s - 1] = x.read()
            return x
        x = self.results[s]
        if x is None:
            n = self._loop_at(s)
            assert n is not None
            x = self.results[s] = self.done[n].value(*self.loops[n].place(s))
        return x

    def _loop_at(self, s: int) -> int | None:
        n = int(np.searchsorted(self._starts, s, side="right")) - 1
        return n if n >= 0 and s < self._stops[n] else None

    def rows(self, slots: Sequence[int]) -> Any:
        """The values of many slots, stacked; what lies together is taken together."""
        parts: list[Any] = []
        i = 0
        while i < len(slots):
            part, i = self._together(slots, i)
            parts.append(part)
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)

    def _together(self, slots: Sequence[int], i: int) -> tuple[Any, int]:
        """The longest stretch of `slots` from `i` on that one slice gives, stacked, and its end."""
        s = slots[i]
        first = self.inputs[-s - 1] if s < 0 else None
        if first.__class__ is Entry:
            index = []
            for end in range(i, len(slots) + 1):
                x = self.inputs[-slots[end] - 1] if end < len(slots) and slots[end] < 0 else None
                if x.__class__ is not Entry or x.vector is not first.vector or x.truth is not first.truth:
                    break
                index.append(x.index)
            x = _take(first.vector, index)
            return (x != 0 if first.truth else x), end
        n = self._loop_at(s) if s >= 0 and self.loops else None
        if n is None:
            end = i + 1
            while end < len(slots) and (slots[end] < 0 or self._loop_at(slots[end]) is None):
                if slots[end] < 0 and self.inputs[-slots[end] - 1].__class__ is Entry:
                    break
                end += 1
            return jax.tree.map(lambda *xs: jnp.stack(xs), *[self.value(t) for t in slots[i:end]]), end
        loop = self.loops[n]
        position, r = loop.place(s)
        rounds = [r]
        end = i + 1
        while end < len(slots) and loop.start <= slots[end] < loop.stop and loop.place(slots[end])[0] == position:
            rounds.append(loop.place(slots[end])[1])
            end += 1
        if not self.done[n].has_all(position):
            return jax.tree.map(lambda *xs: jnp.stack(xs), *[self.value(t) for t in slots[i:end]]), end
        return self.done[n].take(position, rounds), end

    def _join(self, kind: Any, slots: Sequence[int]) -> Any:
        """`stack` or `cat` of many values, most of them a loop's."""
        joined = self.rows(slots)
        target = kind.casts[0]
        if target is not None:
            joined = joined.astype(target.np)
        dim = dict(zip(kind.op.statics, kind.statics, strict=True))["dim"]
        if kind.op.name == "stack":
            return jnp.moveaxis(joined, 0, dim)
        dim %= joined.ndim - 1
        joined = jnp.moveaxis(joined, 0, dim)
        shape = joined.shape
        return joined.reshape(*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])

    def _tracked(self) -> set[int]:
        """The slots whose value depends on one that has a probe."""
        found = set(self.probes)
        if found:
            for i, (kind, slots, fenced) in enumerate(self.program.instructions):
                if not fenced and not found.isdisjoint(slots) and (kind is VAR or kind.differentiable):
                    found.add(i)
        return found

    def _read_from_outside(self, needed: Iterable[int]) -> list[dict[int, list[int]]]:
        """Per loop: position -> the rounds (sorted) whose value is read by somebody else."""
        found: list[set[int]] = [set() for _ in self.loops]

        def read(s: int) -> None:
            if s >= 0:
                n = self._loop_at(s)
                if n is not None:
                    found[n].add(s)

        for s in needed:
            read(s)
        i = 0
        for loop in self.loops:
            for _, slots, _ in self.program.instructions[i : loop.start]:
                for s in slots:
                    read(s)
            for s in loop.reads():
                read(s)
            i = loop.stop
        for _, slots, _ in self.program.instructions[i:]:
            for s in slots:
                read(s)
        wanted: list[dict[int, list[int]]] = []
        for loop, chosen in zip(self.loops, found, strict=True):
            by_position: dict[int, list[int]] = {}
            for s in sorted(chosen):
                position, r = loop.place(s)
                by_position.setdefault(position, []).append(r)
            wanted.append(by_position)
        return wanted


MANY = 16


def _is_join(kind: Any) -> bool:
    """Whether all operands of a `stack` or `cat` are alike, so that it is a reshaped stack of rows."""
    return kind.op.name in ("stack", "cat") and len(set(kind.inputs)) == 1 and (kind.op.name == "stack" or kind.inputs[0].shape != (0,))


def _apart(loops: Sequence[Loop], probes: Mapping[int, Any]) -> list[Loop]:
    """Loops without the rounds that hold a probe: these are run one by one."""
    probed = sorted(s for s in probes if s >= 0)
    if not probed:
        return list(loops)
    found: list[Loop] = []
    for loop in loops:
        rounds = {loop.place(s)[1] for s in probed if loop.start <= s < loop.stop}
        found += loop.without(sorted(rounds)) if rounds else [loop]
    return found


class Done:
    """A loop that ran: its values, per position of the body."""

    def __init__(self, outer: Replay, loop: Loop, wanted: Mapping[int, Sequence[int]], tracked: frozenset[int]) -> None:
        self.loop = loop
        self.parts = loop.parts(tracked)
        self.once: dict[int, Any] = {}  # position -> the value of every round
        self.stacks: dict[int, Any] = {}  # position -> the values of all rounds, stacked
        self.last: dict[tuple[int, int], Any] = {}  # (position, rounds before the end) -> value
        self.columns: dict[int, Any] = {}
        self.outer = outer
        self._once()
        self._batched()
        self._scanned(wanted)
        self.columns = {}

    def _constant(self, source: tuple[Any, ...]) -> Any:
        return self.outer.value(source[1]) if source[0] == "constant" else self.once[source[1]]

    def _row(self, source: tuple[Any, ...]) -> Any:
        """All rounds of a row or of a batched value; None for what is the same in every round."""
        if source[0] == "row":
            n = source[1]
            if n not in self.columns:
                self.columns[n] = self.outer.rows(self.loop.columns[n])
            return self.columns[n]
        return self.stacks.get(source[1]) if source[0] == "body" else None

    def _once(self) -> None:
        part = self.parts[ONCE]
        if part.slot:
            at = replay(part.program, [self._constant(x) for x in part.inputs], None, part.slot.values())
            self.once = {j: at(s) for j, s in part.slot.items()}

    def _batched(self) -> None:
        part = self.parts[BATCHED]
        if not part.slot:
            return
        rows = {i: x for i, source in enumerate(part.inputs) if (x := self._row(source)) is not None}
        constants = {i: self._constant(source) for i, source in enumerate(part.inputs) if i not in rows}

        def body(rows: dict[int, Any]) -> dict[int, Any]:
            at = replay(part.program, [rows[i] if i in rows else constants[i] for i in range(len(part.inputs))], None, part.slot.values())
            return {j: at(s) for j, s in part.slot.items()}

        self.stacks = jax.vmap(body)(rows)

    def _scanned(self, wanted: Mapping[int, Sequence[int]]) -> None:
        loop = self.loop
        part = self.parts[SCANNED]
        if not part.slot:
            return
        registers = list(loop.registers)
        holding = {x.position: n for n, x in enumerate(registers)}
        stacked: list[int] = []
        for j, rounds in wanted.items():
            if j not in part.slot:
                continue
            reach = loop.rounds - rounds[0]
            n = holding.get(j)
            if n is not None and reach <= len(registers[n].start):
                continue
            if n is None and reach == 1 and _is_plain(loop.aval_of(j)):
                holding[j] = len(registers)
                registers.append(_Empty(j))  # type: ignore[arg-type]
            else:
                stacked.append(j)
        rows: dict[int, Any] = {}
        constants: dict[int, Any] = {}
        for i, source in enumerate(part.inputs):
            if source[0] != "register":
                x = self._row(source)
                if x is None:
                    constants[i] = self._constant(source)
                else:
                    rows[i] = x
        late = {x.position: self.stacks[x.position] for x in registers if x.position in self.stacks}
        asked = sorted({part.slot[x.position] for x in registers if x.position in part.slot} | {part.slot[j] for j in stacked})

        def body(carry: Any, rows: Any) -> Any:
            rows, late = rows

            def given(i: int, source: tuple[Any, ...]) -> Any:
                return carry[source[1]][source[2]] if source[0] == "register" else rows[i] if i in rows else constants[i]

            at = replay(part.program, [given(i, source) for i, source in enumerate(part.inputs)], None, asked)

            def now(j: int) -> Any:
                return at(part.slot[j]) if j in part.slot else late[j] if j in late else self.once[j]

            following = [(now(x.position), *old[:-1]) for x, old in zip(registers, carry, strict=True)]
            return following, [at(part.slot[j]) for j in stacked]

        start = [tuple(self._initial(x.position, s) for s in x.start) for x in registers]
        end, stacks = jax.lax.scan(body, start, (rows, late), length=loop.rounds)
        self.stacks.update(zip(stacked, stacks, strict=True))
        for x, values in zip(registers, end, strict=True):
            for age, v in enumerate(values):
                self.last[(x.position, age)] = v

    def _initial(self, position: int, slot: int | None) -> Any:
        if slot is not None:
            return self.outer.value(slot)
        aval = self.loop.aval_of(position)
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype.np), aval, is_leaf=lambda a: hasattr(a, "shape"))

    # -- reading --------------------------------------------------------------------------------------------------

    def has_all(self, position: int) -> bool:
        return position in self.stacks

    def value(self, position: int, r: int) -> Any:
        if position in self.once:
            return self.once[position]
        found = self.last.get((position, self.loop.rounds - 1 - r))
        return jax.tree.map(lambda x: x[r], self.stacks[position]) if found is None else found

    def take(self, position: int, rounds: Sequence[int]) -> Any:
        return jax.tree.map(lambda x: _take(x, rounds), self.stacks[position])


class _Empty:
    """A register that nobody reads inside the loop: only what it holds at the end counts."""

    start = (None,)

    def __init__(self, position: int) -> None:
        self.position = position


def _is_plain(aval: Any) -> bool:
    avals = aval if isinstance(aval, tuple) else (aval,)
    return all(hasattr(a.dtype, "np") for a in avals)


def _take(x: Any, index: Sequence[int]) -> Any:
    """Entries of the first axis: a slice where they are evenly spaced."""
    if len(index) == 1:
        return x[index[0] : index[0] + 1]
    step = index[1] - index[0]
    if step > 0 and list(index) == list(range(index[0], index[-1] + 1, step)):
        whole = step == 1 and index[0] == 0 and len(index) == x.shape[0]
        return x if whole else jax.lax.slice_in_dim(x, index[0], index[-1] + 1, step)
    return x[np.asarray(index)]
