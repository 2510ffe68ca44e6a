"""Custom Functions: a forward and a backward written in Python, as a cut in the tape.

The forward runs unrecorded; each differentiable output becomes a node of its own that knows the Function's inputs as
edges. The backward runs in Python between two pieces of the graph, on pending gradients, so that a step with custom
Functions is still one program.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tapejax.autograd.checks import freed_error
from tapejax.autograd.gradients import checked_gradient, zeros_like_aval
from tapejax.autograd.hooks import RemovableHandle, add_hook
from tapejax.autograd.saved import keep
from tapejax.errors import refuse
from tapejax.storage.cell import NO_GRAD
from tapejax.storage.view import alias_of, check_writable, lens_of, made_view, write
from tapejax.tape import modes
from tapejax.tape.node import Node
from tapejax.tape.note import note_of
from tapejax.tape.op import Array, op
from tapejax.tape.record import record
from tapejax.tensor import Tensor, wrap


@op("", oracle=None)
def function_output(input: Array) -> Any:
    """An output of a custom Function: the value its forward gave."""
    return input


@op("", oracle=None, put=lambda base, value: value)
def function_alias(input: Array) -> Any:
    """An input that a custom Function returned as it is: a view of it."""
    return input


#: `f(run, tensors, axes, size)`: `run`, written for one example, for a batch. Put here by autograd/batch.py.
MAPS: list[Callable[..., list[Any]]] = []


class Cut:
    """The Python backward behind a Function's outputs."""

    __slots__ = ("__weakref__", "avals", "ctx", "edges", "freed", "name", "needed", "output_refs", "post_hooks", "pre_hooks")
    takes_undefined = True

    def __init__(self, name: str, ctx: Any, edges: tuple[Node | None, ...]) -> None:
        self.name = name
        self.ctx = ctx
        self.edges = edges
        self.output_refs: list[weakref.ref[Node] | None] = []
        self.avals: list[Any] = []
        self.freed = False
        self.pre_hooks: dict[int, Any] | None = None
        self.post_hooks: dict[int, Any] | None = None

    def slots(self) -> list[Node | None]:
        """The node of each output, None where it is gone or takes no gradient."""
        return [None if r is None else r() for r in self.output_refs]

    def outputs(self) -> list[Node]:
        return [n for r in self.output_refs if r is not None and (n := r()) is not None]

    def index_of(self, node: Node) -> int:
        return next(i for i, r in enumerate(self.output_refs) if r is not None and r() is node)

    def release(self) -> None:
        """Drop what was saved for backward (the graph was freed)."""
        self.freed = True
        if self.ctx is not None:
            self.ctx._release()

    def run(self, gradient: dict[Node, Node], batch: int | None) -> list[Node | None]:
        """Call the user's backward; one gradient (or None) per edge."""
        ctx = self.ctx
        grads: list[Any] = []
        axes: list[int | None] = []
        for ref, aval in zip(self.output_refs, self.avals, strict=True):
            node = ref() if ref is not None else None
            g = gradient.get(node) if node is not None else None
            axes.append(None if g is None else 0)
            if g is not None:
                grads.append(wrap(g))
            elif aval is not None and ctx._materialize:
                grads.append(_zeros(aval))
            else:
                grads.append(None)
        if batch is not None:  # every gradient has the batch first: run backward on one of them, for all
            results = MAPS[0](lambda *one: [None if r is None else wrap(r) for r in self._gradients(one)], grads, axes, batch)
            return [None if r is None else r.node for r in results]
        return self._gradients(grads)

    def _gradients(self, grads: Sequence[Any]) -> list[Node | None]:
        results = self.ctx._backward(*grads)
        results = results if isinstance(results, tuple) else tuple(results) if isinstance(results, list) else (results,)
        n = len(self.edges)
        if len(results) > n and all(r is None for r in results[n:]):
            results = results[:n]
        if len(results) != n:
            raise refuse(RuntimeError, self.name, f"function {self.name} returned an incorrect number of gradients (expected {n}, got {len(results)})")
        return [self._checked(i, r, e) for i, (r, e) in enumerate(zip(results, self.edges, strict=True))]

    def _checked(self, i: int, result: Any, edge: Node | None) -> Node | None:
        if result is None:
            return None
        if not isinstance(result, Tensor):
            raise refuse(TypeError, self.name, f"expected Variable or None (got {type(result).__name__}) as gradient {i}")
        return None if edge is None else checked_gradient(self.name, i, result.node, edge.aval)


