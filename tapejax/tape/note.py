"""What autograd attaches: a `Meta` to a tensor (and, for a grad-requiring leaf, to its variable nodes), a `Note` to any other node.

Plain data. No reference from here leads back to a tensor or to a node's consumers, so nothing forms a cycle.
"""

from __future__ import annotations

import weakref
from typing import Any

from tapejax.tape.node import Node


class Meta:
    """A tensor's autograd state: its gradient and its hooks. Shared by the variable nodes of a leaf's successive values."""

    __slots__ = ("__weakref__", "accumulates", "grad", "grad_fn", "hooks", "name", "post_accumulate_hooks", "post_hooks", "pre_hooks", "retains_grad", "tensor")

    def __init__(self) -> None:
        self.grad: Any = None  # a Tensor
        self.accumulates = True  # False once the leaf stopped requiring grad: graphs recorded before leave it alone
        self.retains_grad = False
        self.tensor: weakref.ref[Any] | None = None
        self.hooks: dict[int, Any] | None = None  # tensor hooks (leaves only; others keep theirs on the node)
        self.post_accumulate_hooks: dict[int, Any] | None = None
        self.pre_hooks: dict[int, Any] | None = None  # hooks of the AccumulateGrad node
        self.post_hooks: dict[int, Any] | None = None
        self.grad_fn: weakref.ref[Any] | None = None
        self.name: str | None = None

    @property
    def plain(self) -> bool:
        """True when a gradient may simply be added, with no Python in between."""
        return self.accumulates and not (self.hooks or self.post_accumulate_hooks or self.pre_hooks or self.post_hooks)

    def retain_at(self, node: Node) -> None:
        """Keep, from now on, the gradient of `node` (the tensor's current value)."""
        note_of(node).retained_by = self


class Note:
    """What hangs on a node beside its meaning."""

    __slots__ = ("block", "cut", "grad_fn", "hooks", "kept", "line", "metadata", "outputs", "post_hooks", "pre_hooks", "retained_by", "saved")

    def __init__(self) -> None:
        self.block: Any = None  # residuals of the program that computed the node: engine/materialise.py
        self.cut: Any = None  # a backward written in Python: autograd/function.py
        self.hooks: dict[int, Any] | None = None  # tensor hooks, in order of registration
        self.pre_hooks: dict[int, Any] | None = None  # hooks of the graph node
        self.post_hooks: dict[int, Any] | None = None
        self.retained_by: Meta | None = None
        self.grad_fn: weakref.ref[Any] | None = None  # the user's view of this node
        self.metadata: dict[Any, Any] | None = None
        self.line: Any = None  # where the user recorded it (anomaly mode)
        self.kept: Any = None  # earlier values that a selective checkpoint keeps for the backward
        self.outputs: Any = None  # of a several-output node: weak references to the nodes of its outputs
        self.saved: Any = None  # who keeps the values that backward needs, when it is not the node: autograd/saved.py


def note_of(node: Node) -> Note:
    if node.note is None:
        node.note = Note()
    return node.note
