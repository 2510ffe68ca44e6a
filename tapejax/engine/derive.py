"""What is asked of a program: its values, its gradients, its values with residuals. All pure functions.

Complex gradients follow torch's convention (the conjugate of what `jax.vjp` gives): seeds and results are conjugated here
and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tapejax.engine.replay import Replay, replay
from tapejax.tape.aval import Aval
from tapejax.tape.program import Program


class Pull(NamedTuple):
    """The request for gradients: of which slots, from which seeds, and what to add them to. Part of a key.

    `seeds`: per root the slot of its seed, or None for ones. `into`: per wanted slot the slot of a value that the
    gradient is added to, or None.
    """

    roots: tuple[int, ...]
    seeds: tuple[int | None, ...]
    wanted: tuple[int, ...]
    into: tuple[int | None, ...]


class Residuals:
    """How a pullback is rebuilt from residual arrays. One per executable, compared by identity."""

    __slots__ = ("count", "tree", "wanted")

    def __init__(self, tree: Any, count: int, wanted: tuple[int, ...]) -> None:
        self.tree = tree
        self.count = count
        self.wanted = wanted


def conj(x: Any) -> Any:
    return jnp.conj(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x


def probes_for(program: Program, wanted: Sequence[int]) -> dict[int, Any]:
    def aval(s: int) -> Aval:
        return program.inputs[-s - 1] if s < 0 else _result_aval(program, s)

    return {s: jnp.zeros(aval(s).shape, aval(s).dtype.np) for s in wanted}


def _result_aval(program: Program, s: int) -> Aval:
    kind, slots, _ = program.instructions[s]
    while isinstance(kind, str):  # a variable has the aval of what it reads
        if slots[0] < 0:
            return program.inputs[-slots[0] - 1]
        kind, slots, _ = program.instructions[slots[0]]
    return kind.aval


def values(program: Program, outputs: Sequence[int], inputs: Sequence[Any], found: dict[str, Any]) -> tuple[Any, ...]:
    """Values of `outputs`, packed: `found["layout"]` says how (see `Replay.packed`)."""
    keep, found["layout"] = Replay(program, inputs, {}, outputs).packed(outputs)
    return keep


def values_and_pull(program: Program, outputs: Sequence[int], pull: Pull, inputs: Sequence[Any], found: dict[str, Any]) -> tuple[Any, ...]:
    """`(values of outputs, packed, gradients)` from one forward: the everyday backward."""

    def run(probes: dict[int, Any]) -> Any:
        done = Replay(program, inputs, probes, {s for s in (*outputs, *pull.roots, *pull.into, *pull.seeds) if s is not None})
        at = done.value
        keep, found["layout"] = done.packed(outputs)
        adds = tuple(None if s is None else at(s) for s in pull.into)
        seeds = tuple(None if s is None else at(s) for s in pull.seeds)
        return tuple(at(s) for s in pull.roots), (keep, adds, seeds)

    roots, pullback, (keep, adds, seeds) = jax.vjp(run, probes_for(program, pull.wanted), has_aux=True)
    cotangents = tuple(jnp.ones_like(r) if s is None else conj(s) for r, s in zip(roots, seeds, strict=True))
    (by_slot,) = pullback(cotangents)
    grads = tuple(conj(by_slot[s]) for s in pull.wanted)
    return keep, tuple(g if a is None else a + g for g, a in zip(grads, adds, strict=True))


def pull_function(program: Program, roots: tuple[int, ...], wanted: tuple[int, ...], inputs: Any, seeds: Any, batched: bool) -> tuple[Any, ...]:
    """Gradients of `roots` at `wanted` for given seeds (with a leading batch axis when `batched`), as a pure function."""

    def run(probes: dict[int, Any]) -> Any:
        at = replay(program, inputs, probes, roots)
        return tuple(at(s) for s in roots)

    _, pullback = jax.vjp(run, probes_for(program, wanted))

    def pull(cotangents: Any) -> Any:
        (by_slot,) = pullback(tuple(conj(c) for c in cotangents))
        return tuple(conj(by_slot[s]) for s in wanted)

    return (jax.vmap(pull) if batched else pull)(tuple(seeds))


def zeros_of(aval: Any) -> Any:
    return tuple(zeros_of(a) for a in aval) if isinstance(aval, tuple) else jnp.zeros(aval.shape, aval.dtype.np)


def dependence(program: Program, roots: tuple[int, ...], wanted: tuple[int, ...], seeds: Sequence[Aval], batched: bool) -> list[list[int]]:
    """Per gradient, the inputs (the program's, then the seeds) that it depends on: what torch's graph would show.

    Values it really depends on, read off the traced pullback, and those that torch's formulas save on the way (the gradient
    of relu is piecewise constant, yet in torch it has a path to relu's input). An input in neither has no path.
    """

    def spec(a: Any) -> Any:
        return tuple(spec(b) for b in a) if isinstance(a, tuple) else jax.ShapeDtypeStruct(a.shape, a.dtype.np)

    n = len(program.inputs)
    avals = [*program.inputs, *seeds]
    with jax.enable_x64(True):
        traced = jax.make_jaxpr(lambda *xs: pull_function(program, roots, wanted, xs[:n], xs[n:], batched))(*(spec(a) for a in avals))
    owner = [i for i, a in enumerate(avals) for _ in (a if isinstance(a, tuple) else (a,))]
    real = [{owner[i] for i in found} for found in _inputs_of_outputs(traced.jaxpr)]
    return [sorted(values | saved) for values, saved in zip(real, _saved_inputs(program, roots, wanted), strict=True)]


def _saved_inputs(program: Program, roots: Sequence[int], wanted: Sequence[int]) -> list[set[int]]:
    """Per wanted slot, the inputs behind the values that the operations between it and the roots save."""
    instructions = program.instructions
    live = {s for s in roots if s >= 0}
    for i in reversed(range(len(instructions))):
        if i in live:
            live.update(s for s in instructions[i][1] if s >= 0)
    behind = {-i - 1: 1 << i for i in range(len(program.inputs))}  # slot -> bits of the inputs its value depends on
    above: dict[int, int] = {}  # slot -> bits of the wanted slots that reach it
    for w, s in enumerate(wanted):
        above[s] = above.get(s, 0) | 1 << w
    found = [0] * len(wanted)
    for i, (kind, slots, stop) in enumerate(instructions):
        behind[i] = 0
        reached = 0
        for s in slots:
            behind[i] |= behind[s]
            reached |= above.get(s, 0)
        if stop or not reached:
            continue
        above[i] = above.get(i, 0) | reached
        if i not in live or isinstance(kind, str) or not kind.saves:
            continue
        for operand, s in zip(kind.operands, slots, strict=True):
            through = above.get(s, 0)
            names = {*kind.saves.get("*", ()), *kind.saves.get(operand, ())} if through else ()
            bits = behind[i] if "result" in names or "computed" in names else 0
            for other, t in zip(kind.operands, slots, strict=True):
                if other in names:
                    bits |= behind[t]
            w = 0
            while through and bits:
                if through & 1:
                    found[w] |= bits
                through >>= 1
                w += 1
    return [{i for i in range(len(program.inputs)) if bits >> i & 1} for bits in found]


def _inputs_of_outputs(jaxpr: Any) -> list[set[int]]:
    """Per output of a jaxpr, the positions of the inputs it depends on (calls are looked into)."""
    place: dict[Any, frozenset[int]] = {v: frozenset((i,)) for i, v in enumerate(jaxpr.invars)}

    def of(v: Any) -> frozenset[int]:
        return frozenset() if hasattr(v, "val") else place.get(v, frozenset())

    for eqn in jaxpr.eqns:
        inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
        inner = getattr(inner, "jaxpr", inner)
        if eqn.primitive.name in ("jit", "pjit", "closed_call", "custom_jvp_call") and inner is not None and len(inner.invars) == len(eqn.invars):
            for v, found in zip(eqn.outvars, _inputs_of_outputs(inner), strict=True):
                place[v] = frozenset().union(*(of(eqn.invars[i]) for i in found))
        else:
            every = frozenset().union(*(of(v) for v in eqn.invars))
            for v in eqn.outvars:
                place[v] = every
    return [set(of(v)) for v in jaxpr.outvars]


def values_with_residuals(
    program: Program, outputs: Sequence[int], roots: tuple[int, ...], wanted: tuple[int, ...], inputs: Sequence[Any], found: dict[str, Any]
) -> tuple[Any, ...]:
    """`(values, packed, residuals)`; what rebuilds the pullback from residuals is left in `found` while tracing.

    A residual that is an input or one of the values is not returned again (XLA would copy it): `found["where"]` says where it is.
    """

    def run(probes: dict[int, Any]) -> Any:
        done = Replay(program, inputs, probes, {*roots, *outputs})
        keep, found["layout"] = done.packed(outputs)
        return tuple(done.value(s) for s in roots), keep

    _, pullback, keep = jax.vjp(run, probes_for(program, wanted), has_aux=True)
    flat, tree = jax.tree.flatten(pullback)
    place = {id(x): ("input", i) for i, x in enumerate(inputs)}
    layout = found["layout"] or [(i, None) for i in range(len(keep))]
    place.update((id(keep[k]), ("output", i)) for i, (k, row) in enumerate(layout) if row is None)
    made: list[Any] = []
    where: list[tuple[str, int]] = []
    for x in flat:
        if id(x) not in place:
            place[id(x)] = ("made", len(made))
            made.append(x)
        where.append(place[id(x)])
    found["tree"], found["where"] = Residuals(tree, len(flat), wanted), tuple(where)
    return keep, tuple(made)


def pull_residuals(how: Residuals, residuals: Sequence[Any], seeds: Sequence[Any], batched: bool) -> tuple[Any, ...]:
    """Gradients from a forward's residuals."""
    pullback = jax.tree.unflatten(how.tree, residuals)

    def pull(cotangents: Any) -> Any:
        (by_slot,) = pullback(tuple(conj(c) for c in cotangents))
        return tuple(conj(by_slot[s]) for s in how.wanted)

    return (jax.vmap(pull) if batched else pull)(tuple(seeds))
