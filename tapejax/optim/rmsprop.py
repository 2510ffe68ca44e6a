"""RMSprop, plain or centred, with or without momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.optim.optimizer import Group, Optimizer, State, check, check_lr, zeros_like
from tapejax.optim.updates import rmsprop_update
from tapejax.tensor import Tensor


class RMSprop(Optimizer):
    """Divide by the root of a running mean of squares: `v = alpha v + (1 - alpha) g^2`, `p -= lr g / (sqrt(v) + eps)`.

    `centered` subtracts the squared running mean from `v`. With `momentum` the quotients are summed as in SGD. As in torch,
    `eps` stands outside the root.
    """

    _update = rmsprop_update

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr("RMSprop", lr)
        check("RMSprop", "Invalid epsilon value", eps, eps >= 0)
        check("RMSprop", "Invalid momentum value", momentum, momentum >= 0)
        check("RMSprop", "Invalid weight_decay value", weight_decay, weight_decay >= 0)
        check("RMSprop", "Invalid alpha value", alpha, alpha >= 0)
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "alpha": alpha,
                "eps": eps,
                "centered": centered,
                "weight_decay": weight_decay,
                "capturable": capturable,
                "foreach": foreach,
                "maximize": maximize,
                "differentiable": differentiable,
            },
        )

    def _kept(self, group: Group) -> tuple[str, ...]:
        return (
            "square_avg",
            *(("momentum_buffer",) if group["momentum"] > 0 else ()),
            *(("grad_avg",) if group["centered"] else ()),
        )

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        for name in self._kept(group):
            state[name] = zeros_like(p)

    def _numbers(self, group: Group, fresh: bool) -> dict[str, Any]:
        names = ("lr", "alpha", "eps", *(("momentum",) if group["momentum"] > 0 else ()))
        return {name: group[name] for name in names}
