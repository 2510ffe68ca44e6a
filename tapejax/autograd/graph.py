"""The user's view of the graph: `grad_fn` nodes, gradient edges, and what autograd.graph offers on them.

A `Node` here is a view of a tape node, made on demand; two looks at the same tape node give the same view.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from tapejax.autograd.checks import edges_or_none, freed_error, saves_of
from tapejax.autograd.hooks import RemovableHandle, add_hook, register_multi_grad_hook
from tapejax.autograd.saved import (
    OpCut,
    SavedTensor,
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_of,
    saved_tensors_hooks,
    saved_values,
)
from tapejax.errors import refuse
from tapejax.storage.view import history_of, same_value, write
from tapejax.tape import modes
from tapejax.tape import node as tape
from tapejax.tape.node import SCALAR, VAR
from tapejax.tape.note import note_of
from tapejax.tape.op import composite
from tapejax.tape.record import pick, record
from tapejax.tensor import Tensor, grad_fn_name, wrap


class Node:
    """A function of the backward graph; `name()` is torch's name, e.g. MulBackward0."""

    __slots__ = ("__weakref__", "_kept", "_node")

    def __init__(self, node: tape.Node) -> None:
        self._node = node

    def name(self) -> str:
        name = type(self).__name__
        return f"torch::autograd::{name}" if name in ("AccumulateGrad", "CopySlices") else name

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """The functions that the gradient goes to next, with the number of the output that was used; None for constants."""
        return tuple((None, 0) if x is None or not x.requires_grad else (view(x), _output_number(x)) for x in _below(self._node))

    @property
    def metadata(self) -> dict[Any, Any]:
        note = note_of(self._node)
        if note.metadata is None:
            note.metadata = {}
        return note.metadata

    def register_hook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """Call `fn(grad_inputs, grad_outputs)` after this node ran; a tuple it returns replaces grad_inputs.

        One entry per input and per output; None where there is no gradient, and in the result for an undefined one. (`split`,
        `chunk` and `unbind` record a node for each output.)
        """
        return add_hook(_hooked(self._node), "post_hooks", fn)

    def register_prehook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """Call `fn(grad_outputs)` before this node runs; a tuple it returns replaces grad_outputs. See `register_hook`."""
        return add_hook(_hooked(self._node), "pre_hooks", fn)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_saved_"):
            return _saved(self._node, name.removeprefix("_saved_"))
        if name.startswith("_raw_saved_"):
            return SavedTensor(self._node, _wanted(self._node, name.removeprefix("_raw_saved_")))
        raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} object at {id(self):#x}>"


class AccumulateGrad(Node):
    """Where a leaf's gradient ends: `variable` is the leaf."""

    __slots__ = ()

    @property
    def variable(self) -> Tensor:
        meta = self._node.note
        tensor = meta.tensor() if meta.tensor is not None else None
        if tensor is None:
            tensor = wrap(self._node)
            tensor._meta = meta
            meta.tensor = weakref.ref(tensor)
        return tensor

    def register_hook(self, fn: Callable[..., Any]) -> RemovableHandle:
        return add_hook(self._node.note, "post_hooks", fn)

    def register_prehook(self, fn: Callable[..., Any]) -> RemovableHandle:
        return add_hook(self._node.note, "pre_hooks", fn)


_types: dict[str, type[Node]] = {"AccumulateGrad": AccumulateGrad}


def view(node: tape.Node) -> Any:
    """The Node (or a custom Function's ctx) through which users see `node`."""
    node = history_of(node)
    if node.kind is VAR:
        owner = node.note
    else:
        node = _whole(node)
        owner = note_of(node)
        if owner.cut is not None and owner.cut.ctx is not None:
            return owner.cut.ctx
    seen = owner.grad_fn() if owner.grad_fn is not None else None
    if seen is None:
        name = grad_fn_name(node)
        kind = _types.get(name)
        if kind is None:
            kind = _types[name] = type(name, (Node,), {"__slots__": ()})
        seen = kind(node)
        owner.grad_fn = weakref.ref(seen)
    return seen


def _whole(node: tape.Node) -> tape.Node:
    """The node that `node` is one of several outputs of; any other node itself."""
    if node.kind is VAR or node.kind.name != "pick" or not node.inputs:
        return node
    note = node.inputs[0].note
    return node.inputs[0] if note is not None and note.outputs is not None else node


def _hooked(node: tape.Node) -> Any:
    """Where the hooks of a graph node are kept."""
    note = note_of(node)
    return note if note.outputs is None else note.cut or OpCut(node)


def _below(node: tape.Node) -> Any:
    below: Any = edges_or_none(node)
    if node.kind is not VAR and node.kind.name == "pick" and below:
        return edges_or_none(below[0])
    return below


def _output_number(node: tape.Node) -> int:
    node = history_of(node)
    if node.kind is VAR:
        return 0
    if node.note is not None and node.note.cut is not None:
        return node.note.cut.index_of(node)
    return node.kind.statics[0] if node.kind.name == "pick" else 0


def _wanted(node: tape.Node, name: str) -> str:
    """The op's own name of what torch calls `name`."""
    return "input" if name == "self" and "self" not in node.kind.op.computes else name


def _saved(node: tape.Node, name: str) -> Any:
    if node.inputs is None:
        raise freed_error(node)
    wanted = _wanted(node, name)
    hooked = saved_of(node, wanted)
    if hooked is not NotImplemented:
        return hooked
    if wanted in saves_of(node) and wanted in node.kind.operands:
        for operand, x in zip(node.kind.operands, node.inputs, strict=True):
            if operand == wanted:
                if x.kind is VAR and x.note.tensor is not None and (tensor := x.note.tensor()) is not None and tensor.node is x:
                    return tensor  # the leaf itself
                return x.value if x.kind is SCALAR else wrap(x)
    for found in saved_values(node):
        if found.name == wanted:
            return wrap(node if found.name == "result" else found.value)
    if wanted in node.kind.operands and any(wanted in saved for saved in node.kind.saves.values()):
        return None  # nobody's gradient needs it here
    statics = dict(zip(node.kind.op.statics, node.kind.statics, strict=True))
    if name in statics:
        return statics[name]
    raise AttributeError(f"'{grad_fn_name(node)}' object has no attribute '_saved_{name}'")


@composite("Tensor.property")
def grad_fn(self: Tensor) -> Any:
    """The function that computed this tensor in the backward graph; None for leaves."""
    node = self.node
    return None if node.kind is VAR or not node.requires_grad else view(node)


class GradientEdge(NamedTuple):
    """A place in the graph where a gradient can be asked for: a node and the number of its output.

    `ownership_token` keeps what the edge needs alive.
    """

    node: Any
    output_nr: int
    ownership_token: Any = None


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """The edge that `tensor`'s gradient arrives at; it keeps addressing this value after in-place writes."""
    node = tensor.node
    if not node.requires_grad:
        raise refuse(RuntimeError, "get_gradient_edge", "It is not possible to get the gradient edge for a Tensor that does not require gradients")
    return GradientEdge(view(node), _output_number(node), node)


def node_of_edge(edge: GradientEdge) -> tape.Node:
    """The tape node behind an edge, also one that the user made from `next_functions`."""
    if edge.ownership_token is not None:
        return edge.ownership_token
    if isinstance(edge.node, Node):
        node = edge.node._node
        outputs = None if node.kind is VAR or node.note is None else node.note.outputs
        return node if outputs is None else outputs[edge.output_nr]() or pick(node, edge.output_nr)
    return edge.node._output(edge.output_nr)  # a custom Function's ctx


def increment_version(tensor: Any) -> None:
    """Count a write to `tensor` that autograd could not see."""
    before = modes.switch(modes.GRAD, False)
    try:
        for t in tensor if isinstance(tensor, (list, tuple)) else (tensor,):
            write(t, record(same_value, (1,), (), (t.node,)))  # what is recorded from now on reads the new version
    finally:
        modes.MODE.set(before)


__all__ = [
    "AccumulateGrad",
    "GradientEdge",
    "Node",
    "SavedTensor",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]
