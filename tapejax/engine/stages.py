"""A traced program in stages: long loops apart, so that they are compiled once for all lengths, and what is too long for one piece cut.

The program is a list of equations (a jaxpr: forward and backward, whatever was asked for). Its long loops, which are `scan` equations,
run as rolls; what lies between them, and between cuts, as stretches: see `parts`. A cut is made where few bytes cross it, no loop has one
inside, and between two launches a program holds what a later one reads: residuals until their backward has run.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from tapejax import config
from tapejax.engine.parts import Body, Name, Part, body_of, inside, stretch


class Stage(NamedTuple):
    """One launch: what it reads and writes, and what nobody reads after it, by place in the table of values."""

    part: Part
    arguments: Callable[[list[Any]], Sequence[Any]]  # what the part is called with, from the values read
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    last: tuple[int, ...]


class Staged:
    """A program as stages, called like the `whole` it was made of."""

    def __init__(self, whole: Any, constants: dict[int, Any], plan: _Plan, tree: Any) -> None:
        self.whole = whole
        self.stages = plan.stages
        self.loops = plan.loops
        self.known = sum(s.part.ready for s in plan.stages)  # how many stages were compiled before
        self._constants = constants
        self._results = plan.results  # per result its place, or a Literal
        self._tree = tree

    def __call__(self, *args: Any) -> Any:
        flat = jax.tree.leaves(args)
        for x in flat:
            if isinstance(x, jax.core.Tracer):  # inside a transform of the user's it must be one differentiable function
                return self.whole(*args)
        table = dict(enumerate(flat))
        del flat
        table.update(self._constants)
        for part, arguments, reads, writes, last in self.stages:
            made = part.call(*arguments([table[i] for i in reads]))
            for i in last:
                del table[i]
            table.update(zip(writes, jax.tree.leaves(made), strict=True))
        return jax.tree.unflatten(self._tree, [x.val if isinstance(x, Literal) else table[x] for x in self._results])

    def prepare(self, args: Any) -> None:
        """Compile the stages that are not there yet side by side; called one by one they would compile one after the other."""
        lowered = self._lowered(args, lambda part: not part.ready)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda x: x.compile(), lowered.values()))
        for part in lowered:
            part.ready = True

    def compiled(self, args: Any) -> list[Any]:
        """JAX's view of the stages' executables, for reading only."""
        return [x.compile() for x in self._lowered(args, lambda part: True).values()]

    def _lowered(self, args: Any, chosen: Callable[[Part], bool]) -> dict[Part, Any]:
        """The chosen stages, lowered for such arguments."""
        table = dict(enumerate(jax.tree.leaves(args)))
        table.update(self._constants)
        lowered: dict[Part, Any] = {}
        for part, arguments, reads, writes, _ in self.stages:
            given = arguments([table[i] for i in reads])
            if part not in lowered and chosen(part):
                lowered[part] = part.call.lower(*given)
            made = lowered[part].out_info if part in lowered else jax.eval_shape(part.call, *given)
            table.update(zip(writes, jax.tree.leaves(made), strict=True))
        return lowered


def staged(whole: Any, args: Any) -> Staged | None:
    """`whole` (a jitted function) in stages for such arguments; None where one piece will do."""
    traced = whole.trace(*args)
    jaxpr = inside(traced.jaxpr)
    eqns = _live(jaxpr)
    bodies = [body_of(e) for e in eqns]
    loops = {i: b for i, b in enumerate(bodies) if b is not None and b.is_shared()}
    cuts = _cuts(eqns, loops)
    if not (loops or cuts):
        return None
    plan = _Plan(jaxpr, eqns, loops, cuts, _platform(args))
    constants = {plan.place[(v, None)]: x for v, x in zip(jaxpr.constvars, traced.jaxpr.consts, strict=True)}
    made = Staged(whole, constants, plan, jax.tree.structure(traced.out_info))
    if not any(isinstance(x, jax.Array) and x.committed for x in jax.tree.leaves(args)):  # else the calls compile: where, the arguments say
        made.prepare(args)
    return made


def _platform(args: Any) -> str:
    for x in jax.tree.leaves(args):
        if isinstance(x, jax.Array):
            return next(iter(x.devices())).platform
    return jax.default_backend()


def _live(jaxpr: Any) -> list[Any]:
    """The equations that an output depends on."""
    wanted = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    found = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not wanted.isdisjoint(eqn.outvars):
            found.append(eqn)
            wanted.update(_variables(eqn.invars))
    return found[::-1]


def _variables(atoms: Any) -> list[Any]:
    return list(dict.fromkeys(v for v in atoms if not isinstance(v, Literal)))


# -- where to cut ------------------------------------------------------------------------------------------------------


def weight(jaxpr: Any) -> int:
    """How many equations XLA gets to see: those inside others counted, those of a loop's body once."""
    return sum(_weight(e) for e in inside(jaxpr).eqns)


def _weight(eqn: Any) -> int:
    inner = [x for v in eqn.params.values() for x in (v if isinstance(v, (tuple, list)) else (v,)) if hasattr(x, "eqns") or hasattr(x, "jaxpr")]
    return sum(weight(x) for x in inner) or 1


