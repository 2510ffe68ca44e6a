"""Run a linearised piece of the tape: gather inputs, choose what to donate, find or make the executable, call it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import getrefcount
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.engine import derive
from tapejax.engine.cache import BEFORE_COMPILE, CACHE, Executable, first_call
from tapejax.engine.collector import at_rest, pace
from tapejax.engine.replay import Entry, Row, unpacked
from tapejax.errors import CompileError, OutOfMemoryError
from tapejax.tape import aval as avals
from tapejax.tape.aval import Aval
from tapejax.tape.node import SCALAR, Node
from tapejax.tape.program import Linear, Program

_x64 = jax.enable_x64


def run(linear: Linear, request: Any, donatable: Sequence[int] = ()) -> tuple[Any, Executable]:
    """Compute `request` (see `_build`) of the program; return its arrays and the executable that made them."""
    arrays: list[Any] = []
    floats: list[float] = []
    ints: list[int] = []
    complexes: list[complex] = []
    input_avals: list[Any] = []
    for x in linear.inputs:
        aval = x.aval
        input_avals.append(aval)
        if x.kind is not SCALAR:
            value = x.value
            if value.__class__ is Row:
                value = x.value = value.read()
            arrays.append(value)
        elif aval is avals.WEAK_FLOAT:
            floats.append(x.value)
        elif aval is avals.WEAK_COMPLEX:
            complexes.append(x.value)
        else:
            ints.append(x.value)
    donate = tuple(donatable)
    key = (linear.key, tuple(input_avals), request, donate)
    found = CACHE.get(key)
    if found is None:
        pace(len(linear.order))
        with at_rest(len(linear.order)):
            found = _build(key, Program(linear.key, tuple(input_avals)), request, donate)
        for look in BEFORE_COMPILE:
            look(found, linear)
        found = CACHE.put(found)
        call = first_call(found, linear)
    else:
        call = found.call
    if donate:
        given = [arrays[i] for i in donate]
        chosen = set(donate)
        arrays = [a for i, a in enumerate(arrays) if i not in chosen]
    else:
        given = []
    CACHE.launches += 1
    with _x64(True):
        try:
            result = call(
                given,
                arrays,
                np.array(floats, np.float64) if floats else None,  # a vector of none would be moved to the device all the same
                np.array(ints, np.int64) if ints else None,
                complexes,
            )
        except jax.errors.JaxRuntimeError as e:
            raise _translate(e, linear) from None
    layout = found.facts["layout"]
    if layout is None:
        return result, found
    if request[0] == "values":
        return unpacked(result, layout), found
    return (unpacked(result[0], layout), *result[1:]), found


def donatable(linear: Linear, protected: set[Node], results: Iterable[Aval]) -> list[int]:
    """Array inputs (by position among array inputs) whose value nobody needs after this program, and which a result can replace.

    Such a leaf is referenced only by nodes of this program, and its array only by the leaf.
    """
    room: dict[Aval, int] = {}
    for aval in results:
        room[aval] = room.get(aval, 0) + 1
    found = []
    position = 0
    for x, uses in zip(linear.inputs, linear.input_uses, strict=True):
        if x.kind is SCALAR:
            continue
        # a value is referenced by its node and by getrefcount's argument
        if (
            getrefcount(x) - uses <= _LEAF_REFERENCES
            and room.get(x.aval)
            and getrefcount(x.value) <= 2
            and _is_concrete(x.value)
            and x not in protected
        ):
            room[x.aval] -= 1
            found.append(position)
        position += 1
    return found


_concrete: set[type] = set()


def _is_concrete(value: Any) -> bool:
    """Whether `value` is an array on a device (not a tracer, not several arrays)."""
    if type(value) in _concrete:
        return True
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        _concrete.add(type(value))
        return True
    return False


def _leaf_references() -> int:
    """References to an input that `donatable` sees when only this program uses it (measured: it depends on the interpreter)."""

    def probe() -> int:
        consumer = Node("probe", (Node("leaf", (), None, False, 0, 0),), None, False)  # type: ignore[arg-type]
        linear = Linear([consumer])
        del consumer
        for x, uses in zip(linear.inputs, linear.input_uses, strict=True):
            return getrefcount(x) - uses
        raise AssertionError

    return probe()


_LEAF_REFERENCES = _leaf_references()


def _build(key: Any, program: Program, request: Any, donate: tuple[int, ...]) -> Executable:
    """Trace and compile lazily (on the first call): request is `(mode, outputs, ...)` with mode a name in `derive`."""
    facts: dict[str, Any] = {}
    mode, outputs, *rest = request
    chosen = set(donate)

    def call(given: Any, kept: Any, floats: Any, ints: Any, complexes: Any) -> Any:
        given_at, kept_at, f, i, c = iter(given), iter(kept), 0, 0, 0
        inputs: list[Any] = []
        position = 0
        for a in program.inputs:
            if a is avals.WEAK_FLOAT:
                inputs.append(Entry(floats, f))
                f += 1
            elif a is avals.WEAK_INT or a is avals.WEAK_BOOL:
                inputs.append(Entry(ints, i, a is avals.WEAK_BOOL))
                i += 1
            elif a is avals.WEAK_COMPLEX:
                inputs.append(jnp.asarray(complexes[c], np.complex128))
                c += 1
            else:
                inputs.append(next(given_at) if position in chosen else next(kept_at))
                position += 1
        with jax.default_matmul_precision("highest"):  # torch multiplies float32 in full; GPUs and TPUs would not by default
            if mode == "values":
                return derive.values(program, outputs, inputs, facts)
            if mode == "pull":
                return derive.values_and_pull(program, outputs, rest[0], inputs, facts)
            return derive.values_with_residuals(program, outputs, rest[0], rest[1], inputs, facts)

    return Executable(key, jax.jit(call, donate_argnums=(0,)), facts, program, request, donate)


def _translate(error: Exception, linear: Linear) -> Exception:
    message = str(error)
    names = [n.kind.name for n in linear.order if not isinstance(n.kind, str)]
    recorded = ", ".join(names[:6]) + (f", … ({len(names)} operations)" if len(names) > 6 else "")
    if "RESOURCE_EXHAUSTED" in message or "ut of memory" in message:
        return OutOfMemoryError(
            f"tapejax: the device is out of memory in a program of {recorded} → smaller batches, or utils.checkpoint; tensors keep"
            f" their values. XLA said: {message.splitlines()[0]}"
        )
    return CompileError(f"tapejax: XLA could not run a program of {recorded}: {message.splitlines()[0]}")
