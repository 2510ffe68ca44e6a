"""Schedules that go one way: by a function, in steps, linearly, exponentially, along a polynomial or half a cosine."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tapejax.errors import refuse
from tapejax.optim.lr_scheduler.base import Functions, LRScheduler
from tapejax.optim.optimizer import Optimizer

Factor = Callable[[int], float]


class _ByFunction(LRScheduler):
    """One function per group, kept in `lr_lambdas`."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Factor | list[Factor], last_epoch: int = -1) -> None:
        n = len(optimizer.param_groups)
        self.lr_lambdas = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * n
        if len(self.lr_lambdas) != n:
            raise refuse(ValueError, type(self).__name__, f"Expected {n} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; plain functions are left out, callable objects give their attributes."""
        return super().state_dict() | {"lr_lambdas": Functions.save(self.lr_lambdas)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state; plain functions stay the ones given here."""
        rest = dict(state_dict)
        Functions.load(self.lr_lambdas, rest.pop("lr_lambdas"))
        super().load_state_dict(rest)


class LambdaLR(_ByFunction):
    """Set each rate to its initial value times `lr_lambda(epoch)`.

    >>> import tapejax as tj
    >>> opt = tj.optim.SGD([tj.zeros(1, requires_grad=True)], lr=0.1)
    >>> schedule = tj.optim.lr_scheduler.LambdaLR(opt, lambda epoch: 1 / (1 + epoch))
    >>> opt.step(); schedule.step()
    >>> schedule.get_last_lr()
    [0.05]
    """

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        return [base * f(self.last_epoch) for base, f in zip(self.base_lrs, self.lr_lambdas, strict=True)]


class MultiplicativeLR(_ByFunction):
    """Multiply each rate by `lr_lambda(epoch)` at every step but the first."""

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        rates = self._now()
        return (
            rates if self._is_initial else [r * f(self.last_epoch) for r, f in zip(rates, self.lr_lambdas, strict=True)]
        )


class StepLR(LRScheduler):
    """Multiply the rates by `gamma` every `step_size` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        keep = self.last_epoch == 0 or self.last_epoch % self.step_size != 0
        return self._now() if keep else [r * self.gamma for r in self._now()]

    def _get_closed_form_lr(self) -> list[Any]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """Multiply the rates by `gamma` at each of the `milestones` (one that is listed twice counts twice)."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        times = self.milestones.get(self.last_epoch, 0)
        return [r * self.gamma**times for r in self._now()] if times else self._now()

    def _get_closed_form_lr(self) -> list[Any]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """Multiply the rates by `factor` until epoch `total_iters`."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        if not 0 <= factor <= 1:
            raise refuse(
                ValueError, "ConstantLR", f"Constant multiplicative factor expected to be between 0 and 1, got {factor}"
            )
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        if self.last_epoch == 0:
            return [r * self.factor for r in self._now()]
        return [r * (1 / self.factor) for r in self._now()] if self.last_epoch == self.total_iters else self._now()

    def _get_closed_form_lr(self) -> list[Any]:
        return [base * (self.factor if self.last_epoch < self.total_iters else 1) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """Take the rates' factor from `start_factor` to `end_factor` in a straight line over `total_iters` epochs."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1:
            phrase = "Starting multiplicative factor expected to be greater than 0 and less or equal to 1"
            raise refuse(ValueError, "LinearLR", f"{phrase}, got {start_factor}")
        if not 0 <= end_factor <= 1:
            phrase = "Ending multiplicative factor expected to be between 0 and 1"
            raise refuse(ValueError, "LinearLR", f"{phrase}, got {end_factor}")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        if self.last_epoch == 0:
            return [r * self.start_factor for r in self._now()]
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._now()
        rise = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return [r * (1.0 + rise / before) for r in self._now()]

    def _get_closed_form_lr(self) -> list[Any]:
        share = min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * (self.start_factor + (self.end_factor - self.start_factor) * share) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """Multiply the rates by `gamma` every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        return self._now() if self._is_initial else [r * self.gamma for r in self._now()]

    def _get_closed_form_lr(self) -> list[Any]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """Let the rates fall to 0 as `(1 - epoch / total_iters)^power`."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._now()
        now, before = 1.0 - self.last_epoch / self.total_iters, 1.0 - (self.last_epoch - 1) / self.total_iters
        return [r * (now / before) ** self.power for r in self._now()]

    def _get_closed_form_lr(self) -> list[Any]:
        left = 1.0 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * left**self.power for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """Take the rates to `eta_min` along half a cosine of `T_max` epochs, then back up (Loshchilov and Hutter 2017, eq. 5)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        if self._is_initial:
            return self._now()
        if self._step_count == 1 and self.last_epoch > 0:
            return self._get_closed_form_lr()
        angle = math.pi / self.T_max
        if (self.last_epoch - 1 - self.T_max) % (
            2 * self.T_max
        ) == 0:  # leaving the bottom, where a ratio would be 0 / 0
            rise = (1 - math.cos(angle)) / 2
            return [r + (base - self.eta_min) * rise for r, base in zip(self._now(), self.base_lrs, strict=True)]
        ratio = (1 + math.cos(angle * self.last_epoch)) / (1 + math.cos(angle * (self.last_epoch - 1)))
        return [ratio * (r - self.eta_min) + self.eta_min for r in self._now()]

    def _get_closed_form_lr(self) -> list[Any]:
        height = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]
