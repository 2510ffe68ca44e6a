"""Torch's place for the modules' own files; here they stand in `tapejax.nn` itself."""

from __future__ import annotations

import sys

from tapejax.nn import (
    activation,
    attention,
    container,
    conv,
    distance,
    dropout,
    embedding,
    flatten,
    linear,
    loss,
    module,
    norm,
    parameter,
    pooling,
    resample,
    rnn,
    transformer,
)
from tapejax.nn.module import Module

# `from tapejax.nn.modules.module import ...` is what code that registers global hooks writes
sys.modules[f"{__name__}.module"] = module

__all__ = [
    "Module",
    "activation",
    "attention",
    "container",
    "conv",
    "distance",
    "dropout",
    "embedding",
    "flatten",
    "linear",
    "loss",
    "module",
    "norm",
    "parameter",
    "pooling",
    "resample",
    "rnn",
    "transformer",
]
