"""A Program as a pure JAX function of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from tapejax.tape.infer import apply
from tapejax.tape.node import VAR
from tapejax.tape.program import Program


@jax.custom_jvp
def tap(x: Any, probe: Any) -> Any:
    """`x`, with a derivative 1 in `probe`: how the gradient of an inner value is read off."""
    return x


@tap.defjvp
def _tap_jvp(primals: Any, tangents: Any) -> Any:
    return primals[0], jax.tree.map(lambda a, b: a + b, tangents[0], tangents[1])


def replay(program: Program, inputs: Sequence[Any], probes: Mapping[int, Any] | None = None) -> Callable[[int], Any]:
    """Run every instruction; return the function from slot to value.

    `probes`: slot -> array of the slot's shape; the slot's value passes through `tap` with it.
    """
    probes = probes or {}
    ins = list(inputs)
    for s, probe in probes.items():
        if s < 0:
            ins[-s - 1] = tap(ins[-s - 1], probe)
    outs: list[Any] = []
    for i, (kind, slots, stop) in enumerate(program.instructions):
        args = [outs[s] if s >= 0 else ins[-s - 1] for s in slots]
        value = args[0] if kind is VAR else apply(kind, args)
        if stop:
            value = jax.tree.map(jax.lax.stop_gradient, value)
        if i in probes:
            value = tap(value, probes[i])
        outs.append(value)
    return lambda s: outs[s] if s >= 0 else ins[-s - 1]
