"""Adam, and AdamW, which takes weight decay out of the gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tapejax.optim.optimizer import Group, Optimizer, State, check, check_betas, check_lr, zeros_like
from tapejax.optim.updates import adam_update
from tapejax.tensor import Tensor


class Adam(Optimizer):
    """Divide a running mean of the gradient by the root of a running mean of its square, both bias-corrected.

    `p -= lr m / (sqrt(v) + eps)` with `m = beta1 m + (1 - beta1) g` over `1 - beta1^t`, `v = beta2 v + (1 - beta2) g^2`
    over `1 - beta2^t`. `weight_decay` adds `weight_decay p` to the gradient, or with `decoupled_weight_decay` shrinks `p`
    by `1 - lr weight_decay`. `amsgrad` divides by the largest `v` so far (Reddi et al. 2018); as in torch the maximum
    is taken before the bias correction. Complex parameters are pairs of reals.

    State: `step`, `exp_avg`, `exp_avg_sq`, with amsgrad `max_exp_avg_sq`. Kingma and Ba 2015, algorithm 1.

    >>> import tapejax as tj
    >>> w = tj.tensor(5.0, requires_grad=True)
    >>> opt = tj.optim.Adam([w], lr=0.5)
    >>> for _ in range(2):
    ...     opt.zero_grad()
    ...     ((w - 3.0) ** 2).backward()
    ...     opt.step()
    >>> int(opt.state[w]["step"])
    2
    """

    _update = adam_update

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        who = type(self).__name__
        check_lr(who, lr)
        check(who, "Invalid epsilon value", eps, eps >= 0)
        check_betas(who, betas)
        check(who, "Invalid weight_decay value", weight_decay, weight_decay >= 0)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
                "fused": fused,
                "decoupled_weight_decay": decoupled_weight_decay,
            },
        )

    def _kept(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))

    def _begin(self, p: Tensor, state: State, group: Group) -> None:
        for name in self._kept(group):
            state[name] = zeros_like(p)

    def _numbers(self, group: Group, fresh: bool) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {"lr": group["lr"], "beta1": beta1, "beta2": beta2, "eps": group["eps"]}


class AdamW(Adam):
    """Adam with decoupled weight decay: `p *= 1 - lr weight_decay` before each step, untouched by the adaptive size.

    Loshchilov and Hutter 2019, algorithm 2.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )
