"""Stochastic gradient descent, plain or with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.errors import refuse
from tapejax.optim.optimizer import Group, Optimizer, State, check, check_lr, zeros_like
from tapejax.optim.updates import sgd_update
from tapejax.tensor import Tensor


class SGD(Optimizer):
    """Move against the gradient: `b = momentum b + (1 - dampening) g`, then `p -= lr b`.

    With `nesterov` the move is `g + momentum b`. The buffer starts as the first gradient, undamped. A complex parameter
    follows its `.grad`, which is the direction of steepest ascent.

    >>> import tapejax as tj
    >>> w = tj.tensor([1.0, -2.0], requires_grad=True)
    >>> opt = tj.optim.SGD([w], lr=0.1)
    >>> (w ** 2).sum().backward()
    >>> opt.step()
    >>> w
    tensor([ 0.8000, -1.6000], requires_grad=True)
    """

    _update = sgd_update
    _counts = False  # torch keeps no step count here

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_lr("SGD", lr)
        check("SGD", "Invalid momentum value", momentum, momentum >= 0)
        check("SGD", "Invalid weight_decay value", weight_decay, weight_decay >= 0)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise refuse(
                ValueError,
                "SGD",
                "Nesterov momentum requires a momentum and zero dampening, "
                f"got momentum={momentum} and dampening={dampening}",
            )
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
                "foreach": foreach,
                "differentiable": differentiable,
                "fused": fused,
            },
        )

    def _kept(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        if group["momentum"]:
            state["momentum_buffer"] = zeros_like(p)

    def _numbers(self, group: Group, fresh: bool) -> dict[str, Any]:
        if not group["momentum"]:
            return {"lr": group["lr"]}
        # from zeros and undamped, the first sum is the gradient itself: the same program as later
        damping = 1.0 if fresh else 1.0 - group["dampening"]
        return {"lr": group["lr"], "momentum": group["momentum"], "damping": damping}