def _zeros(aval: Any) -> Tensor:
    return wrap(zeros_like_aval(aval))


class _Saved:
    """One tensor given to save_for_backward: an input is kept as it is, an output as its number (no cycle through ctx)."""

    __slots__ = ("home", "index", "keeper", "node", "tensor")

    def __init__(self, tensor: Tensor | None, index: int | None) -> None:
        self.index = index
        self.tensor = tensor if index is None else None
        self.home: Any = None
        self.keeper = None if tensor is None else keep(tensor, index is not None)
        self.node = self.tensor.node if self.keeper is not None and self.tensor is not None else None
        if self.tensor is not None and self.tensor._alias is not None:
            counter = self.tensor._alias.storage.counter
            self.home = (counter, counter.version)

    def kept(self, cut: Cut | None) -> Any:
        """The tensor as hooks or a checkpoint give it back."""
        ref = cut.output_refs[self.index] if cut is not None and self.index is not None else None
        keeper: Any = self.keeper
        return wrap(keeper.get(ref() if ref is not None else self.node))

    def current(self, cut: Cut | None) -> tuple[Tensor, Any]:
        """The tensor, and the (counter, version) that must not have moved."""
        if self.index is None:
            tensor = self.tensor
            assert tensor is not None
            home = self.home
            if home is None and tensor._alias is not None:  # its first write came after it was saved
                home = (tensor._alias.storage.counter, 0)
            return tensor, home
        ref = cut.output_refs[self.index] if cut is not None else None
        node = ref() if ref is not None else None
        assert node is not None
        return wrap(node), node.home


