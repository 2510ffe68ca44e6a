"""Selective checkpointing: which operations of a checkpointed call keep their results instead of running again.

While the function runs, a policy is asked about every operation it records. A result that is to be saved is marked on the call's
frame: the gradient is then computed in pieces that end at it, and its value is the one of the forward.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from tapejax.autograd.recompute import Frame
from tapejax.autograd.saved import CONTEXTS, keep_result
from tapejax.errors import refuse
from tapejax.tape import modes
from tapejax.tape.node import SCALAR, Node
from tapejax.tape.op import TABLE, Op
from tapejax.tape.record import PICK, pick
from tapejax.tensor import wrap


class CheckpointPolicy(enum.Enum):
    """What a policy function answers about one operation.

    `*_SAVE`: its result is kept and not computed again; `*_RECOMPUTE`: it is computed again in the backward. MUST and PREFER mean the
    same here, and the `*_CPU_OFFLOAD` of torch, which act in its compiler only, recompute.
    """

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


class SelectiveCheckpointContext:
    """What a policy function is told beside the operation: `op_output`, its result.

    As in torch a policy is asked in the forward only, so `is_recompute` is False.
    """

    def __init__(self, *, is_recompute: bool, op_output: Any = None) -> None:
        self.is_recompute = is_recompute
        self.op_output = op_output


_SAVING = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)

#: The public names of internal operations that `Op.oracle` does not tell.
_NAMES = {
    "alpha_dropped": "nn.functional.alpha_dropout", "attention_with_dropout": "nn.functional.scaled_dot_product_attention",
    "batch_rescale": "nn.functional.batch_norm", "batch_standardise": "nn.functional.batch_norm", "dropped": "nn.functional.dropout",
    "einsum_op": "einsum", "instance_standardise": "nn.functional.instance_norm", "lstsq_op": "linalg.lstsq", "lu_op": "linalg.lu",
    "pow_static": "pow", "rrelu_sample": "nn.functional.rrelu", "svd_op": "linalg.svd",
}  # fmt: skip


def public_function(op: Op) -> Any:
    """The function through which users call `op`: tapejax.mm, tapejax.nn.functional.linear. An internal op's own caller where none does."""
    import tapejax

    places = [place for place in op.expose if not place.endswith("_")]
    names = [f"{place}.{op.name}".removeprefix("torch.") for place in places] or [_NAMES.get(op.name) or op.oracle or ""]
    for name in names:
        found: Any = tapejax
        for part in name.split("."):
            found = getattr(found, part, None)
        if callable(found):
            return found
    return getattr(op, "call", None)


def _operations(functions: Iterable[Any]) -> set[Op]:
    """The ops behind public functions."""
    table = [(op, public_function(op)) for op in TABLE.values()]
    found: set[Op] = set()
    for function in functions:
        ops = {op for op, public in table if public is function or getattr(function, "__wrapped_op__", None) is op}
        if not ops:
            raise ValueError(
                f"create_selective_checkpoint_contexts(): Expected op in `op_list` to be an operation of tapejax but got: {function} of type"
                f" {type(function)} → name one, such as tapejax.mm; what a function is made of is seen by a policy function"
            )
        found |= ops
    return found


_ACTIVE: ContextVar[_Run | None] = ContextVar("tapejax_selective_checkpoint", default=None)


def _observe(node: Node, mode: int) -> None:
    run = _ACTIVE.get()
    if run is None:
        return
    frame = next((c for c in reversed(CONTEXTS.get()) if hasattr(c, "frame")), None)
    if node.kind.op is PICK:
        if isinstance(frame, Frame) and node.inputs[0].seq in frame.kept:
            frame.keep_value(node, frame.kept[node.inputs[0].seq])
    elif hasattr(node.kind.op, "call"):  # what is not in the table is no operation of the user's
        token, before = _ACTIVE.set(None), modes.MODE.get()
        modes.MODE.set(before & ~(modes.SAVED_HOOKS | modes.GRAD))
        try:
            run.saw(node, frame)
        finally:
            modes.MODE.set(before)
            _ACTIVE.reset(token)


modes.OBSERVERS.append(_observe)


class _Run:
    """One of the two contexts: counts the calls of each operation."""

    def __init__(self, calls: dict[Op, int]) -> None:
        self.calls = calls
        self._tokens: list[Any] = []

    def __enter__(self) -> None:
        self._tokens.append(_ACTIVE.set(self))

    def __exit__(self, *exc: object) -> None:
        _ACTIVE.reset(self._tokens.pop())

    def saw(self, node: Node, frame: Any) -> None:
        raise NotImplementedError


