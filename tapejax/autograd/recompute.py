"""Checkpointed regions: backward computes their inner values again instead of keeping them.

A `Frame` marks what one checkpoint call recorded. The graph stays as it was recorded; when a backward reaches a frame, the
pieces of the frame are differentiated at *stand-ins*: copies of the region's nodes that hang on its inputs through a
barrier tied to the gradient that arrived. XLA can then neither merge them with the forward nor compute them
early, so the forward's values die with the forward. The user's function runs again as well, to the last value that was
saved, as torch's does: its side effects happen, and what it saves is compared with the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.autograd.checks import compare_version, freed_error
from tapejax.autograd.graph_task import GraphTask, _running
from tapejax.autograd.saved import CONTEXTS, saved_values
from tapejax.errors import refuse
from tapejax.rng import default_generator
from tapejax.storage.view import overlay
from tapejax.tape import modes
from tapejax.tape.aval import Aval
from tapejax.tape.node import ARGUMENT, LEAF, SCALAR, VAR, Node, next_seq, scalar
from tapejax.tape.note import note_of
from tapejax.tape.op import Array, Scalar, op
from tapejax.tape.record import record
from tapejax.tensor import Tensor, wrap


@op("", oracle=None, differentiable=False)
def after(input: Array, certain: Scalar, tie: Array | None = None) -> Any:
    """Return `input` as a value that XLA must take for another one, and cannot have before `tie`.

    `certain` is True, but only at run time. (`optimization_barrier`, on which `jax.checkpoint` relies, is gone on the CPU
    before common subexpressions are merged.)
    """
    x: Any = input
    if tie is not None and tie.size:  # type: ignore[attr-defined]
        first = tie[(0,) * tie.ndim]  # type: ignore[index, attr-defined]
        certain = certain | (first != first)  # type: ignore[operator]
    return jnp.where(certain, x, jnp.zeros_like(x))


class CheckpointError(RuntimeError):
    """What a checkpointed function did in the backward differs from what it did in the forward."""


class StopRecomputation(BaseException):
    """Ends the function's second run: everything that was saved has been seen."""


#: What an error about a difference tells besides; set by `utils.checkpoint`.
TIP = "\n\nTip: pass `debug=True` to checkpoint(...), or use set_checkpoint_debug_enabled(True), to see the operations of both runs."


class _Collector:
    """The innermost context of one run of a function: lists what is saved."""

    def __init__(self, debug: bool) -> None:
        self.saved: list[Aval] = []
        self.log: list[str] | None = [] if debug else None

    def saved_op(self, node: Node) -> None:
        if self.log is not None:
            self.log.append(f"{node.kind.name} -> {node.aval}")
        for x in saved_values(node):
            self._add(x.value.aval)

    def keep(self, node: Node, is_output: bool) -> Any:
        self._add(node.aval)

    def _add(self, aval: Aval) -> None:
        self.saved.append(aval)


