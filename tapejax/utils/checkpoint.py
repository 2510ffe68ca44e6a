"""torch.utils.checkpoint: trade computation for memory.

`checkpoint(function, *args, use_reentrant=False)` records the call as usual; its backward computes the inner values again
from the arguments instead of keeping them. As in torch the Python function runs a second time in the backward (side
effects happen again, up to the last value that backward needs), and a run that saves something else is an error. The
gradient itself is that of what the *first* run recorded: a function that depends on outside state which changed in the
meantime, or draws other random numbers, still gets the gradient of the values it returned.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from tapejax.autograd.entry import backward as run_backward
from tapejax.autograd.function import Function
from tapejax.autograd.grad_mode import enable_grad, is_grad_enabled
from tapejax.autograd.graph_task import running
from tapejax.autograd.recompute import CheckpointError, Frame
from tapejax.autograd.saved import close_context, open_context
from tapejax.autograd.selective import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)
from tapejax.errors import refuse
from tapejax.rng import default_generator
from tapejax.tensor import Tensor

_EARLY_STOP: ContextVar[bool | None] = ContextVar("tapejax_checkpoint_early_stop", default=None)
_DEBUG: ContextVar[bool | None] = ContextVar("tapejax_checkpoint_debug", default=None)


def noop_context_fn() -> tuple[Any, Any]:
    """Two contexts that do nothing: the default of `checkpoint(context_fn=)`."""
    return contextlib.nullcontext(), contextlib.nullcontext()


@contextlib.contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Whether checkpoints made inside stop their second run once every saved value has been seen (the default)."""
    token = _EARLY_STOP.set(enable)
    try:
        yield
    finally:
        _EARLY_STOP.reset(token)


@contextlib.contextmanager
def set_checkpoint_debug_enabled(enabled: bool | None) -> Iterator[None]:
    """Whether checkpoints made inside log their operations for error messages; None leaves it to `debug=`."""
    token = _DEBUG.set(enabled)
    try:
        yield
    finally:
        _DEBUG.reset(token)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], tuple[Any, Any]] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Call `function(*args, **kwargs)` without keeping what its backward needs: that is computed again in the backward.

    `use_reentrant`: False (recommended) keeps one graph, so that `autograd.grad`, nesting, hooks and higher orders work;
    True runs a backward inside the backward and supports `.backward()` only. `context_fn()` gives a context for each of
    the two runs (see `create_selective_checkpoint_contexts`, by which some results are saved); `preserve_rng_state` repeats
    the random numbers in the second run; `determinism_check` "none" skips the comparison of shapes and dtypes; `early_stop`
    ends the second run as soon as it can.

    Raises CheckpointError (a RuntimeError) in the backward if the second run saves fewer or more values, or others.

    >>> import tapejax as tj
    >>> from tapejax.utils.checkpoint import checkpoint
    >>> x = tj.ones(3, requires_grad=True)
    >>> checkpoint(lambda a: a.exp().tanh(), x, use_reentrant=False).sum().backward()
    """
    if use_reentrant is None:
        warnings.warn(
            "torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly. use_reentrant=False is recommended, but if you"
            " need to preserve the current default behavior, you can pass use_reentrant=True.",
            UserWarning,
            stacklevel=2,
        )
        use_reentrant = True
    if use_reentrant:
        if kwargs:
            raise ValueError(f"checkpoint(): Unexpected keyword arguments: {', '.join(kwargs)} → use_reentrant=False takes them")
        if context_fn is not noop_context_fn or debug:
            raise ValueError("checkpoint(): Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
        return CheckpointFunction.apply(function, preserve_rng_state, *args)
    if determinism_check not in ("default", "none"):
        raise ValueError(f"checkpoint(): determinism_check should be one of ['default', 'none'], but got {determinism_check}")
    first, again = context_fn()
    if not is_grad_enabled():
        with first:
            return function(*args, **kwargs)
    stop, verbose = _EARLY_STOP.get(), _DEBUG.get()
    frame = Frame(
        function,
        args,
        kwargs,
        preserve_rng_state,
        determinism_check == "default",
        early_stop if stop is None else stop,
        debug if verbose is None else verbose,
        again,
    )
    state = open_context(frame)
    result = None
    try:
        with first:
            result = function(*args, **kwargs)
        return result
    finally:
        close_context(state)
        frame.close(result)


def check_backward_validity(inputs: Any) -> None:
    """Warn if no input requires grad: a reentrant checkpoint then gives no gradients."""
    if not any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        warnings.warn("None of the inputs have requires_grad=True. Gradients will be None", UserWarning, stacklevel=2)


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Detached tensors that require grad as the given ones do; other values as they are."""
    if not isinstance(inputs, tuple):
        raise refuse(RuntimeError, "detach_variable", f"Only tuple of tensors is supported. Got Unsupported input type: {type(inputs).__name__}")
    return tuple(x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in inputs)


