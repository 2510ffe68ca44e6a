"""Schedules made of schedules: one after the other, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from tapejax.errors import refuse
from tapejax.optim.lr_scheduler.base import LRScheduler
from tapejax.optim.lr_scheduler.plateau import ReduceLROnPlateau
from tapejax.optim.optimizer import Optimizer


def _check(who: str, schedulers: Sequence[LRScheduler], optimizer: Optimizer) -> None:
    for i, s in enumerate(schedulers):
        if not hasattr(s, "optimizer"):
            raise refuse(TypeError, who, f"scheduler at index {i} should have `optimizer` as its attribute")
        if isinstance(s, ReduceLROnPlateau) and who == "SequentialLR":
            raise refuse(
                ValueError, who, f"ReduceLROnPlateau needs a metric, so it cannot be at index {i}; step it by itself"
            )
        if s.optimizer is not optimizer:
            raise refuse(
                ValueError,
                who,
                f"expects all schedulers to belong to the same optimizer, but the one at index {i} belongs to another",
            )


class SequentialLR(LRScheduler):
    """Run the schedules one after the other; the one at index k + 1 starts, at its own epoch 0, when `milestones[k]` is reached."""

    _unsaved = ("optimizer", "_schedulers")

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ) -> None:
        who = "SequentialLR"
        if not schedulers:
            raise refuse(ValueError, who, "expects at least one scheduler to be chained, but got no scheduler.")
        _check(who, schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise refuse(
                ValueError,
                who,
                "expects number of schedulers provided to be one more than the number of milestone points, "
                f"but got {len(schedulers)} schedulers and {len(milestones)} milestones",
            )
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        for group in optimizer.param_groups:  # the schedules all set a first rate when they were made: undo that
            group["lr"] = group["initial_lr"]
        for s in schedulers:
            _rewind(s)
        schedulers[0]._initial_step()
        self._last_lr = schedulers[0].get_last_lr()

    def step(self) -> None:  # type: ignore[override]
        """Go on by one step of the schedule whose turn it is."""
        self.last_epoch += 1
        turn = bisect_right(self._milestones, self.last_epoch)
        current = self._schedulers[turn]
        if turn > 0 and self._milestones[turn - 1] == self.last_epoch:
            current._go(0)
        else:
            current.step()
        self._last_lr = current.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the state, that of the schedules included."""
        return super().state_dict() | {"_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of this and of each schedule."""
        _load(self, self._schedulers, state_dict)


class ChainedScheduler(LRScheduler):
    """Step all schedules at once: their factors multiply."""

    _unsaved = ("optimizer", "_schedulers")

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        who = "ChainedScheduler"
        if not schedulers:
            raise refuse(ValueError, who, "expects at least one scheduler to be chained, but got no scheduler.")
        optimizer = optimizer or schedulers[0].optimizer
        _check(who, schedulers, optimizer)
        self._schedulers = schedulers
        self.optimizer = optimizer
        self._last_lr = self._now()

    def step(self) -> None:  # type: ignore[override]
        """Step each schedule in order."""
        for s in self._schedulers:
            s.step()
        self._last_lr = self._now()

    def _initial_step(self) -> None:
        for s in self._schedulers:
            s._initial_step()
        self._last_lr = self._now()

    def _go(
        self, epoch: int | None = None
    ) -> None:  # where torch gives up: the chain starts at a milestone of another schedule
        for s in self._schedulers:
            s._go(epoch)
        self._last_lr = self._now()

    def state_dict(self) -> dict[str, Any]:
        """Return the state, that of the schedules included."""
        return super().state_dict() | {"_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of this and of each schedule."""
        _load(self, self._schedulers, state_dict)


def _load(outer: LRScheduler, schedulers: Sequence[LRScheduler], state_dict: dict[str, Any]) -> None:
    rest = dict(state_dict)
    for s, state in zip(schedulers, rest.pop("_schedulers"), strict=True):
        s.load_state_dict(state)
    outer.__dict__.update(rest)


def _rewind(scheduler: LRScheduler) -> None:
    """Take back the step that making the schedule took, inner schedules included."""
    inner = getattr(scheduler, "_schedulers", None)
    if inner is None:
        scheduler.last_epoch -= 1
    else:
        for s in inner:
            _rewind(s)
