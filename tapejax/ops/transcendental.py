"""Exponentials, logarithms, roots, trigonometry and their inverses.

Owns smooth functions of one element; integers become the default float type, complex numbers are welcome where torch
takes them. May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.ops.samples import Make
from tapejax.tape.op import Array, op

_EVERYWHERE = "torch Tensor Tensor_"


@op(_EVERYWHERE, promote="float", saves="result")
def exp(input: Array) -> Array:
    """Return e raised to each element; integers give the default float type.

    >>> import tapejax as tj
    >>> tj.exp(tj.tensor([0.0, 1.0])).tolist()
    [1.0, 2.7182817459106445]
    """
    return jnp.exp(input)


@exp.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4)
    yield make.complex(3)
    yield make.ints(3)


@op(_EVERYWHERE, promote="float", saves="input")
def log(input: Array) -> Array:
    """Return the natural logarithm: -inf at 0, NaN below it; complex tensors have their cut on the negative axis."""
    return jnp.log(input)


@log.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=0.1)
    yield make.complex(3)
    yield make.ints(3, low=1)


@op(_EVERYWHERE, promote="float", saves="result")
def sqrt(input: Array) -> Array:
    """Return the square root; NaN below 0. The gradient 1 / (2 result) is inf at 0."""
    return jnp.sqrt(input)


@sqrt.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=0.1)
    yield make.complex(3)
    yield make.ints(3, low=1)


@op(_EVERYWHERE, promote="float", saves="input")
def sin(input: Array) -> Array:
    """Return the sine of each element, in radians."""
    return jnp.sin(input)


@sin.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4)
    yield make.complex(3)
    yield make.ints(3)


@op(_EVERYWHERE, promote="float", saves="input")
def cos(input: Array) -> Array:
    """Return the cosine of each element, in radians."""
    return jnp.cos(input)


@cos.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4)
    yield make.complex(3)


@op(_EVERYWHERE + " nn.functional", promote="float", saves="result")
def tanh(input: Array) -> Array:
    """Return the hyperbolic tangent; its gradient is 1 - result²."""
    return jnp.tanh(input)


@tanh.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4)
    yield make.complex(3)
    yield make.ints(3)


@op(_EVERYWHERE + " nn.functional", promote="float", saves="result")
def sigmoid(input: Array) -> Array:
    """Return the logistic function 1 / (1 + exp(-input)); its gradient is result (1 - result).

    >>> import tapejax as tj
    >>> tj.sigmoid(tj.tensor([0.0])).tolist()
    [0.5]
    """
    return jax.nn.sigmoid(input)


@sigmoid.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4)
    yield make.complex(3)
    yield make.ints(3)
