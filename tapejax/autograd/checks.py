"""Torch's refusals: parts of the graph that were freed, and saved values that were written since; who leads to whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tapejax.autograd.freed import FreedRun
from tapejax.autograd.pull import PULL
from tapejax.errors import refuse
from tapejax.storage.cell import Counter
from tapejax.storage.view import overlay
from tapejax.tape.node import VAR, Kind, Node
from tapejax.tape.record import PICK
from tapejax.tensor import grad_fn_name


def free(nodes: Iterable[Node], run: FreedRun) -> None:
    """Forget what the nodes' backward would need; one that saved nothing can be walked again."""
    for node in nodes:
        kind = node.kind
        if kind is VAR:
            continue
        if kind.saves:
            node.inputs = None
            node.freed = run
        note = node.note
        if note is not None:
            note.block = None
            note.saved = note.kept = None
            if note.cut is not None:
                note.cut.release()


def freed_error(node: Node) -> Exception:
    return refuse(
        RuntimeError,
        "backward",
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). Saved"
        f" intermediate values of the graph are freed when you call .backward() or autograd.grad(); {grad_fn_name(node)} needs them again."
        " Specify retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors after"
        " calling backward.",
    )


def refuse_unused(used: Iterable[bool]) -> None:
    """Raise where a required target has no gradient."""
    for i, found in enumerate(used):
        if not found:
            raise refuse(
                RuntimeError,
                "grad",
                f"The differentiated Tensor at index {i} appears to not have been used in the graph. Set allow_unused=True if this is the desired"
                " behavior.",
            )


def saves_of(node: Node) -> set[str]:
    """Names of the operands (and "result") whose values the node's backward needs, given which inputs require grad."""
    kind = node.kind
    names = set(kind.saves.get("*", ()))
    for name, x in zip(kind.operands, node.inputs or (), strict=False):
        if x.requires_grad:
            names.update(kind.saves.get(name, ()))
    return names


def check_saved(nodes: Sequence[Node] | dict[Node, bool]) -> None:
    """Raise if a value that the backward of one of the nodes needs was written in place since it was recorded."""
    if nodes and Counter.last_move > min([n.seq for n in nodes]):
        for n in nodes:
            if was_moved(n):
                saved_check(n)


def was_moved(node: Node) -> bool:
    """Whether `node` or something it read was written in place since: then `saved_check` must look closer."""
    home = node.home
    if home is not None and home[0].version != home[1]:
        return True
    for x in node.inputs:
        home = x.home
        if home is not None and home[0].version != home[1]:
            return True
    return False


def saved_check(node: Node) -> None:
    """Raise if a value that the node's backward needs was written in place since it was recorded."""
    if node.kind is VAR or not node.kind.saves:
        if node.kind is not VAR and node.kind.op is PICK and node.inputs:
            _output_check(node, node.inputs[0])
        return
    if node.note is not None and node.note.saved is not None:  # whoever keeps the values answers for them
        node.note.saved.check()
        return
    if node.kind.op is PULL:
        for i, x in enumerate(node.inputs):  # a PULL node has only the inputs that its gradients depend on
            if x.home is not None and x.home[0].version != x.home[1] and not _is_history(node.kind, i):
                compare_version(x, node)
        return
    check_values(node, saves_of(node))


def check_values(node: Node, names: set[str]) -> None:
    """Raise if a value that `node` saved under one of `names` was written in place since it was recorded."""
    for i, (name, x) in enumerate(zip(node.kind.operands, node.inputs, strict=True)):
        if name in names and not (i == 0 and _overwrites(node, x)):
            compare_version(x, node)
    if node.kind.avals is None:
        if "result" in names:
            compare_version(node, node)
        return
    for output in outputs_of(node):
        field = node.kind.op.returns[output.kind.statics[0]] if node.kind.op.returns else None
        if "result" in names or field in names:
            compare_version(output, output)


def _is_history(kind: Kind, i: int) -> bool:
    """Whether a PULL reads its input `i` only as what an unrecorded write found: the value is not needed."""
    plan = kind.statics[0]
    if i >= len(plan.needed):
        return False
    slot = -plan.needed[i] - 1
    uses = [(k, slots) for k, slots, _ in plan.program.instructions if slot in slots]
    return bool(uses) and all(k is not VAR and k.op is overlay and slot not in slots[1:] for k, slots in uses)


def outputs_of(node: Node) -> list[Node]:
    """The outputs of a several-output node that are still there."""
    note = node.note
    return [] if note is None else [n for r in note.outputs or () if (n := r()) is not None]


def _output_check(node: Node, source: Node) -> None:
    """The same for `node`, one output of the several of `source`."""
    if source.kind is VAR or source.kind.op is PICK or (source.note is not None and source.note.saved is not None):
        return
    op = source.kind.op
    field = op.returns[node.kind.statics[0]] if op.returns else None
    names = saves_of(source)
    if "result" in names or field in names:
        compare_version(node, node)


def _overwrites(node: Node, x: Node) -> bool:
    """Whether `node` was written in place over `x`: an in-place op saves a copy of what it overwrites."""
    new, old = node.home, x.home
    return new is not None and old is not None and new[0] is old[0] and new[1] == old[1] + 1


def compare_version(value: Node, user: Node) -> None:
    home = value.home
    if home is None or home[0].version == home[1]:
        return
    aval = value.aval
    raise refuse(
        RuntimeError,
        "backward",
        "one of the variables needed for gradient computation has been modified by an inplace operation:"
        f" [{aval.dtype.tensor_name}Tensor {list(aval.shape)}], which is output 0 of {grad_fn_name(value) if value.requires_grad else 'a leaf'},"
        f" is at version {home[0].version}; expected version {home[1]} instead. {grad_fn_name(user)} saved it → write out of place there, or"
        " clone() before writing.",
    )


def edges(node: Node) -> Sequence[Node | None]:
    """The nodes that the gradient of `node` flows to (for a custom Function: its inputs)."""
    note = node.note
    if note is not None and node.kind is not VAR and note.cut is not None:
        return note.cut.edges
    if node.inputs is None:
        raise freed_error(node)
    return node.inputs


def needed_nodes(region: Iterable[Node], goals: set[Node]) -> set[Node]:
    """The nodes of `region` on a path to a goal."""
    keep = set(goals)
    for n in sorted(region, key=lambda n: n.seq):
        if n not in keep and n.kind is not VAR and any(x in keep for x in (edges_or_none(n))):
            keep.add(n)
    return keep


def edges_or_none(node: Node) -> Sequence[Node | None]:
    note = node.note
    if note is not None and node.kind is not VAR and note.cut is not None:
        return note.cut.edges
    return node.inputs or ()

