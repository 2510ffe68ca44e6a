"""Run the tape backward: the everyday case in one program, everything else as pieces with Python between them.

The everyday case is a graph without hooks, custom Functions or values forced early: forward, backward, accumulation and
whatever else is pending become one XLA program. Otherwise `graph_task` records the gradient as nodes and forces them.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Sequence
from typing import Any

from tapejax.autograd.checks import check_saved, free, needed_nodes, refuse_unused
from tapejax.autograd.freed import FreedRun
from tapejax.autograd.gradients import deposit
from tapejax.autograd.graph_task import GraphTask, running_tasks
from tapejax.autograd.walk import Target, Walk, explore
from tapejax.engine.derive import Pull
from tapejax.engine.execute import donatable, run
from tapejax.engine.materialise import _with, finish, outputs_of, recipes_kept, refuse_arguments
from tapejax.storage.cell import Counter
from tapejax.tape import modes, waiting
from tapejax.tape.node import Node, leaf
from tapejax.tape.note import Meta
from tapejax.tape.program import Linear, by_device, in_order, pending
from tapejax.tensor import wrap


def run_backward(
    roots: Sequence[Node],
    seeds: Sequence[Node | None],
    targets: Sequence[Target] | None,
    *,
    accumulate: bool,
    retain: bool = False,
    create: bool = False,
    batched: bool = False,
    required: bool = False,
) -> list[Any]:
    """Gradients of `roots` (seeded) at `targets` as Tensors or None; with `accumulate` into `.grad` instead.

    No targets means every leaf that is reached. If all are `required`, one that is not reached raises before anything is written or freed.
    """
    how = (roots, seeds, targets, accumulate, retain, create, batched, required)
    depth = len(running_tasks())
    return _run(*how) if depth == 0 or depth % _STACK else _on_a_new_stack(how)


#: So many backwards inside each other share a Python stack; the next one gets a thread, and so a stack, of its own.
_STACK = 12


def _on_a_new_stack(how: tuple[Any, ...]) -> list[Any]:
    """Run in another thread, in this thread's modes, while this one waits: the recursion limit counts per thread."""
    outcome: list[Any] = []
    tasks = list(running_tasks())
    context = contextvars.copy_context()

    def work() -> None:
        running_tasks()[:] = tasks
        try:
            outcome.extend((True, _run(*how)))
        except BaseException as error:
            outcome.extend((False, error))

    thread = threading.Thread(target=context.run, args=(work,), name="tapejax backward")
    thread.start()
    thread.join()
    done, result = outcome
    if not done:
        raise result
    return result


def _run(roots: Any, seeds: Any, targets: Any, accumulate: bool, retain: bool, create: bool, batched: bool, required: bool) -> list[Any]:
    walk = None
    lazy = create or modes.tracing()  # nothing runs now: the gradients are differentiated, or no numbers yet
    if modes.MODE.get() & ~modes.EXPLAIN <= modes.GRAD and (lazy or not retain):  # a kept graph keeps residuals: its forward runs first
        walk = explore(roots, targets, retain, create)
        if walk is not None and walk.plain and not (lazy or batched):
            done = _one_program(walk, roots, seeds, targets, accumulate, required)
            if done is not None:
                return done
            walk = explore(roots, targets, retain, create)
    return GraphTask(roots, seeds, targets, accumulate, retain, create, batched, required, walk).run()


def _one_program(
    walk: Walk, roots: Sequence[Node], seeds: Sequence[Node | None], targets: Any, accumulate: bool, required: bool
) -> list[Any] | None:
    """The everyday backward; None when it is not one. Uses up the walk: a node that somebody holds is returned by the program."""
    variables, outside = walk.variables, walk.outside
    region, walk.region = walk.region, {}
    ends: list[Node] = []  # at these, gradients are only read
    freed_run = None  # where the graph led; the key tells it, where all of the graph is in it
    read: dict[Any, Node] = {}  # where each wanted gradient is read off
    for v in sorted(variables, key=lambda v: v.seq):
        if read.setdefault(v.note, v) is not v:
            return None  # one leaf, several values of it: gradients are summed piecewise
    if targets is None:
        sinks = {meta: meta for meta in read}
    else:
        read.update((t.key, t.key) for t in targets if t.key in region)
        sinks = {t.key: t.sink for t in targets if t.key in read}
        if required:
            refuse_unused([t.key in read for t in targets])
        if not sinks:
            return [None] * len(targets)
        keep = needed_nodes(region, {read[k] for k in sinks})
        if not accumulate:  # `grad` only reads the gradient at a target that leads to no other one; `backward(inputs=)` runs it, as in torch
            ends = [n for n in sinks if n in region and not any(x in keep for x in n.inputs)]
        if not region.keys() <= keep:  # the gradient of some is not wanted, but their values may be
            freed_run = FreedRun.of_nodes(dict.fromkeys(region, ()))
            outside += [n for n in region if n not in keep and n.value is None]
            region = {n: True for n in region if n in keep}
        keep.clear()

    into: list[Node | None] = []
    for sink in sinks.values():
        old = sink.grad if accumulate else None
        if old is not None and old.requires_grad:
            return None
        into.append(None if old is None else old.node)

    found = dict.fromkeys(region, True)
    starts = [*outside, *variables, *(s for s in seeds if s is not None), *(o for o in into if o is not None), *roots]
    found = pending(starts, found)
    starts.clear()  # a reference from here would make these values look wanted, and they would be returned
    outside.clear()
    also = waiting.take()
    try:
        if also:
            found = _with(found, also)
        refuse_arguments(found)
        if len(by_device(found)) > 1:
            waiting.WAITING.stale += [waiting.weakref.ref(n) for n in also]
            return None
        order = in_order(found)
        if order and Counter.last_move > order[0].seq:
            check_saved(region if not ends else [n for n in region if n not in ends])
        linear = Linear(order, region)
        held = outputs_of(linear, roots)
        request = Pull(
            tuple(linear.slot_of(r) for r in roots),
            tuple(None if s is None else linear.slot_of(s) for s in seeds),
            tuple(linear.slot_of(read[k]) for k in sinks),
            tuple(None if o is None else linear.slot_of(o) for o in into),
        )
        for n in ends:
            del region[n]
        results = [*(order[i].aval for i in held), *(read[k].aval for k in sinks)]
        donate = donatable(linear, recipes_kept(linear, held, region), results)
        (keep_values, gradients), _ = run(linear, ("pull", tuple(held), request), donate)
    except BaseException:
        waiting.WAITING.stale += [waiting.weakref.ref(n) for n in also]
        raise
    made = {k: leaf(g, read[k].aval) for k, g in zip(sinks, gradients, strict=True)}
    if freed_run is None:
        freed_run = FreedRun.of_program(linear, variables)
    try:
        _deliver(linear, held, keep_values, region, freed_run, sinks if accumulate else {}, made)
    except BaseException:  # an interrupt: every step can be repeated, so finish before passing it on
        _deliver(linear, held, keep_values, region, freed_run, sinks if accumulate else {}, made)
        raise
    return [] if targets is None else [wrap(made[t.key]) if t.key in made else None for t in targets]


def _deliver(linear: Linear, held: Any, values: Any, runs: Any, freed_run: FreedRun, sinks: dict[Any, Meta], made: dict[Any, Node]) -> None:
    finish(linear, held, values)
    for key, sink in sinks.items():
        deposit(sink, made[key])
    free(runs, freed_run)
