"""Powers, and what torch builds of them.

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
from tapejax.ops.operands import check_broadcast, is_integral, tangent_of
from tapejax.ops.samples import Make
from tapejax.tape.aval import Aval
from tapejax.tape.op import Array, ErrorSample, composite, error_sample, op

_EVERYWHERE = "torch Tensor Tensor_"


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


@jax.custom_jvp
def _power(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.pow(x, y)


def _power_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    one, at_zero = jnp.ones_like(x), x == 0

    def along_base() -> jax.Array:  # y x**(y - 1), which at 0**0 would be 0 * inf
        return y * _power(jnp.where(at_zero & (y == 0), one, x), y - 1)

    def along_exponent() -> jax.Array:  # x**y log(x), which at a base of 0 would be 0 * -inf
        base = jnp.where(at_zero & (jnp.real(y) >= 0), one, x)
        return _power(base, y) * jnp.log(base)

    value = _power(x, y)
    return value, tangent_of(value, (dx, along_base), (dy, along_exponent))


_power.defjvp(_power_jvp, symbolic_zeros=True)


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
    return _power(base, power)


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


@composite(_EVERYWHERE)
def square(input: Any) -> Any:
    """Return each element times itself; the gradient is 2 input."""
    return pow_static(input, ("int", 2))


@composite(_EVERYWHERE)
def float_power(input: Any, exponent: Any) -> Any:
    """Raise to a power in double precision: both operands become float64 (complex128 if one is complex).

    >>> import tapejax as tj
    >>> tj.float_power(tj.tensor([2, 3]), -1).tolist()
    [0.5, 0.3333333333333333]
    """

    def complex_valued(x: Any) -> bool:
        return isinstance(x, complex) or (not isinstance(x, int | float) and x.dtype.is_complex)

    wide = dtypes.complex128 if complex_valued(input) or complex_valued(exponent) else dtypes.float64
    operands = [x if isinstance(x, int | float | complex) else x.to(wide) for x in (input, exponent)]
    return pow(*operands)


@op(_EVERYWHERE, promote="float", saves={"input": "other", "other": "other result"})
def ldexp(input: Array, other: Array) -> Array:
    """Return `input * 2 ** other`, with broadcasting, in floating point."""
    check_broadcast("ldexp", input, other)
    return input * lax.pow(jnp.full_like(other, 2), other)


@ldexp.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(4)
    yield make.ints(3), make.ints(3)
