"""Averaged stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.optim.optimizer import Group, Optimizer, State, begin_number, check, check_lr, zeros_like
from tapejax.optim.updates import asgd_update
from tapejax.tensor import Tensor


class ASGD(Optimizer):
    """Gradient descent with a decaying rate, and an average of its iterates in `state["ax"]` from step `t0` on.

    `lambd`: the decay term; `alpha`: the power of the rate's fall. Polyak and Juditsky 1992.
    """

    _update = asgd_update

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_lr("ASGD", lr)
        check("ASGD", "Invalid weight_decay value", weight_decay, weight_decay >= 0)
        super().__init__(
            params,
            {
                "lr": lr,
                "lambd": lambd,
                "alpha": alpha,
                "t0": t0,
                "weight_decay": weight_decay,
                "foreach": foreach,
                "maximize": maximize,
                "differentiable": differentiable,
                "capturable": capturable,
            },
        )

    def _kept(self, group: Group) -> tuple[str, ...]:
        return "ax", "eta", "mu"

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        state["eta"] = begin_number(p, float(group["lr"]))
        state["mu"] = begin_number(p, 1.0)
        state["ax"] = zeros_like(p)

    def _numbers(self, group: Group, fresh: bool) -> dict[str, Any]:
        return {name: group[name] for name in ("lr", "lambd", "alpha", "t0")}
