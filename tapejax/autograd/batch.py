"""A function run once on one example, recorded, and mapped over a batch as one node.

The function sees stand-ins: tensors of one example's shape whose nodes have the kind ARGUMENT and no value. What it
records between them and its results becomes a program, and the program one node of the op VMAP on the surrounding tape,
whose body is `jax.vmap` of the replay. Values that do not depend on a stand-in stay where they are and enter the program
as inputs without a batch axis. Maps nest, since a VMAP node is a node like any other.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.autograd import forward_ad, function
from tapejax.autograd.pull import PULL
from tapejax.engine.replay import replay
from tapejax.storage.view import check_writable, write
from tapejax.tape import modes
from tapejax.tape.aval import Aval, aval_of
from tapejax.tape.node import ARGUMENT, VAR, Kind, Node, next_seq
from tapejax.tape.note import Note
from tapejax.tape.op import Array, Arrays, Op, op
from tapejax.tape.program import STOP, Linear, Program, in_order
from tapejax.tape.record import pick, record, record_kind
from tapejax.tensor import Tensor, wrap

# -- the op ------------------------------------------------------------------------------------------------------------


def _vmap_body(
    arrays: Arrays,
    program: Program,
    outputs: tuple[int, ...],
    in_axes: tuple[int | None, ...],
    out_axes: tuple[int, ...],
    size: int,
    draws: tuple[tuple[int, int], ...],
    chunk: int | None,
) -> Any:
    given: list[Any] = list(arrays)  # type: ignore[call-overload]
    axes = list(in_axes)
    for seed, counter in draws:  # every example draws its own numbers
        key = jax.random.fold_in(jax.random.key(given[seed], impl="threefry2x32"), given[counter])
        given[seed] = (jax.random.bits(key, (size,), jnp.uint64) >> 1).astype(jnp.int64)
        axes[seed] = 0

    def one(*inputs: Any) -> tuple[Any, ...]:
        at = replay(program, inputs)
        return tuple(at(s) for s in outputs)

    if chunk is None or chunk >= size:
        return jax.vmap(one, in_axes=tuple(axes), out_axes=out_axes, axis_size=size)(*given)
    moving = [i for i, a in enumerate(axes) if a is not None]

    def step(mapped: Any) -> Any:
        inputs = list(given)
        for i, x in zip(moving, mapped, strict=True):
            inputs[i] = x
        return one(*inputs)

    found = jax.lax.map(step, tuple(jnp.moveaxis(given[i], axes[i], 0) for i in moving), batch_size=chunk)  # type: ignore[arg-type]
    return tuple(jnp.moveaxis(x, 0, a) for x, a in zip(found, out_axes, strict=True))


VMAP = Op(_vmap_body, "", {"name": "vmap", "oracle": None})


@op("", oracle=None)
def example(input: Array) -> Any:
    """One example of a tensor that requires grad."""
    return input


@op("", oracle=None)
def repeat_over_batch(input: Array, size: int, axis: int) -> Any:
    """Repeat a value that is the same for every example along a new axis."""
    x: Any = input
    return jnp.broadcast_to(jnp.expand_dims(x, axis), (*x.shape[:axis], size, *x.shape[axis:]))


def _without_stops(kind: Kind) -> Kind:
    """The map that tangents go through: `no_grad` inside stops gradients, not tangents."""
    program, *rest = kind.statics
    if STOP not in program.key:
        return kind
    found = VMAP.kinds.get((kind, STOP))
    if found is None:
        open_program = Program(tuple(w for w in program.key if not (isinstance(w, str) and w == STOP)), program.inputs)
        found = Kind(VMAP, kind.form, (open_program, *rest), kind.inputs, kind.operands)
        found.casts, found.aval, found.avals, found.differentiable, found.saves = (
            kind.casts,
            kind.aval,
            kind.avals,
            kind.differentiable,
            kind.saves,
        )
        VMAP.kinds[(kind, STOP)] = found
    return found


forward_ad.TWINS[VMAP] = _without_stops


@op("", oracle=None, differentiable=False)
def unit_rows(total: int, offset: int, shape: Any, dtype: Any) -> Any:
    """Of `total` unit directions the part that belongs to the value at `offset`: shape `(total, *shape)`."""
    size = math.prod(shape)
    return jnp.eye(total, size, -offset, dtype.np).reshape(total, *shape)


def units(avals: Sequence[Aval]) -> list[Tensor]:
    """All unit directions of several values together: per value a tensor `(elements of all, *shape)`."""
    total = sum(a.size for a in avals)
    found = []
    offset = 0
    for a in avals:
        found.append(wrap(record(unit_rows, (), (total, offset, a.shape, a.dtype), ())))
        offset += a.size
    return found


# -- random numbers inside ---------------------------------------------------------------------------------------------

_draws_of: dict[Op, Callable[[Kind], Iterable[tuple[int, int]]]] = {
    VMAP: lambda kind: _program_draws(kind.statics[0]),
    PULL: lambda kind: _pull_draws(kind.statics[0]),
    forward_ad.JVP: lambda kind: draws_of(kind.statics[0]),
}


def _pull_draws(plan: Any) -> Iterable[tuple[int, int]]:
    place = {slot: i for i, slot in enumerate(plan.needed)}
    return [(place[s], place[c]) for s, c in _program_draws(plan.program) if s in place and c in place]


def _program_draws(program: Program) -> Iterable[tuple[int, int]]:
    for kind, slots, _ in program.instructions:
        if kind is not VAR:
            for seed, counter in draws_of(kind):
                if slots[seed] < 0 and slots[counter] < 0:
                    yield -slots[seed] - 1, -slots[counter] - 1


_draw_cache: dict[Kind, tuple[tuple[int, int], ...]] = {}


def draws_of(kind: Kind) -> tuple[tuple[int, int], ...]:
    """Where among the inputs the (seed, counter) pairs of random numbers stand."""
    found = _draw_cache.get(kind)
    if found is None:
        of = _draws_of.get(kind.op)
        if of is not None:
            found = tuple(dict.fromkeys(of(kind)))
        else:
            seeds = {p.name for p in kind.op.params if p.role == "seed"}
            first = [i for i, n in enumerate(kind.operands) if n in seeds][::2]
            found = tuple((i, i + 1) for i in first)
        _draw_cache[kind] = found
    return found


# -- the trace ---------------------------------------------------------------------------------------------------------

_ITEM = (
    "vmap: It looks like you're calling .item() on a Tensor. We don't support vmap over calling .item() on a Tensor, please try to rewrite"
    " what you're doing with other operations. (A value of one example is not a number while the whole batch is computed at once: use"
    " where() instead of if, and return what you want to look at.)"
)
_BOOL = (
    "vmap: It looks like you're attempting to use a Tensor in some data-dependent control flow. We don't support that yet: every example"
    " would have to go its own way. Use where(condition, a, b) instead of if."
)
_WRITE = (
    "vmap: inplace arithmetic(self, *extra_args) is not possible because there exists a Tensor `other` in extra_args that has more elements"
    " than `self`. This happened due to `other` being vmapped over but `self` not being vmapped over in a vmap. Please try to use"
    " out-of-place operators instead of inplace arithmetic, or make `self` from a mapped tensor (x.new_zeros(...) instead of zeros(...))."
)
_RANDOM = (
    "vmap: called random operation while in randomness error mode. Please either use the 'same' or 'different' randomness flags on vmap or"
    " perform the randomness operation out of vmap"
)


class StandIn(Note):
    """What hangs on a stand-in's node."""

    __slots__ = ("trace",)

    def refusal(self) -> Exception:
        """The error for code that asks for a number."""
        frame: Any = sys._getframe()
        while frame is not None:
            if frame.f_code.co_name == "__bool__":
                return RuntimeError(_BOOL)
            frame = frame.f_back
        return RuntimeError(_ITEM)


