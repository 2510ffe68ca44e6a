"""Custom Functions inside transforms.

A Function's gradient is Python, so it cannot disappear inside a mapped program. Where a map meets a Function, the program
ends: what the Function reads becomes batched values outside, its rule for batches (`vmap`, or the one generated from its
`forward` and `backward`) runs there, and the function being mapped goes on with stand-ins for the results. So outside, the
Function is a cut like any other; inside, the results carry a second cut, for gradients asked for within the map.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from tapejax.autograd import function
from tapejax.autograd.batch import Trace, example, running
from tapejax.autograd.function import Cut, Function, function_output
from tapejax.errors import refuse
from tapejax.func.tree import broadcast_prefix, flatten, unflatten
from tapejax.tape import modes
from tapejax.tape.node import Node
from tapejax.tape.note import note_of
from tapejax.tape.record import record
from tapejax.tensor import Tensor, wrap

_MORE = "For more details, please see https://pytorch.org/docs/main/notes/extending.func.html"


class VmapInfo(NamedTuple):
    """What a `vmap` static method is told about the map it runs in."""

    batch_size: int
    randomness: str


def _around(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    transforms = modes.TRANSFORMS.get()
    if not transforms:
        return NotImplemented
    if cls.setup_context is Function.setup_context:
        raise RuntimeError(
            "In order to use an autograd.Function with functorch transforms (vmap, grad, jvp, jacrev, ...), it must override the setup_context"
            f" staticmethod: {cls.__name__} takes ctx in its forward. {_MORE}"
        )
    if not any(isinstance(t, Trace) for t in transforms):
        return NotImplemented
    own = getattr(cls, "vmap", None) is not None
    if own and cls.generate_vmap_rule:
        raise RuntimeError(
            f"You tried to vmap over {cls.__name__}, but it has both generate_vmap_rule=True and an overridden vmap staticmethod. Please set"
            f" generate_vmap_rule=False or delete the overridden vmap staticmethod to avoid ambiguity. {_MORE}"
        )
    if not own and not cls.generate_vmap_rule:
        raise RuntimeError(
            f"You tried to vmap over {cls.__name__}, but it does not have vmap support. Please override and implement the vmap staticmethod or"
            f" set generate_vmap_rule=True. {_MORE}"
        )
    for depth in range(len(transforms) - 1, -1, -1):
        trace = transforms[depth]
        if isinstance(trace, Trace) and any(isinstance(a, Tensor) and trace.varies(a.node) for a in args):
            return _mapped(cls, args, trace, transforms[:depth], own)
    return NotImplemented


function.AROUND_APPLY.append(_around)


def _mapped(cls: type[Function], args: tuple[Any, ...], trace: Trace, outside: tuple[Any, ...], own: bool) -> Any:
    batched, dims = _batched(args, trace)
    token = modes.TRANSFORMS.set(outside)
    try:
        if own:
            found = cls.vmap(VmapInfo(trace.size, trace.randomness), dims, *batched)  # type: ignore[attr-defined]
            if not isinstance(found, tuple) or len(found) != 2:
                raise RuntimeError(
                    "Expected the vmap staticmethod to have two returns, an output and out_dims with pytree structure compatible with the output."
                    f" Got a {type(found)} instead"
                )
            output, out_dims = found
        else:
            output = _generated(cls, trace, dims).apply(*batched)
            out_dims = 0
    finally:
        modes.TRANSFORMS.reset(token)
    leaves, spec = flatten(output)
    axes = broadcast_prefix(out_dims, spec, lambda d: d is None or isinstance(d, int))
    if axes is None:
        raise RuntimeError(
            f"The autograd.Function's vmap staticmethod returned an incompatible (output, out_dims) tuple. Expected out_dims={out_dims} to be"
            f" compatible with the structure of `output`. out_dims has structure {flatten(out_dims)[1]} but output has structure {spec}. {_MORE}"
        )
    ones = [
        wrap(trace.stand_in(o.node, d % o.dim())) if isinstance(o, Tensor) and d is not None else o
        for o, d in zip(leaves, axes, strict=True)
    ]
    inside = unflatten(spec, ones)
    return _differentiable_inside(cls, args, inside)


def _batched(args: Sequence[Any], trace: Trace) -> tuple[list[Any], tuple[int | None, ...]]:
    """The arguments as the surroundings of `trace` see them, and their batch axes."""
    found = list(args)
    dims: list[int | None] = [None] * len(found)
    computed: list[int] = []
    for i, a in enumerate(args):
        if not isinstance(a, Tensor) or not trace.varies(a.node):
            continue
        behind = _behind(a.node, trace)
        if behind is None:
            computed.append(i)
        else:
            found[i], dims[i] = wrap(behind[0]), behind[1]
    token = modes.TRANSFORMS.set(modes.TRANSFORMS.get()[: modes.TRANSFORMS.get().index(trace)])
    try:
        for i, node in zip(computed, trace.close([args[i].node for i in computed], [0] * len(computed)), strict=True):
            found[i], dims[i] = wrap(node), 0
    finally:
        modes.TRANSFORMS.reset(token)
    return found, tuple(dims)


def _behind(node: Node, trace: Trace) -> tuple[Node, int] | None:
    while not isinstance(node.kind, str) and node.kind.op is example:
        node = node.inputs[0]
    return trace.behind.get(node)


def _differentiable_inside(cls: type[Function], args: tuple[Any, ...], output: Any) -> Any:
    """Put the cut of one example on the results: gradients within the map go through the Function's own backward."""
    single = not isinstance(output, tuple)
    outputs = (output,) if single else output
    recording = modes.grad_enabled()
    edges = tuple(a.node if isinstance(a, Tensor) and a.requires_grad and recording else None for a in args)
    forward = bool(modes.MODE.get() & modes.FORWARD)
    if not forward and all(e is None for e in edges):
        return output
    ctx = cls._ctx_type()
    ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
    read = [a.node if isinstance(a, Tensor) else None for a in args]
    before = modes.MODE.get()
    modes.MODE.set(before & ~(modes.GRAD | modes.FORWARD))
    try:
        cls.setup_context(ctx, args, output)
    finally:
        modes.MODE.set(before)
    made = outputs
    if any(e is not None for e in edges):
        cut = Cut(f"{cls.__name__}Backward", ctx, edges)
        ctx._cut_ref = function.weakref.ref(cut)
        made = tuple(_cut_output(o, cut, ctx) for o in outputs)
        function._save(ctx, outputs, made)
    if forward:
        for after in function.AFTER_FORWARD:
            after(cls, ctx, args, read, made)
    return made[0] if single else made