class Frame(_Collector):
    """One checkpointed call: its function and arguments, and what it saved. Refers to no node that it recorded."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        preserve_rng: bool,
        determinism: bool,
        early_stop: bool,
        debug: bool,
        again: AbstractContextManager[Any],
    ) -> None:
        super().__init__(debug)
        self.function = function
        self.kwargs = kwargs
        self.rng = default_generator.get_state() if preserve_rng else None
        self.determinism = determinism
        self.early_stop = early_stop
        self.again = again
        outer = CONTEXTS.get()[-1] if modes.MODE.get() & modes.SAVED_HOOKS else None
        self.outer = outer if isinstance(outer, Frame) else None
        self.args: list[Any] = list(args)
        for i, a in enumerate(args):
            if isinstance(a, Tensor):  # saved like an operand: by hooks around the call, or by the frame it is in
                self.args[i] = _Argument(a, None if outer is None else outer.keep(a.node, False))
        self.has_data = any(isinstance(a, Tensor) and a.node.kind is not VAR for a in args)
        self.kept: dict[int, bool] = {}  # number of a node that is not computed again -> whether its value may be written
        self._held: list[Node] = []  # these nodes, while the function runs
        self.first = next_seq()
        self.last = 1 << 62

    @property
    def frame(self) -> Frame:
        return self

    def keep_value(self, node: Node, mutable: bool) -> None:
        """Take the forward's value of `node` for the backward."""
        frame: Frame | None = self
        while frame is not None:
            frame.kept[node.seq] = mutable
            frame = frame.outer
        self._held.append(node)

    def close(self, result: Any = None) -> None:
        """The function has returned `result`: its tensors keep alive what was recorded before them and is to be kept."""
        self.last = next_seq()
        held, self._held = self._held, []
        if held:
            for x in jax.tree_util.tree_leaves(result, is_leaf=lambda v: isinstance(v, Tensor)):
                if isinstance(x, Tensor) and x.requires_grad and self.inside(x.node) and x.node.kind is not VAR:
                    note_of(x.node).kept = [n for n in held if n.seq < x.node.seq]

    def saved_op(self, node: Node) -> None:
        note_of(node).saved = self
        super().saved_op(node)

    def keep(self, node: Node, is_output: bool) -> _Keeper:
        super().keep(node, is_output)
        return _Keeper(self)

    def check(self) -> None:
        """Values inside are computed again from the arguments, so writes to them do not matter."""

    def accessed(self) -> None:
        """A saved value was asked for outside of a backward."""
        self.run_again()

    def stand_ins(self, task: GraphTask, nodes: Sequence[Node]) -> list[Node]:
        """What takes the places of `nodes` in a piece of this frame's graph."""
        again = recomputation(task, self)
        return [again.stand_in(x) for x in nodes]

    def inside(self, node: Node) -> bool:
        return self.first < node.seq < self.last

    def run_again(self) -> None:
        """Run the user's function as in the forward and compare what it saves."""
        rerun = _Rerun(self)
        mode, state = modes.MODE.get(), default_generator.get_state()
        token = CONTEXTS.set((*CONTEXTS.get(), rerun))
        modes.MODE.set(mode & ~modes.INFERENCE | modes.GRAD | modes.SAVED_HOOKS)
        try:
            if self.rng is not None:
                default_generator.set_state(self.rng)
            given = [a.tensor() if isinstance(a, _Argument) else a for a in self.args]
            with self.again:
                self.function(*given, **self.kwargs)
        except StopRecomputation:
            pass
        finally:
            if self.rng is not None:
                default_generator.set_state(state)
            CONTEXTS.reset(token)
            modes.MODE.set(mode)
        rerun.compare()


class _Argument:
    """A tensor argument, as it was when the function was called."""

    __slots__ = ("keeper", "node")

    def __init__(self, tensor: Tensor, keeper: Any) -> None:
        self.node = tensor.node
        self.keeper = keeper

    def tensor(self) -> Tensor:
        if isinstance(self.keeper, _Keeper):  # the frame around this one answers for it
            return wrap(self.node)
        if self.keeper is not None:
            return wrap(self.keeper.get(self.node))
        compare_version(self.node, self.node)
        return wrap(self.node)


class _Keeper:
    """What a custom Function saved inside a frame: computed again when a backward asks for it."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def get(self, original: Node | None) -> Node:
        assert original is not None
        return recomputation(_running.tasks[-1], self.frame).stand_in(original) if _running.tasks else original


class _Rerun(_Collector):
    """The second run of a frame's function."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame.log is not None)
        self.of = frame
        self.full = False

    def _add(self, aval: Aval) -> None:
        expected = len(self.of.saved)
        if len(self.saved) >= expected:
            if self.of.early_stop:
                raise StopRecomputation
            raise self._error("torch.utils.checkpoint: trying to save more tensors during recomputation than during the original forward pass.")
        self.saved.append(aval)
        if len(self.saved) == expected and self.of.early_stop:
            raise StopRecomputation

    def compare(self) -> None:
        before, now = self.of.saved, self.saved
        if len(now) != len(before):
            raise self._error(
                "torch.utils.checkpoint: A different number of tensors was saved during the original forward and recomputation.\n"
                f"Number of tensors saved during forward: {len(before)}\nNumber of tensors saved during recomputation: {len(now)}."
            )
        differences = [
            f"tensor at position {i}:\nsaved metadata: {_metadata(a)}\nrecomputed metadata: {_metadata(b)}"
            for i, (a, b) in enumerate(zip(before, now, strict=True))
            if _metadata(a) != _metadata(b)
        ]
        if differences and self.of.determinism:
            raise self._error(
                "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than during the forward pass.\n"
                + "\n".join(differences)
            )

    def _error(self, message: str) -> CheckpointError:
        if self.log is None or self.of.log is None:
            return CheckpointError(message + TIP)
        logs = "\n".join(
            f"{title}:\n" + "\n".join(f"  {line}   ({i + 1} of {len(log)})" for i, line in enumerate(log))
            for title, log in (("Operations that ran in the original forward", self.of.log), ("Operations that ran in the recomputation", self.log))
        )
        return CheckpointError(f"An error happened while unpacking tensors; dumping logs of latest computation\n{logs}\n{message}")