class Trace:
    """One run of a function on stand-ins for one example of a batch of `size`."""

    stands_in = True

    def __init__(self, size: int, randomness: str) -> None:
        self.size = size
        self.randomness = randomness
        self.start = next_seq()
        self.behind: dict[Node, tuple[Node, int]] = {}  # stand-in -> (batched node, axis)
        self.tensors: list[tuple[Tensor, Tensor, int]] = []  # (stand-in, the argument, axis)
        self._varies: dict[Node, bool] = {}

    def stand_in(self, node: Node, axis: int) -> Node:
        """A node of one example's shape for a node whose `axis` is the batch."""
        aval = node.aval
        shape = aval.shape[:axis] + aval.shape[axis + 1 :]
        made = Node(ARGUMENT, (), aval_of(shape, aval.dtype, aval.device), False)
        made.note = StandIn()
        self.behind[made] = (node, axis)
        if not (node.requires_grad and modes.grad_enabled()):
            return made
        tracked = record(example, (1,), (), (made,))
        tracked.requires_grad = True  # so that what `no_grad` stops inside is known
        return tracked

    def before_draw(self) -> None:
        if self.randomness == "error":
            raise RuntimeError(_RANDOM)

    def lift(self, tensor: Tensor, axis: int) -> Tensor:
        made = wrap(self.stand_in(tensor.node, axis))
        self.tensors.append((made, tensor, axis))
        return made

    def varies(self, node: Node) -> bool:
        """Whether the value differs from example to example."""
        known = self._varies
        found = known.get(node)
        if found is not None:
            return found
        start, behind = self.start, self.behind
        stack = [node]
        while stack:
            n = stack[-1]
            if n in known:
                stack.pop()
                continue
            if n.seq <= start:
                known[n] = False
            elif n in behind:
                known[n] = True
            elif isinstance(n.kind, str) and n.kind is not VAR:
                known[n] = False
            elif self.randomness == "different" and any(n.inputs[c].seq > start for _, c in draws_of_node(n)):
                known[n] = True
            else:
                found = False
                ready = True
                for x in n.inputs or ():
                    here = known.get(x)
                    if here is None:
                        if x.seq <= start:
                            known[x] = False
                        else:
                            stack.append(x)
                            ready = False
                    elif here:
                        found = True
                if not ready:
                    continue
                known[n] = found
            stack.pop()
        return known[node]

    def close(self, outputs: Sequence[Node], axes: Sequence[int], chunk: int | None = None) -> list[Node]:
        """Record the map that computes `outputs` (of one example) for the whole batch, on the surrounding tape."""
        mapped = [(o, a) for o, a in zip(outputs, axes, strict=True) if self.varies(o)]
        made = iter(self._record(mapped, chunk) if mapped else ())
        found = []
        for o, a in zip(outputs, axes, strict=True):
            found.append(next(made) if self.varies(o) else record(repeat_over_batch, (1,), (self.size, a), (o,)))
        return found

    def _record(self, mapped: list[tuple[Node, int]], chunk: int | None) -> list[Node]:
        part: dict[Node, bool] = {}
        known, behind = self._varies, self.behind
        stack = [o for o, _ in mapped]
        while stack:
            n = stack.pop()
            if n not in part:
                part[n] = True
                if n not in behind:
                    for x in n.inputs:
                        if x not in part and (known[x] if x in known else self.varies(x)):
                            stack.append(x)
        order = in_order(part)
        region = {n for n in order if n.requires_grad or not any(x.requires_grad for x in n.inputs)}
        linear = Linear(order, region)
        slots = tuple([linear.slot_of(o) for o, _ in mapped])
        inputs: list[Node] = []
        in_axes: list[int | None] = []
        for x in linear.inputs:
            node, axis = self.behind.get(x, (x, None))
            inputs.append(node)
            in_axes.append(axis)
        draws: tuple[tuple[int, int], ...] = ()
        if self.randomness == "different":
            place = {x: i for i, x in enumerate(linear.inputs)}
            pairs = [(n.inputs[s], n.inputs[c]) for n in order for s, c in draws_of_node(n)]
            draws = tuple(dict.fromkeys((place[s], place[c]) for s, c in pairs if c.seq > self.start and s in place))
        avals = tuple([x.aval for x in inputs])
        ones = tuple([x.aval for x in linear.inputs])
        rest = (slots, tuple(in_axes), tuple([a for _, a in mapped]), self.size, draws, chunk)
        key = (linear.key, avals, ones, rest)
        kind = VMAP.kinds.get(key)
        if kind is None:
            kind = VMAP.kinds[key] = self._kind(Program(linear.key, ones), rest, avals, [o.aval for o, _ in mapped])
        node = record_kind(kind, tuple(inputs))
        found = []
        for i, (o, _) in enumerate(mapped):
            out = pick(node, i)
            out.requires_grad = out.requires_grad and o.requires_grad
            found.append(out)
        return found

    def _kind(self, program: Program, rest: tuple[Any, ...], avals: tuple[Aval, ...], results: list[Aval]) -> Kind:
        names = tuple(f"input{i}" for i in range(len(avals)))
        kind = Kind(VMAP, ((len(avals),),), (program, *rest), avals, names)
        kind.casts = (None,) * len(avals)
        kind.avals = kind.aval = tuple(
            aval_of((*r.shape[:a], self.size, *r.shape[a:]), r.dtype, r.device)
            for r, a in zip(results, rest[2], strict=True)
        )
        kind.differentiable = any(a.differentiable for a in kind.avals)
        kind.saves = saves_of_program(program, names)
        return kind

    def write_back(self) -> None:
        """Writes into stand-ins are writes into the arguments."""
        written = [(s, t, a) for s, t, a in self.tensors if s._alias is not None and s._alias.storage.epoch]
        if written:
            values = self.close([s.node for s, _, _ in written], [a for _, _, a in written])
            for (_, tensor, _), value in zip(written, values, strict=True):
                check_writable(tensor, "vmap", value.requires_grad)
                write(tensor, value)


