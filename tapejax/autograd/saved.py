"""Who keeps the values that backward needs: hooks on saved tensors, and leave to write saved values in place.

A node keeps its operands itself, as long as nothing here is active. Inside one of these contexts the innermost one is
asked about every value that a recorded op saves. `saved_tensors_hooks` packs it and makes the node a cut, whose backward
differentiates the op at the unpacked values; `allow_mutation_on_saved_tensors` marks it as free to be written.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from tapejax.autograd.checks import check_values, freed_error, outputs_of, saves_of
from tapejax.autograd.gradients import zeros_seed
from tapejax.autograd.graph_task import running
from tapejax.autograd.plan import frame_of
from tapejax.dispatch import CAST
from tapejax.errors import refuse
from tapejax.storage.view import overlay
from tapejax.tape import modes
from tapejax.tape.node import SCALAR, VAR, Node
from tapejax.tape.note import note_of
from tapejax.tape.program import Program
from tapejax.tape.record import PICK, pick, record
from tapejax.tensor import Tensor, grad_fn_name, wrap

#: The contexts that are open, innermost last: objects with `saved_op(node)` and `keep(node, is_output) -> keeper`.
CONTEXTS: ContextVar[tuple[Any, ...]] = ContextVar("tapejax_saved_contexts", default=())

_DISABLED: ContextVar[str | None] = ContextVar("tapejax_saved_hooks_disabled", default=None)


def _observe(node: Node, mode: int) -> None:
    if not mode & modes.SAVED_HOOKS or not node.requires_grad:
        return
    if node.kind.op is PICK:
        made = node.inputs[0].note
        if made is not None and isinstance(made.cut, OpCut):
            made.cut.bind(node)
            return
    CONTEXTS.get()[-1].saved_op(node)


modes.OBSERVERS.append(_observe)


def keep(tensor: Tensor, is_output: bool) -> Any:
    """What the innermost context makes of a tensor that a custom Function saves; None where there is no context."""
    return CONTEXTS.get()[-1].keep(tensor.node, is_output) if modes.MODE.get() & modes.SAVED_HOOKS else None


def open_context(context: Any) -> tuple[Any, int]:
    """Make `context` the innermost one; give what returned to `close_context`."""
    message = _DISABLED.get()
    if message is not None:
        raise RuntimeError(message)
    return CONTEXTS.set((*CONTEXTS.get(), context)), modes.switch(modes.SAVED_HOOKS, True)


def close_context(state: tuple[Any, int]) -> None:
    token, before = state
    CONTEXTS.reset(token)
    modes.switch(modes.SAVED_HOOKS, before & modes.SAVED_HOOKS > 0)


@contextmanager
def _unwatched() -> Iterator[None]:
    """While the user's pack or unpack runs: nothing recorded there is asked about."""
    before = modes.MODE.get()
    modes.MODE.set(before & ~(modes.SAVED_HOOKS | modes.GRAD))
    try:
        yield
    finally:
        modes.MODE.set(before)


# -- pack and unpack ---------------------------------------------------------------------------------------------------


class Packed:
    """One saved value as its pack hook left it."""

    __slots__ = ("aval", "pack", "packed", "unpack")

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor], value: Node) -> None:
        self.pack = pack
        self.unpack = unpack
        self.aval = value.aval
        given, home = wrap(value), value.home
        try:
            with _unwatched():
                self.packed = pack(given)
        finally:
            value.home = home  # what the hook does to its own tensor is not a write to the user's
        if given._alias is not None and given._alias.storage.counter.version:
            raise refuse(
                RuntimeError,
                "saved_tensors_hooks",
                "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook can not be modified by in-place"
                " operations as this can lead to unexpected side-effects → clone() it in the hook.",
            )

    def tensor(self) -> Tensor:
        """Call the unpack hook."""
        with _unwatched():
            found = self.unpack(self.packed)
        if not isinstance(found, Tensor):
            raise refuse(
                TypeError,
                "saved_tensors_hooks",
                f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type {type(found).__name__}",
            )
        return found

    def get(self, original: Node | None) -> Node:
        """The unpacked value with the history of `original`."""
        value = self.tensor().node
        aval = self.aval
        if value.aval.shape != aval.shape:
            raise refuse(
                RuntimeError, "saved_tensors_hooks", f"the unpack hook returned a tensor of shape {value.aval.shape}, but {aval.shape} was saved"
            )
        if value.aval.dtype is not aval.dtype:
            value = record(CAST, (1,), (aval.dtype,), (value,))
        if original is None or not original.requires_grad or not modes.grad_enabled():
            return value
        return record(overlay, (1, 1), (), (original, value))

    def check(self) -> None:
        """Hooks answer for what they keep: writes to the original are their business."""


