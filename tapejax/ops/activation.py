"""Activation functions, with torch's derivative at every kink.

Owns the pointwise nonlinearities of `nn.functional`. Bounds and slopes are numbers that may change from step to step
without a new program. May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, ErrorSample, error_sample, op

_FUNCTIONAL = "nn.functional nn.functional_"


@op("torch Tensor Tensor_ " + _FUNCTIONAL, saves="result")
def relu(input: Array) -> Array:
    """Return max(input, 0); the gradient at 0 is 0.

    >>> import tapejax as tj
    >>> tj.relu(tj.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    if input.dtype == jnp.bool_ or jnp.issubdtype(input.dtype, jnp.complexfloating):
        raise refuse(RuntimeError, "relu", f"not supported for {dtypes.of(input.dtype)} → real numbers are needed")
    return jnp.where(input <= 0, jnp.zeros_like(input), input)


@relu.samples
def _(make: Make) -> Iterator[Any]:
    yield make.away(3, 4)
    yield make.ints(3, low=-3)


@relu.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "not supported for", make.bools(2))
