"""Arithmetic, element by element: sums, products, signs, selection and the fused forms.

The rest is by theme: `division`, `power`, `bounds` (clamp, maximum), `rounding`, `comparison` (and bit logic),
`transcendental` (exponentials, trigonometry). The names that other modules build on can be imported from here.
May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.bounds import clamp, clamp_max, clamp_min, maximum, minimum
from tapejax.ops.comparison import bitwise_not, eq, ge, gt, le, logical_and, logical_not, logical_or, lt, ne
from tapejax.ops.division import div, floor_divide, remainder
from tapejax.ops.operands import check_broadcast, is_complex, is_integral, need_floating, refuse_complex
from tapejax.ops.power import pow, square
from tapejax.ops.samples import Make
from tapejax.ops.transcendental import cos, exp, log, sigmoid, sin, sqrt, tanh
from tapejax.tape.aval import Aval
from tapejax.tape.op import Array, ErrorSample, Scalar, composite, error_sample, op, sample

__all__ = ["abs", "add", "addcdiv", "addcmul", "bitwise_not", "clamp", "clamp_max", "clamp_min", "cos", "div", "eq", "exp",
           "floor_divide", "ge", "gt", "le", "lerp", "log", "logical_and", "logical_not", "logical_or", "lt", "maximum",
           "minimum", "mul", "ne", "neg", "pow", "reciprocal", "remainder", "rsub", "sgn", "sigmoid", "sign", "sin", "sqrt",
           "square", "sub", "tanh", "where"]  # fmt: skip

_EVERYWHERE = "torch Tensor Tensor_"


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
        raise refuse(NotImplementedError, "abs", "not implemented for 'Bool' → convert with .to(tapejax.int64)")
    # |x| = x sign(x): its derivative is sign(x) to any order, where lax.abs would say 1 at 0.
    return input * jnp.sign(input)


@abs.samples
def _(make: Make) -> Iterator[Any]:
    yield make.away(3, 4)
    yield make.complex(3)
    yield make.ints(3, low=-3)


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


@composite()
def positive(input: Any) -> Any:
    """Return the tensor itself (`+x`). Raises RuntimeError for booleans."""
    if input.dtype is dtypes.bool_:
        raise refuse(RuntimeError, "positive", "The `+` operator, on a bool tensor is not supported → .to(tapejax.int64)")
    return input


@op(_EVERYWHERE)
def sign(input: Array) -> Array:
    """Return -1, 0 or 1 by each element's sign (0 for NaN); the gradient is 0. Complex tensors: see `sgn`."""
    if is_complex(input):
        raise refuse(
            NotImplementedError, "sign", "torch.sign is not intended to support complex numbers → use tapejax.sgn instead"
        )
    if input.dtype == jnp.bool_:
        return input
    return jnp.where(jnp.isnan(input), jnp.zeros_like(input), jnp.sign(input))


@op(_EVERYWHERE, saves="input result")
def sgn(input: Array) -> Array:
    """Return input / |input|, the sign of a real or the direction of a complex number; 0 at 0, with gradient 0 there."""
    if not is_complex(input):
        return input if input.dtype == jnp.bool_ else jnp.where(jnp.isnan(input), jnp.zeros_like(input), jnp.sign(input))
    origin = input == 0
    away = jnp.where(origin, jnp.ones_like(input), input)
    return jnp.where(origin, jnp.zeros_like(input), away / jnp.abs(away))


def _signed(make: Make) -> Iterator[Any]:
    yield make.away(3, 4)
    yield make.ints(4, low=-2)
    yield np.array([np.nan, -np.inf, 0.0])


@sign.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(NotImplementedError, "not intended to support complex", make.complex(3))


sign.samples(_signed)


@sgn.samples
def _(make: Make) -> Iterator[Any]:
    yield make.complex(3)
    yield make.ints(4, low=-2)


@op(_EVERYWHERE, promote="float", saves={"input": "input result"})
def copysign(input: Array, other: Array) -> Array:
    """Return |input| with the sign of `other` (of its sign bit, for zeros), with broadcasting.

    The gradient of `input` is 1 or -1, and 0 at 0; that of `other` is 0.
    """
    check_broadcast("copysign", input, other)
    signed = jnp.where(jnp.signbit(input) != jnp.signbit(other), -input, input)
    return jnp.where(input == 0, lax.stop_gradient(signed), signed)


@copysign.samples
def _(make: Make) -> Iterator[Any]:
    yield make.away(3, 4), make.away(4)
    yield make.away(3), -1.0
    yield make.ints(3), make.ints(3, low=-3)


def _same_types(name: str, message: str) -> Callable[..., list[dtypes.dtype | None]]:
    def rule(avals: Sequence[Aval | None], statics: tuple[Any, ...]) -> list[dtypes.dtype | None]:
        kinds = [a.dtype for a in avals if a is not None and not a.weak]
        if any(k is not kinds[0] for k in kinds):
            raise refuse(RuntimeError, name, f"{message}: {', '.join(map(str, kinds))} → convert with .to()")
        return [kinds[0]] * len(avals)

    return rule


