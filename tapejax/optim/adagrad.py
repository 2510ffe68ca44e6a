"""Adagrad."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.optim.optimizer import Group, Optimizer, State, check, check_lr, full_like
from tapejax.optim.updates import adagrad_update
from tapejax.tensor import Tensor


class Adagrad(Optimizer):
    """Divide by the root of the sum of all squared gradients, so that rarely moved elements move further.

    The rate falls as `lr / (1 + (t - 1) lr_decay)`. `state["sum"]` starts at `initial_accumulator_value` when the optimizer
    is made. Duchi et al. 2011.
    """

    _update = adagrad_update

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_lr("Adagrad", lr)
        check("Adagrad", "Invalid lr_decay value", lr_decay, lr_decay >= 0)
        check("Adagrad", "Invalid weight_decay value", weight_decay, weight_decay >= 0)
        check(
            "Adagrad",
            "Invalid initial_accumulator_value value",
            initial_accumulator_value,
            initial_accumulator_value >= 0,
        )
        check("Adagrad", "Invalid epsilon value", eps, eps >= 0)
        super().__init__(
            params,
            {
                "lr": lr,
                "lr_decay": lr_decay,
                "eps": eps,
                "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value,
                "foreach": foreach,
                "maximize": maximize,
                "differentiable": differentiable,
                "fused": fused,
            },
        )
        self._begin_all()  # the accumulator exists before the first step

    def share_memory(self) -> None:
        """Do nothing: state lives in this process and is shared between its threads."""

    def _kept(self, group: Group) -> tuple[str, ...]:
        return ("sum",)

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        state["sum"] = full_like(p, group["initial_accumulator_value"])

    def _numbers(self, group: Group, fresh: bool) -> dict[str, Any]:
        return {name: group[name] for name in ("lr", "lr_decay", "eps")}
