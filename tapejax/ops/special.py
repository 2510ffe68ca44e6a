"""Special functions: error and gamma functions, Bessel functions, entropies and logarithms with limits.

Everything in `tapejax.special`; several are also functions and methods under torch's older names. Where a formula has a
removable singularity, the derivative is declared beside the function so that it stays finite to any order.
May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from tapejax.errors import refuse
from tapejax.ops.operands import check_broadcast, refuse_complex, tangent_of
from tapejax.ops.samples import Make
from tapejax.ops.transcendental import sigmoid
from tapejax.tape.op import Array, ErrorSample, Scalar, composite, error_sample, op

_EVERYWHERE = "torch Tensor Tensor_ special"

composite("special", name="expit")(sigmoid)


def _anywhere(make: Make) -> Iterator[Any]:
    yield make(3, 4)


def _positive(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=0.3, high=5)


def _no_complex(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(NotImplementedError, "not implemented for 'ComplexDouble'", make.complex(2))


@op(_EVERYWHERE, promote="float", saves="input")
def erf(input: Array) -> Array:
    """Return the error function 2/√π ∫₀ˣ exp(-t²) dt."""
    refuse_complex("erf", input)
    return lax.erf(input)


@op(_EVERYWHERE, promote="float", saves="input")
def erfc(input: Array) -> Array:
    """Return 1 - erf(input), without cancellation for large inputs."""
    refuse_complex("erfc", input)
    return lax.erfc(input)


@op(_EVERYWHERE, promote="float", saves="input")
def erfinv(input: Array) -> Array:
    """Return the inverse of `erf`: infinite at -1 and 1, NaN outside."""
    refuse_complex("erfinv", input)
    return lax.erf_inv(input)


@jax.custom_jvp
def _scaled_erfc(x: jax.Array) -> jax.Array:
    # exp(x²) erfc(x) until erfc gets near underflow, then the asymptotic series.
    far, terms = (5.0, 10) if jnp.finfo(x.dtype).bits < 64 else (24.0, 8)
    large = x > far
    near = jnp.where(large, jnp.zeros_like(x), x)
    beyond = jnp.where(large, x, jnp.full_like(x, far))
    ratio = 1 / (2 * beyond * beyond)
    series = jnp.ones_like(x)
    for k in reversed(range(1, terms)):
        series = 1 - (2 * k - 1) * ratio * series
    return jnp.where(large, series / (beyond * math.sqrt(math.pi)), jnp.exp(near * near) * lax.erfc(near))


@_scaled_erfc.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    value = _scaled_erfc(x)
    return value, (2 * x * value - 2 / math.sqrt(math.pi)) * dx


@op("special", promote="float", saves="input result", oracle="special.erfcx", grad_name="SpecialErfcx")
def erfcx(input: Array) -> Array:
    """Return exp(input²) erfc(input), which neither over- nor underflows for large positive inputs."""
    refuse_complex("erfcx", input)
    return _scaled_erfc(input)


@op("torch Tensor Tensor_", promote="float", saves="input")
def lgamma(input: Array) -> Array:
    """Return log |Γ(input)|: inf at 0 and the negative integers."""
    refuse_complex("lgamma", input)
    return lax.lgamma(input)


composite("special", name="gammaln")(lgamma)


@op(_EVERYWHERE, promote="float", saves="input")
def digamma(input: Array) -> Array:
    """Return the logarithmic derivative of Γ: infinite at 0 (by the sign of the zero), NaN at the negative integers."""
    refuse_complex("digamma", input)
    return _polygamma(input, 0)


composite("special", name="psi")(digamma)


def _polygamma_value(n: int, x: jax.Array) -> jax.Array:
    if n == 0:
        pole = x == 0
        value = lax.digamma(jnp.where(pole, jnp.ones_like(x), x))
        return jnp.where(pole, jnp.copysign(jnp.full_like(x, jnp.inf), -x), value)
    if n == 1:  # the reflection formula: the zeta function's series holds on the positive side only
        left = x < 0.5
        right = jnp.where(left, 1 - x, x)
        value = lax.zeta(jnp.full_like(x, 2), right)
        reflected = jnp.square(math.pi / jnp.sin(math.pi * jnp.where(left, x, jnp.full_like(x, 0.5))))
        return jnp.where(left, reflected - value, value)
    scale = (-1.0) ** (n + 1) * math.factorial(n)
    return scale * lax.zeta(jnp.full_like(x, n + 1), x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _polygamma(x: jax.Array, n: int) -> jax.Array:
    return _polygamma_value(n, x)


@_polygamma.defjvp
def _(n: int, primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    return _polygamma(x, n), _polygamma(x, n + 1) * dx


@op("", name="polygamma", promote="float", saves="input", oracle=None)
def polygamma_op(input: Array, n: int) -> Array:
    """Return the n-th derivative of `digamma`. See `polygamma` for the public argument order."""
    refuse_complex("polygamma", input)
    if n < 0:
        raise refuse(RuntimeError, "polygamma", f"polygamma(n, x) does not support negative n, got {n}")
    return _polygamma(input, n)


@composite("torch special")
def polygamma(n: int, input: Any) -> Any:
    """Return the n-th derivative of `digamma` at `input`, n a Python int, not negative.

    >>> import tapejax as tj
    >>> tj.polygamma(1, tj.tensor([1.0])).tolist()
    [1.644934058189392]
    """
    return polygamma_op(input, n)


@composite("Tensor Tensor_", name="polygamma")
def polygamma_method(input: Any, n: int) -> Any:
    """Return the n-th derivative of `digamma` at this tensor's elements (see `tapejax.polygamma`)."""
    return polygamma_op(input, n)


