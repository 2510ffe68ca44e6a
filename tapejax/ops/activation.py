"""Activation functions, with torch's derivative at every kink.

Owns the pointwise nonlinearities of `nn.functional`. Bounds and slopes are numbers that may change from step to step
without a new program. May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import dtypes
from tapejax.dispatch import in_place
from tapejax.errors import refuse
from tapejax.ops.elementwise import abs, add, div, sub, tanh
from tapejax.ops.operands import need_floating, refuse_complex
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, ErrorSample, Op, Scalar, Seed, composite, error_sample, op, sample

_FUNCTIONAL = "nn.functional nn.functional_"
_FUNCTIONAL_ONLY = "nn.functional"  # torch has no twin `name_` of these, only `inplace=True`


def _as(number: Any, x: jax.Array) -> jax.Array:
    return jnp.asarray(number, x.dtype)


def _real_floats(name: str, x: jax.Array) -> None:
    need_floating(name, x)
    refuse_complex(name, x)


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


def _between(x: jax.Array, low: Any, high: Any) -> jax.Array:
    """Limit to [low, high] with gradient 0 at the ends (clamp has 1 there)."""
    low, high = _as(low, x), _as(high, x)
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


@op(_FUNCTIONAL, saves="input", oracle="nn.functional.hardtanh")
def hardtanh(input: Array, min_val: Scalar = -1.0, max_val: Scalar = 1.0) -> Array:
    """Limit to [min_val, max_val]; the gradient is 1 inside and 0 at the ends."""
    refuse_complex("hardtanh", input)
    return _between(input, min_val, max_val)


@op(_FUNCTIONAL_ONLY, saves="input", grad_name="Hardtanh", oracle="nn.functional.relu6")
def relu6(input: Array) -> Array:
    """Limit to [0, 6]; the gradient at both ends is 0."""
    refuse_complex("relu6", input)
    return _between(input, 0, 6)


@op(_FUNCTIONAL, saves="input", oracle="nn.functional.leaky_relu")
def leaky_relu(input: Array, negative_slope: Scalar = 0.01) -> Array:
    """Return `input` above 0 and `negative_slope * input` elsewhere; the gradient at 0 is the slope."""
    _real_floats("leaky_relu", input)
    return jnp.where(input > 0, input, input * _as(negative_slope, input))


def _elu(x: jax.Array, alpha: jax.Array, rate: jax.Array) -> jax.Array:
    """x above 0, alpha (exp(rate x) - 1) elsewhere; the exponential never sees the positive side, where it overflows."""
    above = x > 0
    return jnp.where(above, x, alpha * jnp.expm1(jnp.where(above, jnp.zeros_like(x), x * rate)))


@op(_FUNCTIONAL, saves="input", oracle="nn.functional.elu")
def elu(input: Array, alpha: Scalar = 1.0) -> Array:
    """Return `input` above 0 and alpha (exp(input) - 1) elsewhere; the gradient at 0 is alpha."""
    _real_floats("elu", input)
    return _elu(input, _as(alpha, input), _as(1, input))


@op("torch " + _FUNCTIONAL, saves="input", oracle="nn.functional.celu")
def celu(input: Array, alpha: Scalar = 1.0) -> Array:
    """Return `input` above 0 and alpha (exp(input / alpha) - 1) elsewhere; the gradient at 0 is 1."""
    _real_floats("celu", input)
    return _elu(input, _as(alpha, input), 1 / _as(alpha, input))


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


@op("torch " + _FUNCTIONAL, saves="input", grad_name="Elu", oracle="nn.functional.selu")
def selu(input: Array) -> Array:
    """Return scale * elu(input, alpha), with the constants that keep mean 0 and variance 1 (Klambauer et al. 2017)."""
    _real_floats("selu", input)
    return _as(_SELU_SCALE, input) * _elu(input, _as(_SELU_ALPHA, input), _as(1, input))


@op("nn.functional", saves="input", oracle="nn.functional.gelu")
def gelu(input: Array, *, approximate: str = "none") -> Array:
    """Return input * Φ(input), Φ the normal distribution function (Hendrycks & Gimpel 2016).

    `approximate="tanh"` uses ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))). Raises RuntimeError for another word.

    >>> import tapejax as tj
    >>> tj.nn.functional.gelu(tj.tensor([0.0])).tolist()
    [0.0]
    """
    _real_floats("gelu", input)
    if approximate not in ("none", "tanh"):
        raise refuse(RuntimeError, "gelu", f"approximate argument must be either none or tanh, got {approximate!r}")
    return jax.nn.gelu(input, approximate=approximate == "tanh")


@op(_FUNCTIONAL_ONLY, saves="input", oracle="nn.functional.silu")
def silu(input: Array) -> Array:
    """Return input * sigmoid(input)."""
    need_floating("silu", input)
    return input * jax.nn.sigmoid(input)


@op(_FUNCTIONAL_ONLY, saves="input", oracle="nn.functional.mish")
def mish(input: Array) -> Array:
    """Return input * tanh(softplus(input)) (Misra 2019)."""
    _real_floats("mish", input)
    return input * jnp.tanh(jax.nn.softplus(input))


@op("nn.functional", saves="input", oracle="nn.functional.softplus")
def softplus(input: Array, beta: Scalar = 1, threshold: Scalar = 20) -> Array:
    """Return log(1 + exp(beta * input)) / beta, and `input` itself where beta * input exceeds `threshold`."""
    _real_floats("softplus", input)
    scaled = input * _as(beta, input)
    linear = scaled > _as(threshold, input)
    return jnp.where(linear, input, jnp.log1p(jnp.exp(jnp.where(linear, jnp.zeros_like(input), scaled))) / _as(beta, input))


@composite("nn.functional")
def softsign(input: Any) -> Any:
    """Return input / (1 + |input|); the gradient at 0 is 1."""
    return div(input, add(abs(input), 1))


@op(_FUNCTIONAL_ONLY, saves="input", oracle="nn.functional.hardsigmoid")
def hardsigmoid(input: Array) -> Array:
    """Return (input + 3) / 6 limited to [0, 1]; the gradient at -3 and 3 is 0."""
    _real_floats("hardsigmoid", input)
    return _between(input + 3, 0, 6) / 6


@op(_FUNCTIONAL_ONLY, saves="input", oracle="nn.functional.hardswish")
def hardswish(input: Array) -> Array:
    """Return input * hardsigmoid(input): 0 up to -3, `input` from 3; the gradient is 0 at -3 and 1 at 3."""
    _real_floats("hardswish", input)
    curved = (input > -3) & (input < 3)
    inside = jnp.where(curved, input, jnp.zeros_like(input))  # an infinite input has no part in the parabola's slope
    return jnp.where(curved, inside * (inside + 3) / 6, jnp.where(input <= -3, jnp.zeros_like(input), input))


@op("torch Tensor nn.functional", saves="input")
def hardshrink(input: Array, lambd: Scalar = 0.5) -> Array:
    """Return `input` where |input| > lambd, else 0 (with gradient 0)."""
    _real_floats("hardshrink", input)
    bound = _as(lambd, input)
    return jnp.where((input >= -bound) & (input <= bound), jnp.zeros_like(input), input)


@op("nn.functional", saves="input", oracle="nn.functional.softshrink")
def softshrink(input: Array, lambd: Scalar = 0.5) -> Array:
    """Move `input` towards 0 by lambd, and to 0 where |input| <= lambd (with gradient 0)."""
    _real_floats("softshrink", input)
    bound = _as(lambd, input)
    small = (input >= -bound) & (input <= bound)
    return jnp.where(small, jnp.zeros_like(input), jnp.where(input > 0, input - bound, input + bound))


@composite("nn.functional")
def tanhshrink(input: Any) -> Any:
    """Return input - tanh(input)."""
    return sub(input, tanh(input))


@op("nn.functional", saves="input buffer", computes="buffer", grad_name="LogSigmoid", oracle="nn.functional.logsigmoid")
def logsigmoid(input: Array) -> Array:
    """Return log(sigmoid(input)) without underflow."""
    _real_floats("logsigmoid", input)
    return jax.nn.log_sigmoid(input)


@logsigmoid.computed
def _(input: Any) -> Any:
    return (jnp.exp(-jnp.abs(input)),)


@op("torch " + _FUNCTIONAL, saves="input")
def threshold(input: Array, threshold: Scalar, value: Scalar) -> Array:
    """Return `input` where it exceeds `threshold`, and `value` elsewhere (with gradient 0)."""
    refuse_complex("threshold", input)
    return jnp.where(input <= _as(threshold, input), _as(value, input), input)


def _curves(make: Make) -> Iterator[Any]:
    yield np.concatenate([make.away(5), np.array([-7.3, 8.1, 25.0])])
    yield make.away(2, 3)


def _not_integers(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "not implemented for 'Long'", make.ints(3))


for _op in (hardtanh, relu6, leaky_relu, elu, celu, selu, gelu, silu, mish, softplus, hardsigmoid, hardswish,
            hardshrink, softshrink, logsigmoid):  # fmt: skip
    _op.samples(_curves)
for _op in (leaky_relu, elu, celu, selu, silu, mish, softplus, hardsigmoid, hardswish, hardshrink, softshrink, logsigmoid):
    _op.error_samples(_not_integers)


def _with(*extra: Any) -> Any:
    def samples(make: Make) -> Iterator[Any]:
        yield from _curves(make)
        yield (make.away(3, 4), *extra)

    return samples


hardtanh.samples(_with(-0.7, 1.3))
leaky_relu.samples(_with(0.2))
elu.samples(_with(0.7))
celu.samples(_with(0.7))
softplus.samples(_with(2, 1.5))
hardshrink.samples(_with(0.3))
softshrink.samples(_with(0.3))


@threshold.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), 0.1, 20.0
    yield make.ints(3), 1, 7


@gelu.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4)
    yield sample(make(3), approximate="tanh")


@gelu.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield from _not_integers(make)
    yield error_sample(RuntimeError, "must be either none or tanh", make(3), approximate="sigmoid")


@op("torch Tensor nn.functional", promote="first", saves="input weight", grad_name="PreluKernel")
def prelu(input: Array, weight: Array) -> Array:
    """Return `input` above 0 and `weight * input` elsewhere.

    `weight` has one element, or one for each channel (axis 1) of `input`. The gradient at 0 is the weight. Raises
    RuntimeError where the sizes differ.
    """
    _real_floats("prelu", input)
    if weight.ndim > 1:
        raise refuse(RuntimeError, "prelu", f"Expected weight to be a scalar or 1D tensor, but got ndim = {weight.ndim}")
    if weight.size != 1:
        channels = input.shape[1] if input.ndim > 1 else 1
        if weight.size != channels:
            raise refuse(
                RuntimeError,
                "prelu",
                f"Mismatch of parameter numbers and input channel size. Found parameter numbers = {weight.size} and "
                f"channel size = {channels}",
            )
        weight = weight.reshape(-1, *(1,) * (input.ndim - 2))  # channels stand on axis 1
    else:
        weight = weight.reshape(())
    return jnp.where(input > 0, input, weight * input)


@prelu.samples
def _(make: Make) -> Iterator[Any]:
    yield make.away(3, 4), make(1)
    yield make.away(2, 3, 4), make(3)
    yield make.away(4), make()


@prelu.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "Mismatch of parameter numbers", make(2, 3), make(2))


@op("", name="rrelu_sample", saves="noise input", computes="noise", grad_name="RreluWithNoise", oracle=None)
def rrelu_sample(input: Array, lower: Scalar, upper: Scalar, seed: Seed) -> Array:
    """Return `input` above 0, and elsewhere `input` times a slope drawn anew for each element. See `rrelu`."""
    _real_floats("rrelu", input)
    return jnp.where(input > 0, input, input * _slopes(input, lower, upper, seed))


def _slopes(input: Any, lower: Any, upper: Any, seed: Any) -> Any:
    low, high = _as(lower, input), _as(upper, input)
    return low + (high - low) * jax.random.uniform(seed, input.shape, jnp.float32).astype(input.dtype)


@rrelu_sample.computed
def _(input: Any, lower: Any, upper: Any, seed: Any) -> Any:
    return (jnp.where(input > 0, 1, _slopes(input, lower, upper, seed)),)


@composite("torch " + _FUNCTIONAL)
def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
    *,
    generator: Any = None,
) -> Any:
    """Leak with a random slope: in training drawn uniformly from [lower, upper] for each element, else their mean.

    The gradient below and at 0 is the slope (Xu et al. 2015). Raises RuntimeError if `lower` exceeds `upper`.
    """
    if lower > upper:
        raise refuse(RuntimeError, "rrelu", f"Lower bound should be less than or equal to the upper bound, got {lower}, {upper}")
    base, slopes, drawn = (rrelu_sample, (lower, upper), {"generator": generator}) if training else (leaky_relu, ((lower + upper) / 2,), {})
    function = in_place(base, "rrelu") if inplace else base
    return function(input, *slopes, **drawn)


@op("nn.functional", saves="input", oracle="nn.functional.glu")
def glu(input: Array, dim: int = -1) -> Array:
    """Gate one half by the other: `a * sigmoid(b)` where `input` is cut in two along `dim` (Dauphin et al. 2017).

    `(*, 2N, *) -> (*, N, *)`. Raises RuntimeError for an odd size, IndexError for an axis out of range.
    """
    need_floating("glu", input)
    if not -input.ndim <= dim < input.ndim:
        raise refuse(
            IndexError,
            "glu",
            f"Dimension out of range (expected to be in range of [{-input.ndim}, {input.ndim - 1}], but got {dim})",
        )
    size = input.shape[dim]
    if size % 2:
        raise refuse(RuntimeError, "glu", f"Halving dimension must be even, but dimension {dim % input.ndim} is size {size}")
    left, right = jnp.split(input, 2, axis=dim)
    return left * jax.nn.sigmoid(right)


@glu.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4)
    yield make(4, 3), 0
    yield make(2, 6, 2), -2


@glu.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "Halving dimension must be even", make(3))
    yield error_sample(IndexError, "Dimension out of range", make(4), 1)


def _with_inplace(base: Op) -> Callable[..., Any]:
    """The function of `nn.functional`, whose last parameter `inplace` writes the result into `input`."""
    numbers = len(base.params) - 1
    write = in_place(base, base.name)

    def function(input: Any, *args: Any, **named: Any) -> Any:
        inplace = named.pop("inplace", False)
        if len(args) > numbers:
            *args, inplace = args  # type: ignore[assignment]
        return write(input, *args, **named) if inplace else base(input, *args, **named)

    own = inspect.signature(base.impl)
    flag = inspect.Parameter("inplace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False)
    function.__signature__ = own.replace(parameters=[*own.parameters.values(), flag])  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = base.name
    function.__doc__ = f"{base.__doc__}\n    With `inplace` the result is written into `input`.\n    "
    function.__wrapped_op__ = base  # type: ignore[attr-defined]
    return function


for _op in (relu, relu6, hardtanh, leaky_relu, elu, celu, selu, silu, mish, hardsigmoid, hardswish, threshold):
    composite("nn.functional", name=_op.name)(_with_inplace(_op))
