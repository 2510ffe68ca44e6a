"""What every schedule shares: the count of steps, the last rates, saving, and the warnings about calling order."""

from __future__ import annotations

import types
import warnings
from typing import Any

from tapejax.errors import refuse
from tapejax.optim.optimizer import Optimizer
from tapejax.tensor import Tensor

EPOCH_WARNING = (
    "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where possible. Please use "
    "`scheduler.step()` to step the scheduler. With epoch given, the closed form is used where there is one."
)


class LRScheduler:
    """Set the optimizer's rates once per `step()`. A subclass gives `get_lr()`, the rates of all groups at `last_epoch`.

    Rates are leaves of the recorded program: a schedule never recompiles anything. Most subclasses compute a rate from the
    rate before, as torch does, so that schedules combine and a rate set by hand is respected.
    """

    _unsaved: tuple[str, ...] = ("optimizer",)

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise refuse(TypeError, type(self).__name__, f"{type(optimizer).__name__} is not an Optimizer")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", _value(group["lr"]))
            elif "initial_lr" not in group:
                raise refuse(
                    KeyError,
                    type(self).__name__,
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming an optimizer "
                    f"at last_epoch={last_epoch} → load the optimizer's state_dict first",
                )
        self.base_lrs = [_value(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._is_initial = False
        if not optimizer._scheduled:
            optimizer._scheduled = True
            optimizer._opt_called = False
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[Any]:
        """Return the rates of all groups at `last_epoch`, from the rates before."""
        raise NotImplementedError

    def get_last_lr(self) -> list[Any]:
        """Return the rates that the last step set."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go on by one step (or to `epoch`) and set the rates."""
        if self._step_count == 1 and not self.optimizer._opt_called:
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. You should call them in the opposite "
                "order: `optimizer.step()` before `lr_scheduler.step()`. Otherwise the first value of the learning rate "
                "schedule is skipped.",
                UserWarning,
                stacklevel=2,
            )
        self._step_count += 1
        if epoch is not None:
            warnings.warn(EPOCH_WARNING, UserWarning, stacklevel=2)
        self._go(epoch)

    def _go(self, epoch: int | None = None) -> None:
        if epoch is None:
            self.last_epoch += 1
            rates = self._rates()
        else:
            self.last_epoch = epoch
            closed = getattr(self, "_get_closed_form_lr", None)
            rates = self._rates() if closed is None else closed()
        self._set(rates)

    def _rates(self) -> list[Any]:
        self._inside = True
        try:
            return self.get_lr()
        finally:
            del self._inside

    def _warn_outside(self) -> None:
        """Called by `get_lr`: users mean `get_last_lr`."""
        if "_inside" not in self.__dict__:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use `get_last_lr()`.",
                UserWarning,
                stacklevel=3,
            )

    def _set(self, rates: list[Any]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._last_lr = self._now()

    def _now(self) -> list[Any]:
        """The rates in force, as plain values: a rate that is a tensor is copied."""
        return [_value(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the optimizer and plain functions."""
        return {k: v for k, v in self.__dict__.items() if k not in self._unsaved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict()` of a like scheduler returned. Load the optimizer's own state as well."""
        self.__dict__.update(state_dict)


def _value(rate: Any) -> Any:
    return rate.detach().clone() if isinstance(rate, Tensor) else rate


def one_per_group(who: str, name: str, given: Any, optimizer: Optimizer) -> list[Any]:
    """A setting given once for all groups, or as a list with one entry per group."""
    n = len(optimizer.param_groups)
    if not isinstance(given, (list, tuple)):
        return [given] * n
    if len(given) != n:
        raise refuse(
            ValueError, who, f"expected {n} values for {name}, got {len(given)} → give one per parameter group"
        )
    return list(given)


class Functions:
    """For schedules that hold functions: plain ones are not saved, objects with `__call__` save their attributes."""

    @staticmethod
    def save(functions: list[Any]) -> list[Any]:
        return [None if f is None or isinstance(f, types.FunctionType) else dict(f.__dict__) for f in functions]

    @staticmethod
    def load(functions: list[Any], saved: list[Any]) -> None:
        for f, state in zip(functions, saved, strict=True):
            if state is not None:
                f.__dict__.update(state)