@polygamma_op.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=0.3, high=5), 0
    yield make(3, low=0.3, high=5), 1
    yield make(3, low=0.3, high=5), 3


@polygamma_op.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "does not support negative n", make(3), -1)


@op("torch Tensor Tensor_", promote="float", saves="input")
def mvlgamma(input: Array, p: int) -> Array:
    """Return the logarithm of the multivariate gamma function: p (p - 1) / 4 log π + Σⱼ log Γ(input - j / 2), j < p.

    Needs input > (p - 1) / 2. Raises RuntimeError for p < 1.
    """
    refuse_complex("mvlgamma", input)
    if p < 1:
        raise refuse(RuntimeError, "mvlgamma", f"p has to be greater than or equal to 1, got {p}")
    shifted = jnp.expand_dims(input, -1) - jnp.arange(p, dtype=input.dtype) / 2
    return lax.lgamma(shifted).sum(-1) + p * (p - 1) / 4 * math.log(math.pi)


composite("special", name="multigammaln")(mvlgamma)


@mvlgamma.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=1.2, high=5), 2
    yield make(3, low=1.2, high=5), 3


@mvlgamma.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "p has to be greater than or equal to 1", make(3), 0)


@op(_EVERYWHERE, promote="float", saves="input")
def logit(input: Array, eps: Scalar = None) -> Array:
    """Return log(x / (1 - x)), the inverse of `sigmoid`; with `eps`, of x limited to [eps, 1 - eps].

    NaN outside [0, 1] without `eps`; with it the gradient is 0 outside the limits.
    """
    refuse_complex("logit", input)
    x = input
    if eps is not None:
        low = jnp.asarray(eps, x.dtype)
        x = jnp.where(x < low, low, jnp.where(x > 1 - low, 1 - low, x))
    return jnp.log(x) - jnp.log1p(-x)


@logit.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=0.05, high=0.95)
    yield np.array([-0.5, 0.05, 0.3, 0.98]), 0.1


def _log(y: jax.Array, shift: float) -> jax.Array:
    return jnp.log1p(y) if shift else jnp.log(y)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _xlog(x: jax.Array, y: jax.Array, shift: float) -> jax.Array:
    none = x == 0
    product = x * _log(jnp.where(none, jnp.ones_like(y), y), shift)
    return jnp.where(none, jnp.where(jnp.isnan(y), y, jnp.zeros_like(x)), product)


