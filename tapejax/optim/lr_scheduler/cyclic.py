"""Schedules that go up and down: warm restarts, triangular cycles, and one cycle over the whole training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tapejax.errors import refuse
from tapejax.optim.lr_scheduler.base import Functions, LRScheduler, one_per_group
from tapejax.optim.optimizer import Group, Optimizer


def _uses_beta1(who: str, optimizer: Optimizer) -> bool:
    """Tell where this optimizer keeps its momentum: as the first of "betas", or as "momentum"."""
    if "betas" in optimizer.defaults or "momentum" in optimizer.defaults:
        return "betas" in optimizer.defaults
    phrase = "optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
    raise refuse(ValueError, who, f"{phrase}, {type(optimizer).__name__} does not → pass cycle_momentum=False")


def _set_momentum(group: Group, use_beta1: bool, momentum: float) -> None:
    if use_beta1:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["momentum"] = momentum


class CosineAnnealingWarmRestarts(LRScheduler):
    """Fall along half a cosine, jump back, fall again: periods of `T_0`, `T_0 T_mult`, `T_0 T_mult^2`, ... epochs.

    `step(epoch)` accepts fractions of an epoch. Loshchilov and Hutter 2017 (SGDR).
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        who = "CosineAnnealingWarmRestarts"
        if not isinstance(T_0, int) or T_0 <= 0:
            raise refuse(ValueError, who, f"Expected positive integer T_0, but got {T_0}")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise refuse(ValueError, who, f"Expected integer T_mult >= 1, but got {T_mult}")
        if not isinstance(eta_min, (int, float)):
            raise refuse(ValueError, who, f"Expected float or int eta_min, but got {eta_min} of type {type(eta_min)}")
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        height = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go on by one epoch, or to `epoch`, which may be a fraction (`epoch + i / iterations`)."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        self._step_count += 1
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        elif epoch < 0:
            raise refuse(ValueError, "step", f"Expected non-negative epoch, but got {epoch}")
        elif epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:  # in period n, which starts at T_0 (T_mult^n - 1) / (T_mult - 1)
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**n
        self.last_epoch = math.floor(epoch)
        self._set(self._rates())


