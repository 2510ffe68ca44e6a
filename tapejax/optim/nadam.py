"""Adam with Nesterov momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.optim.optimizer import (
    Group,
    Optimizer,
    State,
    check,
    check_betas,
    check_lr,
    number,
    start,
    write,
    zeros_like,
)
from tapejax.optim.updates import nadam_update
from tapejax.tensor import Tensor


class NAdam(Optimizer):
    """Adam with Nesterov momentum: the step looks ahead along the mean that the next step will use.

    The momentum warms up as `mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2)`; `state["mu_product"]` is the product of all
    `mu_t` so far. Dozat 2016.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr("NAdam", lr)
        check("NAdam", "Invalid epsilon value", eps, eps >= 0)
        check_betas("NAdam", betas)
        check("NAdam", "Invalid weight_decay value", weight_decay, weight_decay >= 0)
        check("NAdam", "Invalid momentum_decay value", momentum_decay, momentum_decay >= 0)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum_decay": momentum_decay,
                "decoupled_weight_decay": decoupled_weight_decay,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
            },
        )

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        state["step"] = start()
        state["mu_product"] = start(1.0)
        state["exp_avg"] = zeros_like(p)
        state["exp_avg_sq"] = zeros_like(p)

    def _move(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        options: dict[str, Any] = {"maximize": group["maximize"], "decoupled": group["decoupled_weight_decay"]}
        if group["weight_decay"]:
            options["weight_decay"] = number(group["weight_decay"])
        kept = state["exp_avg"], state["exp_avg_sq"], state["mu_product"]
        numbers = (group["lr"], *group["betas"], group["eps"], group["momentum_decay"])
        write((p, *kept), nadam_update(p, grad, *kept, state["step"], *map(number, numbers), **options))
