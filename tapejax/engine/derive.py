"""What is asked of a program: its values, its gradients, its values with residuals. All pure functions.

Complex gradients follow torch's convention (the conjugate of what `jax.vjp` gives): seeds and results are conjugated here
and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tapejax.engine.replay import replay
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


def values(program: Program, outputs: Sequence[int], inputs: Sequence[Any]) -> tuple[Any, ...]:
    at = replay(program, inputs)
    return tuple(at(s) for s in outputs)


def values_and_pull(program: Program, outputs: Sequence[int], pull: Pull, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """`(values of outputs, gradients)` from one forward: the everyday backward."""

    def run(probes: dict[int, Any]) -> Any:
        at = replay(program, inputs, probes)
        keep = tuple(at(s) for s in outputs)
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
        at = replay(program, inputs, probes)
        return tuple(at(s) for s in roots)

    _, pullback = jax.vjp(run, probes_for(program, wanted))

    def pull(cotangents: Any) -> Any:
        (by_slot,) = pullback(tuple(conj(c) for c in cotangents))
        return tuple(conj(by_slot[s]) for s in wanted)

    return (jax.vmap(pull) if batched else pull)(tuple(seeds))


def values_with_residuals(
    program: Program, outputs: Sequence[int], roots: tuple[int, ...], wanted: tuple[int, ...], inputs: Sequence[Any], found: dict[str, Any]
) -> tuple[Any, ...]:
    """`(values, residuals)`; what rebuilds the pullback from residuals is left in `found` while tracing.

    A residual that is an input is not returned (XLA would copy it): `found["residuals"]` says where it is.
    """

    def run(probes: dict[int, Any]) -> Any:
        at = replay(program, inputs, probes)
        return tuple(at(s) for s in roots), tuple(at(s) for s in outputs)

    _, pullback, keep = jax.vjp(run, probes_for(program, wanted), has_aux=True)
    flat, tree = jax.tree.flatten(pullback)
    place = {id(x): i for i, x in enumerate(inputs)}
    made: list[Any] = []
    where: list[tuple[str, int]] = []
    for x in flat:
        i = place.get(id(x))
        if i is None:
            where.append(("made", len(made)))
            made.append(x)
        else:
            where.append(("input", i))
    found["tree"], found["where"] = Residuals(tree, len(flat), wanted), tuple(where)
    return keep, tuple(made)


def pull_residuals(how: Residuals, residuals: Sequence[Any], seeds: Sequence[Any], batched: bool) -> tuple[Any, ...]:
    """Gradients from a forward's residuals."""
    pullback = jax.tree.unflatten(how.tree, residuals)

    def pull(cotangents: Any) -> Any:
        (by_slot,) = pullback(tuple(conj(c) for c in cotangents))
        return tuple(conj(by_slot[s]) for s in how.wanted)

    return (jax.vmap(pull) if batched else pull)(tuple(seeds))
