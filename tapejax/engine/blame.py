"""Find the operation whose derivative gave the first NaN: a program's backward, one instruction at a time.

Slow on purpose, and only run after a NaN was seen. Pure: a program and arrays in, a place in the program out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.tape.infer import apply
from tapejax.tape.node import VAR
from tapejax.tape.program import Program


def first_nan(
    program: Program, inputs: Sequence[Any], roots: Sequence[int], seeds: Sequence[Any], wanted: Sequence[Sequence[int]]
) -> tuple[int, int] | None:
    """The first instruction, in the order of the backward, whose gradients hold a NaN, and the operand it belongs to.

    `wanted`: per instruction, the operands whose gradients are computed. None if there is no NaN when run this way.
    """
    with jax.enable_x64(True):
        values: list[Any] = []
        inputs = [x if isinstance(x, tuple) else jnp.asarray(x) for x in inputs]

        def at(s: int) -> Any:
            return inputs[-s - 1] if s < 0 else values[s]

        for kind, slots, _ in program.instructions:
            operands = [at(s) for s in slots]
            values.append(operands[0] if kind is VAR else apply(kind, operands))
        gradient: dict[int, Any] = {}
        for s, seed in zip(roots, seeds, strict=True):
            _add(gradient, s, seed)
        for i in range(len(program.instructions) - 1, -1, -1):
            if i not in gradient:
                continue
            kind, slots, _ = program.instructions[i]
            if kind is VAR:
                _add(gradient, slots[0], gradient[i])
                continue
            chosen = [j for j in wanted[i] if is_inexact(at(slots[j]))]
            for j, g in zip(chosen, _pull(kind, [at(s) for s in slots], chosen, gradient[i]), strict=True):
                if kind.name != "pick" and has_nan(g):
                    return i, j
                _add(gradient, slots[j], g)
    return None


def _pull(kind: Any, operands: list[Any], chosen: list[int], cotangent: Any) -> tuple[Any, ...]:
    def run(*differentiated: Any) -> Any:
        given = list(operands)
        for j, x in zip(chosen, differentiated, strict=True):
            given[j] = x
        return apply(kind, given)

    out, pullback = jax.vjp(run, *[operands[j] for j in chosen])
    return pullback(_matching(out, cotangent))


def _matching(out: Any, cotangent: Any) -> Any:
    """A cotangent of the type that JAX expects: none for integers, tuples as the op returned them."""
    if isinstance(out, (tuple, list)):
        made = [_matching(o, c) for o, c in zip(out, cotangent, strict=True)]
        return type(out)(made) if type(out) in (tuple, list) else jax.tree.unflatten(jax.tree.structure(out), made)
    if not is_inexact(out):
        return np.zeros(out.shape, jax.dtypes.float0)
    return jnp.zeros_like(out) if cotangent is None else jnp.asarray(cotangent, out.dtype)


def _add(gradient: dict[int, Any], s: int, g: Any) -> None:
    there = gradient.get(s)
    gradient[s] = g if there is None else jax.tree.map(_sum, there, g)


def _sum(a: Any, b: Any) -> Any:
    return a if getattr(a, "dtype", None) == jax.dtypes.float0 else a + b


def is_inexact(x: Any) -> bool:
    """Whether a value (or one of a tuple's) can have a gradient."""
    if isinstance(x, (tuple, list)):
        return any(is_inexact(v) for v in x)
    return bool(jnp.issubdtype(jnp.asarray(x).dtype, jnp.inexact))


def has_nan(x: Any) -> bool:
    if isinstance(x, (tuple, list)):
        return any(has_nan(v) for v in x)
    return is_inexact(x) and bool(jnp.isnan(x).any()) if getattr(x, "dtype", None) != jax.dtypes.float0 else False
