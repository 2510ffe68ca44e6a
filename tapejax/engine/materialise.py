"""Give pending nodes their arrays.

A forward that is forced before its backward keeps its residuals in a `Block`, so that the backward computes nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from tapejax import dtypes
from tapejax.engine.derive import Residuals
from tapejax.engine.execute import donatable, run
from tapejax.tape import waiting
from tapejax.tape.aval import Aval, aval_of
from tapejax.tape.node import ARGUMENT, NEVER, VAR, Node, leaf
from tapejax.tape.note import note_of
from tapejax.tape.program import Linear, by_device, in_order, pending


class Block:
    """A region of the tape that ran forward with residuals: its outputs, its inputs, and what pulls back between them."""

    __slots__ = ("nodes", "outputs", "residuals", "tree", "wanted")

    def __init__(
        self,
        outputs: tuple[Node, ...],
        wanted: tuple[Node, ...],
        nodes: tuple[Node, ...],
        tree: Residuals,
        residuals: tuple[Node, ...],
    ) -> None:
        self.outputs = outputs
        self.nodes = nodes  # outputs included
        self.wanted = wanted  # grad-requiring nodes at which the region starts
        self.tree = tree
        self.residuals = residuals


MANY = 64  # values with gradients of their own for which a forward keeps residuals; beyond, its backward runs it again


def force(nodes: Sequence[Node], keep_residuals: bool = True) -> None:
    """Compute every node in `nodes` (and the live values on the way) in one program."""
    todo = [n for n in nodes if n.value is None]
    if not todo:
        return
    also = waiting.take()
    try:
        _force(todo, also, keep_residuals)
    except BaseException:
        waiting.WAITING.stale += [waiting.weakref.ref(n) for n in also]
        raise


def force_onward(linear: Linear, found: dict[Node, bool], nodes: Sequence[Node]) -> None:
    """Like `force`, where what `nodes` wait for is in `linear` (all of `found`) but for the newest part; keeps no residuals."""
    todo = [n for n in nodes if n.value is None]
    also = waiting.take()
    try:
        found = pending(todo, found)
        if also:
            found = _with(found, also)
        new = [n for n in found if n not in linear.slot]
        refuse_arguments(new)
        linear.extend(in_order(new))
        new.clear()
        _values(linear, outputs_of(linear, todo))
    except BaseException:
        waiting.WAITING.stale += [waiting.weakref.ref(n) for n in also]
        raise


def _values(linear: Linear, held: list[int]) -> None:
    order = linear.order
    request = ("values", tuple(held))
    values, _ = run(linear, request, donatable(linear, recipes_kept(linear, held), [order[i].aval for i in held]))
    finish(linear, held, values)


def _force(todo: list[Node], also: list[Node], keep_residuals: bool) -> None:
    found = pending(todo)
    if also:
        found = _with(found, also)
    refuse_arguments(found)
    parts = by_device(found)
    del found  # what is held here would be returned
    parts.reverse()
    while parts:
        _compute(parts.pop(), todo, keep_residuals)


def _compute(found: dict[Node, bool], todo: list[Node], keep_residuals: bool) -> None:
    """Run `found` as one program."""
    order = in_order(found)
    linear = Linear(order)
    held = outputs_of(linear, todo)
    tracked = [i for i in held if order[i].requires_grad and not isinstance(order[i].aval, tuple)]  # single outputs have gradients
    many = len(tracked) > MANY  # every state of a loop
    region = grad_region([order[i] for i in tracked]) if tracked and not many and keep_residuals else None
    if region is not None:
        _compute_with_residuals(linear, held, tracked, *region)
    else:
        _values(linear, held)


def outputs_of(linear: Linear, todo: Sequence[Node]) -> list[int]:
    """The results to return: what was asked for and what is held elsewhere; a variable's value is that of its input."""
    order, slot = linear.order, linear.slot
    wanted = set(linear.held())
    wanted.update(s for n in todo if (s := slot.get(n, -1)) >= 0)  # on another device it is another program's
    held = set()
    for i in wanted:
        node = order[i]
        while node.kind is VAR:
            node = node.inputs[0]
            i = slot[node]
        if i >= 0 and node.value is None:
            held.add(i)
    return sorted(held)