def _cut_output(o: Any, cut: Cut, ctx: Any) -> Any:
    if not isinstance(o, Tensor):
        cut.output_refs.append(None)
        cut.avals.append(None)
        return o
    cut.avals.append(o.node.aval)
    if not o.node.aval.differentiable or any(o is d for d in ctx._non_differentiable):
        cut.output_refs.append(None)
        return o
    node = record(
        function_output, (1,), (), (o.node,)
    )  # outside the map its gradient flows on, to the batched Function
    node.requires_grad = True
    note_of(node).cut = cut
    cut.output_refs.append(function.weakref.ref(node))
    return wrap(node)


# -- the generated rule ------------------------------------------------------------------------------------------------


class _Run:
    """What one mapped forward leaves for its backward."""

    ctx: Any  # the ctx of one example
    saved: list[tuple[Any, int | None]]  # per saved tensor the batched one, and its axis
    saved_forward: list[tuple[Any, int | None]] | None
    blocked: list[int]  # outputs without gradient


def _generated(cls: type[Function], trace: Trace, dims: tuple[int | None, ...]) -> type[Function]:
    """`cls` for batches: forward, backward and jvp mapped over the batch, itself a Function."""
    size, randomness = trace.size, trace.randomness
    run = _Run()

    def forward(*args: Any) -> Any:
        inner = Trace(size, randomness)
        with running(inner):
            ones = [inner.lift(a, d) if d is not None else a for a, d in zip(args, dims, strict=True)]
            output = cls.forward(*ones)
            ctx = run.ctx = cls._ctx_type()
            cls.setup_context(ctx, tuple(ones), output)
        single = not isinstance(output, tuple)
        outs = (output,) if single else output
        if ctx._dirty:
            raise refuse(
                RuntimeError,
                cls.__name__,
                "mark_dirty is not supported by generate_vmap_rule=True → write a vmap staticmethod",
            )
        places = [i for i, o in enumerate(outs) if isinstance(o, Tensor)]
        made: list[Any] = list(outs)
        for i, node in zip(places, inner.close([outs[i].node for i in places], [0] * len(places)), strict=True):
            made[i] = wrap(node)

        def kept(tensors: Sequence[Any]) -> list[tuple[Any, int | None]]:
            found: list[tuple[Any, int | None]] = []
            for t in tensors:
                argument = next((i for i, o in enumerate(ones) if o is t), None)
                result = next((i for i, o in enumerate(outs) if o is t), None)
                if t is None:
                    found.append((None, None))
                elif argument is not None:
                    found.append((args[argument], dims[argument]))
                elif result is not None:
                    found.append((made[result], 0))
                elif inner.varies(t.node):
                    found.append((wrap(inner.close([t.node], [0])[0]), 0))
                else:
                    found.append((t, None))
            return found

        run.saved = kept(ctx._to_save)
        run.saved_forward = None if ctx._to_save_forward is None else kept(ctx._to_save_forward)
        run.blocked = [i for i, o in enumerate(outs) if any(o is b for b in ctx._non_differentiable)]
        return made[0] if single else tuple(made)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.inner = run.ctx
        ctx.axes = [axis for _, axis in run.saved]
        ctx.save_for_backward(*[t for t, _ in run.saved])
        if run.saved_forward is not None:
            ctx.axes_forward = [axis for _, axis in run.saved_forward]
            ctx.saved_for_forward = [t for t, _ in run.saved_forward]
        outs = output if isinstance(output, tuple) else (output,)
        if run.blocked:
            ctx.mark_non_differentiable(*[outs[i] for i in run.blocked])
        ctx.set_materialize_grads(run.ctx._materialize)

    def one_ctx(ctx: Any, saved: Sequence[Any]) -> Any:
        """The ctx of one example, with what it saved."""
        one = copy.copy(ctx.inner)
        one._saved = one._cut_ref = one._to_save_forward = None
        one._to_save = tuple(saved)
        one.needs_input_grad = ctx.needs_input_grad
        return one

    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        inner = Trace(size, randomness)
        with running(inner):
            seeds = [None if g is None else inner.lift(g, 0) for g in grads]
            ones = [inner.lift(t, a) if a is not None else t for t, a in zip(saved, ctx.axes, strict=True)]
            found = cls.backward(one_ctx(ctx, ones), *seeds)
        results = found if isinstance(found, tuple) else (found,)
        there = [i for i, r in enumerate(results) if r is not None]
        axes = [dims[i] if i < len(dims) and dims[i] is not None else 0 for i in there]
        made: list[Any] = [None] * len(results)
        for i, node in zip(there, inner.close([results[i].node for i in there], axes), strict=True):  # type: ignore[arg-type]
            made[i] = wrap(node)
            if i < len(dims) and dims[i] is None:
                made[i] = made[i].sum(0)  # an argument that all examples share
        return tuple(made)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        given = getattr(ctx, "saved_for_forward", None)
        saved = given if given is not None else [t for t, _ in run.saved]
        saved_axes = ctx.axes_forward if given is not None else ctx.axes
        inner = Trace(size, randomness)
        with running(inner):
            moving = [t if t is None or d is None else inner.lift(t, d) for t, d in zip(tangents, dims, strict=True)]
            ones = [inner.lift(t, a) if a is not None else t for t, a in zip(saved, saved_axes, strict=True)]
            found = cls.jvp(one_ctx(ctx, ones), *moving)
        results = found if isinstance(found, tuple) else (found,)
        there = [i for i, r in enumerate(results) if r is not None]
        made: list[Any] = [None] * len(results)
        for i, node in zip(there, inner.close([results[i].node for i in there], [0] * len(there)), strict=True):
            made[i] = wrap(node)
        return tuple(made)

    body = {"forward": forward, "setup_context": setup_context, "backward": backward, "jvp": jvp}
    space: dict[str, Any] = {
        name: staticmethod(f) for name, f in body.items() if getattr(cls, name) is not getattr(Function, name)
    }
    return type(f"Vmapped{cls.__name__}", (Function,), {**space, "generate_vmap_rule": True})


__all__ = ["VmapInfo"]
