"""Exponentials, logarithms, roots, trigonometry and their inverses.

Owns smooth functions of one element; integers become the default float type, complex numbers are welcome where torch
takes them. May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.ops.operands import check_broadcast, is_complex, refuse_complex
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, ErrorSample, error_sample, op

_EVERYWHERE = "torch Tensor Tensor_"


def _unary(make: Make) -> Iterator[Any]:
    yield make(3, 4)
    yield make.complex(3)
    yield make.ints(3, high=1)


def _unary_real(make: Make) -> Iterator[Any]:
    yield make(3, 4)
    yield make.ints(3)


def _positive(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=0.1)
    yield make.complex(3)
    yield make.ints(3, low=1)


def _within_one(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=-0.9, high=0.9)
    yield make.complex(3)
    yield make.ints(3, high=1)


def _no_complex(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(NotImplementedError, "not implemented for 'ComplexDouble'", make.complex(2))


@op(_EVERYWHERE, promote="float", saves="result")
def exp(input: Array) -> Array:
    """Return e raised to each element; integers give the default float type.

    >>> import tapejax as tj
    >>> tj.exp(tj.tensor([0.0, 1.0])).tolist()
    [1.0, 2.7182817459106445]
    """
    return jnp.exp(input)


@op(_EVERYWHERE, promote="float", saves="input")
def log(input: Array) -> Array:
    """Return the natural logarithm: -inf at 0, NaN below it; complex tensors have their cut on the negative axis."""
    return jnp.log(input)


@op(_EVERYWHERE, promote="float", saves="result")
def sqrt(input: Array) -> Array:
    """Return the square root; NaN below 0. The gradient 1 / (2 result) is inf at 0."""
    return jnp.sqrt(input)


@op(_EVERYWHERE, promote="float", saves="input")
def sin(input: Array) -> Array:
    """Return the sine of each element, in radians."""
    return jnp.sin(input)


@op(_EVERYWHERE, promote="float", saves="input")
def cos(input: Array) -> Array:
    """Return the cosine of each element, in radians."""
    return jnp.cos(input)


@op(_EVERYWHERE + " nn.functional", promote="float", saves="result")
def tanh(input: Array) -> Array:
    """Return the hyperbolic tangent; its gradient is 1 - result²."""
    return jnp.tanh(input)


@op(_EVERYWHERE + " nn.functional", promote="float", saves="result")
def sigmoid(input: Array) -> Array:
    """Return the logistic function 1 / (1 + exp(-input)); its gradient is result (1 - result).

    >>> import tapejax as tj
    >>> tj.sigmoid(tj.tensor([0.0])).tolist()
    [0.5]
    """
    return jax.nn.sigmoid(input)


@op(_EVERYWHERE + " special", promote="float", saves="result")
def exp2(input: Array) -> Array:
    """Return 2 raised to each element."""
    return jnp.exp2(input)


@op(_EVERYWHERE + " special", promote="float", saves="result")
def expm1(input: Array) -> Array:
    """Return exp(input) - 1, accurate near 0."""
    return jnp.expm1(input)


@op(_EVERYWHERE, promote="float", saves="input")
def log2(input: Array) -> Array:
    """Return the logarithm to base 2."""
    return jnp.log2(input)


@op(_EVERYWHERE, promote="float", saves="input")
def log10(input: Array) -> Array:
    """Return the logarithm to base 10."""
    return jnp.log10(input)


@op(_EVERYWHERE + " special", promote="float", saves="input", grad_name="Log1P")
def log1p(input: Array) -> Array:
    """Return log(1 + input), accurate near 0; -inf at -1."""
    return jnp.log1p(input)


@op(_EVERYWHERE, promote="float", saves="result")
def rsqrt(input: Array) -> Array:
    """Return 1 / sqrt(input): inf at 0, NaN below it."""
    return lax.rsqrt(input)


@op(_EVERYWHERE, promote="float", saves="result")
def tan(input: Array) -> Array:
    """Return the tangent of each element, in radians."""
    return jnp.tan(input)


@op(_EVERYWHERE, promote="float", saves="input", aliases="arcsin")
def asin(input: Array) -> Array:
    """Return the angle in [-π/2, π/2] whose sine is `input`; NaN outside [-1, 1]."""
    return jnp.arcsin(input)


@op(_EVERYWHERE, promote="float", saves="input", aliases="arccos")
def acos(input: Array) -> Array:
    """Return the angle in [0, π] whose cosine is `input`; NaN outside [-1, 1]."""
    return jnp.arccos(input)


@op(_EVERYWHERE, promote="float", saves="input", aliases="arctan")
def atan(input: Array) -> Array:
    """Return the angle in (-π/2, π/2) whose tangent is `input`."""
    return jnp.arctan(input)


@op(_EVERYWHERE, promote="float", saves="input")
def sinh(input: Array) -> Array:
    """Return the hyperbolic sine."""
    return jnp.sinh(input)


@op(_EVERYWHERE, promote="float", saves="input")
def cosh(input: Array) -> Array:
    """Return the hyperbolic cosine."""
    return jnp.cosh(input)


@op(_EVERYWHERE, promote="float", saves="input", aliases="arcsinh")
def asinh(input: Array) -> Array:
    """Return the inverse hyperbolic sine."""
    return jnp.arcsinh(input)


@jax.custom_jvp
def _complex_acosh(z: jax.Array) -> jax.Array:
    return jnp.arccosh(z)


@_complex_acosh.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (z,), (dz,) = primals, tangents
    # One root for each branch point: the root of the product z² - 1 has the wrong sign in the left half plane.
    return _complex_acosh(z), dz / (jnp.sqrt(z - 1) * jnp.sqrt(z + 1))


@op(_EVERYWHERE, promote="float", saves="input", aliases="arccosh")
def acosh(input: Array) -> Array:
    """Return the inverse hyperbolic cosine; NaN below 1."""
    return _complex_acosh(input) if is_complex(input) else jnp.arccosh(input)


@op(_EVERYWHERE, promote="float", saves="input", aliases="arctanh")
def atanh(input: Array) -> Array:
    """Return the inverse hyperbolic tangent: infinite at -1 and 1, NaN outside."""
    return jnp.arctanh(input)


for _op in (exp, expm1, sin, cos, tanh, sigmoid, tan, sinh, cosh, asinh):
    _op.samples(_unary)
for _op in (log, sqrt, log2, log10, log1p, rsqrt):
    _op.samples(_positive)
for _op in (asin, acos, atan, atanh):
    _op.samples(_within_one)
exp2.samples(_unary)


@acosh.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=1.2, high=4)
    yield make.complex(3)


def safe_atan2(y: jax.Array, x: jax.Array) -> jax.Array:
    """atan2 with gradient 0 at the origin, where the formula x / (x² + y²) says NaN."""
    origin = (x == 0) & (y == 0)
    angle = jnp.arctan2(jnp.where(origin, jnp.zeros_like(y), y), jnp.where(origin, jnp.ones_like(x), x))
    return jnp.where(origin, lax.stop_gradient(jnp.arctan2(y, x)), angle)


@op(_EVERYWHERE, promote="float", saves="input other", aliases="arctan2")
def atan2(input: Array, other: Array) -> Array:
    """Return the angle of the point (x = other, y = input) in [-π, π], with broadcasting; the gradient at (0, 0) is 0.

    >>> import tapejax as tj
    >>> tj.atan2(tj.tensor([1.0]), tj.tensor([1.0])).tolist()
    [0.7853981852531433]
    """
    refuse_complex("atan2", input)
    check_broadcast("atan2", input, other)
    return safe_atan2(*jnp.broadcast_arrays(input, other))


@atan2.samples
def _(make: Make) -> Iterator[Any]:
    yield make.away(3, 4), make.away(4)
    yield np.array([0.0, 0.0, -0.0, 1.0]), np.array([0.0, -1.0, -0.0, 0.0])


atan2.error_samples(lambda make: iter([error_sample(RuntimeError, "must match the size", make(3), make(2))]))


@op(_EVERYWHERE, promote="float", grad_name="Deg2Rad")
def deg2rad(input: Array) -> Array:
    """Convert degrees to radians: `input * π / 180`."""
    refuse_complex("deg2rad", input)
    return input * (math.pi / 180)


@op(_EVERYWHERE, promote="float", grad_name="Rad2Deg")
def rad2deg(input: Array) -> Array:
    """Convert radians to degrees: `input * 180 / π`."""
    refuse_complex("rad2deg", input)
    return input * (180 / math.pi)


for _op in (deg2rad, rad2deg):
    _op.samples(_unary_real)
    _op.error_samples(_no_complex)


@op(_EVERYWHERE + " special", promote="float", saves="input")
def sinc(input: Array) -> Array:
    """Return sin(π input) / (π input), and 1 at 0 with gradient 0."""
    return jnp.sinc(input)


@sinc.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4)
    yield np.array([0.0, 0.5])


@op(promote="float", saves="input other")
def logaddexp(input: Array, other: Array) -> Array:
    """Return log(exp(input) + exp(other)) without overflow, with broadcasting.

    >>> import tapejax as tj
    >>> tj.logaddexp(tj.tensor([1000.0]), tj.tensor([1000.0])).tolist()
    [1000.6931762695312]
    """
    check_broadcast("logaddexp", input, other)
    return jnp.logaddexp(input, other)


@op(promote="float", saves="input other")
def logaddexp2(input: Array, other: Array) -> Array:
    """Return log2(2**input + 2**other) without overflow, with broadcasting."""
    check_broadcast("logaddexp2", input, other)
    return jnp.logaddexp2(input, other)


def _logs(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield np.array([-np.inf, 1.0]), np.array([2.0, -np.inf])


for _op in (logaddexp, logaddexp2):
    _op.samples(_logs)
