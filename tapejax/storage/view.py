"""Views as lenses: reading through them, writing back through them, and torch's refusals.

A `Lens` is a recorded view op without its base: `get` records the read on any base node, `put` the write-back.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax

from tapejax.errors import refuse
from tapejax.storage.cell import INFERENCE, NO_GRAD, Alias, Storage
from tapejax.tape import modes
from tapejax.tape.node import VAR, Kind, Node, variable
from tapejax.tape.op import Array, Op, Param, op
from tapejax.tape.record import record


@op("", differentiable=False, oracle=None)
def detach_value(input: Array) -> Any:
    """Return `input` cut off from its history."""
    return jax.lax.stop_gradient(input)


@jax.custom_jvp
def _keep_history(old: Any, new: Any) -> Any:
    return new


@_keep_history.defjvp
def _keep_history_jvp(primals: Any, tangents: Any) -> Any:
    return _keep_history(*primals), tangents[0]  # again: the value is differentiated too, in second order


@op("", oracle=None)
def overlay(old: Array, new: Array) -> Any:
    """Return the value of `new` with the gradient history of `old`: what an unrecorded write leaves behind."""
    return _keep_history(old, new.astype(old.dtype))


def history_of(node: Node) -> Node:
    """The node that stands for `node` in the graph: an unrecorded write has none of its own, the history it found stays."""
    while node.kind.__class__ is Kind and node.kind.op is overlay and node.inputs and (node.note is None or node.note.cut is None):
        node = node.inputs[0]
    return node


class Lens:
    """One recorded view op with everything but its base."""

    __slots__ = ("kind", "others")

    def __init__(self, kind: Kind, others: tuple[Node, ...]) -> None:
        self.kind = kind
        self.others = others

    def get(self, base: Node) -> Node:
        kind = self.kind
        return record(kind.op, kind.form, kind.statics, (base, *self.others))

    def put(self, base: Node, value: Node) -> Node:
        kind = self.kind
        return record(put_op(kind.op), (1, *kind.form), kind.statics, (base, value, *self.others))


def lens_of(kind: Kind, others: tuple[Node, ...]) -> Lens:
    """The lens of a view that was just recorded; one without further operands belongs to its kind."""
    if others:
        return Lens(kind, others)
    if kind.lens is None:
        kind.lens = Lens(kind, ())
    return kind.lens


_put_ops: dict[Op, Op] = {}


def put_op(view_op: Op) -> Op:
    """The write-back of a view op as an op of its own: `(base, value, other operands, statics) -> base`."""
    found = _put_ops.get(view_op)
    if found is None:
        write = view_op.put
        assert write is not None
        first, *rest = view_op.params
        others = [p.name for p in rest if p.role != "static"]

        def put(base: Any, value: Any, **arguments: Any) -> Any:
            return write(base, value, *(arguments.pop(n) for n in others if n in arguments), **arguments)

        base_and_value = [Param(n, "array", False, first.default, False) for n in ("base", "value")]
        found = Op(put, "", {"name": f"{view_op.name}_put", "grad_name": "CopySlices", "oracle": None}, [*base_and_value, *rest])
        _put_ops[view_op] = found
    return found


def alias_of(tensor: Any) -> Alias:
    """The tensor's alias; its first one makes the storage."""
    alias = tensor._alias
    if alias is None:
        meta = tensor._meta
        alias = tensor._alias = Alias(Storage(tensor._node, meta if tensor._node.kind is VAR else None))
        alias.storage.base = weakref.ref(tensor)
    return alias


def refresh(tensor: Any) -> Node:
    """Re-read a tensor whose storage was written through another alias."""
    alias: Alias = tensor._alias
    storage = alias.storage
    if storage.stale:
        _catch_up(storage)
    node = storage.head
    if alias.lenses:
        before = modes.MODE.get()
        modes.MODE.set(before & ~modes.GRAD if alias.flags & NO_GRAD else before | modes.GRAD)
        try:
            for lens in alias.lenses:
                node = lens.get(node)
        finally:
            modes.MODE.set(before)
        node.home = (storage.counter, storage.counter.version)
    move_retained(tensor, node)
    tensor._node = node
    alias.seen = storage.epoch
    return node


def move_retained(tensor: Any, node: Node) -> None:
    """`retain_grad` follows the tensor to its latest value."""
    meta = tensor._meta
    if meta is not None and meta.retains_grad and node.requires_grad and node.kind is not VAR:
        old, new = history_of(tensor._node), history_of(node)
        if old is new:
            return
        before = old.note
        if before is not None and old.kind is not VAR and before.retained_by is meta:
            before.retained_by = None
        meta.retain_at(new)