class FunctionCtx:
    """What `forward` and `backward` share."""

    def __init__(self) -> None:
        self._to_save: tuple[Any, ...] = ()
        self._to_save_forward: tuple[Any, ...] | None = None
        self._saved: list[_Saved] | None = None
        self._dirty: tuple[Tensor, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._materialize = True
        self.needs_input_grad: tuple[bool, ...] = ()
        self._cut_ref: weakref.ref[Cut] | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors (inputs, outputs or others) for the backward; read them there as `ctx.saved_tensors`."""
        for t in tensors:
            if t is not None and not isinstance(t, Tensor):
                raise refuse(TypeError, "save_for_backward", f"save_for_backward can only save variables, but got {type(t).__name__} → put it on ctx")
        self._to_save = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for `jvp`."""
        self._to_save_forward = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say which inputs `forward` wrote in place; each must be returned."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say which outputs have no gradient."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether undefined output gradients reach `backward` as zeros (the default) or as None."""
        self._materialize = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        if self._saved is None:
            if self._to_save_forward is not None and not self._to_save:
                return tuple(self._to_save_forward)
            if self._cut_ref is not None and self._to_save:
                raise _freed(type(self).__name__)
            return tuple(self._to_save)
        return tuple(self._unpack(s) for s in self._saved)

    saved_variables = saved_tensors

    def _unpack(self, saved: _Saved) -> Any:
        if saved.index is None and saved.tensor is None:
            return None
        cut = self._cut_ref() if self._cut_ref is not None else None
        if saved.keeper is not None:
            return saved.kept(cut)
        tensor, home = saved.current(cut)
        if home is not None and home[0].version != home[1]:
            raise refuse(
                RuntimeError,
                "saved_tensors",
                "one of the variables needed for gradient computation has been modified by an inplace operation:"
                f" [{tensor.dtype.tensor_name}Tensor {list(tensor.shape)}] is at version {home[0].version}; expected version {home[1]} instead.",
            )
        return tensor

    def _release(self) -> None:
        if self._saved is not None:
            self._saved = None

    # -- as a node of the graph ---------------------------------------------------------------------------------------

    def name(self) -> str:
        return type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        from tapejax.autograd.graph import _output_number, view

        cut = self._cut_ref() if self._cut_ref is not None else None
        edges = () if cut is None else cut.edges
        return tuple((view(e), _output_number(e)) if e is not None else (None, 0) for e in edges)

    @property
    def metadata(self) -> dict[Any, Any]:
        return self.__dict__.setdefault("_metadata", {})

    def register_hook(self, fn: Callable[..., Any]) -> RemovableHandle:
        return add_hook(self._cut(), "post_hooks", fn)

    def register_prehook(self, fn: Callable[..., Any]) -> RemovableHandle:
        return add_hook(self._cut(), "pre_hooks", fn)

    def _output(self, index: int) -> Node:
        cut = self._cut_ref() if self._cut_ref is not None else None
        ref = None if cut is None else cut.output_refs[index]
        node = None if ref is None else ref()
        if node is None:
            raise refuse(RuntimeError, type(self).__name__, "this output is gone")
        return node

    def _cut(self) -> Cut:
        cut = self._cut_ref() if self._cut_ref is not None else None
        if cut is None or not cut.outputs():
            raise refuse(RuntimeError, type(self).__name__, "this function's outputs are gone")
        return cut


BackwardCFunction = FunctionCtx


def _freed(name: str) -> Exception:
    return refuse(
        RuntimeError,
        name,
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). Saved"
        " intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you need to"
        " backward through the graph a second time or if you need to access saved tensors after calling backward.",
    )


class _FunctionMeta(type):
    """Gives every Function a ctx class of its own, named as torch names its graph node."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls._ctx_type = type(f"{name}Backward", (FunctionCtx,), {"_function": cls})


class Function(metaclass=_FunctionMeta):
    """Subclass it with static `forward` and `backward` (or `vjp`) to give an operation a gradient of its own.

    Two styles, as in torch: `forward(ctx, *args)`, or `forward(*args)` with `setup_context(ctx, inputs, output)`.
    `backward(ctx, *grad_outputs)` returns one gradient (or None) per argument of `forward`. Call it with `apply`.
    """

    _ctx_type: type[FunctionCtx]
    generate_vmap_rule = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all static, so you should invoke them on the class itself.",
            DeprecationWarning,
            stacklevel=2,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise refuse(
            RuntimeError,
            type(self).__name__,
            "Legacy autograd function with non-static forward method is deprecated. → static methods, and .apply() on the class",
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError("You must implement either the backward or vjp method for your custom autograd.Function to use it with backward mode AD.")

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        raise NotImplementedError("You must implement the jvp function for custom autograd.Function to use it with forward mode AD.")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward, and record that backward belongs to its outputs."""
        return _apply(cls, args, kwargs)


#: Called as `f(cls, ctx, args, nodes that forward read, outputs)`, as inputs may carry tangents: see autograd/forward_ad.py.
AFTER_FORWARD: list[Callable[..., None]] = []

#: Called before a Function runs, inside function transforms; returns NotImplemented to run it as usual.
AROUND_APPLY: list[Callable[..., Any]] = []


def _apply(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for around in AROUND_APPLY:
        result = around(cls, args, kwargs)
        if result is not NotImplemented:
            return result
    split = cls.setup_context is not Function.setup_context
    ctx = cls._ctx_type()
    recording = modes.grad_enabled()
    edges = tuple(a.node if isinstance(a, Tensor) and a.requires_grad and recording else None for a in args)
    ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
    before = modes.MODE.get()
    read = [a.node if isinstance(a, Tensor) else None for a in args] if before & modes.FORWARD else ()
    modes.MODE.set(before & ~(modes.GRAD | modes.FORWARD))
    try:
        if split:
            output = cls.forward(*args, **kwargs)
            cls.setup_context(ctx, args, output)
        else:
            output = cls.forward(ctx, *args, **kwargs)
    finally:
        modes.MODE.set(before)
    single = not isinstance(output, tuple)
    outputs = (output,) if single else output
    needs = any(e is not None for e in edges)
    made = _wrap_outputs(cls, ctx, args, outputs, edges, needs)
    for after in AFTER_FORWARD:
        after(cls, ctx, args, read, made)
    return made[0] if single else made


def _wrap_outputs(
    cls: type[Function],
    ctx: FunctionCtx,
    args: tuple[Any, ...],
    outputs: tuple[Any, ...],
    edges: tuple[Node | None, ...],
    needs: bool,
) -> tuple[Any, ...]:
    name = f"{cls.__name__}Backward"
    inputs = [a for a in args if isinstance(a, Tensor)]
    for d in ctx._dirty:
        if not any(d is i for i in inputs):
            warnings.warn(
                f"{name}: ctx.mark_dirty() received a tensor that was not an input. Only input Tensors that have been mutated should be"
                " passed to ctx.mark_dirty().",
                UserWarning,
                stacklevel=4,
            )
        elif not any(d is o for o in outputs):
            raise refuse(
                RuntimeError,
                name,
                "Some elements marked as dirty during the forward method were not returned as output. The inputs that are"
                " modified inplace must all be outputs of the Function.",
            )
    if needs:
        for d in ctx._dirty:
            if any(d is i for i in inputs):
                if d._alias is not None and d._alias.lenses and len(outputs) > 1 and d.requires_grad:
                    raise refuse(
                        RuntimeError,
                        name,
                        "If your Function modifies inplace an input that is a view of another Tensor, your Function cannot return more"
                        " than one Tensor. → clone() the input first",
                    )
                check_writable(d, name, True)
    cut = Cut(name, ctx, edges)
    ctx._cut_ref = weakref.ref(cut)
    made: list[Any] = []
    for o in outputs:
        if not isinstance(o, Tensor):
            made.append(o)
            cut.output_refs.append(None)
            cut.avals.append(None)
            continue
        if any(o is before for before in outputs[: len(made)]):
            first = next(i for i, before in enumerate(outputs) if before is o)
            made.append(made[first])
            cut.output_refs.append(cut.output_refs[first])  # its gradient arrives at the last place
            cut.output_refs[first] = None
            cut.avals.append(cut.avals[first])
            continue
        dirty = any(o is d for d in ctx._dirty)
        is_input = any(o is i for i in inputs)
        differentiable = needs and o._node.aval.differentiable and not any(o is d for d in ctx._non_differentiable)
        value = o.node
        if is_input and not dirty:
            result = wrap(record(function_alias, (1,), (), (_unrecorded(value),)))
            if differentiable:
                _become_output(result, result._node, cut)
            else:
                cut.output_refs.append(None)
            made_view(o, result, lens_of(result._node.kind, ()))
        elif dirty:
            result = o
            if differentiable:
                node = _output_node(_unrecorded(value), cut)
                _rewrite_dirty(o, node)
            else:
                cut.output_refs.append(None)
        else:
            if o.requires_grad and differentiable is False and o._node.kind == "var":
                result = wrap(record(function_output, (1,), (), (_unrecorded(value),)))
                cut.output_refs.append(None)
            elif differentiable:
                result = o if not o.requires_grad else wrap(value)
                view_of_input = o._alias is not None and o._alias.lenses and any(
                    i._alias is not None and i._alias.storage is o._alias.storage for i in inputs
                )
                node = _output_node(_unrecorded(value), cut)
                result._node = node
                if view_of_input:
                    result._alias.multi = name
                    result._alias.flags &= ~NO_GRAD
                    node.home = value.home
                else:
                    result._alias = None
            else:
                result = o
                cut.output_refs.append(None)
        cut.avals.append(value.aval)
        made.append(result)
    if needs:
        _save(ctx, outputs, made)
        ctx._to_save = (None,) * len(ctx._to_save)  # an output among them would keep itself alive
    elif ctx._to_save:
        ctx._saved = None
        ctx._cut_ref = None
    ctx._dirty = ctx._non_differentiable = ()
    return tuple(made)


def _unrecorded(value: Node) -> Node:
    if not value.requires_grad:
        return value
    before = modes.switch(modes.GRAD, False)
    try:
        return record(function_output, (1,), (), (value,))
    finally:
        modes.MODE.set(before)


def _output_node(value: Node, cut: Cut) -> Node:
    node = record(function_output, (1,), (), (value,))
    _bind(node, cut)
    return node


def _become_output(result: Tensor, node: Node, cut: Cut) -> None:
    _bind(node, cut)


def _bind(node: Node, cut: Cut) -> None:
    node.requires_grad = True
    note_of(node).cut = cut
    cut.output_refs.append(weakref.ref(node))


def _rewrite_dirty(tensor: Tensor, node: Node) -> None:
    """The input that forward wrote in place now has the Function as its history."""
    alias = alias_of(tensor)
    version = alias.storage.counter.version
    write(tensor, node)
    alias.storage.counter.move(max(version, 1))
    current = tensor.node
    current.home = (alias.storage.counter, alias.storage.counter.version)


def _save(ctx: FunctionCtx, outputs: tuple[Any, ...], made: Sequence[Any]) -> None:
    saved = []
    for t in ctx._to_save:
        if t is not None and t._node.aval.inference:
            raise refuse(
                RuntimeError,
                type(ctx).__name__,
                "Inference tensors cannot be saved for backward. To work around this, you can make a clone to get a normal tensor and use it"
                " in autograd, or use no_grad() instead of inference_mode().",
            )
        places = [i for i, o in enumerate(outputs) if o is t and made[i] is not None and _is_new(made[i], t)] if t is not None else []
        index = places[-1] if places else None
        s = _Saved(t if index is None else made[index], index)
        saved.append(s)
    ctx._saved = saved


def _is_new(result: Any, given: Tensor) -> bool:
    note = result._node.note if isinstance(result, Tensor) and result._node.kind != "var" else None
    return note is not None and note.cut is not None


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a backward that is not itself differentiable: differentiating its results raises."""

    @functools.wraps(backward)
    def run(ctx: Any, *grads: Any) -> Any:
        before = modes.switch(modes.GRAD, False)
        try:
            results = backward(ctx, *grads)
        finally:
            modes.MODE.set(before)
        if not modes.grad_enabled() or not any(isinstance(g, Tensor) and g.requires_grad for g in grads):
            return results
        single = not isinstance(results, tuple)
        outs = (results,) if single else results
        edges = tuple(g.node if isinstance(g, Tensor) and g.requires_grad else None for g in grads)
        marked = tuple(_raises_later(o, edges) if isinstance(o, Tensor) else o for o in outs)
        return marked[0] if single else marked

    return run


class _Once:
    """The ctx of a result that must not be differentiated."""

    _materialize = True

    def _backward(self, *grads: Any) -> Any:
        raise refuse(RuntimeError, "backward", "trying to differentiate twice a function that was marked with @once_differentiable")

    def _release(self) -> None:
        pass


def _raises_later(tensor: Tensor, edges: tuple[Node | None, ...]) -> Tensor:
    cut = Cut("DelayedError", _Once(), edges)
    node = _output_node(_unrecorded(tensor.node), cut)
    cut.avals.append(node.aval)
    return wrap(node)


def _call_backward(self: FunctionCtx, *grads: Any) -> Any:
    function: Any = type(self)._function  # type: ignore[attr-defined]
    run = function.vjp if function.backward is Function.backward and hasattr(function, "vjp") else function.backward
    return run(self, *grads)


FunctionCtx._backward = _call_backward  # type: ignore[attr-defined]

InplaceFunction = Function

__all__ = ["BackwardCFunction", "Function", "FunctionCtx", "InplaceFunction", "freed_error", "once_differentiable"]
