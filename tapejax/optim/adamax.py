"""Adam under the infinity norm."""

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
from tapejax.optim.updates import adamax_update
from tapejax.tensor import Tensor


class Adamax(Optimizer):
    """Adam under the infinity norm: the size is `max(beta2 u, |g| + eps)` instead of a root mean square.

    Kingma and Ba 2015, algorithm 2.
    """

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

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        state["step"] = start()
        state["exp_avg"] = zeros_like(p)
        state["exp_inf"] = zeros_like(p)

    def _move(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        options: dict[str, Any] = {"maximize": group["maximize"]}
        if group["weight_decay"]:
            options["weight_decay"] = number(group["weight_decay"])
        kept = state["exp_avg"], state["exp_inf"]
        numbers = (group["lr"], *group["betas"], group["eps"])
        write((p, *kept), adamax_update(p, grad, *kept, state["step"], *map(number, numbers), **options))
