"""What torch keeps in `nn.utils`: gradient clipping, and parameters as one vector."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tapejax.autograd.grad_mode import no_grad
from tapejax.errors import refuse
from tapejax.ops.create import tensor
from tapejax.ops.join import cat, stack
from tapejax.tensor import Tensor


def _gradients(parameters: Any) -> list[Tensor]:
    each = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p.grad for p in each if p.grad is not None]


@no_grad()
def get_total_norm(
    tensors: Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Return the p-norm of all `tensors` taken as one vector, 0-d; 0 if there are none."""
    each = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    p = float(norm_type)
    if not each:
        return tensor(0.0)
    norms = [t.norm(p) for t in each]
    total = norms[0] if len(norms) == 1 else stack([n.to(norms[0].dtype) for n in norms]).norm(p)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise refuse(
            RuntimeError,
            "clip_grad_norm_",
            f"The total norm of order {p} for gradients from `parameters` is non-finite, so it cannot be clipped. To disable this "
            "error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`",
        )
    return total


@no_grad()
def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    """Scale the gradients by `max_norm / (total_norm + 1e-6)` where that is below 1, in place."""
    factor = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
    for g in _gradients(parameters):
        g.mul_(factor.to(g.dtype))


def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients so that their norm, as one vector, is at most `max_norm`; returns the norm before.

    Nothing is read back to the host unless `error_if_nonfinite`.
    """
    each = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    total = get_total_norm(_gradients(each), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(each, float(max_norm), total)
    return total


@no_grad()
def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Clamp every gradient element to [-clip_value, clip_value], in place."""
    for g in _gradients(parameters):
        g.clamp_(min=-float(clip_value), max=float(clip_value))


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return all parameters as one vector, in order."""
    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give the parameters the values of consecutive pieces of `vec`."""
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected torch.Tensor, but got: {type(vec).__name__}")
    start = 0
    for p in parameters:
        p.data = vec[start : start + p.numel()].view(tuple(p.shape)).data
        start += p.numel()
