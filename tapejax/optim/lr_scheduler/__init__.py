"""Learning rate schedules.

Owns everything that changes an optimizer's `lr` (and momentum) between steps. `base` holds what they share, `decay` those that
go one way, `cyclic` those that come back, `plateau` the one that listens to a metric, `compose` the combinations.
Imports `optim.optimizer` only. Invariant: a schedule touches nothing but `param_groups`, and never recompiles a program.
"""

from tapejax.optim.lr_scheduler.base import LRScheduler
from tapejax.optim.lr_scheduler.compose import ChainedScheduler, SequentialLR
from tapejax.optim.lr_scheduler.cyclic import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from tapejax.optim.lr_scheduler.decay import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from tapejax.optim.lr_scheduler.plateau import ReduceLROnPlateau

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
