"""Hooks that see the gradients of a module's outputs and inputs.

A module that has any is wrapped in two identity Functions: the one behind its outputs runs first in backward and keeps
the gradients of the outputs, the one before its inputs runs last and hands both to the hooks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tapejax.autograd.function import Function
from tapejax.tensor import Tensor


class _Passage(Function):
    """Return the tensors unchanged; show their gradients to a function that may replace them."""

    @staticmethod
    def forward(ctx: Any, seen: Callable[[tuple[Any, ...]], tuple[Any, ...]], *tensors: Any) -> Any:
        ctx.seen = seen
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *ctx.seen(grads))


class Watch:
    """One call of a module with backward hooks."""

    def __init__(self, module: Any, before: Sequence[Callable[..., Any]], after: Sequence[Callable[..., Any]]) -> None:
        self.module = module
        self.before = before
        self.after = after
        self.grad_outputs: tuple[Any, ...] | None = None
        self.watches_inputs = False
        self.arguments = 0

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Pass the grad-requiring tensors among the arguments through an identity."""
        at = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
        self.arguments = len(args)
        if not at or not self.after:
            return args
        self.watches_inputs = True
        passed = list(args)

        def seen(grads: tuple[Any, ...]) -> tuple[Any, ...]:
            full: list[Any] = [None] * len(args)
            for i, g in zip(at, grads, strict=True):
                full[i] = g
            found = self._call_after(tuple(full))
            return tuple(found[i] for i in at)

        for i, t in zip(at, _Passage.apply(seen, *(args[i] for i in at)), strict=True):
            passed[i] = t
        return tuple(passed)

    def _call_after(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in self.after:
            changed = hook(self.module, grads, self.grad_outputs)
            if changed is not None:
                changed = changed if isinstance(changed, tuple) else (changed,)
                if len(changed) != len(grads):
                    raise RuntimeError(
                        f"Backward hook returned an invalid number of grad_input, got {len(changed)}, but expected {len(grads)}"
                    )
                grads = changed
        return grads

    def outputs(self, result: Any) -> Any:
        """Pass the grad-requiring tensors of the result through an identity."""
        single = isinstance(result, Tensor)
        each = (result,) if single else result
        if not isinstance(each, tuple | list):
            return result
        at = [i for i, a in enumerate(each) if isinstance(a, Tensor) and a.requires_grad]
        if not at:
            return result

        def seen(grads: tuple[Any, ...]) -> tuple[Any, ...]:
            full: list[Any] = [None] * len(each)
            for i, g in zip(at, grads, strict=True):
                full[i] = g
            for hook in self.before:
                changed = hook(self.module, tuple(full))
                if changed is not None:
                    changed = changed if isinstance(changed, tuple) else (changed,)
                    if len(changed) != len(full):
                        raise RuntimeError(
                            f"Backward pre hook returned an invalid number of grad_output, got {len(changed)}, but expected {len(full)}"
                        )
                    full = list(changed)
            self.grad_outputs = tuple(full)
            if not self.watches_inputs:  # no input needs a gradient: the hooks run here, with nothing to replace
                if self.after:
                    warnings.warn(
                        "Full backward hook is firing when gradients are computed with respect to module outputs since no inputs require gradients:"
                        f" grad_input of {type(self.module).__name__} is all None → give it an input that requires grad to see gradients there",
                        stacklevel=2,
                    )
                for hook in self.after:
                    changed = hook(self.module, (None,) * self.arguments, self.grad_outputs)
                    if changed is not None and any(g is not None for g in changed):
                        raise RuntimeError(
                            "Backward hook for Modules where no input requires gradient should always return None or None for all gradients."
                        )
            return tuple(full[i] for i in at)

        passed = list(each)
        for i, t in zip(at, _Passage.apply(seen, *(each[i] for i in at)), strict=True):
            passed[i] = t
        return passed[0] if single else type(result)(passed) if type(result) in (tuple, list) else type(result)(*passed)
