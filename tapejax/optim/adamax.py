"""Adam under the infinity norm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.optim.optimizer import Group, Optimizer, State, check, check_betas, check_lr, zeros_like
from tapejax.optim.updates import adamax_update
from tapejax.tensor import Tensor


class Adamax(Optimizer):
    """Adam under the infinity norm: the size is `max(beta2 u, |g| + eps)` instead of a root mean square.

    Kingma and Ba 2015, algorithm 2.
    """

    _update = adamax_update

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_lr("Adamax", lr)
        check("Adamax", "Invalid epsilon value", eps, eps >= 0)
        check_betas("Adamax", betas)
        check("Adamax", "Invalid weight_decay value", weight_decay, weight_decay >= 0)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "foreach": foreach,
                "maximize": maximize,
                "differentiable": differentiable,
                "capturable": capturable,
            },
        )

    def _kept(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_inf"

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        state["exp_avg"] = zeros_like(p)
        state["exp_inf"] = zeros_like(p)

    def _numbers(self, group: Group, fresh: bool) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {"lr": group["lr"], "beta1": beta1, "beta2": beta2, "eps": group["eps"]}
