"""Executables that programs share, found by what they compute.

XLA's shapes are static: a program with a loop of 1,001 rounds has nothing in common with one of 1,000. A *roll* has: it runs one body
for any number of rounds up to its capacity, in arrays that are filled up to that. A *stretch* is a piece of a program without such
loops; pieces that read alike are one stretch. Both live as long as a program that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jax.extend.core.primitives import scan_p

#: A loop of so many rounds goes to a roll at first sight. A shorter one, for which the launches around it weigh more, does when its body was
#: seen with another number of rounds; those below the second limit never do.
MANY_ROUNDS, FEW_ROUNDS = 256, 16


class Part:
    """One shared executable."""

    __slots__ = ("__weakref__", "call", "kept", "ready")

    def __init__(self, call: Callable[..., Any], kept: list[Any]) -> None:
        self.call = jax.jit(call)
        self.kept = kept  # objects whose identity is part of the key
        self.ready = False


#: Parts by what they compute.
PARTS: WeakValueDictionary[Any, Part] = WeakValueDictionary()


def part(key: Any, kept: list[Any], make: Callable[[], Callable[..., Any]]) -> Part:
    """The part known by `key`, or a new one that runs what `make` returns."""
    found = PARTS.get(key)
    if found is None:
        found = PARTS[key] = Part(make(), kept)
    return found


# -- rolls -------------------------------------------------------------------------------------------------------------

#: Bodies of shorter loops -> the number of rounds they were first seen with.
SEEN: dict[Any, int] = {}
_SEEN_LIMIT = 512


def capacity(rounds: int) -> int:
    """The rounds that a roll for `rounds` has room for: at most a quarter more."""
    step = 1 << max((rounds - 1).bit_length() - 3, 0)
    return -(-rounds // step) * step


class Body(NamedTuple):
    """The body of a scan equation and the name by which equal ones are known. It reads constants, carry and rows."""

    eqn: Any
    constants: int
    carry: int
    name: Any
    kept: list[Any]

    @property
    def rounds(self) -> int:
        return self.eqn.params["length"]

    @property
    def capacity(self) -> int:
        return capacity(self.rounds)

    def is_shared(self) -> bool:
        """Whether it goes to a roll."""
        if self.rounds >= MANY_ROUNDS:
            return True
        if len(SEEN) > _SEEN_LIMIT:
            SEEN.clear()
        return SEEN.setdefault(self.name, self.rounds) != self.rounds

    def roll(self, returned: tuple[int, ...], platform: str) -> Part:
        """The roll that runs it, called with rounds, constants, carry and rows; `returned`: the stacked outputs that are read."""
        # A GPU would ask the host before every round whether it is the last: there a roll runs to its capacity and drops what is too much.
        exact = platform in ("cpu", "tpu")
        key = (self.name, returned, self.capacity, exact)
        return part(key, self.kept, lambda: _rolled(self.eqn.params["jaxpr"], self.eqn.params["reverse"], returned, self.capacity, exact))


def body_of(eqn: Any) -> Body | None:
    """The body of a scan equation that a roll could run; None for any other equation."""
    if eqn.primitive is not scan_p or eqn.params["length"] < FEW_ROUNDS or eqn.params["unroll"] != 1 or eqn.effects:
        return None
    if not all(isinstance(v.aval.dtype, np.dtype) for v in (*eqn.invars, *eqn.outvars)):
        return None  # random keys have no zeros
    inner = inside(eqn.params["jaxpr"])
    # how a scan says which of its operands are what depends on JAX's version; what differs per round has one dimension more outside
    plain = sum(v.aval.ndim == w.aval.ndim for v, w in zip(eqn.invars, inner.invars, strict=True))
    carry = sum(v.aval.ndim == w.aval.ndim for v, w in zip(eqn.outvars, inner.outvars, strict=True))
    kept: list[Any] = []
    return Body(eqn, plain - carry, carry, (spell(eqn.params["jaxpr"], kept), plain, carry, eqn.params["reverse"]), kept)


def _rolled(body: Any, reverse: bool, returned: tuple[int, ...], room: int, exact: bool) -> Callable[..., Any]:
    step = jaxpr_as_fun(body)
    results = [inside(body).outvars[i].aval for i in returned]

    def roll(rounds: Any, constants: Sequence[Any], carry: Sequence[Any], rows: Sequence[Any]) -> Any:
        width = len(carry)

        def one(i: Any, state: Any) -> Any:
            old, stacks = state
            k = (rounds if exact else room) - 1 - i if reverse else i
            out = step(*constants, *old, *(jax.lax.dynamic_index_in_dim(x, k, keepdims=False) for x in rows))
            stacks = [jax.lax.dynamic_update_index_in_dim(s, out[j], k, 0) for s, j in zip(stacks, returned, strict=True)]
            new = out[:width]
            if not exact:
                new = [jnp.where(k < rounds, a, b) for a, b in zip(new, old, strict=True)]
            return new, stacks

        stacks = [jnp.zeros((room, *a.shape), a.dtype) for a in results]
        return jax.lax.fori_loop(0, rounds if exact else room, one, (list(carry), stacks))

    return roll


# -- stretches ---------------------------------------------------------------------------------------------------------

#: A value in one form: a variable, and the capacity to which its first axis is filled up (None: as it is).
Name = tuple[Any, "int | None"]


def stretch(eqns: Sequence[Any], reads: Sequence[Name], writes: Sequence[Name]) -> Part:
    """The part that runs `eqns`: from values in some forms to values in some forms."""
    kept: list[Any] = []
    number = {v: i for i, (v, _) in enumerate(reads)}
    words = _spell_equations(eqns, number, kept)
    key = (
        tuple((v.aval, room) for v, room in reads),
        words,
        tuple((number[v], room) for v, room in writes),
    )

    def make() -> Callable[..., Any]:
        def between_loops(*values: Any) -> Any:
            env = {
                v: x if room is None else jax.lax.slice_in_dim(x, 0, v.aval.shape[0]) for (v, room), x in zip(reads, values, strict=True)
            }
            _evaluate(eqns, env)
            return tuple(env[v] if room is None else _filled(env[v], room) for v, room in writes)

        return between_loops

    return part(key, kept, make)


def _filled(x: Any, room: int) -> Any:
    return jnp.pad(x, [(0, room - x.shape[0]), *[(0, 0)] * (x.ndim - 1)])


def _evaluate(eqns: Iterable[Any], env: dict[Any, Any]) -> None:
    for eqn in eqns:
        bound = eqn.primitive.get_bind_params(eqn.params)
        functions, params = bound if isinstance(bound, tuple) else ((), bound)  # which of the two depends on JAX's version
        with eqn.ctx.manager:
            made = eqn.primitive.bind(*functions, *(v.val if isinstance(v, Literal) else env[v] for v in eqn.invars), **params)
        env.update(zip(eqn.outvars, made if eqn.primitive.multiple_results else [made], strict=True))


# -- spelling ----------------------------------------------------------------------------------------------------------

#: Parameters that only say how to differentiate, which is over here.
_RULES = {"jvp_jaxpr_fun", "jvp_jaxpr_thunk"}


def inside(jaxpr: Any) -> Any:
    """A jaxpr without its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def spell(x: Any, kept: list[Any]) -> Any:
    """`x` (a jaxpr, a parameter) as a hashable value: equal for what computes the same. What cannot be compared counts by identity."""
    if isinstance(x, (ClosedJaxpr, Jaxpr)):
        jaxpr = inside(x)
        given = (*jaxpr.constvars, *jaxpr.invars)
        number = {v: i for i, v in enumerate(given)}
        words = _spell_equations(jaxpr.eqns, number, kept)
        results = tuple(spell(v, kept) if isinstance(v, Literal) else number[v] for v in jaxpr.outvars)
        return (spell(list(getattr(x, "consts", ())), kept), tuple(v.aval for v in given), words, results)
    if isinstance(x, Literal):
        return ("literal", x.aval, spell(np.asarray(x.val), kept))
    if isinstance(x, (tuple, list)):
        return tuple(spell(v, kept) for v in x)
    if isinstance(x, (np.ndarray, np.generic)) and x.nbytes <= 1 << 12:
        return (x.shape, x.dtype.str, x.tobytes())
    if isinstance(x, float):
        return ("float", x.hex())  # 0.0 equals -0.0
    try:
        hash(x)
    except TypeError:
        kept.append(x)
        return ("object", id(x))
    return x


def _spell_equations(eqns: Iterable[Any], number: dict[Any, int], kept: list[Any]) -> tuple[Any, ...]:
    """A word per equation; `number` has the variables they read from outside, and those they make when it returns."""
    words = []
    for eqn in eqns:
        params = tuple((k, spell(v, kept)) for k, v in sorted(eqn.params.items()) if k not in _RULES)
        reads = tuple(spell(v, kept) if isinstance(v, Literal) else number[v] for v in eqn.invars)
        for v in eqn.outvars:
            number[v] = len(number)
        words.append((eqn.primitive, reads, params, tuple(v.aval for v in eqn.outvars)))
    return tuple(words)
