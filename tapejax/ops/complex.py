"""Complex numbers: their parts (as views), conjugates, angles, and making them.

`real`, `imag`, `view_as_real` and `view_as_complex` share storage with their input: writing to them writes through.
Gradients follow torch's convention: a complex gradient points in the direction of steepest ascent.
May import the op declaration, dtypes and errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tapejax import dtypes
from tapejax.errors import refuse
from tapejax.ops.operands import check_broadcast, is_complex
from tapejax.ops.samples import Make
from tapejax.ops.transcendental import safe_atan2
from tapejax.tape.op import Array, ErrorSample, composite, error_sample, op


def _put_real(base: jax.Array, value: jax.Array) -> jax.Array:
    if not is_complex(base):
        return value
    return lax.complex(value, jnp.imag(base))


def _put_imag(base: jax.Array, value: jax.Array) -> jax.Array:
    return lax.complex(jnp.real(base), value)


@op("torch", put=_put_real, grad_name="Select")
def real(input: Array) -> Array:
    """Return the real part, as a view; a real tensor as it is.

    >>> import tapejax as tj
    >>> tj.real(tj.tensor([1 + 2j])).tolist()
    [1.0]
    """
    return jnp.real(input)


@op("torch", put=_put_imag, grad_name="Select")
def imag(input: Array) -> Array:
    """Return the imaginary part, as a view. Raises RuntimeError for real tensors, which have none."""
    if not is_complex(input):
        raise refuse(
            RuntimeError, "imag", f"imag is not implemented for tensors with non-complex dtypes, got {dtypes.of(input.dtype)}"
        )
    return jnp.imag(input)


@composite("Tensor.property", name="real")
def real_property(input: Any) -> Any:
    """The real part, as a view; of a real tensor the tensor itself."""
    return real(input) if input.dtype.is_complex else input


@composite("Tensor.property", name="imag")
def imag_property(input: Any) -> Any:
    """The imaginary part, as a view. Raises RuntimeError for real tensors, which have none."""
    return imag(input)


def _put_view_as_real(base: jax.Array, value: jax.Array) -> jax.Array:
    return lax.complex(value[..., 0], value[..., 1])


@op("torch", put=_put_view_as_real)
def view_as_real(input: Array) -> Array:
    """Return a complex tensor `(*)` as a real view `(*, 2)` of its parts. Raises RuntimeError for real tensors."""
    if not is_complex(input):
        raise refuse(
            RuntimeError, "view_as_real", f"view_as_real is only supported for complex tensors, got {dtypes.of(input.dtype)}"
        )
    return jnp.stack([jnp.real(input), jnp.imag(input)], axis=-1)


def _put_view_as_complex(base: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.stack([jnp.real(value), jnp.imag(value)], axis=-1)


@op("torch", put=_put_view_as_complex)
def view_as_complex(input: Array) -> Array:
    """Return a real tensor `(*, 2)` of float32 or float64 as a complex view `(*)`. Raises RuntimeError for others.

    >>> import tapejax as tj
    >>> tj.view_as_complex(tj.tensor([[1.0, 2.0]])).tolist()
    [(1+2j)]
    """
    if input.dtype not in (jnp.float32, jnp.float64):
        raise refuse(
            RuntimeError,
            "view_as_complex",
            f"view_as_complex is only supported for half, float and double tensors, got {dtypes.of(input.dtype)}",
        )
    if input.ndim == 0 or input.shape[-1] != 2:
        raise refuse(RuntimeError, "view_as_complex", f"Tensor must have a last dimension of size 2, got shape {input.shape}")
    return lax.complex(input[..., 0], input[..., 1])


def _both_kinds(make: Make) -> Iterator[Any]:
    yield make.complex(3, 4)
    yield make(3)
    yield make.ints(2)


def _only_complex(make: Make) -> Iterator[Any]:
    yield make.complex(3, 4)
    yield make.complex()


real.samples(_both_kinds)
imag.samples(_only_complex)
view_as_real.samples(_only_complex)


@imag.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "imag is not implemented for tensors with non-complex dtypes", make(3))


@view_as_real.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "only supported for complex tensors", make(3, 2))


@view_as_complex.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 2)
    yield make(2)


@view_as_complex.error_samples
def _(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "must have a last dimension of size 2", make(3))
    yield error_sample(RuntimeError, "only supported for half, float and double", make.ints(3, 2))


@op()
def conj(input: Array) -> Array:
    """Return the complex conjugate; a real tensor as it is."""
    return jnp.conj(input) if is_complex(input) else input


@op("torch Tensor Tensor_")
def conj_physical(input: Array) -> Array:
    """Return the complex conjugate, written out; here the same as `conj`."""
    return jnp.conj(input) if is_complex(input) else input


for _op in (conj, conj_physical):
    _op.samples(_both_kinds)


@composite()
def resolve_conj(input: Any) -> Any:
    """Return the tensor itself: conjugation is never left pending here."""
    return input


@composite()
def resolve_neg(input: Any) -> Any:
    """Return the tensor itself: negation is never left pending here."""
    return input


@op(promote="float", saves="input")
def angle(input: Array) -> Array:
    """Return the angle in (-π, π] from the positive real axis: of real tensors 0 or π, and NaN for NaN.

    The gradient is 0 for real tensors, and at 0.
    """
    if is_complex(input):
        return safe_atan2(jnp.imag(input), jnp.real(input))
    flat = lax.stop_gradient(input)
    return jnp.where(jnp.isnan(flat), flat, jnp.where(flat < 0, jnp.full_like(flat, math.pi), jnp.zeros_like(flat)))


@angle.samples
def _(make: Make) -> Iterator[Any]:
    yield make.complex(3, 4)
    yield make.away(3)
    yield make.ints(3, low=-2)


def _check_parts(name: str, first: jax.Array, second: jax.Array) -> None:
    for part in (first, second):
        if part.dtype not in (jnp.float16, jnp.float32, jnp.float64):
            raise refuse(
                RuntimeError,
                name,
                "Expected both inputs to be Half, Float or Double tensors but got "
                f"{dtypes.of(first.dtype).tensor_name} and {dtypes.of(second.dtype).tensor_name}",
            )
    if first.dtype != second.dtype:
        raise refuse(
            RuntimeError,
            name,
            f"Expected object of scalar type {dtypes.of(first.dtype).tensor_name} but got scalar type "
            f"{dtypes.of(second.dtype).tensor_name} for second argument → convert one with .to()",
        )
    check_broadcast(name, first, second)


def _pair(x: jax.Array, y: jax.Array) -> jax.Array:
    if x.dtype == jnp.float16:  # there is no complex type of half precision
        x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    return lax.complex(*jnp.broadcast_arrays(x, y))


@op("torch", saves="real imag")
def complex(real: Array, imag: Array) -> Array:
    """Make a complex tensor of its parts, two tensors of one floating type that broadcast."""
    _check_parts("complex", real, imag)
    return _pair(real, imag)


@op("torch", saves="result")
def polar(abs: Array, angle: Array) -> Array:
    """Make a complex tensor of modulus and angle: abs (cos(angle) + i sin(angle))."""
    _check_parts("polar", abs, angle)
    return _pair(abs * jnp.cos(angle), abs * jnp.sin(angle))


def _parts(make: Make) -> Iterator[Any]:
    yield make(3, 4, low=0.1), make(4)
    yield make(low=0.1), make()


def _bad_parts(make: Make) -> Iterator[ErrorSample]:
    yield error_sample(RuntimeError, "Expected both inputs to be Half, Float or Double", make.ints(2), make.ints(2))
    yield error_sample(RuntimeError, "Expected object of scalar type", make(2), make(2).astype("float32"))


for _op in (complex, polar):
    _op.samples(_parts)
    _op.error_samples(_bad_parts)
