"""Recording: a dict lookup for what the op gives on these inputs, and one new node.

`record` is the general way; `dispatch.py` inlines the same three steps for the everyday arities.
"""

from __future__ import annotations

import weakref
from typing import Any

from tapejax.tape.infer import infer
from tapejax.tape.modes import GRAD, INFERENCE, MODE, OBSERVERS
from tapejax.tape.node import NEVER, Kind, Node
from tapejax.tape.op import Array, Op
from tapejax.tape.waiting import HORIZON, WAITING


def kind_of(op: Op, form: tuple[Any, ...], statics: tuple[Any, ...], inputs: tuple[Node, ...]) -> Kind:
    avals = tuple([x.aval for x in inputs])
    key = (form, statics, avals)
    found = op.kinds.get(key)
    return found if found is not None else infer(op, key, form, statics, avals)


def record(op: Op, form: tuple[Any, ...], statics: tuple[Any, ...], inputs: tuple[Node, ...]) -> Node:
    """Record `op` on `inputs` (one per present operand, as `form` says) in the running mode."""
    return record_kind(kind_of(op, form, statics, inputs), inputs)


def record_kind(kind: Kind, inputs: tuple[Node, ...]) -> Node:
    requires_grad = False
    oldest = NEVER
    mode = MODE.get()
    if mode & GRAD and not mode & INFERENCE:
        for x in inputs:
            if x.requires_grad:
                requires_grad = bool(kind.differentiable)  # asked last: infer() may have put a refusal there
                break
    for x in inputs:
        if x.oldest < oldest:
            oldest = x.oldest
    node = Node(kind, inputs, kind.aval, requires_grad, oldest)
    if oldest < HORIZON[0]:
        WAITING.stale.append(weakref.ref(node))
    if mode > GRAD:
        for observe in OBSERVERS:
            observe(node, mode)
    return node


def pick(node: Node, index: int) -> Node:
    """One output of a several-output node, as a node of its own."""
    avals: Any = node.aval
    kind = PICK.kinds.get((avals, index))
    if kind is None:
        kind = Kind(PICK, (1,), (index,), (avals,), ("outputs",))
        kind.casts = (None,)
        kind.aval = avals[index]
        kind.differentiable = kind.aval.differentiable
        PICK.kinds[(avals, index)] = kind
    return record_kind(kind, (node,))


def _pick(outputs: Array, index: int) -> Any:
    return outputs[index]  # type: ignore[index]


PICK = Op(_pick, "", {"name": "pick", "oracle": None})
