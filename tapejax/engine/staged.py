"""A traced program in stages, so that its long loops are compiled once for all lengths.

XLA's shapes are static: a program with a loop of 1,001 rounds shares nothing with one of 1,000. So a program is cut around its
long loops, which are the `scan` equations of its jaxpr, forward and backward alike. What lies between two of them is compiled for
this program. A loop goes to a *roll*: an executable of its own that takes the number of rounds as an argument, in arrays of the next
larger capacity, and is found by what its body computes. Programs that differ in the number of rounds meet in it.
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

#: A loop of so many rounds is shared at first sight. A shorter one, for which the launches between stages weigh more, is shared when its
#: body was seen with another number of rounds; those below the second limit never are.
MANY_ROUNDS, FEW_ROUNDS = 256, 16


def capacity(rounds: int) -> int:
    """The rounds that a roll for `rounds` has room for: at most a quarter more."""
    step = 1 << max((rounds - 1).bit_length() - 3, 0)
    return -(-rounds // step) * step


# -- rolls -------------------------------------------------------------------------------------------------------------


class Roll:
    """A loop's body, compiled for any number of rounds up to a capacity. Called with rounds, constants, carry and rows."""

    __slots__ = ("__weakref__", "call", "capacity", "kept", "used")

    def __init__(self, body: ClosedJaxpr, reverse: bool, returned: tuple[int, ...], room: int, exact: bool, kept: Any) -> None:
        self.kept = kept
        self.capacity = room
        self.used = False
        step = jaxpr_as_fun(body)
        results = [v.aval for i, v in enumerate(getattr(body, "jaxpr", body).outvars) if i in returned]

        def run(rounds: Any, constants: Sequence[Any], carry: Sequence[Any], rows: Sequence[Any]) -> Any:
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

        self.call = jax.jit(run)


#: Rolls by what they compute, while a program has them.
ROLLS: WeakValueDictionary[Any, Roll] = WeakValueDictionary()
#: Bodies of shorter loops -> the number of rounds they were first seen with.
SEEN: dict[Any, int] = {}
_SEEN_LIMIT = 512


class Body(NamedTuple):
    """The body of a scan equation and the name by which equal ones are known. It reads constants, carry and rows."""

    eqn: Any
    constants: int
    carry: int
    name: Any
    kept: list[Any]  # objects whose identity is part of the name

    @property
    def rounds(self) -> int:
        return self.eqn.params["length"]

    def is_shared(self) -> bool:
        """Whether it goes to a roll."""
        if self.rounds >= MANY_ROUNDS:
            return True
        if len(SEEN) > _SEEN_LIMIT:
            SEEN.clear()
        return SEEN.setdefault(self.name, self.rounds) != self.rounds

    def roll(self, returned: tuple[int, ...], platform: str) -> Roll:
        """The roll that runs it; `returned`: the stacked outputs that are read."""
        body, reverse, room = self.eqn.params["jaxpr"], self.eqn.params["reverse"], capacity(self.rounds)
        # A GPU would ask the host before every round whether it is the last: there a roll runs to its capacity and drops what is too much.
        exact = platform in ("cpu", "tpu")
        key = (self.name, returned, room, exact)
        found = ROLLS.get(key)
        if found is None:
            found = ROLLS[key] = Roll(body, reverse, returned, room, exact, self.kept)
        return found


def body_of(eqn: Any) -> Body | None:
    """The body of a scan equation that a roll could run; None for any other equation."""
    if eqn.primitive is not scan_p or eqn.params["length"] < FEW_ROUNDS or eqn.params["unroll"] != 1 or eqn.effects:
        return None
    if not all(isinstance(v.aval.dtype, np.dtype) for v in (*eqn.invars, *eqn.outvars)):
        return None  # random keys have no zeros
    inner = eqn.params["jaxpr"]
    inside = getattr(inner, "jaxpr", inner)
    # how a scan says which of its operands are what depends on JAX's version; what differs per round has one dimension more outside
    plain = sum(v.aval.ndim == w.aval.ndim for v, w in zip(eqn.invars, inside.invars, strict=True))
    carry = sum(v.aval.ndim == w.aval.ndim for v, w in zip(eqn.outvars, inside.outvars, strict=True))
    kept: list[Any] = []
    return Body(eqn, plain - carry, carry, (_spell(inner, kept), plain, carry, eqn.params["reverse"]), kept)


