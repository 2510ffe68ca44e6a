"""Discrete Fourier transforms (`tapejax.fft`).

`norm`: "backward" (None) divides the inverse by n, "ortho" both by sqrt(n), "forward" the forward transform by n.
`n` and `s` cut or zero-pad the axes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from tapejax.dtypes import get_default_dtype
from tapejax.errors import refuse
from tapejax.ops.create import from_numpy
from tapejax.ops.reduce import axis
from tapejax.tape.op import Array, Dims, composite, error_sample, op, sample

#: `n` an int or None, `s` a tuple or None
Size = Any


def _checked(name: str, x: Any, norm: str | None, real: bool = False) -> None:
    if norm not in (None, "backward", "ortho", "forward"):
        raise refuse(RuntimeError, name, f'Invalid normalization mode: "{norm}" → use "backward", "ortho" or "forward"')
    if real and jnp.iscomplexobj(x):
        raise refuse(RuntimeError, name, f"{name} expects a real input tensor, but got {x.dtype} → take .real first")
    if x.dtype.name in ("float16", "bfloat16"):
        raise refuse(RuntimeError, name, f"Unsupported dtype {x.dtype} → convert it with .float()")


def _one(name: str, x: Any, n: int | None, dim: int, norm: str | None, transform: Any, real: bool = False) -> Any:
    _checked(name, x, norm, real)
    d = axis(name, dim, x.ndim)
    if (n is not None and n < 1) or (n is None and not (x.shape[d] if x.ndim else 0)):
        points = n if n is not None else x.shape[d] if x.ndim else 0
        raise refuse(RuntimeError, name, f"Invalid number of data points ({points}) specified")
    return transform(x, n=n, axis=d, norm=norm)


def _plan(name: str, x: Any, s: Any, dim: Any, last_half: bool = False) -> list[tuple[int, int | None]]:
    """Return [(axis, size or None)] in the order that `dim` and `s` name them."""
    s = (s,) if isinstance(s, int) else s
    dim = (dim,) if isinstance(dim, int) else dim
    if dim is None:
        count = x.ndim if s is None else len(s)
        if count > x.ndim:
            raise refuse(RuntimeError, name, f"Got shape with {count} values but input tensor only has {x.ndim} dimensions")
        dim = tuple(range(x.ndim - count, x.ndim))
    named = [axis(name, d, x.ndim) for d in dim]
    if len(set(named)) < len(named):
        raise refuse(RuntimeError, name, f"FFT dims must be unique, got {tuple(dim)}")
    if s is not None and len(s) != len(named):
        message = f"When given, dim and shape arguments must have the same length, got {tuple(dim)} and {tuple(s)}"
        raise refuse(RuntimeError, name, message)
    sizes = [None] * len(named) if s is None else [None if n == -1 else n for n in s]
    for i, (d, n) in enumerate(zip(named, sizes, strict=True)):
        points = x.shape[d] if n is None else n
        if points < 1 and not (last_half and i == len(named) - 1 and n is None and x.shape[d] > 1):
            raise refuse(RuntimeError, name, f"Invalid number of data points ({points}) specified")
    return list(zip(named, sizes, strict=True))


def _complex(x: Any) -> Any:
    return x if jnp.iscomplexobj(x) else x.astype(np.complex128 if x.dtype == np.float64 else np.complex64)


def _many(name: str, x: Any, s: Any, dim: Any, norm: str | None, transform: Any) -> Any:
    _checked(name, x, norm)
    x = _complex(x)
    for d, n in _plan(name, x, s, dim):
        x = transform(x, n=n, axis=d, norm=norm)
    return x


def _many_real(name: str, x: Any, s: Any, dim: Any, norm: str | None, inverse: bool) -> Any:
    _checked(name, x, norm, real=not inverse)
    plan = _plan(name, x, s, dim, last_half=inverse)
    if not plan:
        raise refuse(RuntimeError, name, f"{name} must transform at least one axis")
    *rest, (last, size) = plan
    if not inverse:
        x = jnp.fft.rfft(x, n=size, axis=last, norm=norm)
        for d, n in rest:
            x = jnp.fft.fft(x, n=n, axis=d, norm=norm)
        return x
    x = _complex(x)
    for d, n in rest:
        x = jnp.fft.ifft(x, n=n, axis=d, norm=norm)
    return jnp.fft.irfft(x, n=size, axis=last, norm=norm)


# --- one axis ---------------------------------------------------------------------------------------------------------


@op("fft", promote="float", oracle="fft.fft", grad_name="FftC2C")
def fft(input: Array, n: Size = None, dim: int = -1, norm: str | None = None) -> Array:
    """Return the transform `X_k = Σ_j x_j exp(-2πi jk / n)` along `dim`, complex.

    >>> import tapejax as tj
    >>> tj.fft.fft(tj.tensor([1., 0., 0., 0.])).real
    tensor([1., 1., 1., 1.])
    """
    return _one("fft", input, n, dim, norm, jnp.fft.fft)


@op("fft", promote="float", oracle="fft.ifft", grad_name="FftC2C")
def ifft(input: Array, n: Size = None, dim: int = -1, norm: str | None = None) -> Array:
    """Return the inverse of `fft` along `dim`, complex."""
    return _one("ifft", input, n, dim, norm, jnp.fft.ifft)


@op("fft", promote="float", saves="input", oracle="fft.rfft", grad_name="FftR2C")
def rfft(input: Array, n: Size = None, dim: int = -1, norm: str | None = None) -> Array:
    """Return the first `n // 2 + 1` coefficients of the transform of a real input along `dim`; the rest mirror them."""
    return _one("rfft", input, n, dim, norm, jnp.fft.rfft, real=True)


@op("fft", promote="float", oracle="fft.irfft", grad_name="FftC2R")
def irfft(input: Array, n: Size = None, dim: int = -1, norm: str | None = None) -> Array:
    """Return the real inverse of `rfft` along `dim`: `n` points, `2 (m - 1)` from m coefficients by default."""
    return _one("irfft", input, n, dim, norm, _irfft)


def _irfft(x: Any, n: int | None, axis: int, norm: str | None) -> Any:
    return jnp.fft.irfft(_complex(x), n=n, axis=axis, norm=norm)


@op("fft", promote="float", oracle="fft.hfft", grad_name="FftC2R")
def hfft(input: Array, n: Size = None, dim: int = -1, norm: str | None = None) -> Array:
    """Return the real transform of the Hermitian signal of which `input` is the first half."""
    swapped = {None: "forward", "backward": "forward", "forward": "backward"}.get(norm, norm)
    _checked("hfft", input, norm)
    return _one("hfft", jnp.conj(input), n, dim, swapped, _irfft)


@op("fft", promote="float", saves="input", oracle="fft.ihfft", grad_name="FftR2C")
def ihfft(input: Array, n: Size = None, dim: int = -1, norm: str | None = None) -> Array:
    """Return the inverse of `hfft`: the first half of the Hermitian signal of a real spectrum."""
    swapped = {None: "forward", "backward": "forward", "forward": "backward"}.get(norm, norm)
    _checked("ihfft", input, norm)
    return jnp.conj(_one("ihfft", input, n, dim, swapped, jnp.fft.rfft, real=True))


for _op in (fft, ifft, rfft, irfft, hfft, ihfft):
    _real = _op in (rfft, ihfft)

    @_op.samples
    def _(make: Any, real: bool = _real) -> Iterator[Any]:
        draw = make if real else make.complex
        yield draw(5)
        yield sample(draw(3, 4), 6, 0, "ortho")
        yield sample(draw(3, 4), 3, norm="forward")
        yield make(4)

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(RuntimeError, "Invalid normalization mode", make(3), norm="half")
        yield error_sample(RuntimeError, r"Invalid number of data points \(0\)", make(3), 0)
        yield error_sample(IndexError, "Dimension out of range", make(3), None, 1)


# --- several axes -----------------------------------------------------------------------------------------------------


@op("fft", promote="float", oracle="fft.fft2", grad_name="FftC2C")
def fft2(input: Array, s: Size = None, dim: Dims = (-2, -1), norm: str | None = None) -> Array:
    """Return the transform over two axes, complex."""
    return _many("fft2", input, s, dim, norm, jnp.fft.fft)


@op("fft", promote="float", oracle="fft.ifft2", grad_name="FftC2C")
def ifft2(input: Array, s: Size = None, dim: Dims = (-2, -1), norm: str | None = None) -> Array:
    """Return the inverse of `fft2`."""
    return _many("ifft2", input, s, dim, norm, jnp.fft.ifft)


@op("fft", promote="float", oracle="fft.fftn", grad_name="FftC2C")
def fftn(input: Array, s: Size = None, dim: Dims = None, norm: str | None = None) -> Array:
    """Return the transform over the axes `dim` (all, or the last `len(s)`), complex."""
    return _many("fftn", input, s, dim, norm, jnp.fft.fft)


@op("fft", promote="float", oracle="fft.ifftn", grad_name="FftC2C")
def ifftn(input: Array, s: Size = None, dim: Dims = None, norm: str | None = None) -> Array:
    """Return the inverse of `fftn`."""
    return _many("ifftn", input, s, dim, norm, jnp.fft.ifft)


@op("fft", promote="float", saves="input", oracle="fft.rfft2", grad_name="FftR2C")
def rfft2(input: Array, s: Size = None, dim: Dims = (-2, -1), norm: str | None = None) -> Array:
    """Return the transform of a real input over two axes, of which the last is halved."""
    return _many_real("rfft2", input, s, dim, norm, False)


@op("fft", promote="float", oracle="fft.irfft2", grad_name="FftC2R")
def irfft2(input: Array, s: Size = None, dim: Dims = (-2, -1), norm: str | None = None) -> Array:
    """Return the real inverse of `rfft2`."""
    return _many_real("irfft2", input, s, dim, norm, True)


@op("fft", promote="float", saves="input", oracle="fft.rfftn", grad_name="FftR2C")
def rfftn(input: Array, s: Size = None, dim: Dims = None, norm: str | None = None) -> Array:
    """Return the transform of a real input over the axes `dim`, of which the last is halved."""
    return _many_real("rfftn", input, s, dim, norm, False)


@op("fft", promote="float", oracle="fft.irfftn", grad_name="FftC2R")
def irfftn(input: Array, s: Size = None, dim: Dims = None, norm: str | None = None) -> Array:
    """Return the real inverse of `rfftn`."""
    return _many_real("irfftn", input, s, dim, norm, True)


for _op in (fft2, ifft2, fftn, ifftn, rfft2, irfft2, rfftn, irfftn):
    _real = _op in (rfft2, rfftn)

    @_op.samples
    def _(make: Any, real: bool = _real) -> Iterator[Any]:
        draw = make if real else make.complex
        yield draw(3, 4)
        yield sample(draw(2, 3, 4), (4, 3), (0, 2), "ortho")
        yield sample(draw(3, 4), (-1, 6), norm="forward")

    @_op.error_samples
    def _(make: Any) -> Iterator[Any]:
        yield error_sample(RuntimeError, "FFT dims must be unique", make(2, 3), None, (1, -1))


# --- order and frequencies --------------------------------------------------------------------------------------------


def _rolled(name: str, x: Any, dim: Any, halves: Sequence[int]) -> Any:
    where = tuple(range(x.ndim)) if dim is None else tuple(axis(name, d, x.ndim) for d in ((dim,) if isinstance(dim, int) else dim))
    return jnp.roll(x, [(x.shape[d] + halves[0]) // 2 * halves[1] for d in where], where)


@op("fft", oracle="fft.fftshift", grad_name="Roll")
def fftshift(input: Array, dim: Dims = None) -> Array:
    """Return the input with frequency 0 moved from the front to the middle of the axes `dim` (all if None)."""
    return _rolled("fftshift", input, dim, (0, 1))


@op("fft", oracle="fft.ifftshift", grad_name="Roll")
def ifftshift(input: Array, dim: Dims = None) -> Array:
    """Return the input with frequency 0 moved from the middle to the front of the axes `dim` (all if None)."""
    return _rolled("ifftshift", input, dim, (0, -1))


for _op in (fftshift, ifftshift):

    @_op.samples
    def _(make: Any) -> Iterator[Any]:
        yield make(5)
        yield make(3, 4)
        yield make(3, 4), -1
        yield make(2, 3, 5), (0, 2)


def _frequencies(values: np.ndarray, dtype: Any, requires_grad: bool) -> Any:
    made = from_numpy(values.astype((get_default_dtype() if dtype is None else dtype).np))
    return made.requires_grad_() if requires_grad else made


@composite("fft")
def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """Return the frequencies of the coefficients of `fft` for `n` points `d` apart: 0, 1, ..., -2, -1 over `n d`.

    >>> import tapejax as tj
    >>> tj.fft.fftfreq(4)
    tensor([ 0.0000,  0.2500, -0.5000, -0.2500])
    """
    return _frequencies(np.fft.fftfreq(n, d), dtype, requires_grad)


@composite("fft")
def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """Return the frequencies of the coefficients of `rfft` for `n` points `d` apart: 0, 1, ..., n // 2 over `n d`."""
    return _frequencies(np.fft.rfftfreq(n, d), dtype, requires_grad)