def _cuts(eqns: Sequence[Any], loops: dict[int, Body]) -> list[int]:
    """The equations before which to cut a program of twice the limit, so that no stretch weighs more than that (if no equation does).

    A stretch ends in the second half of what it may weigh, at the last of the places where the fewest bytes cross: pieces that are equal
    are cut alike.
    """
    limit = config.segment_limit
    weights = [0 if i in loops else _weight(e) for i, e in enumerate(eqns)]
    if sum(weights) <= 2 * limit:
        return []
    edges = [-1, *loops, len(eqns)]
    crossing = _crossing(eqns)
    found = []
    for low, high in itertools.pairwise(edges):
        first, left = low + 1, sum(weights[low + 1 : high])
        while left > limit:
            best = at = first
            size = 0
            while at < high and (at == first or size + weights[at] <= limit):
                size += weights[at]
                at += 1
                if best == first or 2 * size <= limit or crossing[at] <= crossing[best]:
                    best = at
            if best >= high:
                break
            found.append(best)
            left -= sum(weights[first:best])
            first = best
    return found


def _crossing(eqns: Sequence[Any]) -> list[int]:
    """Per place the bytes that are computed before it and read at it or later."""
    last: dict[Any, int] = {}
    for i, eqn in enumerate(eqns):
        last.update(dict.fromkeys(_variables(eqn.invars), i))
    steps = np.zeros(len(eqns) + 2, np.int64)
    for i, eqn in enumerate(eqns):
        for v in eqn.outvars:
            end = last.get(v, i)
            size = v.aval.size * v.aval.dtype.itemsize + 1
            steps[i + 1] += size
            steps[end + 1] -= size
    return np.cumsum(steps).tolist()


# -- the plan ----------------------------------------------------------------------------------------------------------


class _Plan:
    """The stages in order. Every variable has a native form: filled up if a roll stacked it. Who needs the other form has it made just before."""

    def __init__(self, jaxpr: Any, eqns: Sequence[Any], loops: dict[int, Body], cuts: Sequence[int], platform: str) -> None:
        self.stages: list[Stage] = []
        self.place: dict[Name, int] = {}
        self.loops = len(loops)
        self._native: dict[Any, int | None] = {}
        self._platform = platform
        self._last = {v: len(eqns) for v in _variables(jaxpr.outvars)}  # variable -> the last equation that reads it
        for i, eqn in reversed(list(enumerate(eqns))):
            for v in _variables(eqn.invars):
                self._last.setdefault(v, i)
        for v in (*jaxpr.invars, *jaxpr.constvars):
            self._put((v, None))
        begin = 0
        for at in sorted({*loops, *cuts, len(eqns)}):
            body = loops.get(at)
            needs = _needs(body) if body is not None else [(v, None) for v in _variables(jaxpr.outvars)] if at == len(eqns) else []
            self._between(eqns[begin:at], needs, at)
            if body is not None:
                self._loop(body, at + 1)
            begin = at + (body is not None)
        self.results = [v if isinstance(v, Literal) else self.place[(v, None)] for v in jaxpr.outvars]
        self._forget()

    def _put(self, name: Name) -> int:
        v, room = name
        self._native.setdefault(v, room)
        place = self.place[name] = len(self.place)
        return place

    def _needed(self, v: Any, after: int) -> bool:
        """Whether equation `after` or a later one reads `v`, or the program returns it."""
        return self._last.get(v, -1) >= after

    def _between(self, eqns: Sequence[Any], needs: Sequence[Name], after: int) -> None:
        """The stage of `eqns`, which also brings what comes after it into the form that `needs` says."""
        own = dict.fromkeys(v for e in eqns for v in e.outvars)
        converted = [n for n in needs if n not in self.place and (n[0] not in own or n[1] is not None)]
        outside = [v for v in _variables([*(v for e in eqns for v in e.invars), *(v for v, _ in converted)]) if v not in own]
        writes: list[Name] = [(v, None) for v in own if self._needed(v, after)]
        writes += converted
        if not writes:
            return
        reads = [(v, self._native[v]) for v in outside]
        places = tuple(self.place[n] for n in reads)
        self.stages.append(Stage(stretch(eqns, reads, writes), list, places, tuple(map(self._put, writes)), ()))

    def _loop(self, body: Body, after: int) -> None:
        eqn, constants, carry = body.eqn, body.constants, body.carry
        returned = tuple(i for i, v in enumerate(eqn.outvars) if i >= carry and self._needed(v, after))
        given = {i: v.val for i, v in enumerate(eqn.invars) if isinstance(v, Literal)}
        plain = constants + carry
        rounds = np.int64(body.rounds)

        def arguments(values: list[Any]) -> Sequence[Any]:
            if given:
                rest = iter(values)
                values = [given[i] if i in given else next(rest) for i in range(len(eqn.invars))]
            return rounds, values[:constants], values[constants:plain], values[plain:]

        names = [(v, None if i < plain else body.capacity) for i, v in enumerate(eqn.invars) if i not in given]
        ends = [self._put((v, None)) for v in eqn.outvars[:carry]]
        stacks = [self._put((eqn.outvars[i], body.capacity)) for i in returned]
        roll = body.roll(returned, self._platform)
        self.stages.append(Stage(roll, arguments, tuple(self.place[n] for n in names), (*ends, *stacks), ()))

    def _forget(self) -> None:
        """Mark in every stage what nobody reads after it."""
        wanted = {x for x in self.results if not isinstance(x, Literal)}
        done: list[Stage] = []
        for stage in reversed(self.stages):
            done.append(stage._replace(last=tuple({*stage.reads} - wanted)))
            wanted.update(stage.reads)
        self.stages = done[::-1]


def _needs(body: Body) -> list[Name]:
    """What a loop reads: its rows filled up to the capacity of its roll."""
    plain, atoms = body.constants + body.carry, body.eqn.invars
    return [*((v, None) for v in _variables(atoms[:plain])), *((v, body.capacity) for v in _variables(atoms[plain:]))]