class CheckpointFunction(Function):
    """The reentrant checkpoint: the backward runs the function again, recorded, and a backward of its own through that."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        check_backward_validity(args)
        ctx.function = function
        ctx.rng = default_generator.get_state() if preserve_rng_state else None
        ctx.inputs = [None if isinstance(a, Tensor) else a for a in args]
        ctx.places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        ctx.save_for_backward(*(args[i] for i in ctx.places))
        return function(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if running().targets is not None:
            raise refuse(
                RuntimeError,
                "checkpoint",
                "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs` parameter to .backward(). To"
                " resolve this error, you can either set use_reentrant=False, or call .backward() without passing the `inputs` argument.",
            )
        inputs = list(ctx.inputs)
        for i, x in zip(ctx.places, ctx.saved_tensors, strict=True):
            inputs[i] = x
        detached = detach_variable(tuple(inputs))
        state = default_generator.get_state()
        try:
            if ctx.rng is not None:
                default_generator.set_state(ctx.rng)
            with enable_grad():
                outputs = ctx.function(*detached)
        finally:
            if ctx.rng is not None:
                default_generator.set_state(state)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if isinstance(o, Tensor) and o.requires_grad]
        if not pairs:
            raise refuse(RuntimeError, "checkpoint", "none of output has requires_grad=True, this checkpoint() is not necessary")
        run_backward([o for o, _ in pairs], [g for _, g in pairs])
        return (None, None, *(x.grad if isinstance(x, Tensor) else None for x in detached))


def checkpoint_sequential(functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any) -> Any:
    """Run a sequence of modules or functions in `segments` parts of equal length, every part but the last checkpointed.

    `functions`: a Sequential or a list; `preserve_rng_state` may be given by keyword.
    """
    if use_reentrant is None:
        warnings.warn(
            "torch.utils.checkpoint.checkpoint_sequential: the use_reentrant parameter should be passed explicitly. use_reentrant=False is"
            " recommended, but if you need to preserve the current default behavior, you can pass use_reentrant=True.",
            UserWarning,
            stacklevel=2,
        )
        use_reentrant = True
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError(f"checkpoint_sequential(): Unexpected keyword arguments: {', '.join(kwargs)}")
    parts = list(functions.children()) if hasattr(functions, "children") else list(functions)
    length = len(parts) // segments
    if not length:
        raise ValueError(f"checkpoint_sequential(): {len(parts)} functions cannot make {segments} segments → at most one segment per function")

    def part(start: int, end: int) -> Callable[[Any], Any]:
        def forward(input: Any) -> Any:
            for f in parts[start:end]:
                input = f(input)
            return input

        return forward

    start = 0
    for start in range(0, length * (segments - 1), length):
        input = checkpoint(part(start, start + length), input, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    return part(length * (segments - 1), len(parts))(input)


__all__ = [
    "CheckpointError", "CheckpointFunction", "CheckpointPolicy", "SelectiveCheckpointContext", "check_backward_validity", "checkpoint",
    "checkpoint_sequential", "create_selective_checkpoint_contexts", "detach_variable", "noop_context_fn", "set_checkpoint_debug_enabled",
    "set_checkpoint_early_stop",
]  # fmt: skip