def _names(node: Node) -> list[str]:
    """What an op saves, in torch's order: operands by name, then results by name; with computed values, as declared."""
    kind = node.kind
    if kind.op.computes:
        return sorted(saves_of(node), key=[name for names in kind.saves.values() for name in names].index)
    return sorted(saves_of(node), key=lambda name: (name not in kind.operands, "self" if name == "input" else name))


class SavedValue(NamedTuple):
    """One value that an op saves; `place` is None where it is no operand."""

    name: str
    place: int | None
    value: Node


def saved_values(node: Node) -> list[SavedValue]:
    """The values that the backward of an op needs, one entry per saved tensor. None of them refers to `node`."""
    kind = node.kind
    op = kind.op
    source = _twin(node)
    computed: Node | None = None
    found: list[SavedValue] = []
    with _unwatched():
        for name in _names(node):
            if name in kind.operands:
                given = enumerate(zip(kind.operands, node.inputs, strict=True))
                found += [SavedValue(name, i, x) for i, (n, x) in given if n == name and x.kind is not SCALAR]
            elif op.computed_by is not None and name in op.computes:
                computed = computed or record(op.computed_by, kind.form, kind.statics, node.inputs)
                found.append(SavedValue(name, None, pick(computed, op.computes.index(name))))
            elif kind.avals is None:
                found += [SavedValue(name, None, source)] if name == "result" else []
            else:
                fields = op.returns or tuple(f"result{i}" for i in range(len(kind.avals)))
                wanted = sorted(field for field in fields if name in ("result", field))
                found += [SavedValue(field, None, pick(source, fields.index(field))) for field in wanted]
    return found


def _twin(node: Node) -> Node:
    """The same value as another node: keeping it makes no cycle through `node`."""
    return Node(node.kind, node.inputs, node.aval, False, node.oldest)