def _xlog_jvp(shift: float, primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    # At x = 0 with a logarithm of nothing, both slopes count as 0 instead of -inf and NaN.
    void = (x == 0) & (y + shift <= 0)
    inside = jnp.where(void, jnp.full_like(y, 1 - shift), y)
    value = _xlog(x, y, shift)
    return value, tangent_of(value, (dx, lambda: _log(inside, shift)), (dy, lambda: x / (inside + shift)))


_xlog.defjvp(_xlog_jvp, symbolic_zeros=True)


@op(_EVERYWHERE, promote="float", saves="input other")
def xlogy(input: Array, other: Array) -> Array:
    """Return input * log(other), and 0 where `input` is 0 (unless `other` is NaN), with broadcasting.

    Gradients: log(other) and input / other; both 0 where `input` is 0 and `other` not positive.

    >>> import tapejax as tj
    >>> tj.xlogy(tj.tensor([0.0, 1.0]), tj.tensor([0.0, 1.0])).tolist()
    [0.0, 0.0]
    """
    refuse_complex("xlogy", input)
    check_broadcast("xlogy", input, other)
    return _xlog(*jnp.broadcast_arrays(input, other), 0.0)


@op("special", promote="float", saves="input other", oracle="special.xlog1py", grad_name="SpecialXlog1Py")
def xlog1py(input: Array, other: Array) -> Array:
    """Return input * log(1 + other), and 0 where `input` is 0 (unless `other` is NaN), with broadcasting."""
    refuse_complex("xlog1py", input)
    check_broadcast("xlog1py", input, other)
    return _xlog(*jnp.broadcast_arrays(input, other), 1.0)


def _products(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4, low=0.1)
    yield np.array([0.0, 2.0, 0.0]), np.array([2.0, 0.5, 0.3])
    yield make(3, low=0.1), 2
    yield 2.0, make(3, low=0.1)


for _op in (xlogy, xlog1py):
    _op.samples(_products)


@jax.custom_jvp
def _entropy(x: jax.Array) -> jax.Array:
    positive = x > 0
    value = -x * jnp.log(jnp.where(positive, x, jnp.ones_like(x)))
    return jnp.where(positive | jnp.isnan(x), value, jnp.where(x == 0, jnp.zeros_like(x), jnp.full_like(x, -jnp.inf)))


@_entropy.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    return _entropy(x), -(1 + jnp.log(x)) * dx


@op("special", promote="float", saves="input", oracle="special.entr", grad_name="SpecialEntr")
def entr(input: Array) -> Array:
    """Return -x log(x), 0 at 0 and -inf below it; the gradient at 0 is inf."""
    refuse_complex("entr", input)
    return _entropy(input)


def _over(numerator: jax.Array, x: jax.Array) -> jax.Array:
    """numerator / x, and ½ at 0, the limit for the Bessel function I₁."""
    zero = x == 0
    return jnp.where(zero, jnp.full_like(x, 0.5), numerator / jnp.where(zero, jnp.ones_like(x), x))


_bessel_i0, _bessel_i1 = jax.custom_jvp(jsp.i0), jax.custom_jvp(jsp.i1)
_bessel_i0e, _bessel_i1e = jax.custom_jvp(jsp.i0e), jax.custom_jvp(jsp.i1e)


@_bessel_i0.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    return _bessel_i0(x), _bessel_i1(x) * dx


@_bessel_i1.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    value = _bessel_i1(x)
    return value, (_bessel_i0(x) - _over(value, x)) * dx


@_bessel_i0e.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    value = _bessel_i0e(x)
    return value, (_bessel_i1e(x) - jnp.sign(x) * value) * dx


@_bessel_i1e.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    value = _bessel_i1e(x)
    return value, (_bessel_i0e(x) - jnp.sign(x) * value - _over(value, x)) * dx


@op(_EVERYWHERE, promote="float", saves="input")
def i0(input: Array) -> Array:
    """Return the modified Bessel function of the first kind, order 0."""
    refuse_complex("i0", input)
    return _bessel_i0(input)


@op("special", promote="float", saves="input result", oracle="special.i0e", grad_name="SpecialI0E")
def i0e(input: Array) -> Array:
    """Return i0(input) exp(-|input|), which does not overflow."""
    refuse_complex("i0e", input)
    return _bessel_i0e(input)


@op("special", promote="float", saves="input result", oracle="special.i1", grad_name="SpecialI1")
def i1(input: Array) -> Array:
    """Return the modified Bessel function of the first kind, order 1; the gradient at 0 is ½."""
    refuse_complex("i1", input)
    return _bessel_i1(input)


@op("special", promote="float", saves="input result", oracle="special.i1e", grad_name="SpecialI1E")
def i1e(input: Array) -> Array:
    """Return i1(input) exp(-|input|), which does not overflow; the gradient at 0 is ½."""
    refuse_complex("i1e", input)
    return _bessel_i1e(input)


@op("special", promote="float", saves="computed", oracle="special.ndtr", grad_name="Mul")
def ndtr(input: Array) -> Array:
    """Return the normal distribution function Φ: the area under the bell curve left of `input`."""
    refuse_complex("ndtr", input)
    return 0.5 * lax.erfc(input * -math.sqrt(0.5))


@op("special", promote="float", saves="input result", oracle="special.log_ndtr", grad_name="SpecialLogNdtr")
def log_ndtr(input: Array) -> Array:
    """Return log Φ(input), accurate far in the left tail."""
    refuse_complex("log_ndtr", input)
    if jnp.finfo(input.dtype).bits < 32:  # the tail's expansion needs at least single precision
        return jsp.log_ndtr(input.astype(jnp.float32)).astype(input.dtype)
    return jsp.log_ndtr(input)


@jax.custom_jvp
def _normal_quantile(p: jax.Array) -> jax.Array:
    wide = p.astype(jnp.float32) if jnp.finfo(p.dtype).bits < 32 else p
    return jsp.ndtri(wide).astype(p.dtype)


@_normal_quantile.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (p,), (dp,) = primals, tangents
    value = _normal_quantile(p)
    return value, math.sqrt(2 * math.pi) * jnp.exp(value * value / 2) * dp


@op("special", promote="float", saves="result", oracle="special.ndtri", grad_name="SpecialNdtri")
def ndtri(input: Array) -> Array:
    """Return the inverse of `ndtr`: -inf at 0, inf at 1, NaN outside."""
    refuse_complex("ndtri", input)
    return _normal_quantile(input)


@jax.custom_jvp
def _hurwitz(x: jax.Array, q: jax.Array) -> jax.Array:
    return lax.zeta(x, q)


def _hurwitz_jvp(primals: Any, tangents: Any) -> Any:
    (x, q), (dx, dq) = primals, tangents
    if not isinstance(dx, SymbolicZero):
        raise refuse(RuntimeError, "zeta", "the derivative for 'input' is not implemented → detach it; `other` has one")
    value = _hurwitz(x, q)
    return value, tangent_of(value, (dq, lambda: -x * _hurwitz(x + 1, q)))


_hurwitz.defjvp(_hurwitz_jvp, symbolic_zeros=True)


@op("special", promote="float", saves="input other", oracle="special.zeta", grad_name="SpecialZeta")
def zeta(input: Array, other: Array) -> Array:
    """Return the Hurwitz zeta function Σₖ (k + other)^-input, with broadcasting; `other` alone has a gradient.

    >>> import tapejax as tj
    >>> tj.special.zeta(tj.tensor([2.0]), 1).tolist()
    [1.644934058189392]
    """
    refuse_complex("zeta", input)
    check_broadcast("zeta", input, other)
    return _hurwitz(*jnp.broadcast_arrays(input, other))


@zeta.samples
def _(make: Make) -> Iterator[Any]:
    yield 3, make(3, 4, low=0.5, high=3)
    yield make.ints(4, low=2, high=5), make(4, low=0.5, high=3)


for _op in (erf, erfc, erfcx, i0, i0e, i1, i1e, ndtr, log_ndtr):
    _op.samples(_anywhere)
for _op in (lgamma, digamma, entr):
    _op.samples(_positive)
for _op in (erf, erfc, erfinv, lgamma, digamma, i0, i0e, i1, i1e):
    _op.error_samples(_no_complex)


@erfinv.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=-0.9, high=0.9)
    yield make.ints(3, high=1)


@ndtri.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=0.05, high=0.95)
