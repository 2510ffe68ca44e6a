"""Gradients as operations: PULL differentiates a program, PULL_RESIDUALS pulls through a forward that ran before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tapejax.engine import derive
from tapejax.tape.aval import aval_of
from tapejax.tape.node import VAR, Kind, Node
from tapejax.tape.op import Arrays, Op
from tapejax.tape.program import Program
from tapejax.tape.record import PICK, pick, record_kind


def is_pulled(node: Node) -> bool:
    """Whether `node` is a gradient: one output of a PULL node whose graph was kept."""
    if node.kind.op is not PICK or not node.inputs or (node.note is not None and node.note.cut):
        return False
    pulled = node.inputs[0]
    return pulled.kind is not VAR and pulled.kind.op is PULL and pulled.inputs is not None


class PullPlan(NamedTuple):
    """What a PULL node differentiates. `needed` are the program inputs whose values its gradients depend on: only these feed the node."""

    program: Program
    roots: tuple[int, ...]
    wanted: tuple[int, ...]
    batched: bool
    needed: tuple[int, ...]


def _pull_body(arrays: Arrays, plan: PullPlan) -> Any:
    values: Any = arrays
    n = len(plan.needed)
    inputs: list[Any] = [None] * len(plan.program.inputs)
    for i, value in zip(plan.needed, values[:n], strict=True):
        inputs[i] = value
    inputs = [derive.zeros_of(a) if x is None else x for x, a in zip(inputs, plan.program.inputs, strict=True)]
    return derive.pull_function(plan.program, plan.roots, plan.wanted, inputs, values[n:], plan.batched)


def reached_inputs(pick: Node) -> list[Node]:
    """The inputs of a PULL node that one of its gradients depends on."""
    pulled = pick.inputs[0]
    inputs = pulled.inputs
    return [inputs[i] for i in pulled.kind.reach[pick.kind.statics[0]]]


def _pull_residuals_body(arrays: Arrays, tree: Any, batched: bool) -> Any:
    n = tree.count
    return derive.pull_residuals(tree, arrays[:n], arrays[n:], batched)  # type: ignore[index]


PULL = Op(_pull_body, "", {"name": "pull", "grad_name": "Pull", "oracle": None, "saves": "computed"})

PULL_RESIDUALS = Op(_pull_residuals_body, "", {"name": "pull_residuals", "oracle": None, "differentiable": False})


def pull_block(block: Any, seeds: Sequence[Node], batch: int | None = None) -> list[Node]:
    """Record the gradients at the values where a block starts, from its residuals and one seed per output."""
    inputs = (*block.residuals, *seeds)
    avals = tuple([x.aval for x in inputs])
    key = (block.tree, avals, batch)
    kind = PULL_RESIDUALS.kinds.get(key)
    if kind is None:
        kind = Kind(PULL_RESIDUALS, ((len(inputs),),), (block.tree, batch is not None), avals, ("arrays",) * len(inputs))
        kind.casts = (None,) * len(inputs)
        results = [x.aval for x in block.wanted]
        kind.avals = kind.aval = tuple(a if batch is None else aval_of((batch, *a.shape), a.dtype, a.device) for a in results)
        PULL_RESIDUALS.kinds[key] = kind
    node = record_kind(kind, inputs)
    return [pick(node, i) for i in range(len(kind.aval))]