def recipes_kept(linear: Linear, held: Sequence[int], runs: Any = ()) -> set[Node]:
    """Inputs that nodes surviving this program would need to be computed again: never donate these. The backward of `runs` has run then."""
    order = linear.order
    computed = {order[i] for i in held}
    computed.update([n for n in order if n.value is not None])
    stack = [n for n in computed if n.requires_grad and not (n in runs and n.kind.saves)]
    seen = set(stack)
    while stack:
        for x in stack.pop().inputs or ():
            if x not in seen and not (x in runs and x.kind.saves):
                seen.add(x)
                if x.value is None and x.kind is not VAR and (x.requires_grad or x not in computed):
                    stack.append(x)
    return seen


def _with(found: dict[Node, bool], also: list[Node]) -> dict[Node, bool]:
    """Add values that wait for a program, except those that depend on a traced function's argument."""
    for node in also:
        if node in found:
            continue
        more = pending([node], dict(found))
        if not any(n.kind is ARGUMENT for n in more if n not in found):
            found = more
    return found


def refuse_arguments(found: Iterable[Node]) -> None:
    """Nothing that depends on an argument of a function being traced has a value."""
    for n in found:
        if n.kind is ARGUMENT:
            raise n.note.refusal()


def grad_region(roots: Sequence[Node]) -> tuple[dict[Node, bool], list[Node]] | None:
    """Nodes between `roots` and the nearest grad-requiring values, and those values; None where Python must step in."""
    region: dict[Node, bool] = {}
    starts: dict[Node, bool] = {}
    stack = list(roots)
    for r in roots:
        region[r] = True
    while stack:
        n = stack.pop()
        note = n.note
        if n.inputs is None or (note is not None and (note.cut or note.saved or note.hooks or note.pre_hooks or note.post_hooks or note.retained_by)):
            return None
        for x in n.inputs:
            if not x.requires_grad or x in region:
                continue
            if x.kind is VAR or x.value is not None:
                if x.aval.__class__ is tuple:
                    return None  # the values of a several-output node: gradients are read off single ones
                starts[x] = True
            else:
                region[x] = True
                stack.append(x)
    return region, list(starts)


def _compute_with_residuals(
    linear: Linear, held: list[int], tracked: list[int], region: dict[Node, bool], starts: list[Node]
) -> None:
    """Run a program and keep its residuals."""
    order = linear.order
    linear.mark(region)
    wanted = tuple(linear.slot_of(n) for n in starts)
    roots = tuple(tracked)
    donate = donatable(linear, recipes_kept(linear, held), [order[i].aval for i in held])
    (outputs, made), executable = run(linear, ("residuals", tuple(held), roots, wanted), donate)
    where, tree = executable.facts["where"], executable.facts["tree"]
    avals = executable.facts.get("avals")
    if avals is None:
        avals = executable.facts["avals"] = [_aval(x) for x in made]
    places = {
        "made": lambda i: leaf(made[i], avals[i]),
        "output": lambda i: leaf(outputs[i], order[held[i]].aval),
        "input": lambda i: linear.inputs[i],
    }
    residuals = tuple(places[what](i) for what, i in where)
    block = Block(tuple(order[i] for i in roots), tuple(starts), tuple(region), tree, residuals)
    for i in roots:
        note_of(order[i]).block = block
    finish(linear, held, outputs)


def _aval(array: Any) -> Aval:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return Aval(tuple(array.shape), array.dtype, False, None)
    return aval_of(tuple(array.shape), dtypes.of(array.dtype))


def finish(linear: Linear, held: Sequence[int], outputs: Sequence[Any]) -> None:
    """Write values into nodes; an interrupt in the middle is finished before it is passed on."""
    try:
        _fill(linear, held, outputs)
    except BaseException:
        _fill(linear, held, outputs)
        raise
    waiting.program_ran(linear.order[-1].seq if linear.order else 0)


def _fill(linear: Linear, held: Sequence[int], outputs: Sequence[Any]) -> None:
    order = linear.order
    for i, value in zip(held, outputs, strict=True):
        node = order[i]
        node.value = value
        node.oldest = NEVER
        if not node.requires_grad:
            node.inputs = ()
    for node in linear.variables:
        if node.value is None and node.inputs[0].value is not None:
            node.value = node.inputs[0].value
            node.oldest = NEVER
            node.inputs = ()