#: Parameters that only say how to differentiate, which is over here.
_RULES = {"jvp_jaxpr_fun", "jvp_jaxpr_thunk"}


def _spell(x: Any, kept: list[Any]) -> Any:
    """`x` (a jaxpr, a parameter) as a hashable value: equal for what computes the same. What cannot be compared counts by identity."""
    if isinstance(x, (ClosedJaxpr, Jaxpr)):
        consts = getattr(x, "consts", ())
        x = getattr(x, "jaxpr", x)
        number: dict[Any, int] = {}
        for v in (*x.constvars, *x.invars):
            number[v] = len(number)
        words: list[Any] = [_spell(list(consts), kept), tuple(v.aval for v in (*x.constvars, *x.invars))]
        for eqn in x.eqns:
            params = [(k, _spell(v, kept)) for k, v in sorted(eqn.params.items()) if k not in _RULES]
            reads = tuple(_spell(v, kept) if isinstance(v, Literal) else number[v] for v in eqn.invars)
            for v in eqn.outvars:
                number[v] = len(number)
            words.append((eqn.primitive, reads, tuple(params), tuple(v.aval for v in eqn.outvars)))
        return (*words, tuple(_spell(v, kept) if isinstance(v, Literal) else number[v] for v in x.outvars))
    if isinstance(x, Literal):
        return ("literal", x.aval, _spell(np.asarray(x.val), kept))
    if isinstance(x, (tuple, list)):
        return tuple(_spell(v, kept) for v in x)
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


# -- stages ------------------------------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """One launch: what it reads and writes, and what nobody reads after it, by place in the table of values."""

    call: Callable[..., Any]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    last: tuple[int, ...]


class Staged:
    """A program as stages, called like the `whole` it was made of."""

    def __init__(self, whole: Any, constants: dict[int, Any], plan: _Plan, tree: Any) -> None:
        self.whole = whole
        self.stages = plan.stages
        self.loops, self.known = plan.loops, plan.known  # how many loops, how many of them were compiled before
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
        for call, reads, writes, last in self.stages:
            made = call(*[table[i] for i in reads])
            for i in last:
                del table[i]
            table.update(zip(writes, made, strict=True))
        return jax.tree.unflatten(self._tree, [x.val if isinstance(x, Literal) else table[x] for x in self._results])


    def compiled(self, specs: Any) -> list[Any]:
        """JAX's view of every stage's executable, for reading only."""
        table = dict(enumerate(jax.tree.leaves(specs)))
        table.update(self._constants)
        found = []
        for stage in self.stages:
            reads = [table[i] for i in stage.reads]
            table.update(zip(stage.writes, jax.eval_shape(stage.call, *reads), strict=True))
            found.append(jax.jit(stage.call).lower(*reads).compile())
        return found


def staged(whole: Any, args: Any) -> Staged | None:
    """`whole` (a jitted function) in stages for such arguments; None where it has no loop to share."""
    traced = whole.trace(*args)
    jaxpr = traced.jaxpr.jaxpr
    eqns = _live(jaxpr)
    bodies = [body_of(e) for e in eqns]
    shared = [i for i, b in enumerate(bodies) if b is not None and b.is_shared()]
    if not shared:
        return None
    plan = _Plan(jaxpr, eqns, {i: b for i in shared if (b := bodies[i]) is not None}, _platform(args))
    constants = {plan.place[(v, None)]: x for v, x in zip(jaxpr.constvars, traced.jaxpr.consts, strict=True)}
    return Staged(whole, constants, plan, jax.tree.structure(traced.out_info))


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


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(v for v in atoms if not isinstance(v, Literal)))


#: A value in one form: a variable, and the capacity to which its first axis is filled up (None: as it is).
Name = tuple[Any, "int | None"]


