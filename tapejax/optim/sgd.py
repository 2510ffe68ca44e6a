"""Stochastic gradient descent, plain or with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.errors import refuse
from tapejax.optim.optimizer import Group, Optimizer, State, check, check_lr, number, write, zeros_like
from tapejax.optim.updates import sgd_update
from tapejax.tensor import Tensor


class SGD(Optimizer):
    """Move against the gradient: `b = momentum b + (1 - dampening) g`, then `p -= lr b`.

    With `nesterov` the move is `g + momentum b`. The buffer starts as the first gradient, undamped. A complex parameter
    follows its `.grad`, which is the direction of steepest ascent.

    >>> import tapejax as tj
    >>> w = tj.tensor([1.0, -2.0], requires_grad=True)
    >>> opt = tj.optim.SGD([w], lr=0.1)
    >>> (w ** 2).sum().backward()
    >>> opt.step()
    >>> w
    tensor([ 0.8000, -1.6000], requires_grad=True)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_lr("SGD", lr)
        check("SGD", "Invalid momentum value", momentum, momentum >= 0)
        check("SGD", "Invalid weight_decay value", weight_decay, weight_decay >= 0)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise refuse(
                ValueError,
                "SGD",
                "Nesterov momentum requires a momentum and zero dampening, "
                f"got momentum={momentum} and dampening={dampening}",
            )
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
                "foreach": foreach,
                "differentiable": differentiable,
                "fused": fused,
            },
        )

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        """There is nothing to keep without momentum; the buffer itself is made by the first step with one."""

    def _move(self, p: Tensor, grad: Tensor, state: State, group: Group) -> None:
        options: dict[str, Any] = {"nesterov": group["nesterov"], "maximize": group["maximize"]}
        if group["weight_decay"]:
            options["weight_decay"] = number(group["weight_decay"])
        if not group["momentum"]:
            write((p,), sgd_update(p, grad, number(group["lr"]), **options))
            return
        buffer = state.get("momentum_buffer")
        damping = 1.0 - group["dampening"]
        if buffer is None:  # from zeros and undamped, the first sum is the gradient itself: the same program as later
            buffer = state["momentum_buffer"] = zeros_like(p)
            damping = 1.0
        options["momentum"] = number(group["momentum"])
        write((p, buffer), sgd_update(p, grad, number(group["lr"]), buffer, damping=damping, **options))
