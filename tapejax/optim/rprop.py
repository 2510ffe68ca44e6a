"""Resilient propagation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.optim.optimizer import Group, Optimizer, State, check, check_lr, full_like, zeros_like
from tapejax.optim.updates import rprop_update
from tapejax.tensor import Tensor


class Rprop(Optimizer):
    """Follow the gradient's sign with a step size per element: longer while the sign holds, shorter after it turned.

    `etas`: the factors (shrink, grow). `step_sizes`: the (smallest, largest) allowed step. For full batches only.
    Riedmiller and Braun 1993.
    """

    _update = rprop_update

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr("Rprop", lr)
        shrink, grow = etas
        check("Rprop", "Invalid eta values", f"{shrink}, {grow}", 0 < shrink < 1 < grow)
        super().__init__(
            params,
            {
                "lr": lr,
                "etas": etas,
                "step_sizes": step_sizes,
                "foreach": foreach,
                "maximize": maximize,
                "differentiable": differentiable,
                "capturable": capturable,
            },
        )

    def _kept(self, group: Group) -> tuple[str, ...]:
        return "prev", "step_size"

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        state["prev"] = zeros_like(p)
        state["step_size"] = full_like(p, float(group["lr"]))

    def _numbers(self, group: Group, fresh: bool) -> dict[str, Any]:
        shrink, grow = group["etas"]
        smallest, largest = group["step_sizes"]
        return {"eta_minus": shrink, "eta_plus": grow, "smallest": smallest, "largest": largest}
