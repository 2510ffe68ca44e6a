"""Averages of weights along the way: stochastic weight averaging and exponential moving averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import numpy as np

from tapejax import dtypes
from tapejax.autograd.grad_mode import no_grad
from tapejax.errors import refuse
from tapejax.nn.module import Module
from tapejax.ops.elementwise import where
from tapejax.optim.lr_scheduler.base import LRScheduler, one_per_group
from tapejax.optim.optimizer import Optimizer
from tapejax.tensor import Tensor, leaf_tensor

Average = Callable[[Any, Any, Any], Any]
MultiAverage = Callable[[list[Tensor], list[Tensor], Any], None]


def get_swa_avg_fn() -> Average:
    """Return the running mean, `avg + (p - avg) / (n + 1)` (Izmailov et al. 2018)."""

    def mean(averaged: Any, current: Any, count: Any) -> Any:
        return averaged + (current - averaged) / (count + 1)

    return mean


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """Return the exponential moving average, `decay avg + (1 - decay) p`; `decay` in [0, 1]."""
    if not 0.0 <= decay <= 1.0:
        raise refuse(
            ValueError,
            "get_ema_avg_fn",
            f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.",
        )

    def moving(averaged: Any, current: Any, count: Any) -> Any:
        return decay * averaged + (1 - decay) * current

    return moving


def _in_place(average: Average) -> MultiAverage:
    """Make of an average of one pair a function that writes the averages of a whole list."""

    def write_all(averaged: list[Tensor], current: list[Tensor], count: Any) -> None:
        with no_grad():
            for a, b in zip(averaged, current, strict=True):
                a.copy_(average(a, b, count))

    return write_all


def get_swa_multi_avg_fn() -> MultiAverage:
    """Return the running mean of `get_swa_avg_fn` for lists, written in place."""
    return _in_place(get_swa_avg_fn())


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAverage:
    """Return the moving average of `get_ema_avg_fn` for lists, written in place."""
    return _in_place(get_ema_avg_fn(decay))


class AveragedModel(Module):
    """A copy of `model` whose parameters are averages of the parameters given to `update_parameters`.

    `avg_fn(averaged, current, count)` combines one pair (default: the running mean), `multi_avg_fn(averaged, current, count)`
    writes a whole list in place. The first update copies. Buffers are averaged as well with `use_buffers`, else copied.
    An update is recorded, not computed, and reads nothing back.
    """

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: MultiAverage | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise refuse(ValueError, "AveragedModel", "Only one of avg_fn and multi_avg_fn should be provided")
        self.module = deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", leaf_tensor(np.asarray(0), dtypes.int64, device))
        self.avg_fn = avg_fn or get_swa_avg_fn()
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the averaged model."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the parameters of `model` into the average."""
        with no_grad():
            mine: list[Tensor] = list(self.module.parameters())
            theirs: list[Tensor] = list(model.parameters())
            buffers = list(zip(self.module.buffers(), model.buffers(), strict=True))
            if self.use_buffers:
                mine += [a for a, _ in buffers]
                theirs += [b for _, b in buffers]
            else:
                for a, b in buffers:
                    a.copy_(b)
            count = self.n_averaged
            if self.multi_avg_fn is not None and int(count) > 0:
                self.multi_avg_fn(mine, [b.to(a.device) for a, b in zip(mine, theirs, strict=True)], count)
            else:
                for a, b in zip(mine, theirs, strict=True):
                    new = b.detach().to(a.device)
                    mixed = new if self.multi_avg_fn is not None else self.avg_fn(a.detach(), new, count.to(a.device))
                    # the first update copies: decided on the tape, so that all updates are one program
                    a.copy_(new if mixed is new else where(count == 0, new, mixed.to(a.dtype)))
            count.add_(1)


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Compute the running statistics of all batch normalisations anew, by one pass over `loader`."""
    norms = {m: m.momentum for m in model.modules() if hasattr(m, "running_mean") and hasattr(m, "momentum")}
    if not norms:
        return
    was_training = model.training
    model.train()
    for m in norms:
        m.reset_running_stats()
        m.momentum = None  # the plain mean over batches
    with no_grad():
        for batch in loader:
            x = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(x if device is None else x.to(device))
    for m, momentum in norms.items():
        m.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """Take the rates to `swa_lr` in `anneal_epochs` epochs, along half a cosine or a line, and leave them there."""

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            phrase = "anneal_strategy must be one of 'cos' or 'linear'"
            raise refuse(ValueError, "SWALR", f"{phrase}, instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise refuse(ValueError, "SWALR", f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        for group, rate in zip(
            optimizer.param_groups, one_per_group("SWALR", "swa_lr", swa_lr, optimizer), strict=True
        ):
            group["swa_lr"] = rate
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        """How far the rates have come at `step`, in [0, 1]."""
        along = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return along if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * along)) / 2

    def get_lr(self) -> list[Any]:
        self._warn_outside()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self.optimizer.param_groups:
            end = group["swa_lr"]
            start = end if before == 1 else (group["lr"] - before * end) / (1 - before)
            rates.append(end * now + start * (1 - now))
        return rates
