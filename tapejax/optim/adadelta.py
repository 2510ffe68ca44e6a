"""Adadelta."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.optim.optimizer import Group, Optimizer, State, check, check_lr, zeros_like
from tapejax.optim.updates import adadelta_update
from tapejax.tensor import Tensor


class Adadelta(Optimizer):
    """Move by the ratio of two running root mean squares, of past moves and of gradients, so that units agree.

    Zeiler 2012, algorithm 1, times `lr`.
    """

    _update = adadelta_update

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr("Adadelta", lr)
        check("Adadelta", "Invalid rho value", rho, 0 <= rho <= 1)
        check("Adadelta", "Invalid epsilon value", eps, eps >= 0)
        check("Adadelta", "Invalid weight_decay value", weight_decay, weight_decay >= 0)
        super().__init__(
            params,
            {
                "lr": lr,
                "rho": rho,
                "eps": eps,
                "weight_decay": weight_decay,
                "maximize": maximize,
                "capturable": capturable,
                "foreach": foreach,
                "differentiable": differentiable,
            },
        )

    def _kept(self, group: Group) -> tuple[str, ...]:
        return "square_avg", "acc_delta"

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        state["square_avg"] = zeros_like(p)
        state["acc_delta"] = zeros_like(p)

    def _numbers(self, group: Group, fresh: bool) -> dict[str, Any]:
        return {name: group[name] for name in ("lr", "rho", "eps")}