class OpCut:
    """The backward of one op by itself: at unpacked values, or where hooks see the gradients of all its outputs.

    A cut, as a custom Function's (see `autograd/function.py`).
    """

    __slots__ = ("__weakref__", "ctx", "edges", "freed", "kind", "name", "operands", "output_refs", "packed", "post_hooks", "pre_hooks")
    takes_undefined = False

    def __init__(self, node: Node) -> None:
        self.name = grad_fn_name(node)
        self.ctx = None
        self.kind = node.kind
        self.edges = tuple(x if x.requires_grad else None for x in node.inputs)
        self.operands: tuple[Node, ...] = node.inputs
        self.output_refs: list[weakref.ref[Node]] = []
        self.packed: dict[tuple[str, int | None], Any] = {}  # (name, input position or None for a result) -> value
        self.freed = False
        self.pre_hooks: dict[int, Any] | None = None
        self.post_hooks: dict[int, Any] | None = None
        note = note_of(node)
        note.cut = self
        for output in [node] if node.kind.avals is None else outputs_of(node):
            if output.requires_grad:
                self.bind(output)

    def bind(self, node: Node) -> None:
        note_of(node).cut = self
        self.output_refs.append(weakref.ref(node))

    def outputs(self) -> list[Node]:
        return [n for r in self.output_refs if (n := r()) is not None]

    def slots(self) -> list[Node | None]:
        """The node of each output that can have a gradient, None where it is gone."""
        outputs = {self.index_of(o): o for o in self.outputs()}
        return [outputs.get(i) for i, a in enumerate(self.kind.avals or (self.kind.aval,)) if a.differentiable]

    def index_of(self, node: Node) -> int:
        return 0 if self.kind.avals is None else node.kind.statics[0]

    def check(self) -> None:
        """See `Packed.check`."""

    def release(self) -> None:
        self.freed = True
        self.packed = {}
        self.operands = ()

    def run(self, gradient: dict[Node, Node], batch: int | None) -> list[Node | None]:
        """The gradients at the op's inputs, differentiated at the unpacked values."""
        outputs = self.outputs()
        if self.freed:
            raise freed_error(outputs[0])
        source = outputs[0] if self.kind.avals is None else outputs[0].inputs[0]
        seeds = [gradient[o] if o in gradient else record(zeros_seed, (1,), (batch,), (o,)) for o in outputs]
        values = self._values(source, seeds[0])
        beside: dict[str, Node] = {}
        for (name, position), kept in self.packed.items():
            if position is not None:
                values[position] = kept.get(self.operands[position])
            else:
                beside[name] = kept.get(outputs[0] if name == "result" else None)
        wanted = [i for i, x in enumerate(self.edges) if x is not None]
        which, pull = FROM_SAVED.get(self.kind.name, ("", None))
        if pull is not None and which in beside and batch is None:
            before = modes.switch(modes.SAVED_HOOKS, False)
            try:
                pulled = {0: pull(wrap(gradient[outputs[0]]), wrap(beside[which]), self.kind).node}
            finally:
                modes.MODE.set(before)
            return [pulled.get(i) for i in range(len(self.edges))]
        kinds = [self.kind] if self.kind.avals is None else [self.kind, *(o.kind for o in outputs)]
        words = (kinds[0], *range(-1, -1 - len(values), -1), *(w for k in kinds[1:] for w in (k, 0)))
        program = Program(words, tuple(x.aval for x in values))
        roots = tuple(range(1, len(kinds))) or (0,)
        found = running().pull_program(program, roots, tuple(-1 - i for i in wanted), values, seeds, [values[i].aval for i in wanted])
        pulled = dict(zip(wanted, found, strict=True))
        return [pulled.get(i) for i in range(len(self.edges))]

    def _values(self, source: Node, seed: Node) -> list[Node]:
        """The operands; those that nobody keeps must not have been written since."""
        keeper = source.note.saved if source.note is not None else None
        if keeper is None or keeper is self:
            names = {name for name, _ in self.packed}
            check_values(source, saves_of(source) - (names if names.isdisjoint(self.kind.op.returns) else {*names, "result"}))
            return list(self.operands)
        keeper.check()
        frame = frame_of(source)
        if frame is None or not self.kind.saves:
            return list(self.operands)
        running().tie = seed
        return frame.stand_ins(running(), self.operands)

    def saved(self, name: str) -> Any:
        return next((kept for (n, _), kept in self.packed.items() if n == name), None)

    def pack(self, node: Node, values: Iterable[SavedValue], pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        """Keep what the hook makes of `values`, which `node` saves."""
        note_of(node).saved = self
        for name, place, value in values:
            self.packed[(name, place)] = Packed(pack, unpack, value)


class _Forward:
    """A result that a checkpoint keeps: the forward's."""

    def get(self, original: Node) -> Node:
        return original


def keep_result(node: Node) -> None:
    """Have the gradient of a checkpointed op computed from its result, if there is a formula for that."""
    if node.requires_grad and FROM_SAVED.get(node.kind.name, ("",))[0] == "result":
        OpCut(node).packed[("result", None)] = _Forward()


def _softmax_pull(g: Any, r: Any, kind: Any) -> Any:
    dim = dict(zip(kind.op.statics, kind.statics, strict=True)).get("dim")
    return r * (g - (g * r).sum(dim, keepdim=True))


def _log_softmax_pull(g: Any, r: Any, kind: Any) -> Any:
    dim = dict(zip(kind.op.statics, kind.statics, strict=True)).get("dim")
    return g - r.exp() * g.sum(dim, keepdim=True)


def _chosen_pull(g: Any, indices: Any, kind: Any) -> Any:
    statics = dict(zip(kind.op.statics, kind.statics, strict=True))
    dim, shape = statics["dim"], kind.inputs[0].shape
    if not shape:
        return g
    if not statics.get("keepdim", True):
        g, indices = g.unsqueeze(dim), indices.unsqueeze(dim)
    zeros = g.new_zeros(shape)
    return zeros.scatter_add(dim, indices, g) if kind.name in ("cummax", "cummin") else zeros.scatter(dim, indices, g)


#: The gradient of the first output in terms of a saved value that is no operand: op -> (the value's name, formula). It uses what the
#: unpack hook returns. Other ops that save such values call the hook as well, and then differentiate at their operands, which
#: gives the same gradient.
FROM_SAVED: dict[str, tuple[str, Callable[[Any, Any, Any], Any]]] = {
    "exp": ("result", lambda g, r, _: g * r.conj() if r.is_complex() else g * r),
    "sqrt": ("result", lambda g, r, _: g / (2 * r)),
    "rsqrt": ("result", lambda g, r, _: -0.5 * g * r**3),
    "reciprocal": ("result", lambda g, r, _: -g * r * r),
    "tanh": ("result", lambda g, r, _: g * (1 - r * r)),
    "sigmoid": ("result", lambda g, r, _: g * r * (1 - r)),
    "relu": ("result", lambda g, r, _: g * (r > 0)),
    "softmax": ("result", _softmax_pull),
    "log_softmax": ("result", _log_softmax_pull),
    **dict.fromkeys(("dropped", "alpha_dropped"), ("other", lambda g, mask, _: g * mask)),
    **dict.fromkeys(
        ("max_dim", "min_dim", "median_dim", "nanmedian_dim", "mode", "kthvalue", "sort_op", "topk", "cummax", "cummin"), ("indices", _chosen_pull)
    ),
}


class saved_tensors_hooks:
    """Store saved tensors your own way: `pack_hook(tensor)` when one is saved, `unpack_hook(packed)` on each access.

    Inside the context every tensor that a recorded operation (or a custom Function) saves for backward goes through
    `pack_hook` once, in torch's order, and its backward is computed with what `unpack_hook` returns, a tensor of the same
    shape: for operands, results, indices and masks. Factors of a matrix and the statistics of a normalisation are packed and
    unpacked too, but the gradient follows from the operands. Only the innermost pair applies. RuntimeError if `pack_hook`
    writes its input in place; TypeError if `unpack_hook` returns something else than a tensor.

    What is packed differs from torch where tapejax records one operation and torch several, or a reshaped operand (`linear`,
    `matmul` of more than two axes, `einsum`, pooling in one dimension, recurrent cells, attention, `cosine_similarity`,
    `quantile`, indexing with a mask): then it is what that one operation's gradient needs. A training `batch_norm` does not
    save its running statistics.
    """

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook
        self._states: list[Any] = []

    def __enter__(self) -> None:
        for hook in (self.pack_hook, self.unpack_hook):
            if not callable(hook):
                raise refuse(TypeError, "saved_tensors_hooks", f"incompatible function arguments: {type(hook).__name__} is not callable")
        self._states.append(open_context(self))

    def __exit__(self, *exc: object) -> None:
        close_context(self._states.pop())

    def saved_op(self, node: Node) -> None:
        if saves_of(node):
            OpCut(node).pack(node, saved_values(node), self.pack_hook, self.unpack_hook)

    def keep(self, node: Node, is_output: bool) -> Packed:
        return Packed(self.pack_hook, self.unpack_hook, _twin(node) if is_output else node)


class save_on_cpu(saved_tensors_hooks):
    """Keep saved tensors in host memory and bring them back for the backward. `pin_memory` and `device_type` are accepted."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        def pack(tensor: Tensor) -> tuple[Any, Tensor]:
            return tensor.device, tensor.to("cpu")  # type: ignore[attr-defined]

        def unpack(packed: tuple[Any, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor.to(device)  # type: ignore[attr-defined]

        super().__init__(pack, unpack)


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """Refuse saved-tensor hooks inside: a pair that is active, or is entered, raises RuntimeError(error_message)."""
    if any(isinstance(c, saved_tensors_hooks) for c in CONTEXTS.get()):
        raise RuntimeError(error_message)
    token = _DISABLED.set(error_message)
    try:
        yield
    finally:
        _DISABLED.reset(token)


class SavedTensor:
    """One value that a graph node saved: `node._raw_saved_<name>`. Hooks may be set on it, once."""

    __slots__ = ("_name", "_node")

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name

    def register_hooks(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        """Pack this saved value now; its backward will use what `unpack_hook` returns."""
        node = self._node
        cut = node.note.cut if node.note is not None else None
        if node.inputs is None or (cut is not None and cut.freed):
            raise refuse(
                RuntimeError,
                "register_hooks",
                "Calling register_hooks on a saved tensor after it has been freed. Saved intermediate values of the graph are freed when you call"
                " .backward() or autograd.grad() → specify retain_graph=True.",
            )
        if cut is not None and cut.saved(self._name) is not None:
            raise refuse(
                RuntimeError,
                "register_hooks",
                "Calling register_hooks on a saved tensor whose hooks have already been set. Hint: only one pair of hooks is allowed at a time.",
            )
        (cut or OpCut(node)).pack(node, [v for v in saved_values(node) if v.name == self._name], pack_hook, unpack_hook)


# -- writing saved values ----------------------------------------------------------------------------------------------


class _Leave:
    """What was recorded under one `allow_mutation_on_saved_tensors` context (until it is cleared) has in common."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = True

    def check(self) -> None:
        if not self.open:
            raise AssertionError(
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context in which the graph was originally recorded."
            )

    accessed = check


class _LeaveFor:
    """A tensor that a custom Function saved inside the context."""

    __slots__ = ("leave", "value")

    def __init__(self, leave: _Leave, value: Node | None) -> None:
        self.leave = leave
        self.value = value

    def get(self, original: Node | None) -> Node:
        self.leave.check()
        found = self.value or original
        assert found is not None
        return found


class _AllowMutationOnSavedContext:
    """What `allow_mutation_on_saved_tensors` yields: `clear()` ends the leave of everything recorded so far."""

    def __init__(self) -> None:
        self._leave = _Leave()

    def clear(self) -> None:
        self._leave.open = False
        self._leave = _Leave()

    def saved_op(self, node: Node) -> None:
        if node.kind.saves:
            note_of(node).saved = self._leave

    def keep(self, node: Node, is_output: bool) -> _LeaveFor:
        return _LeaveFor(self._leave, None if is_output else node)


@contextmanager
def allow_mutation_on_saved_tensors() -> Iterator[_AllowMutationOnSavedContext]:
    """Let values saved inside be written in place; backward, also inside, uses them as they were. Costs no copy.

    AssertionError when backward runs outside the context in which the graph was recorded, or after `clear()`.
    """
    if modes.MODE.get() & modes.ALLOW_MUTATION:
        raise refuse(RuntimeError, "allow_mutation_on_saved_tensors", "allow_mutation_on_saved_tensors contexts cannot be nested")
    context = _AllowMutationOnSavedContext()
    state = open_context(context)
    modes.switch(modes.ALLOW_MUTATION, True)
    try:
        yield context
    finally:
        context.clear()
        close_context(state)
        modes.switch(modes.ALLOW_MUTATION, False)


def saved_of(node: Node, name: str) -> Any:
    """The value that hooks unpack for `node`'s saved `name`; NotImplemented where no hooks keep it."""
    note = node.note
    keeper = note.saved if note is not None and node.kind is not VAR else None
    if not isinstance(keeper, OpCut):
        if keeper is not None:
            keeper.accessed()
        return NotImplemented
    if keeper.freed:
        raise freed_error(node)
    found = keeper.saved(name)
    return NotImplemented if found is None else found.tensor()


__all__ = [
    "SavedTensor", "allow_mutation_on_saved_tensors", "disable_saved_tensors_hooks", "save_on_cpu", "saved_tensors_hooks",
]  # fmt: skip
