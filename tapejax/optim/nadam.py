"""Adam with Nesterov momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.optim.optimizer import Group, Optimizer, State, begin_number, check, check_betas, check_lr, zeros_like
from tapejax.optim.updates import nadam_update
from tapejax.tensor import Tensor


class NAdam(Optimizer):
    """Adam with Nesterov momentum: the step looks ahead along the mean that the next step will use.

    The momentum warms up as `mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2)`; `state["mu_product"]` is the product of all
    `mu_t` so far. Dozat 2016.
    """

    _update = nadam_update

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

    def _kept(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq", "mu_product"

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        state["mu_product"] = begin_number(p, 1.0)
        state["exp_avg"] = zeros_like(p)
        state["exp_avg_sq"] = zeros_like(p)

    def _numbers(self, group: Group, fresh: bool) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {
            "lr": group["lr"],
            "beta1": beta1,
            "beta2": beta2,
            "eps": group["eps"],
            "momentum_decay": group["momentum_decay"],
        }