@op(_EVERYWHERE, promote=_same_types("heaviside", "heaviside is not yet implemented for tensors with different dtypes"))
def heaviside(input: Array, values: Array) -> Array:
    """Return 0 below zero, 1 above it and `values` at it, with broadcasting; the gradient of `input` is 0."""
    refuse_complex("heaviside", input)
    check_broadcast("heaviside", input, values)
    return jnp.where(input == 0, values, (input > 0).astype(input.dtype))


@heaviside.samples
def _(make: Make) -> Iterator[Any]:
    yield make.ints(6, low=-1, high=2), make.ints(6)


@heaviside.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "different dtypes", make(3), make.ints(3))


@jax.custom_jvp
def _next_after(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.nextafter(x, y)


@_next_after.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, _) = primals, tangents
    return _next_after(x, y), jnp.where(x != y, dx, jnp.zeros_like(dx))


@op(_EVERYWHERE, promote="common", saves="input other", grad_name="Nextafter")
def nextafter(input: Array, other: Array) -> Array:
    """Return the next representable value after `input` towards `other`; the gradient goes to `input` where they differ."""
    need_floating("nextafter", input)
    check_broadcast("nextafter", input, other)
    return _next_after(*jnp.broadcast_arrays(input, other))


@nextafter.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)


@op(_EVERYWHERE, promote="float", saves="result")
def reciprocal(input: Array) -> Array:
    """Return 1 / input; inf at 0. Integers give the default float type."""
    return 1 / input


@reciprocal.samples
def _(make: Make) -> Iterator[Any]:
    yield make.away(3, 4)
    yield make.complex(3)
    yield make.ints(3, low=1)


_LERP_TYPES = _same_types("lerp", "expected one dtype for `input`, `end` and `weight` but got different ones")


@op(_EVERYWHERE, promote=_LERP_TYPES, saves={"input": "weight", "end": "weight", "weight": "input end"})
def lerp(input: Array, end: Array, weight: Array) -> Array:
    """Interpolate: `input + weight * (end - input)`, with broadcasting; `weight` is a number or a tensor.

    Computed from the nearer end, so that weights 0 and 1 give the ends exactly. Raises RuntimeError where the types
    differ or are not floating.

    >>> import tapejax as tj
    >>> tj.lerp(tj.tensor([0.0, 10.0]), tj.tensor([10.0, 20.0]), 0.25).tolist()
    [2.5, 12.5]
    """
    need_floating("lerp", input)
    check_broadcast("lerp", input, end, weight)
    span = end - input
    return jnp.where(jnp.abs(weight) < 0.5, input + weight * span, end - span * (1 - weight))


@lerp.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4), 0.3
    yield make(3), make(3), make(3, low=0, high=1)
    yield make(3), make(3), make(3, low=2, high=3)


@lerp.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "expected one dtype", make(3), make(3).astype("float32"), 0.5)
    yield error_sample(RuntimeError, "not implemented for 'Long'", make.ints(3), make.ints(3), 2)


@op(_EVERYWHERE, promote="common", saves={"tensor1": "tensor2", "tensor2": "tensor1"})
def addcmul(input: Array, tensor1: Array, tensor2: Array, *, value: Scalar = 1) -> Array:
    """Add a scaled product: `input + value * tensor1 * tensor2`, with broadcasting."""
    check_broadcast("addcmul", input, tensor1, tensor2)
    return input + _scaled("addcmul", tensor1 * tensor2, value)


@op(_EVERYWHERE, promote="common", saves={"tensor1": "tensor2", "tensor2": "tensor1 tensor2"})
def addcdiv(input: Array, tensor1: Array, tensor2: Array, *, value: Scalar = 1) -> Array:
    """Add a scaled quotient: `input + value * tensor1 / tensor2`, with broadcasting. Raises RuntimeError for integers."""
    if is_integral(tensor1):
        raise refuse(RuntimeError, "addcdiv", "Integer division with addcdiv is no longer supported → convert with .float()")
    check_broadcast("addcdiv", input, tensor1, tensor2)
    return input + _scaled("addcdiv", tensor1 / tensor2, value)


def _three(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4), make.away(3, 1)
    yield sample(make(3), make(3), make.away(3), value=0.3)
    yield sample(make.complex(3), make.complex(3), make.complex(3), value=2)


for _op in (addcmul, addcdiv):
    _op.samples(_three)


@addcdiv.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "Integer division with addcdiv", make.ints(3), make.ints(3), make.ints(3))


@jax.custom_jvp
def _hypotenuse(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.hypot(x, y)


@_hypotenuse.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    length = _hypotenuse(x, y)
    divisor = jnp.where(length == 0, jnp.ones_like(length), length)
    return length, x / divisor * dx + y / divisor * dy


@op(_EVERYWHERE, promote="common", saves="input other result")
def hypot(input: Array, other: Array) -> Array:
    """Return sqrt(input² + other²) without overflow; the gradient at (0, 0) is 0, as for every norm."""
    need_floating("hypot", input)
    refuse_complex("hypot", input)
    check_broadcast("hypot", input, other)
    return _hypotenuse(*jnp.broadcast_arrays(input, other))


@hypot.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield np.array([3.0, 4.0]), np.array([4.0, -0.5])
    yield sample(np.array([3.0, 1e200]), np.array([4.0, 1e200]), smooth=False)  # the step is below the rounding of 1e200
