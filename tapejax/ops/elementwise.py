"""Arithmetic, element by element: sums and products, powers, bounds and selections.

Owns the operators behind `+ - * / // % **` and their relatives. Comparisons and bit logic are in `comparison`,
exponentials and trigonometry in `transcendental`, rounding in `rounding`; their common names can be imported from here.
May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.broadcasting import check_broadcast
from tapejax.ops.comparison import bitwise_not, eq, ge, gt, le, logical_and, logical_not, logical_or, lt, ne
from tapejax.ops.samples import Make
from tapejax.ops.transcendental import cos, exp, log, sigmoid, sin, sqrt, tanh
from tapejax.tape.aval import Aval
from tapejax.tape.op import Array, ErrorSample, Scalar, composite, error_sample, op, sample

__all__ = ["abs", "add", "bitwise_not", "clamp", "clamp_max", "clamp_min", "cos", "div", "eq", "exp", "ge", "gt", "le", "log",
           "logical_and", "logical_not", "logical_or", "lt", "maximum", "minimum", "mul", "ne", "neg", "pow", "sigmoid",
           "sin", "sqrt", "sub", "tanh", "where"]  # fmt: skip

_EVERYWHERE = "torch Tensor Tensor_"


def is_complex(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def is_integral(x: jax.Array) -> bool:
    """True for integers and booleans."""
    return not jnp.issubdtype(x.dtype, jnp.inexact)


def refuse_complex(name: str, *operands: jax.Array) -> None:
    """Complex numbers have no order: refuse them where one is needed."""
    for x in operands:
        if is_complex(x):
            raise refuse(RuntimeError, name, f"not implemented for complex tensors, got {dtypes.of(x.dtype)} → take .real or .abs()")


def _scaled(name: str, x: jax.Array, alpha: Any) -> jax.Array:
    """alpha * x, without a multiplication where alpha was left at 1."""
    if isinstance(alpha, int):
        return x
    if is_integral(x) and jnp.issubdtype(alpha.dtype, jnp.floating):
        raise refuse(
            RuntimeError, name, "For integral input tensors, argument alpha must not be a floating point number → pass an int"
        )
    return x * jnp.asarray(alpha, x.dtype)


@op(_EVERYWHERE, promote="common")
def add(input: Array, other: Array, *, alpha: Scalar = 1) -> Array:
    """Add two tensors: `input + alpha * other`, with broadcasting.

    The result has the operands' common type; two booleans are or-ed. Raises RuntimeError where the shapes do not
    broadcast, or for a float `alpha` with integer tensors.

    >>> import tapejax as tj
    >>> tj.add(tj.tensor([1.0, 2.0]), tj.tensor([10.0, 20.0]), alpha=2).tolist()
    [21.0, 42.0]
    """
    check_broadcast("add", input, other)
    return jnp.add(input, _scaled("add", other, alpha))


@add.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield sample(make(2, 1), make(3), alpha=2.5)
    yield make(), make.ints(2)
    yield make.complex(3), make(3)
    yield make.ints(2, 3), make.ints(3)
    yield make(3), 2


@add.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "must match the size of tensor b", make(3), make(4))
    yield error_sample(RuntimeError, "For integral input tensors", make.ints(3), make.ints(3), alpha=0.5)


def _subtraction_types(avals: Sequence[Aval | None], statics: tuple[Any, ...]) -> list[dtypes.dtype]:
    kinds = [a.dtype for a in avals[:2] if a is not None]
    if all(k is dtypes.bool_ for k in kinds):
        raise refuse(
            RuntimeError,
            "sub",
            "Subtraction, the `-` operator, with two bool tensors is not supported → use the `^` or `logical_xor()` operator",
        )
    if dtypes.bool_ in kinds:
        raise refuse(
            RuntimeError,
            "sub",
            "Subtraction, the `-` operator, with a bool tensor is not supported → to invert a mask, use the `~` or "
            "`logical_not()` operator",
        )
    target = dtypes.common((a.dtype, a.rank) for a in avals if a is not None)
    return [target] * len(avals)


@op(_EVERYWHERE, promote=_subtraction_types, aliases="subtract")
def sub(input: Array, other: Array, *, alpha: Scalar = 1) -> Array:
    """Subtract: `input - alpha * other`, with broadcasting, in the operands' common type.

    Raises RuntimeError for boolean operands, whose difference has no meaning (use `^`).

    >>> import tapejax as tj
    >>> (tj.tensor([5.0, 7.0]) - tj.tensor([1.0, 2.0])).tolist()
    [4.0, 5.0]
    """
    check_broadcast("sub", input, other)
    return jnp.subtract(input, _scaled("sub", other, alpha))


@sub.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(3, 1)
    yield sample(make(2), make(2), alpha=0.5)
    yield make.complex(2), make.complex(2)
    yield make.ints(3), 1


@sub.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "with two bool tensors is not supported", make.bools(3), make.bools(3))
    yield error_sample(RuntimeError, "with a bool tensor is not supported", make(3), make.bools(3))
    yield error_sample(RuntimeError, "must match the size of tensor b", make(2, 3), make(2))


@op("torch", promote=_subtraction_types)
def rsub(input: Array, other: Array, *, alpha: Scalar = 1) -> Array:
    """Subtract the other way round: `other - alpha * input`.

    Serves `2 - x`. Broadcasting, types and refusals as in `sub`.
    """
    check_broadcast("rsub", input, other)
    return jnp.subtract(other, _scaled("rsub", input, alpha))


@rsub.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield sample(make(2), make(2), alpha=0.5)
    yield make(3), 2


@op(_EVERYWHERE, promote="common", saves={"input": "other", "other": "input"}, aliases="multiply")
def mul(input: Array, other: Array) -> Array:
    """Multiply element by element, with broadcasting, in the operands' common type; booleans are and-ed.

    >>> import tapejax as tj
    >>> (tj.tensor([1, 2, 3]) * 1.5).tolist()
    [1.5, 3.0, 4.5]
    """
    check_broadcast("mul", input, other)
    return jnp.multiply(input, other)


@mul.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield make(), make(2, 3)
    yield make.complex(3), make(3)
    yield make.complex(3), make.complex(3)
    yield make.ints(3), make(3)
    yield make(3), 2.5


@mul.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "must match the size of tensor b", make(3), make(2))


def floor_quotient(a: jax.Array, b: jax.Array) -> jax.Array:
    """The largest integer not above a / b, exact where the rounded quotient would land on the wrong side."""
    if is_integral(a):
        return jnp.floor_divide(a, b)
    zero = b == 0
    divisor = jnp.where(zero, jnp.ones_like(b), b)
    rest = lax.rem(a, divisor)
    quotient = (a - rest) / divisor - ((rest != 0) & ((rest < 0) != (divisor < 0)))
    down = jnp.floor(quotient)
    exact = jnp.where(quotient - down > 0.5, down + 1, down)
    exact = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(a), a / divisor), exact)
    return jnp.where(zero, a / b, exact)


def quotient_types(avals: Sequence[Aval | None], statics: tuple[Any, ...]) -> list[dtypes.dtype]:
    """True division turns integers into the default float type, rounded division keeps them."""
    target = dtypes.common((a.dtype, a.rank) for a in avals if a is not None)
    if target.category < 2 and statics[0] is None:
        target = dtypes.get_default_dtype()
    return [target] * len(avals)


@op(_EVERYWHERE, promote=quotient_types, saves={"input": "other", "other": "input other"}, aliases="divide")
def div(input: Array, other: Array, *, rounding_mode: str | None = None) -> Array:
    """Divide: `input / other`, with broadcasting.

    `rounding_mode`: None divides truly (integers give the default float type); "trunc" rounds towards zero and "floor"
    downwards, both in the common type and with gradient 0. Raises RuntimeError for another mode.

    >>> import tapejax as tj
    >>> tj.div(tj.tensor([-7, 7]), 2, rounding_mode="floor").tolist()
    [-4, 3]
    """
    check_broadcast("div", input, other)
    if rounding_mode is None:
        return jnp.divide(input, other)
    if rounding_mode not in ("trunc", "floor"):
        raise refuse(
            RuntimeError,
            "div",
            f"expected rounding_mode to be one of None, 'trunc', or 'floor' but found {rounding_mode!r}",
        )
    refuse_complex("div", input)
    a, b = jnp.broadcast_arrays(input, other)
    if rounding_mode == "floor":
        return lax.stop_gradient(floor_quotient(a, b))
    return lax.stop_gradient(lax.div(a, b) if is_integral(a) else jnp.trunc(a / b))


@div.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make.away(4)
    yield make.complex(3), make.complex(3)
    yield make.ints(3, low=-5, high=5), make.ints(3, low=1, high=4)
    yield sample(make(3, low=-5, high=5), make.away(3), rounding_mode="floor")
    yield sample(make(3, low=-5, high=5), make.away(3), rounding_mode="trunc")
    yield sample(make.ints(6, low=-9, high=9), 2, rounding_mode="floor")
    yield sample(make.ints(6, low=-9, high=9), 2, rounding_mode="trunc")


@div.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "expected rounding_mode to be one of", make(3), make(3), rounding_mode="up")
    yield error_sample(RuntimeError, "must match the size of tensor b", make(3), make(2))


@op(_EVERYWHERE, aliases="negative")
def neg(input: Array) -> Array:
    """Negate each element. Raises RuntimeError for booleans (use `~`)."""
    if input.dtype == jnp.bool_:
        raise refuse(
            RuntimeError,
            "neg",
            "Negation, the `-` operator, on a bool tensor is not supported → to invert a mask, use the `~` or "
            "`logical_not()` operator",
        )
    return jnp.negative(input)


@neg.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4)
    yield make.complex(2)
    yield make.ints(3)


@neg.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "on a bool tensor is not supported", make.bools(2))


@op(_EVERYWHERE, saves="input", aliases="absolute")
def abs(input: Array) -> Array:
    """Return the absolute value; of a complex tensor the modulus, which is real.

    The gradient is sign(input), and 0 at 0. Raises RuntimeError for booleans.
    """
    if is_complex(input):
        return jnp.abs(input)
    if input.dtype == jnp.bool_:
        raise refuse(RuntimeError, "abs", "not implemented for 'Bool' → convert with .to(tapejax.int64)")
    # |x| = x sign(x): its derivative is sign(x) to any order, where lax.abs would say 1 at 0.
    return input * jnp.sign(input)


@abs.samples
def _(make: Make) -> Iterator[Any]:
    yield make.away(3, 4)
    yield make.complex(3)
    yield make.ints(3, low=-3)


#: Python exponents worth a program of their own: short products, their reciprocals, and square roots.
_STATIC_EXPONENTS = frozenset([*range(-8, 9), 0.5, -0.5])


def _static_power_types(avals: Sequence[Aval | None], statics: tuple[Any, ...]) -> list[dtypes.dtype]:
    kind, _ = statics[0]
    assert avals[0] is not None
    found = avals[0].dtype
    if found.category < 2 and kind == "float":
        return [dtypes.get_default_dtype()]
    return [dtypes.int64 if found is dtypes.bool_ else found]


@op("", promote=_static_power_types, saves="input", grad_name="Pow", oracle=None)
def pow_static(input: Array, exponent: tuple[str, float]) -> Array:
    """Raise to a power that is part of the program.

    `exponent` is `("int", n)` or `("float", x)`, so that the key tells 2 from 2.0: a float exponent makes integers
    floating. Integral exponents become products, whose derivatives are a polynomial's: finite at 0, to any order.
    """
    _, value = exponent
    if value == 0.5:
        return jnp.sqrt(input)
    if value == -0.5:
        return lax.rsqrt(input)
    if is_integral(input) and value < 0:
        raise refuse(
            RuntimeError, "pow", "Integers to negative integer powers are not allowed → convert the tensor with .double() first"
        )
    return lax.integer_pow(input, int(value))


@pow_static.samples
def _(make: Make) -> Iterator[Any]:
    yield make.away(3), ("int", 3)
    yield make.away(3), ("float", -2.0)
    yield make(3, low=0.5), ("float", 0.5)
    yield make.ints(3), ("float", 2.0)


@pow_static.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "Integers to negative integer powers", make.ints(3), ("int", -1))


@op("", name="pow", promote="common", saves={"input": "input exponent", "exponent": "input exponent result"})
def pow_general(input: Array, exponent: Array) -> Array:
    """Raise to a power: `input ** exponent`, either of which may be a number, with broadcasting.

    Gradients: exponent * input ** (exponent - 1), and 0 where the exponent is 0; result * log(input), and 0 where
    the base is 0 and the exponent not negative. Integers to negative integer powers are 0, except for bases 1 and -1.
    """
    check_broadcast("pow", input, exponent)
    base, power = jnp.broadcast_arrays(input, exponent)
    if base.dtype == jnp.bool_:
        return base | ~power
    if is_integral(base):
        if not jnp.issubdtype(base.dtype, jnp.signedinteger):
            return jnp.power(base, power)
        negative = jnp.where(base == 1, 1, jnp.where(base == -1, 1 - 2 * (power & 1), 0)).astype(base.dtype)
        return jnp.where(power < 0, negative, jnp.power(base, jnp.maximum(power, 0)))
    return lax.pow(base, power)


@pow_general.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=0.2), make(4)
    yield make(3, low=0.2), 2.7
    yield make.complex(3), make.complex(3)
    yield make.ints(3, low=-2, high=4), make.ints(3, high=4)
    yield make.ints(3, low=-2, high=3), make.ints(3, low=-3, high=0)


@pow_general.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "must match the size of tensor b", make(3), make(2))


@composite(_EVERYWHERE, name="pow")
def pow(input: Any, exponent: Any) -> Any:
    """Raise each element to a power: `input ** exponent`.

    `exponent`: a tensor that broadcasts, or a number; `input` may be a number too where the exponent is a tensor. A
    small integral Python exponent becomes part of the program (so `x ** 2` is one product), any other number is an
    argument of it. The gradient at a base of 0 is the limit where it exists, and 0 for the exponent 0.

    >>> import tapejax as tj
    >>> tj.pow(tj.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [1.0, 4.0, 9.0]
    """
    if isinstance(exponent, int | float) and not isinstance(exponent, bool) and exponent in _STATIC_EXPONENTS:
        return pow_static(input, ("int" if isinstance(exponent, int) else "float", exponent))
    return pow_general(input, exponent)


def _choice_types(avals: Sequence[Aval | None], statics: tuple[Any, ...]) -> list[dtypes.dtype | None]:
    """The condition stays as it is, the two values meet in their common type."""
    target = dtypes.common((a.dtype, a.rank) for a in avals[1:] if a is not None)
    return [None, target, target]


@op("torch", promote=_choice_types, saves="condition")
def where(condition: Array, input: Array, other: Array) -> Array:
    """Choose from `input` where `condition` holds and from `other` elsewhere, all three broadcast together.

    The result has the common type of `input` and `other`; each receives the gradient of the elements it provided, and
    0 elsewhere, even where the other branch is infinite or NaN.

    >>> import tapejax as tj
    >>> tj.where(tj.tensor([True, False]), tj.tensor([1.0, 2.0]), 0.0).tolist()
    [1.0, 0.0]
    """
    check_broadcast("where", condition, input, other)
    return jnp.where(condition.astype(jnp.bool_), input, other)


@where.samples
def _(make: Make) -> Iterator[Any]:
    yield make.bools(3, 4), make(3, 4), make(4)
    yield make.bools(3), make(3), 0.0
    yield make.bools(2, 1), make.complex(3), make.complex(3)
    yield make.bools(3), make.ints(3), make(3)


@composite("Tensor", name="where")
def where_method(input: Any, condition: Any, other: Any) -> Any:
    """Keep elements of this tensor where `condition` holds and take those of `other` elsewhere (see `tapejax.where`)."""
    return where(condition, input, other)


@where.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "must match the size of tensor b", make.bools(3), make(2), make(2))


@op(_EVERYWHERE, promote="common", saves="input min max", aliases="clip")
def clamp(input: Array, min: Array | None = None, max: Array | None = None) -> Array:
    """Limit each element to [min, max]; either bound may be missing, a number or a tensor that broadcasts.

    The result is `max` where `min` exceeds it. The gradient passes where min <= input <= max (1 at a bound); a
    tensor bound receives it where it was applied. Raises RuntimeError if both bounds are missing.

    >>> import tapejax as tj
    >>> tj.clamp(tj.tensor([-1.0, 0.5, 2.0]), 0, 1).tolist()
    [0.0, 0.5, 1.0]
    """
    if min is None and max is None:
        raise refuse(RuntimeError, "clamp", "At least one of 'min' or 'max' must not be None")
    bounds = [b for b in (min, max) if b is not None]
    refuse_complex("clamp", input)
    check_broadcast("clamp", input, *bounds)
    result = input
    if min is not None:
        result = jnp.where((result < min) | jnp.isnan(min), min, result)
    if max is not None:
        result = jnp.where((result > max) | jnp.isnan(max), max, result)
    return result


@clamp.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), -0.5, 0.7
    yield make(3), None, 0.3
    yield make(3), 0.1
    yield make(3, 4), make(4, high=-0.5), make(3, 1, low=0.5)
    yield make.ints(4, high=9), 2, 5
    yield make.ints(4, high=9), 2.5


@clamp.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "At least one of", make(3))
    yield error_sample(RuntimeError, "complex", make.complex(3), 0)


@op(_EVERYWHERE, promote="common", saves="input min")
def clamp_min(input: Array, min: Array) -> Array:
    """Raise elements below `min` (a number or a tensor) to it; the gradient at the bound goes to `input`."""
    refuse_complex("clamp_min", input)
    check_broadcast("clamp_min", input, min)
    return jnp.where((input < min) | jnp.isnan(min), min, input)


@clamp_min.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), 0.2
    yield make(3), make(3)


@op(_EVERYWHERE, promote="common", saves="input max")
def clamp_max(input: Array, max: Array) -> Array:
    """Lower elements above `max` (a number or a tensor) to it; the gradient at the bound goes to `input`."""
    refuse_complex("clamp_max", input)
    check_broadcast("clamp_max", input, max)
    return jnp.where((input > max) | jnp.isnan(max), max, input)


@clamp_max.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), 0.2
    yield make(3), make(3)


@op("torch Tensor", promote="common", saves="input other")
def maximum(input: Array, other: Array) -> Array:
    """Return the larger of two elements, with broadcasting; NaN wins. Ties share the gradient, ½ each."""
    refuse_complex("maximum", input)
    check_broadcast("maximum", input, other)
    return jnp.maximum(input, other)


@maximum.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield make.ints(3, high=9), make.ints(3, high=9)


@maximum.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "complex", make.complex(3), make.complex(3))


@op("torch Tensor", promote="common", saves="input other")
def minimum(input: Array, other: Array) -> Array:
    """Return the smaller of two elements, with broadcasting; NaN wins. Ties share the gradient, ½ each."""
    refuse_complex("minimum", input)
    check_broadcast("minimum", input, other)
    return jnp.minimum(input, other)


@minimum.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield make.ints(3, high=9), make.ints(3, high=9)