class _Caching(_Run):
    """The forward: the policy decides."""

    def __init__(self, calls: dict[Op, int], policy: Callable[..., Any], ops: set[Op] | None, mutable: bool) -> None:
        super().__init__(calls)
        self.policy = policy
        self.ops = ops
        self.mutable = mutable

    def saw(self, node: Node, frame: Any) -> None:
        op = node.kind.op
        self.calls[op] = self.calls.get(op, 0) + 1
        if isinstance(frame, Frame) and self._saves(node):
            frame.keep_value(node, self.mutable)
            keep_result(node)

    def _saves(self, node: Node) -> bool:
        kind = node.kind
        if self.ops is not None:
            return kind.op in self.ops
        output = wrap(node) if kind.avals is None else tuple(wrap(pick(node, i)) for i in range(len(kind.avals)))
        args, kwargs = _arguments(node)
        policy = self.policy(SelectiveCheckpointContext(is_recompute=False, op_output=output), public_function(kind.op), *args, **kwargs)
        return policy if isinstance(policy, bool) else policy in _SAVING


class _Cached(_Run):
    """The second run: it must do what the first did."""

    def __init__(self, calls: dict[Op, int]) -> None:
        super().__init__(calls)
        self.seen: dict[Op, int] = {}

    def __enter__(self) -> None:
        self.seen.clear()
        super().__enter__()

    def saw(self, node: Node, frame: Any) -> None:
        op = node.kind.op
        index = self.seen.get(op, 0)
        self.seen[op] = index + 1
        if index >= self.calls.get(op, 0):
            what = f"invocation index {index} encountered" if index else "encountered"
            raise refuse(
                RuntimeError,
                "checkpoint",
                f"{op.name} {what} during backward but not found in storage. This can happen if the operations in the checkpointed region are"
                " nondeterministic or depend on global state that changed between forward and backward.",
            )


def _arguments(node: Node) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a recorded call, as the op's signature has them; an absent one is its default."""
    kind = node.kind
    given, statics = iter(node.inputs), iter(kind.statics)
    forms = iter(kind.form)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}

    def take() -> Any:
        x = next(given)
        return x.value if x.kind is SCALAR else wrap(x)

    for p in kind.op.params:
        if p.role == "static":
            value = next(statics)
        elif p.role == "seed":
            next(forms), take(), take()
            continue
        else:
            form = next(forms)
            value = [take() for _ in range(form[0])] if isinstance(form, tuple) else take() if form else p.default
        if p.keyword_only:
            kwargs[p.name] = value
        else:
            args.append(value)
    return args, kwargs


def create_selective_checkpoint_contexts(policy_fn_or_list: Any, allow_cache_entry_mutation: bool = False) -> tuple[Any, Any]:
    """Make the two contexts that have `checkpoint(use_reentrant=False)` save the results of some operations.

    `policy_fn_or_list`: a function `(ctx, op, *args, **kwargs) -> CheckpointPolicy` (or bool: save it), called for every operation that the
    forward records, or a list of operations to save, the others being recomputed. An operation is the public function that users call
    (`tapejax.mm`, `tapejax.matmul`, `tapejax.nn.functional.linear`), where torch has aten overloads: `x @ w` is `tapejax.matmul`, `x**2`
    `tapejax.pow`. `ctx` is a `SelectiveCheckpointContext`.

    What is saved is not computed again, and its gradient is that of the forward's value; operations whose gradient needs more than operands
    and result (attention, `max`, decompositions) compute that from their operands. The function itself runs again, as ever. Unlike torch's,
    the graph may be walked more than once if it is kept.

    Raises TypeError or ValueError for what is no policy nor list of operations; in the backward RuntimeError if a saved result was written in
    place (unless `allow_cache_entry_mutation`: then the gradient is that of the value before), or if the second run does other operations.

    >>> from functools import partial
    >>> import tapejax as tj
    >>> from tapejax.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    >>> x = tj.ones(2, 2, requires_grad=True)
    >>> save_products = partial(create_selective_checkpoint_contexts, [tj.mm, tj.matmul])
    >>> checkpoint(lambda a: (a @ a).tanh(), x, use_reentrant=False, context_fn=save_products).sum().backward()
    """
    ops: set[Op] | None = None
    if isinstance(policy_fn_or_list, list):
        ops = _operations(policy_fn_or_list)
    elif not callable(policy_fn_or_list):
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")
    calls: dict[Op, int] = {}
    return _Caching(calls, policy_fn_or_list, ops, allow_cache_entry_mutation), _Cached(calls)


__all__ = ["CheckpointPolicy", "SelectiveCheckpointContext", "create_selective_checkpoint_contexts"]
