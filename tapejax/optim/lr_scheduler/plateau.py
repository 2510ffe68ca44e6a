"""The schedule that listens: lower the rate when a metric stops improving."""

from __future__ import annotations

import math
import warnings
from typing import Any

from tapejax.errors import refuse
from tapejax.optim.lr_scheduler.base import EPOCH_WARNING, LRScheduler, one_per_group
from tapejax.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """Multiply the rates by `factor` once `patience` epochs have passed without improvement of the metric.

    `mode`: "min" or "max". Better means past `best (1 -+ threshold)`, or `best -+ threshold` with `threshold_mode="abs"`.
    After a reduction, `cooldown` epochs do not count. Rates stay above `min_lr`; changes below `eps` are left out.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        who = "ReduceLROnPlateau"
        if factor >= 1.0:
            raise refuse(ValueError, who, f"Factor should be < 1.0, got {factor}")
        if not isinstance(optimizer, Optimizer):
            raise refuse(TypeError, who, f"{type(optimizer).__name__} is not an Optimizer")
        if mode not in ("min", "max"):
            raise refuse(ValueError, who, f"mode {mode} is unknown! → 'min' or 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise refuse(ValueError, who, f"threshold mode {threshold_mode} is unknown! → 'rel' or 'abs'")
        self.optimizer = optimizer
        self.mode, self.factor, self.patience, self.cooldown = mode, factor, patience, cooldown
        self.threshold, self.threshold_mode, self.eps = threshold, threshold_mode, eps
        self.min_lrs = one_per_group(who, "min_lr", min_lr, optimizer)
        self.last_epoch = 0
        self._last_lr = self._now()
        self._reset()

    def _reset(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    @property
    def in_cooldown(self) -> bool:
        return self.cooldown_counter > 0

    def is_better(self, a: float, best: float) -> bool:
        """Tell whether the metric `a` improves on `best` by more than the threshold."""
        sign = -1 if self.mode == "min" else 1
        bound = best * (1 + sign * self.threshold) if self.threshold_mode == "rel" else best + sign * self.threshold
        return a < bound if self.mode == "min" else a > bound

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Take note of one epoch's metric (a number or a one-element tensor) and perhaps lower the rates."""
        current = float(metrics)
        if epoch is None:
            epoch = self.last_epoch + 1
        else:
            warnings.warn(EPOCH_WARNING, UserWarning, stacklevel=2)
        self.last_epoch = epoch
        if self.is_better(current, self.best):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
            lowered = [max(float(r) * self.factor, low) for r, low in zip(self._now(), self.min_lrs, strict=True)]
            self._set([new if float(r) - new > self.eps else r for r, new in zip(self._now(), lowered, strict=True)])
        self._last_lr = self._now()