class CyclicLR(LRScheduler):
    """Move the rates between `base_lr` and `max_lr` in triangles, once per batch; the momentum moves against them.

    `mode`: "triangular", "triangular2" (each cycle half as high) or "exp_range" (height `gamma^iteration`); or give
    `scale_fn`, a function of the cycle or of the iteration as `scale_mode` says. Smith 2017.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        who = "CyclicLR"
        if not isinstance(optimizer, Optimizer):
            raise refuse(TypeError, who, f"{type(optimizer).__name__} is not an Optimizer")
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise refuse(ValueError, who, f"mode is invalid and scale_fn is None: mode={mode!r}")
        lows = one_per_group(who, "base_lr", base_lr, optimizer)
        if last_epoch == -1:
            for low, group in zip(lows, optimizer.param_groups, strict=True):
                group["lr"] = low
        self.max_lrs = one_per_group(who, "max_lr", max_lr, optimizer)
        up, down = float(step_size_up), float(step_size_up if step_size_down is None else step_size_down)
        self.total_size = up + down
        self.step_ratio = up / self.total_size
        self.mode, self.gamma = mode, gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _uses_beta1(who, optimizer)
            self.base_momentums = one_per_group(who, "base_momentum", base_momentum, optimizer)
            self.max_momentums = one_per_group(who, "max_momentum", max_momentum, optimizer)
            if last_epoch == -1:
                for low, high, group in zip(
                    self.base_momentums, self.max_momentums, optimizer.param_groups, strict=True
                ):
                    _set_momentum(group, self.use_beta1, high)
                    group["max_momentum"], group["base_momentum"] = high, low
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lows

    def scale_fn(self, x: float) -> float:
        """Return the height of the triangle at cycle or iteration `x`."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return 1 / 2.0 ** (x - 1) if self.mode == "triangular2" else self.gamma**x

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        along = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for low, high, group in zip(
                self.base_momentums, self.max_momentums, self.optimizer.param_groups, strict=True
            ):
                _set_momentum(group, self.use_beta1, high - (high - low) * along * height)
        return [low + (high - low) * along * height for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Return the state; a plain function given as `scale_fn` is left out."""
        state = super().state_dict()
        (state["_scale_fn_custom"],) = Functions.save([self._scale_fn_custom])
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state; `scale_fn` stays the one given here."""
        rest = dict(state_dict)
        Functions.load([self._scale_fn_custom], [rest.pop("_scale_fn_custom", None)])
        super().load_state_dict(rest)


class OneCycleLR(LRScheduler):
    """Rise from `max_lr / div_factor` to `max_lr`, then fall to `max_lr / (div_factor final_div_factor)`: one call per batch.

    The length is `total_steps`, or `epochs * steps_per_epoch`; the rise takes `pct_start` of it. With `three_phase` the
    fall mirrors the rise before the final descent. The momentum moves against the rate. Smith and Topin 2018.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        who = "OneCycleLR"
        if not isinstance(optimizer, Optimizer):
            raise refuse(TypeError, who, f"{type(optimizer).__name__} is not an Optimizer")
        lengths = (
            {"total_steps": total_steps}
            if total_steps is not None
            else {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
        )
        if None in lengths.values():
            raise refuse(ValueError, who, "You must define either total_steps OR (epochs AND steps_per_epoch)")
        for name, length in lengths.items():
            if not isinstance(length, int) or length <= 0:
                raise refuse(ValueError, who, f"Expected positive integer {name}, but got {length}")
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise refuse(ValueError, who, f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise refuse(
                ValueError, who, f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self.total_steps = math.prod(n for n in lengths.values() if n is not None)
        self._anneal_func_type = anneal_strategy
        rise = pct_start * self.total_steps
        phases: list[tuple[float, str, str, str, str]] = [
            (rise - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum")
        ]
        if three_phase:
            phases.append((2 * rise - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"))
            phases.append((self.total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"))
        else:
            phases.append((self.total_steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"))
        keys = ("end_step", "start_lr", "end_lr", "start_momentum", "end_momentum")
        self._schedule_phases: list[dict[str, Any]] = [dict(zip(keys, phase, strict=True)) for phase in phases]
        if last_epoch == -1:
            for high, group in zip(
                one_per_group(who, "max_lr", max_lr, optimizer), optimizer.param_groups, strict=True
            ):
                group["initial_lr"] = high / div_factor
                group["max_lr"] = high
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        self.use_beta1 = False
        if cycle_momentum:
            self.use_beta1 = _uses_beta1(who, optimizer)
            if last_epoch == -1:
                lows = one_per_group(who, "base_momentum", base_momentum, optimizer)
                highs = one_per_group(who, "max_momentum", max_momentum, optimizer)
                for low, high, group in zip(lows, highs, optimizer.param_groups, strict=True):
                    _set_momentum(group, self.use_beta1, high)
                    group["max_momentum"], group["base_momentum"] = high, low
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, share: float) -> float:
        if self._anneal_func_type == "cos":
            return end + (start - end) / 2.0 * (1 + math.cos(math.pi * share))
        return (end - start) * share + start

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        now = self.last_epoch
        if now > self.total_steps:
            raise refuse(
                ValueError,
                "step",
                f"Tried to step {now} times. The specified number of total steps is {self.total_steps}",
            )
        began = 0.0
        for phase in self._schedule_phases:
            if now <= phase["end_step"] or phase is self._schedule_phases[-1]:
                break
            began = phase["end_step"]
        share = (now - began) / (phase["end_step"] - began)
        if self.cycle_momentum:
            for group in self.optimizer.param_groups:
                momentum = self._between(group[phase["start_momentum"]], group[phase["end_momentum"]], share)
                _set_momentum(group, self.use_beta1, momentum)
        groups = self.optimizer.param_groups
        return [self._between(g[phase["start_lr"]], g[phase["end_lr"]], share) for g in groups]
