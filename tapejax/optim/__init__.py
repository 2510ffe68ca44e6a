"""Optimizers with torch's classes, formulas, state and file format.

Owns the update recurrences (`updates`, one op each), the optimizers over them, and `lr_scheduler`. Imports `dispatch`, `tensor`,
`autograd.grad_mode` and what stands above those. Invariants: a step computes nothing and reads nothing back, it records;
every number that may change between steps is a leaf, so neither a schedule nor the step count recompiles a program.
"""

from tapejax.dispatch import bind_all
from tapejax.optim import lr_scheduler, swa_utils
from tapejax.optim.adadelta import Adadelta
from tapejax.optim.adagrad import Adagrad
from tapejax.optim.adam import Adam, AdamW
from tapejax.optim.adamax import Adamax
from tapejax.optim.asgd import ASGD
from tapejax.optim.lbfgs import LBFGS
from tapejax.optim.nadam import NAdam
from tapejax.optim.optimizer import Optimizer
from tapejax.optim.radam import RAdam
from tapejax.optim.rmsprop import RMSprop
from tapejax.optim.rprop import Rprop
from tapejax.optim.sgd import SGD

bind_all()  # the recurrences are declared here, after the public ops

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "lr_scheduler",
    "swa_utils",
]