def _metadata(aval: Aval) -> dict[str, Any]:
    return {"shape": tuple(aval.shape), "dtype": aval.dtype, "device": aval.device}


# -- stand-ins ---------------------------------------------------------------------------------------------------------


def recomputation(task: GraphTask, frame: Frame) -> Recomputation:
    """The frame's second computation in this backward; the first request runs the user's function."""
    found = task.recomputed.get(frame)
    if found is None:
        outer = recomputation(task, frame.outer) if frame.outer is not None else None
        frame.run_again()
        found = task.recomputed[frame] = Recomputation(frame, outer, task.tie)
    return found


class Recomputation:
    """Copies of a frame's nodes for one backward."""

    def __init__(self, frame: Frame, outer: Recomputation | None, tie: Node | None) -> None:
        self.frame = frame
        self.outer = outer
        self.tie = tie  # a gradient that must be there before anything is computed again
        self.copies: dict[Node, Node] = {}

    def stand_in(self, x: Node) -> Node:
        """The recomputed value of `x`, with the history of `x`."""
        value = self._value(x)
        if value is x or not x.requires_grad or not modes.grad_enabled():
            return value
        return record(overlay, (1, 1), (), (x, value))

    def _value(self, x: Node) -> Node:
        copies = self.copies
        found = copies.get(x)
        if found is not None:
            return found
        todo: dict[Node, bool] = {}
        stack = [x]
        while stack:
            n = stack.pop()
            if n in copies or n in todo:
                continue
            if n.kind in (SCALAR, ARGUMENT) or (n.value is not None and self.frame.inside(n)):
                copies[n] = n
            elif n.seq in self.frame.kept:
                copies[n] = self._kept(n)
            elif n.kind in (VAR, LEAF) or not self.frame.inside(n):
                copies[n] = self._from_outside(n)
            elif n.inputs is None:
                raise freed_error(n)
            else:
                todo[n] = True
                stack += n.inputs
        for n in sorted(todo, key=lambda n: n.seq):
            inputs = tuple([copies[i] for i in n.inputs])
            copies[n] = Node(n.kind, inputs, n.aval, False, min(i.oldest for i in inputs) if inputs else n.oldest)
        return copies[x]

    def _kept(self, n: Node) -> Node:
        home = n.home
        if home is not None and home[0].version != home[1] and not self.frame.kept[n.seq]:
            raise refuse(RuntimeError, "checkpoint", "Tensor cached during selective activation checkpoint has been mutated")
        return self._from_outside(n)

    def _from_outside(self, n: Node) -> Node:
        source = n if self.outer is None else self.outer._value(n)
        if n.kind is VAR and self.frame.has_data:  # a parameter: what meets the data is told apart by the data
            return source
        before = modes.switch(modes.GRAD, False)
        try:
            if self.tie is None:
                return record(after, (1, 1, None), (), (source, scalar(True)))
            return record(after, (1, 1, 1), (), (source, scalar(True), self.tie))
        finally:
            modes.MODE.set(before)


__all__ = ["CheckpointError", "Frame", "Recomputation", "recomputation"]
