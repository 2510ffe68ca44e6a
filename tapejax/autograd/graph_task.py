"""The careful backward: the graph in pieces, from the roots down, with Python between them.

The plan (autograd/plan.py) says which pieces there are; a sweep differentiates them, calls hooks and Functions between them, and
delivers at the leaves. Gradients are recorded as nodes, so that nothing is computed until the end, and with `create_graph`
nothing needs to be.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from tapejax.autograd import anomaly
from tapejax.autograd.checks import (
    check_saved,
    free,
    freed_error,
    needed_nodes,
    refuse_unused,
    saved_check,
)
from tapejax.autograd.course import COURSES, MANY_COURSES, Arrival, Course
from tapejax.autograd.freed import FreedRun
from tapejax.autograd.gradients import (
    add,
    checked_hook_result,
    deposit,
    node_hook_results,
    ones_seed,
    sum_of,
    zeros_seed,
)
from tapejax.autograd.plan import Plan, frame_of, has_python
from tapejax.autograd.pull import PULL, PullPlan, pull_block
from tapejax.autograd.walk import Target, Walk
from tapejax.engine import derive
from tapejax.engine.cache import CACHE
from tapejax.engine.materialise import force, force_onward
from tapejax.errors import refuse
from tapejax.tape import modes
from tapejax.tape.aval import NAMED_DEVICES, Aval, aval_of
from tapejax.tape.node import VAR, Kind, Node
from tapejax.tape.note import Meta
from tapejax.tape.program import Linear, Program, in_order, pending
from tapejax.tape.record import PICK, pick, record, record_kind
from tapejax.tensor import wrap


def _apart(nodes: list[Node], one_by_one: bool) -> Iterable[list[Node]]:
    """Nodes of one level in the pieces they make: by checkpointed call, or each op for itself."""
    groups: dict[Any, list[Node]] = {}
    for n in nodes:
        key = frame_of(n) if not one_by_one else n.inputs[0] if n.kind.op is PICK and n.inputs else n
        groups.setdefault(key, []).append(n)
    return groups.values()


_next_number = itertools.count(1).__next__


class _Running(threading.local):
    def __init__(self) -> None:
        self.tasks: list[GraphTask] = []


_running = _Running()


def running_tasks() -> list[GraphTask]:
    """The careful backwards of this thread, outermost first."""
    return _running.tasks


def running() -> GraphTask:
    """The innermost careful backward of this thread."""
    return _running.tasks[-1]


class GraphTask:
    """One run of the careful backward."""

    def __init__(
        self,
        roots: Sequence[Node],
        seeds: Sequence[Node | None],
        targets: Sequence[Target] | None,
        accumulate: bool,
        retain: bool,
        create: bool,
        batched: bool,
        required: bool = False,
        walk: Walk | None = None,
    ) -> None:
        """`walk`: what `explore` found, if it could tell the course in advance."""
        self.roots = roots
        self.walk = walk
        self.targets = targets
        self.accumulate = accumulate
        self.required = required
        self.retain = retain
        self.create = create
        self.lazy = create or modes.tracing()  # inside vmap the gradients are no numbers yet
        self.batch = seeds[0].aval.shape[0] if batched and seeds and seeds[0] is not None else None
        self.gradient: dict[Node, Node] = {}  # node -> gradient so far
        self.captured: dict[Any, Node] = {}  # target key -> gradient
        self.executed: list[Node] = []
        self.recomputed: dict[Any, Any] = {}  # checkpoint frame -> what stands in for its nodes: autograd/recompute.py
        self.tie: Node | None = None  # a gradient that a recomputation waits for
        self.watch = anomaly.watch()
        self.plan = Plan(targets, accumulate, retain, create, self.watch is not None)
        self.given = seeds
        self._replaced: list[tuple[Meta, Any, Any]] = []  # every `.grad` that was touched, as it was before
        self.number = _next_number()
        self.sink_of = {t.key: t.sink for t in targets} if targets is not None else {}
        self.freed_run: FreedRun | None = None  # where the graph led, when that is known from its key
        self.linear: Linear | None = None  # the graph, numbered, as far as nothing of it has run
        self.launches = 0
        self.course: Course | None = None  # what is done, while that is written down

    def run(self) -> list[Any]:
        """The gradients at the targets; whatever raises leaves every `.grad` as it was."""
        try:
            return self._run()
        except BaseException:
            before = modes.switch(modes.GRAD, False)
            for meta, grad, node in reversed(self._replaced):
                meta.grad = grad
                if grad is not None and grad._node is not node:
                    deposit(meta, node)
            modes.MODE.set(before)
            raise

    def _run(self) -> list[Any]:
        # a kept graph keeps its residuals, as torch keeps saved tensors: the forward runs once
        before = modes.MODE.get()
        modes.MODE.set(before | modes.GRAD if self.create else before & ~modes.GRAD)
        walk = self.walk
        lazy = self.lazy
        _running.tasks.append(self)
        try:
            if self.retain and not lazy:
                force([r for r in self.roots if r.kind is not VAR])
            self._seed()
            whole = self._whole()
            if whole is not None:
                self._pull_whole(whole)
            elif walk is not None and self.watch is None:
                self._sweep_again(walk)
            else:
                self.plan.make(self.gradient)
                self._sweep()
            if self.watch is not None:
                self.watch.check()
            self._leaves()
        finally:
            _running.tasks.pop()
            modes.MODE.set(before)
        results = [] if self.targets is None else [self.captured.get(t.key) for t in self.targets]
        if self.required:
            refuse_unused([g is not None for g in results])
        frees = not (self.retain or modes.tracing())
        executed = [weakref.ref(n) for n in self.executed] if frees else []
        if frees:
            freed_run = self.freed_run or FreedRun.of_nodes({**dict.fromkeys(self.executed, ()), **self.plan.below})
        self._forget()
        if not lazy:
            live = [g for g in results if g is not None]
            live += [n for n in self._deposited if n.value is None]
            live += [r for r in self.roots if r.kind is not VAR]
            if walk is not None and self.linear is not None and CACHE.launches == self.launches and not NAMED_DEVICES:
                force_onward(self.linear, walk.region, live)
            else:
                if walk is not None:  # a hook read a value, and some of what was numbered has run; or there are several devices
                    walk.region.clear()
                    self.linear = None
                force(live, keep_residuals=self.retain)
            self.linear = None
        if frees:
            if self.create:  # what the gradients still wait for is about to be forgotten
                force([g for g in (*results, *self._deposited) if g is not None])
            free([alive for n in executed if (alive := n()) is not None], freed_run)
        return [None if g is None else wrap(g) for g in results]

    def _forget(self) -> None:
        """Let go of the graph: a value that only this object holds need not be an output of the program."""
        for table in (self.gradient, self.captured, self.recomputed, self.executed, self.plan):
            table.clear()  # type: ignore[attr-defined]
        self.given, self.tie = (), None

    def _seed(self) -> None:
        self._deposited: list[Node] = []
        for root, seed in zip(self.roots, self.given, strict=True):
            if seed is None:
                seed = record(ones_seed, (1,), (), (root,))
            self.gradient[root] = add(self.gradient.get(root), seed)

    # -- sweep: from the highest level down ---------------------------------------------------------------------

    def _sweep(self) -> None:
        for nodes in self.plan.levels():
            for n in reversed(nodes):
                if n in self.gradient:
                    if self.course is not None:
                        self.course.arrive(n, self.plan.passes(n))
                    self._arrived(n)
            plain = []
            done: list[Any] = []
            for n in reversed(nodes):
                note = n.note
                block = self.plan.block_of(n)
                if note is not None and note.cut is not None:
                    # torch runs a Function that is reached even where the gradient that reaches it is undefined
                    if (n in self.gradient or note.cut.takes_undefined) and not any(note.cut is d for d in done):
                        done.append(note.cut)
                        self._function(n)
                elif block is not None:
                    if not any(block is d for d in done):
                        done.append(block)
                        self._residuals(block)
                elif note is not None and note.post_hooks:
                    self._piece([n])
                else:
                    plain.append(n)
            for piece in _apart(plain, self.plan.one_by_one):
                self._piece(piece)

    def _sweep_again(self, walk: Walk) -> None:
        """Plan and sweep, or do what a graph with the same key did."""
        watched = [n for n in walk.region if n.note is not None or n in self.plan.wanted_nodes]
        if not self.lazy:  # all that will run, so that it is numbered once
            pending([*walk.outside, *walk.variables, *self.gradient.values()], walk.region)
        linear = Linear(in_order(walk.region))
        slot = linear.slot_of
        self.launches = CACHE.launches
        leaves = sorted(walk.variables, key=lambda v: v.seq)
        key = (
            tuple([slot(r) for r in self.roots]),  # (a root may be a leaf: asking for its slot adds an input)
            linear.key,
            tuple([x.aval for x in linear.inputs]),
            self.batch,
            tuple([g.aval for g in self.gradient.values()]),
            tuple([slot(v) for v in leaves if self.plan.wanted_metas is None or v.note in self.plan.wanted_metas]),
            tuple([(slot(n), n in self.plan.wanted_nodes, n.note and bool(n.note.hooks), n.note and n.note.retained_by is not None) for n in watched]),
            self.create,
            self.accumulate,
            self.targets is None,
        )
        course = COURSES.get(key)
        if course is None:
            self.course = Course(linear)
            self.plan.make(self.gradient)
            self._sweep()
            COURSES[key] = self.course.written(self.plan.taking_part)
            if len(COURSES) > MANY_COURSES:
                del COURSES[next(iter(COURSES))]
        else:
            self._follow(course, linear)
        self.freed_run = FreedRun.of_program(linear, walk.variables)
        self.course = None
        walk.variables.clear()
        walk.outside.clear()
        if self.lazy:
            walk.region.clear()
        else:
            self.linear = linear

    def _follow(self, course: Course, linear: Linear) -> None:
        nodes = [*linear.order, *reversed(linear.inputs)]  # by slot
        gradient = self.gradient
        self.plan.taking_part = {nodes[s] for s in course.part}
        for move in course.moves:
            if isinstance(move, Arrival):
                self._arrived(nodes[move.slot], move.passes)
                continue
            runs = [nodes[s] for s in move.runs]
            for n in runs:
                if n.inputs is None:
                    raise freed_error(n)
            check_saved(runs)
            if move.kind is not None:
                given = [nodes[s] for s in move.inputs]
                given += [gradient[nodes[s]] for s in move.roots]
                wanted = [nodes[s] for s in move.wanted]
                self._hand_on(wanted, move.inner, self._pulled(move.kind, tuple(given)))
            self.executed += runs

    def _arrived(self, n: Node, passes: bool | None = None) -> None:
        """The gradient of a cut is complete: tensor hooks, then retain_grad, then capture, then the node's prehooks."""
        note = n.note
        if self.plan.read(n):
            self.captured[n] = self.gradient[n]
        if note is None or not (self.plan.python(n)):
            return
        if passes is None:
            passes = self.plan.passes(n)
        g = given = self.gradient[n]
        if note.hooks:
            g = self._call_hooks(note.hooks, g)
        if note.retained_by is not None:
            self._retain(note.retained_by, g)
        if n in self.plan.wanted_nodes:  # torch reports a value that is passed on as it was before its hooks
            self.captured[n] = given if passes and not self.accumulate else g
        if note.pre_hooks and passes:
            (found,) = self._call_prehooks(note.pre_hooks, [g])
            if found is None:
                del self.gradient[n]
                return
            g = found
        self.gradient[n] = g

    def _call_hooks(self, hooks: dict[int, Any], g: Node) -> Node:
        if self.batch is not None:
            raise refuse(NotImplementedError, "grad", "hooks do not run on batched gradients (is_grads_batched=True) → loop over the seeds")
        for hook in list(hooks.values()):
            result = hook(wrap(g))
            if result is not None:
                g = checked_hook_result(result, g)
        return g

    def _call_prehooks(self, hooks: dict[int, Any], outputs: Sequence[Node | None]) -> list[Node | None]:
        """What prehooks make of the gradients that arrived, one per output of the node."""
        found = list(outputs)
        for hook in list(hooks.values()):
            found = node_hook_results(hook(_wrapped(found)), found)
        return found

    def _call_post_hooks(self, hooks: dict[int, Any], inputs: Sequence[Node | None], outputs: Sequence[Node | None]) -> list[Node | None]:
        found = list(inputs)
        for hook in list(hooks.values()):
            found = node_hook_results(hook(_wrapped(found), _wrapped(outputs)), found)
        return found

    def _retain(self, meta: Meta, g: Node) -> None:
        self._remember(meta)
        if meta.grad is not None:
            g = add(meta.grad.node, g)
        meta.grad = wrap(g)
        self._deposited.append(g)

    def _remember(self, meta: Meta) -> None:
        self._replaced.append((meta, meta.grad, None if meta.grad is None else meta.grad.node))

    def _piece(self, nodes: list[Node]) -> None:
        """Differentiate the nodes of one level as one program."""
        inside = set(nodes)
        roots = [n for n in nodes if n in self.gradient]
        if not roots:
            return
        part: dict[Node, bool] = dict.fromkeys(roots, True)
        boundary: dict[Node, bool] = {}
        stack = list(roots)
        while stack:
            n = stack.pop()
            if n.inputs is None:
                if self.plan.only_read(n):
                    continue
                raise freed_error(n)
            for x in n.inputs:
                if not x.requires_grad:
                    continue
                if x in inside:
                    if x not in part:
                        part[x] = True
                        stack.append(x)
                elif x in self.plan.taking_part:
                    boundary[x] = True
        stop_at = {n for n in part if self.plan.only_read(n)}
        for n in part:
            if n not in stop_at:
                saved_check(n)
        inner = [n for n in part if n in self.plan.wanted_nodes or (n.note is not None and n.note.retained_by is not None)]
        inner = [n for n in inner if not (self.plan.python(n) or (self.plan.read(n) and n in roots and (n.note is None or n.note.retained_by is None)))]
        wanted = [*boundary, *inner]
        watch = self.watch
        if watch is not None:
            wanted += watch.inner([n for n in part if n not in self.gradient and n not in inner])
        runs = [n for n in part if n not in stop_at]
        self.executed += runs
        if wanted:
            order = in_order(runs)
            parent = watch.enter(roots[-1]) if watch is not None else None
            pulled = self._pull(order, roots, wanted)
            if self.course is not None:
                self.course.piece(runs, roots, wanted, len(boundary), pulled[0].inputs[0])
            if watch is not None:
                watch.leave(parent)
                watch.piece(order, roots, [self.gradient[r] for r in roots], pulled)
            results: list[Node | None] = [*pulled]
            if len(nodes) == 1:
                results[: len(boundary)] = self._post_hooked(nodes[0], boundary, results[: len(boundary)])
            self._hand_on(wanted, len(boundary), results)
        elif self.course is not None:
            self.course.check(runs)

    def _hand_on(self, wanted: Sequence[Node], inner: int, results: Sequence[Node | None]) -> None:
        """Add gradients to those of the boundary; from index `inner` on they belong to values inside the piece."""
        for x, g in zip(wanted[inner:], results[inner:], strict=True):
            assert g is not None
            if x in self.plan.wanted_nodes:
                self.captured[x] = g
            if x.note is not None and x.note.retained_by is not None:
                self._retain(x.note.retained_by, g)
        for x, g in zip(wanted[:inner], results, strict=False):
            if g is not None:
                self.gradient[x] = add(self.gradient.get(x), g)

    def _post_hooked(self, n: Node, boundary: Iterable[Node], gradients: list[Node | None]) -> list[Node | None]:
        """What the node's post hooks make of its gradients; they see one per input, None for constants."""
        if n.note is None or not n.note.post_hooks:
            return gradients
        given = dict(zip(boundary, gradients, strict=True))
        place = {x: i for i, x in reversed(list(enumerate(n.inputs)))}
        full = [given[x] if x in given and place[x] == i else None for i, x in enumerate(n.inputs)]
        found = self._call_post_hooks(n.note.post_hooks, full, [self.gradient.get(n)])
        return [found[place[x]] if x in place else g for x, g in given.items()]

    def _pull(self, order: list[Node], roots: list[Node], wanted: list[Node]) -> list[Node]:
        """Record the gradients of `roots` at `wanted` as one node over the values they depend on."""
        linear = Linear(order)
        root_slots = tuple(linear.slot_of(r) for r in roots)
        wanted_slots = tuple(linear.slot_of(w) for w in wanted)
        seeds = [self.gradient[r] for r in roots]
        inputs: Sequence[Node] = linear.inputs
        frame = frame_of(order[0]) if order else None
        if frame is not None and any(n.kind.saves for n in order):
            self.tie = seeds[0]
            inputs = frame.stand_ins(self, inputs)
        return self.pull_program(linear.program(), root_slots, wanted_slots, inputs, seeds, [w.aval for w in wanted])

    def pull_program(
        self, program: Program, roots: tuple[int, ...], wanted: tuple[int, ...], inputs: Sequence[Node], seeds: Sequence[Node], results: list[Aval]
    ) -> list[Node]:
        """Record the gradients of a program's slots, for given values of its inputs; `results`: avals of the wanted slots."""
        request = (program, roots, wanted, self.batch, tuple(s.aval for s in seeds))
        found = PULL.kinds.get(request)
        if found is None:
            found = PULL.kinds[request] = self._pull_kind(request, results, [s.aval for s in seeds])
        return self._pulled(found, (*(inputs[i] for i in found.statics[0].needed), *seeds))

    def _pulled(self, kind: Kind, given: tuple[Node, ...]) -> list[Node]:
        node = record_kind(kind, given)
        picked = [pick(node, i) for i in range(len(kind.reach))]
        if node.requires_grad:
            for p, reach in zip(picked, kind.reach, strict=True):
                p.requires_grad = p.requires_grad and any(given[j].requires_grad for j in reach)
        return picked

    def _pull_kind(self, request: Any, wanted: list[Aval], seeds: list[Aval]) -> Kind:
        program, root_slots, wanted_slots, batch, _ = request
        dependence = derive.dependence(program, root_slots, wanted_slots, seeds, batch is not None)
        n = len(program.inputs)
        needed = tuple(sorted({i for found in dependence for i in found if i < n}))
        place = {i: k for k, i in enumerate(needed)}
        plan = PullPlan(program, root_slots, wanted_slots, batch is not None, needed)
        avals = (*(program.inputs[i] for i in needed), *seeds)
        kind = Kind(PULL, ((len(avals),),), (plan,), avals, ("value",) * len(needed) + ("seed",) * len(seeds))
        kind.casts = (None,) * len(avals)
        kind.saves = {"*": ("value",)}
        kind.avals = kind.aval = tuple(a if batch is None else aval_of((batch, *a.shape), a.dtype, a.device) for a in wanted)
        kind.differentiable = True
        kind.reach = tuple(tuple(place[i] if i < n else len(needed) + i - n for i in found) for found in dependence)
        return kind

    def _residuals(self, block: Any) -> None:
        """Pull gradients through a region whose forward ran before, from its residuals."""
        live = [o for o in block.outputs if o in self.gradient]
        if not live:
            return
        walked, reached = _walk(live, block, [x for x in block.wanted if x in self.plan.taking_part])
        for n in walked:
            if n.inputs is None:
                raise freed_error(n)
            saved_check(n)
        wanted = [(i, x) for i, x in enumerate(block.wanted) if x in reached]
        if wanted:
            seeds = [self.gradient[o] if o in self.gradient else record(zeros_seed, (1,), (self.batch,), (o,)) for o in block.outputs]
            results = pull_block(block, seeds, self.batch)
            for i, x in wanted:
                self.gradient[x] = add(self.gradient.get(x), results[i])
        for o in live:
            if o in self.plan.wanted_nodes:
                self.captured[o] = self.gradient[o]
            if o.note.retained_by is not None and not self.plan.python(o):
                self._retain(o.note.retained_by, self.gradient[o])
        self.executed += walked

    def _whole(self) -> Any:
        """The residuals that lead from the only root to leaves alone, with nothing for Python to see between."""
        if self.create or self.watch is not None or len(self.roots) != 1 or self.plan.wanted_nodes:
            return None
        root = self.roots[0]
        block = None if root.kind is VAR or root.note is None else root.note.block
        if block is None or len(block.outputs) != 1:
            return None
        for n in block.nodes:
            if n.inputs is None or (n.note is not None and (n.note.retained_by or has_python(n) or n.note.saved)):
                return None
        return block if all(v.kind is VAR for v in block.wanted) else None

    def _pull_whole(self, block: Any) -> None:
        check_saved(block.nodes)
        metas = self.plan.wanted_metas
        self.plan.taking_part = {v for v in block.wanted if metas is None or v.note in metas}
        gradients = pull_block(block, [self.gradient[self.roots[0]]], self.batch)
        self.gradient.update(zip(block.wanted, gradients, strict=True))
        self.executed += block.nodes
        self.freed_run = FreedRun.of_block(block.nodes, block.wanted)

    def _function(self, n: Node) -> None:
        """A backward written in Python."""
        cut = n.note.cut
        below = [x for x in cut.edges if x is not None and x in self.plan.taking_part]
        if not below:
            return
        outputs = cut.slots()
        if cut.pre_hooks:
            self._prehooked(cut, outputs)
            if not cut.takes_undefined and not any(o in self.gradient for o in outputs):
                return
        results = self._run_cut(n, cut)
        hooks = {**(n.note.post_hooks or {}), **(cut.post_hooks or {})}
        results = self._call_post_hooks(hooks, results, [None if o is None else self.gradient.get(o) for o in outputs])
        for x, g in zip(cut.edges, results, strict=True):
            if x is not None and g is not None and x in self.plan.taking_part:
                self.gradient[x] = add(self.gradient.get(x), g)
        self.executed += cut.outputs()

    def _prehooked(self, cut: Any, outputs: Sequence[Node | None]) -> None:
        found = self._call_prehooks(cut.pre_hooks, [None if o is None else self.gradient.get(o) for o in outputs])
        for o, g in zip(outputs, found, strict=True):
            if o is not None:
                self.gradient.pop(o, None)
                if g is not None:
                    self.gradient[o] = g

    def _run_cut(self, n: Node, cut: Any) -> list[Node | None]:
        watch = self.watch
        if watch is None:
            return cut.run(self.gradient, self.batch)
        parent = watch.enter(n)
        try:
            results = cut.run(self.gradient, self.batch)
        except Exception:
            anomaly.tell_of(n)
            raise
        finally:
            watch.leave(parent)
        watch.function(n, results)
        return results

    # -- leaves -------------------------------------------------------------------------------------------------------

    def _leaves(self) -> None:
        by_meta: dict[Meta, Node] = {}
        for n in sorted((n for n in self.gradient if n.kind is VAR), key=lambda n: -n.seq):
            by_meta[n.note] = add(by_meta.get(n.note), self.gradient[n])
        for meta, g in by_meta.items():
            if self.plan.wanted_metas is not None and meta not in self.plan.wanted_metas:
                continue
            if meta.hooks:
                g = self._call_hooks(meta.hooks, g)
            self.captured[meta] = g
            if self.accumulate and meta.accumulates:
                self._accumulate(meta, g)
        if self.accumulate:
            for key in self.plan.wanted_nodes:
                kept = key.note is not None and key.note.retained_by is self.sink_of[key]  # retain_grad put it there
                if key in self.captured and not kept:
                    self._store(self.sink_of[key], self.captured[key])

    def _accumulate(self, meta: Meta, g: Node) -> None:
        """AccumulateGrad: prehooks, add into `.grad`, post-accumulate hooks, post hooks."""
        if meta.pre_hooks:
            (found,) = self._call_prehooks(meta.pre_hooks, [g])
            if found is None:
                return
            g = found
        self._store(meta, g)
        if meta.post_accumulate_hooks or meta.post_hooks:
            tensor = meta.tensor() if meta.tensor is not None else None
            for hook in list((meta.post_accumulate_hooks or {}).values()):
                hook(tensor)
            for hook in list((meta.post_hooks or {}).values()):
                hook((), (wrap(g),))

    def _store(self, meta: Meta, g: Node) -> None:
        old = meta.grad
        self._remember(meta)
        if old is None:
            meta.grad = wrap(g)
        elif self.create:
            meta.grad = wrap(add(old.node, g))
        else:
            g = record(sum_of, (1, 1), (), (old.node, g))
            deposit(meta, g)
        self._deposited.append(g)


def _wrapped(gradients: Sequence[Node | None]) -> tuple[Any, ...]:
    return tuple(None if g is None else wrap(g) for g in gradients)


def _walk(outputs: Sequence[Node], block: Any, goals: Sequence[Node]) -> tuple[list[Node], set[Node]]:
    """The nodes of a block between `outputs` and `goals` (a freed one may lead anywhere), and the goals that are reached."""
    inside = set(block.nodes)
    ends = set(goals)
    leads = needed_nodes(inside, ends) | {n for n in inside if n.inputs is None}
    walked: dict[Node, bool] = {}
    reached: set[Node] = set()
    stack = [o for o in outputs if o in leads]
    while stack:
        n = stack.pop()
        if n not in walked:
            walked[n] = True
            for x in n.inputs or ():
                if x in ends:
                    reached.add(x)
                elif x in leads:
                    stack.append(x)
    return list(walked), reached


