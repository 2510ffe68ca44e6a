"""Rectified Adam."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.optim.optimizer import Group, Optimizer, State, check, check_betas, check_lr, zeros_like
from tapejax.optim.updates import radam_update
from tapejax.tensor import Tensor


class RAdam(Optimizer):
    """Adam that rectifies its adaptive size, and leaves it out while its variance is intractable.

    In the first steps (`rho_t <= 5`, five of them with the default betas) the move is momentum alone. Liu et al. 2020.
    """

    _update = radam_update

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr("RAdam", lr)
        check("RAdam", "Invalid epsilon value", eps, eps >= 0)
        check_betas("RAdam", betas)
        check("RAdam", "Invalid weight_decay value", weight_decay, weight_decay >= 0)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "decoupled_weight_decay": decoupled_weight_decay,
                "differentiable": differentiable,
            },
        )

    def _kept(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        state["exp_avg"] = zeros_like(p)
        state["exp_avg_sq"] = zeros_like(p)

    def _numbers(self, group: Group, fresh: bool) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {"lr": group["lr"], "beta1": beta1, "beta2": beta2, "eps": group["eps"]}