class _Plan:
    """The stages in order. Every variable has a native form: filled up if a roll stacked it. Who needs the other form has it made just before."""

    def __init__(self, jaxpr: Any, eqns: Sequence[Any], shared: dict[int, Body], platform: str) -> None:
        self.loops, self.known = len(shared), 0
        self.stages: list[Stage] = []
        self.place: dict[Name, int] = {}
        self._native: dict[Any, int | None] = {}
        self._platform = platform
        for v in (*jaxpr.invars, *jaxpr.constvars):
            self._put((v, None))
        begin = 0
        for at in (*shared, len(eqns)):
            later = {v for e in eqns[at + 1 :] for v in _variables(e.invars)} | {*_variables(jaxpr.outvars)}
            self._between(eqns[begin:at], _needs(shared[at]) if at in shared else [(v, None) for v in _variables(jaxpr.outvars)], later)
            if at in shared:
                self._loop(shared[at], later)
            begin = at + 1
        self.results = [v if isinstance(v, Literal) else self.place[(v, None)] for v in jaxpr.outvars]
        self._forget()

    def _put(self, name: Name) -> int:
        v, room = name
        self._native.setdefault(v, room)
        place = self.place[name] = len(self.place)
        return place

    def _between(self, eqns: Sequence[Any], needs: Sequence[Name], later: set[Any]) -> None:
        """The stage of `eqns`, which also brings what comes after it into the form that `needs` says."""
        own = {v for e in eqns for v in e.outvars}
        converted = [n for n in needs if n not in self.place and (n[0] not in own or n[1] is not None)]
        outside = [v for v in _variables([*(v for e in eqns for v in e.invars), *(v for v, _ in converted)]) if v not in own]
        made = [v for v in own if v in later or (v, None) in needs]
        if not made and not converted:
            return
        forms = [self._native[v] for v in outside]

        def between_loops(*values: Any) -> Any:
            env = {
                v: x if room is None else jax.lax.slice_in_dim(x, 0, v.aval.shape[0])
                for v, x, room in zip(outside, values, forms, strict=True)
            }
            _evaluate(eqns, env)
            return (*(env[v] for v in made), *(_filled(env[v], room) for v, room in converted))

        reads = tuple(self.place[(v, room)] for v, room in zip(outside, forms, strict=True))
        writes = (*(self._put((v, None)) for v in made), *(self._put(n) for n in converted))
        self.stages.append(Stage(jax.jit(between_loops), reads, writes, ()))

    def _loop(self, body: Body, later: set[Any]) -> None:
        eqn, constants, carry = body.eqn, body.constants, body.carry
        returned = tuple(i for i, v in enumerate(eqn.outvars) if i >= carry and v in later)
        roll = body.roll(returned, self._platform)
        self.known += roll.used
        roll.used = True
        given = {i: v.val for i, v in enumerate(eqn.invars) if isinstance(v, Literal)}
        forms = [None] * (constants + carry) + [roll.capacity] * (len(eqn.invars) - constants - carry)
        rounds = np.int64(body.rounds)

        def loop(*values: Any) -> Any:
            rest = iter(values)
            every = [given[i] if i in given else next(rest) for i in range(len(forms))]
            end, stacks = roll.call(rounds, every[:constants], every[constants : constants + carry], every[constants + carry :])
            return (*end, *stacks)

        reads = tuple(self.place[(v, room)] for i, (v, room) in enumerate(zip(eqn.invars, forms, strict=True)) if i not in given)
        ends = [self._put((v, None)) for v in eqn.outvars[:carry]]
        self.stages.append(Stage(loop, reads, (*ends, *(self._put((eqn.outvars[i], roll.capacity)) for i in returned)), ()))

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
    plain, room, atoms = body.constants + body.carry, capacity(body.rounds), body.eqn.invars
    return [*((v, None) for v in _variables(atoms[:plain])), *((v, room) for v in _variables(atoms[plain:]))]


def _filled(x: Any, room: int | None) -> Any:
    return x if room is None else jnp.pad(x, [(0, room - x.shape[0]), *[(0, 0)] * (x.ndim - 1)])


def _evaluate(eqns: Iterable[Any], env: dict[Any, Any]) -> None:
    for eqn in eqns:
        bound = eqn.primitive.get_bind_params(eqn.params)
        functions, params = bound if isinstance(bound, tuple) else ((), bound)  # which of the two depends on JAX's version
        with eqn.ctx.manager:
            made = eqn.primitive.bind(*functions, *(v.val if isinstance(v, Literal) else env[v] for v in eqn.invars), **params)
        env.update(zip(eqn.outvars, made if eqn.primitive.multiple_results else [made], strict=True))