def made_view(base: Any, view: Any, lens: Lens, flags: int = 0) -> None:
    """Register `view` (whose node was just recorded from `base`'s) as sharing base's storage."""
    under = base._alias or alias_of(base)
    storage = under.storage
    flags |= under.flags
    mode = modes.MODE.get()
    if not mode & modes.GRAD:
        flags |= NO_GRAD | INFERENCE if mode & modes.INFERENCE else NO_GRAD
    view._alias = Alias(storage, (*under.lenses, lens), flags, under.multi)
    counter = storage.counter
    view._node.home = (counter, counter.version)


def mark_multi_view(views: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Mark views made together (`split`, `unbind`): torch refuses to write into them while recording."""
    for v in views:
        if v._alias is not None:
            v._alias.multi = name
    return views


def check_writable(tensor: Any, name: str, operand_requires_grad: bool) -> None:
    """Raise where torch refuses an in-place write; must run before anything is recorded."""
    mode = modes.MODE.get()
    if tensor._node.aval.inference and not mode & modes.INFERENCE:
        raise refuse(
            RuntimeError,
            name,
            "Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get a normal tensor before"
            " doing inplace update.",
        )
    if not mode & modes.GRAD or mode & modes.INFERENCE:
        return
    alias: Alias | None = tensor._alias
    if alias is not None and alias.flags & INFERENCE:
        _check_inference_view(alias, name, tensor.requires_grad or operand_requires_grad)
    requires_grad = tensor.requires_grad
    if alias is not None and alias.lenses and alias.seen == alias.storage.epoch and _watched(tensor._node):
        refresh(tensor)  # hooks stay with the view's old value, which the base's new history does not go through
    if alias is not None and alias.flags & NO_GRAD:
        requires_grad = requires_grad or alias.storage.head.requires_grad
    if not (requires_grad or operand_requires_grad):
        return
    if alias is not None and alias.lenses:
        leaf_base = alias.storage.meta is not None
        if alias.flags & NO_GRAD:
            raise refuse(
                RuntimeError,
                name,
                "A view was created in no_grad mode and is being modified inplace with grad mode enabled. Such a write would not be"
                " recorded in the base's history → make the view with grad mode enabled, or write under no_grad().",
            )
        if alias.multi:
            raise refuse(
                RuntimeError,
                name,
                f"Output 0 of {alias.multi} is a view and is being modified inplace. This view is the output of a function that returns"
                " multiple views. Such functions do not allow the output views to be modified inplace. You should replace the inplace"
                " operation by an out-of-place one (or index the base instead: base[i] = …).",
            )
        if requires_grad and leaf_base:
            raise refuse(
                RuntimeError,
                name,
                "a view of a leaf Variable that requires grad is being used in an in-place operation. → write under no_grad(), or into a"
                " .clone().",
            )
    if requires_grad and tensor._node.kind is VAR:
        raise refuse(
            RuntimeError,
            name,
            "a leaf Variable that requires grad is being used in an in-place operation. → write under no_grad() (an update), or into a"
            " .clone() (part of the function).",
        )


def _watched(node: Node) -> bool:
    note = node.note
    return node.kind is not VAR and note is not None and bool(note.hooks or note.pre_hooks or note.post_hooks)


def _check_inference_view(alias: Alias, name: str, requires_grad: bool) -> None:
    if requires_grad or alias.storage.head.requires_grad:
        raise refuse(
            RuntimeError,
            name,
            "A view was created in inference mode and is being modified inplace in normal mode. Given that this use case is ambiguous and"
            " error-prone, it is forbidden → make the view and the write both inside inference_mode or both outside.",
        )


@op("", oracle=None)
def same_value(input: Array) -> Any:
    """Return `input`: a node of its own for a value that changes between inference and normal tensors."""
    return input


def write(tensor: Any, value: Node) -> None:
    """Make `value` (recorded, of the tensor's shape and dtype) the tensor's value, for it and all that share its storage."""
    if modes.TRANSFORMS.get():
        for check in modes.WRITE_CHECKS:
            check(tensor, value)
    alias = alias_of(tensor)
    storage = alias.storage
    if storage.stale:
        _catch_up(storage)
    head = storage.head
    lenses = alias.lenses
    written = value
    if lenses:
        bases = [head]
        for lens in lenses[:-1]:
            bases.append(lens.get(bases[-1]))
        for lens, base in zip(reversed(lenses), reversed(bases), strict=True):
            value = lens.put(base, value)
    if value.aval.inference is not head.aval.inference:
        value = record(same_value, (1,), (), (value,))
        value.aval = value.aval.marked(head.aval.inference)
    if storage.meta is not None:
        value = variable(value, storage.meta)
    elif head.requires_grad and not value.requires_grad and not modes.MODE.get() & modes.GRAD:
        value = _overlaid(head, value)
    storage.rewrite(value)
    if storage.mirrors is not None:
        storage.outdate_mirrors()
    if storage.source is not None:
        _carry_over(storage)
    if lenses and written.home is None and written.inputs:
        written.home = (storage.counter, storage.counter.version)  # a saved result is watched in a view too
    if not lenses:
        move_retained(tensor, value)
        tensor._node = value
        alias.seen = storage.epoch


def _overlaid(head: Node, value: Node) -> Node:
    before = modes.switch(modes.GRAD, True)
    try:
        return record(overlay, (1, 1), (), (head, value))
    finally:
        modes.MODE.set(before)


def _with_history_of(storage: Storage, value: Node) -> Node:
    """`value` (without history) as the next value of `storage`, whose own history stays."""
    if storage.meta is not None:
        return variable(value, storage.meta)
    return _overlaid(storage.head, value) if storage.head.requires_grad else value


def _catch_up(storage: Storage) -> None:
    """Take over the values of a source that was written: history is not shared."""
    assert storage.source is not None
    reference, lenses = storage.source
    source = reference()
    storage.stale = False
    if source is None:
        return
    if source.stale:
        _catch_up(source)
    before = modes.switch(modes.GRAD, False)
    try:
        node = source.head
        for lens in lenses:
            node = lens.get(node)
        node = record(detach_value, (1,), (), (node,))
    finally:
        modes.MODE.set(before)
    storage.head = _with_history_of(storage, node)
    storage.head.home = (storage.counter, storage.counter.version)


def _carry_over(storage: Storage) -> None:
    """Write the new values of a mirror into its source as well, without their history."""
    assert storage.source is not None
    reference, lenses = storage.source
    source = reference()
    if source is None:
        return
    if source.stale:
        _catch_up(source)
    before = modes.switch(modes.GRAD, False)
    try:
        bases = [source.head]
        for lens in lenses[:-1]:
            bases.append(lens.get(bases[-1]))
        value = record(detach_value, (1,), (), (storage.head,))
        for lens, base in zip(reversed(lenses), reversed(bases), strict=False):
            value = lens.put(base, value)
    finally:
        modes.MODE.set(before)
    source.rewrite(_with_history_of(source, value), counted=False)
    source.outdate_mirrors(but=storage)
    if source.source is not None:
        _carry_over(source)


def show(tensor: Any, source: Any, counter: Any, head: Node) -> None:
    """Make `tensor` a base that mirrors the storage of `source`; `head` is the value it has there, with its own history."""
    under = alias_of(source)
    storage = under.storage.mirror(head, under.lenses, counter)
    storage.meta = head.note if head.kind is VAR else None
    storage.base = weakref.ref(tensor)
    tensor._alias = Alias(storage)
    tensor._node = head


def detached(tensor: Any, made: Any, shares_counter: bool) -> None:
    """Give `made` (whose node was just recorded as the detached value) a storage that mirrors the tensor's."""
    show(made, tensor, alias_of(tensor).storage.counter if shares_counter else None, made._node)


def move_to(tensor: Any, source: Any) -> None:
    """Make `tensor` share the memory of `source`, keeping its own history and version counter.

    Views and detached aliases of what it was stay where they are.
    """
    was, alias = tensor.node, tensor._alias
    under = alias_of(source)
    if source is tensor or (alias is not None and under.storage.source == (weakref.ref(alias.storage), alias.lenses) and not under.lenses):
        return  # it is there already: x.data = x.data
    node = source.node
    if node.requires_grad or not was.requires_grad:
        node = record(detach_value, (1,), (), (node,))  # a node of its own: it is watched by the tensor's counter
    if was.kind is VAR:
        node = variable(node, was.note)
    elif was.requires_grad:
        node = _overlaid(was, node)
        move_retained(tensor, node)
    show(tensor, source, None if alias is None else alias.storage.counter, node)
