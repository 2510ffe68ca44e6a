"""Hooks on tensors: where they are kept, and the handle that removes them.

A leaf's hooks belong to the tensor; a non-leaf's belong to the value (the node) it has when they are registered, so
that an in-place write leaves them where they were.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tapejax.autograd.graph_task import running
from tapejax.errors import refuse
from tapejax.storage.view import history_of
from tapejax.tape.node import VAR, Node
from tapejax.tape.note import Meta, note_of
from tapejax.tape.op import composite
from tapejax.tensor import Tensor

_next_id = itertools.count().__next__


class RemovableHandle:
    """Removes its hook: call `.remove()`, or use it as a context manager."""

    __slots__ = ("__weakref__", "_removers", "id")

    def __init__(self, *hooks: dict[int, Any], id: int | None = None) -> None:
        self.id = _next_id() if id is None else id
        self._removers = [weakref.ref(h) if not isinstance(h, dict) else h for h in hooks]

    def remove(self) -> None:
        for hooks in self._removers:
            if isinstance(hooks, dict):
                hooks.pop(self.id, None)
        self._removers = []

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class HookTable(dict[int, Any]):
    """Hooks in order of registration. Empty means none: the everyday backward then runs as if there never were any."""

    __slots__ = ("__weakref__",)


def add_hook(owner: Any, field: str, hook: Callable[..., Any]) -> RemovableHandle:
    """Append `hook` to the table `owner.field`."""
    table = getattr(owner, field)
    if table is None:
        table = HookTable()
        setattr(owner, field, table)
    handle = RemovableHandle(table)
    table[handle.id] = hook
    return handle


@composite("Tensor")
def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook(grad)` whenever this tensor's gradient is computed; a Tensor it returns replaces the gradient.

    Hooks run in order of registration, once a backward, with the summed gradient. RuntimeError if the tensor does not
    require grad.
    """
    node = history_of(self.node)
    if not node.requires_grad:
        raise refuse(RuntimeError, "register_hook", "cannot register a hook on a tensor that doesn't require gradient")
    if node.kind is VAR:
        return add_hook(node.note, "hooks", hook)
    return add_hook(note_of(node), "hooks", hook)


@composite("Tensor")
def register_post_accumulate_grad_hook(self: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `hook(tensor)` after a gradient was added into this leaf's `.grad`; it may use and clear `.grad`."""
    node = self.node
    if not node.requires_grad:
        raise refuse(RuntimeError, "register_post_accumulate_grad_hook", "cannot register a hook on a tensor that doesn't require gradient")
    if node.kind is not VAR:
        raise refuse(RuntimeError, "register_post_accumulate_grad_hook", "post accumulate grad hooks cannot be registered on non-leaf tensors")
    return add_hook(node.note, "post_accumulate_hooks", hook)


def _place(node: Node) -> Node | Meta:
    """What a gradient at `node` belongs to: a leaf's state, which all its successive values share, or the node itself."""
    return node.note if node.kind is VAR else node


def register_multi_grad_hook(tensors: Sequence[Tensor], fn: Callable[..., Any], *, mode: str = "all") -> RemovableHandle:
    """Call `fn` once a backward when the gradients of `tensors` are there.

    "all": after the last of those that this backward reaches, with the list of gradients (None where unreached).
    "any": with the first gradient that is computed.
    """
    if mode not in ("all", "any"):
        raise refuse(ValueError, "register_multi_grad_hook", f"Expects mode to be one of ('all', 'any') but got {mode!r}")
    chosen = list(tensors)
    if any(not t.requires_grad for t in chosen):
        raise refuse(RuntimeError, "register_multi_grad_hook", "cannot register a hook on a tensor that doesn't require gradient")
    places = [weakref.ref(_place(history_of(t.node))) for t in chosen]
    seen: dict[int, list[Any]] = {}

    def arrive(index: int) -> Callable[[Tensor], None]:
        def hook(grad: Tensor) -> None:
            task = running()
            if mode == "any":
                if task.number not in seen:
                    seen.clear()
                    seen[task.number] = []
                    fn(grad)
                return
            if task.number not in seen:
                reached = {_place(n) for n in task.plan.taking_part}
                seen.clear()
                seen[task.number] = [[None] * len(places), sum(1 for place in places if place() in reached)]
            grads, _ = entry = seen[task.number]
            grads[index] = grad
            entry[1] -= 1
            if entry[1] == 0:
                fn(grads)

        return hook

    handles = [register_hook(t, arrive(i)) for i, t in enumerate(chosen)]

    class _All(RemovableHandle):
        __slots__ = ()

        def remove(self) -> None:
            for h in handles:
                h.remove()

    return _All()