def saves_of_program(program: Program, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """What the backward of a whole program needs: the inputs that its instructions save, and a mark for what lies between."""
    needed: dict[str, None] = {}
    for kind, slots, _ in program.instructions:
        if kind is VAR or not kind.saves:
            continue
        saved = kind.saved_at_most
        for name, s in zip(kind.operands, slots, strict=True):
            if name in saved:
                needed[names[-s - 1] if s < 0 else "between"] = None
        if "result" in saved:
            needed["between"] = None
    return {"*": tuple(needed)} if needed else {}


def draws_of_node(node: Node) -> tuple[tuple[int, int], ...]:
    return () if isinstance(node.kind, str) else draws_of(node.kind)


def traces() -> list[Trace]:
    """The running traces, outermost first."""
    return [t for t in modes.TRANSFORMS.get() if isinstance(t, Trace)]


@contextmanager
def running(transform: Any) -> Any:
    """Let `transform` be the innermost one."""
    token = modes.TRANSFORMS.set((*modes.TRANSFORMS.get(), transform))
    try:
        yield transform
    finally:
        modes.TRANSFORMS.reset(token)


def _check_write(tensor: Tensor, value: Node) -> None:
    for trace in traces():
        if trace.varies(value) and not trace.varies(tensor.node):
            if trace.randomness == "different" and draws_of_node(value):
                raise RuntimeError(
                    "vmap: Cannot ask for different inplace randomness on an unbatched tensor. This will appear like same randomness. If this"
                    " is necessary, draw out of place."
                )
            raise RuntimeError(_WRITE)


modes.WRITE_CHECKS.append(_check_write)


def map_flat(
    run: Callable[..., Sequence[Any]],
    tensors: Sequence[Any],
    axes: Sequence[int | None],
    size: int,
    randomness: str = "error",
) -> list[Any]:
    """`run` (flat tensors to flat tensors or Nones) mapped over a batch; results have the batch first."""
    trace = Trace(size, randomness)
    with running(trace):
        given = [t if a is None or t is None else trace.lift(t, a) for t, a in zip(tensors, axes, strict=True)]
        results = run(*given)
    there = [r for r in results if r is not None]
    nodes = iter(trace.close([r.node for r in there], [0] * len(there)))
    trace.write_back()
    return [None if r is None else wrap(next(nodes)) for r in results]


function.MAPS.append(map_flat)
