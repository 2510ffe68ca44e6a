"""Padding, resizing and moving between channels and space."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.errors import refuse
from tapejax.ops.pooling import adaptive_average
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, Scalar, error_sample, op, sample

_PAD_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@op("nn.functional", oracle="nn.functional.pad")
def pad(input: Array, pad: Any, mode: str = "constant", value: Scalar = None) -> Array:
    """Enlarge the last axes: `pad` lists (before, after) from the last axis backwards; negative amounts crop.

    `mode` is "constant" (fills with `value`, default 0), "reflect" (mirrors without the edge, amounts below the size),
    "replicate" (repeats the edge) or "circular" (wraps, amounts up to the size).
    Raises RuntimeError for an odd list, one too long, or amounts that do not fit.

    >>> import tapejax as tj
    >>> tj.nn.functional.pad(tj.tensor([1.0, 2.0, 3.0]), (1, 0), mode="circular").tolist()
    [3.0, 1.0, 2.0, 3.0]
    """
    amounts = tuple(pad) if isinstance(pad, tuple | list) else (pad,)
    if len(amounts) % 2 or len(amounts) > 2 * input.ndim:
        raise refuse(
            RuntimeError,
            "pad",
            f"Padding length must be divisible by 2 and at most twice the number of dimensions of the input, but got "
            f"{len(amounts)} amounts for shape {list(input.shape)}",
        )
    pairs = [(0, 0)] * input.ndim
    for i in range(len(amounts) // 2):
        pairs[input.ndim - 1 - i] = (amounts[2 * i], amounts[2 * i + 1])
    for axis, (a, b) in enumerate(pairs):
        size = input.shape[axis]
        if size + a + b < 0 or (size and size + a + b == 0 and mode != "constant"):
            raise refuse(
                RuntimeError,
                "pad",
                f"The input size {size}, plus negative padding {a} and {b}, resulted in a negative output size at axis {axis}",
            )
    if mode == "constant":
        fill = jnp.asarray(0 if value is None else value).astype(input.dtype)
        return lax.pad(input, fill, [(a, b, 0) for a, b in pairs])
    if mode not in _PAD_MODES:
        raise refuse(NotImplementedError, "pad", f"Unrecognised padding mode {mode!r} → constant, reflect, replicate or circular")
    for axis, (a, b) in enumerate(pairs):
        size, most = input.shape[axis], max(a, b)
        if mode == "reflect" and most >= size and most > 0:
            raise refuse(
                RuntimeError,
                "pad",
                f"Padding size should be less than the corresponding input dimension, but got: padding ({a}, {b}) at dimension "
                f"{axis} of input {list(input.shape)}",
            )
        if mode == "circular" and most > size:
            raise refuse(
                RuntimeError,
                "pad",
                f"Padding value causes wrapping around more than once: padding ({a}, {b}) at dimension {axis}",
            )
    grown = jnp.pad(input, [(max(a, 0), max(b, 0)) for a, b in pairs], mode=_PAD_MODES[mode])
    return grown[tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, grown.shape, strict=True))]


@pad.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 3), (1, 2)
    yield sample(make(2, 3), (1, -1, 0, 2), value=1.5)
    yield sample(make(1, 2, 4), (2, 1), mode="reflect")
    yield sample(make(1, 2, 3, 4), (2, 1, 0, 3), mode="replicate")
    yield sample(make(1, 2, 3, 4), (2, 1, 1, 3), mode="circular")


@pad.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(RuntimeError, "less than the corresponding input dimension", make(1, 2, 3), (3, 0), mode="reflect")


def _source(out: int, size: int, scale: float | None, align: bool, kind: Any) -> np.ndarray:
    """Where each output cell's centre lies on the input axis (fractional)."""
    at = np.arange(out, dtype=kind)
    if align:
        return at * kind((size - 1) / (out - 1) if out > 1 else 0)
    ratio = kind(1 / scale) if scale else kind(size / out)
    return (at + kind(0.5)) * ratio - kind(0.5)


def _linear_axis(x: jax.Array, axis: int, out: int, scale: float | None, align: bool, kind: Any) -> jax.Array:
    size = x.shape[axis]
    at = np.maximum(_source(out, size, scale, align, kind), 0)
    low = np.minimum(at.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]
    share = jnp.asarray((at - low).reshape(shape), x.dtype)
    return jnp.take(x, low, axis=axis) * (1 - share) + jnp.take(x, high, axis=axis) * share


def _cubic_axis(x: jax.Array, axis: int, out: int, scale: float | None, align: bool, kind: Any) -> jax.Array:
    size, a = x.shape[axis], -0.75
    at = _source(out, size, scale, align, kind)
    base = np.floor(at).astype(np.int64)
    t = (at - base).astype(kind)
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    total: Any = 0
    for tap in range(-1, 3):
        d = np.abs(t - tap)
        near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((d - 5) * d + 8) * d * a - 4 * a
        w = jnp.asarray(np.where(d <= 1, near, far).reshape(shape), x.dtype)
        total = total + w * jnp.take(x, np.clip(base + tap, 0, size - 1), axis=axis)
    return total


def _nearest_axis(x: jax.Array, axis: int, out: int, scale: float | None, exact: bool) -> jax.Array:
    size = x.shape[axis]
    ratio = np.float32(1 / scale) if scale else np.float32(size / out)
    cells = np.arange(out, dtype=np.float32)
    at = np.floor((cells + np.float32(0.5)) * ratio if exact else cells * ratio)
    return jnp.take(x, np.minimum(at.astype(np.int64), size - 1), axis=axis)


_MODES = {"nearest": 0, "nearest-exact": 0, "area": 0, "linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


@op("nn.functional", grad_name="UpsampleBilinear2D", oracle="nn.functional.interpolate", aliases="upsample")
def interpolate(
    input: Array,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Array:
    """Resize the spatial axes of (N, C, *spatial) to `size`, or by `scale_factor` (one number, or one an axis).

    `mode`: "nearest", "nearest-exact", "area", "linear" (3-d input), "bilinear" and "bicubic" (4-d), "trilinear" (5-d).
    `align_corners` puts the outermost samples at the corners (linear and cubic modes only). Resizing is linear in the
    input, so the gradient is its transpose. Raises ValueError for a mode or sizes that do not fit;
    `antialias` is not supported.
    """
    name, n = "interpolate", input.ndim - 2
    if mode not in _MODES or not 1 <= n <= 3 or _MODES[mode] not in (0, n):
        raise refuse(
            NotImplementedError,
            name,
            f"mode={mode!r} does not apply to an input of {input.ndim}-D: one of {sorted(_MODES)} that fits",
        )
    if antialias:
        raise refuse(NotImplementedError, name, "antialias=True is not supported")
    smooth = _MODES[mode] > 0
    if align_corners is not None and not smooth:
        raise refuse(ValueError, name, f"align_corners option can only be set with the interpolating modes, but mode={mode!r}")
    if (size is None) == (scale_factor is None):
        raise refuse(ValueError, name, "either size or scale_factor should be defined, and only one of them")
    spatial = input.shape[2:]
    given = size if scale_factor is None else scale_factor
    each = tuple(given) if isinstance(given, tuple | list) else (given,) * n
    if len(each) != n:
        raise refuse(ValueError, name, f"Input and output must have the same number of spatial dimensions ({n}), but got {given}")
    scales: tuple[float | None, ...] = (None,) * n
    if scale_factor is None:
        out = tuple(int(s) for s in each)
    else:
        out = tuple(math.floor(s * float(f)) for s, f in zip(spatial, each, strict=True))
        if not recompute_scale_factor:
            scales = tuple(float(f) for f in each)
    if min(out) < 1:
        raise refuse(
            RuntimeError, name, f"Input and output sizes should be greater than 0, but got {list(spatial)} and {list(out)}"
        )
    if mode == "area":
        return adaptive_average(input, out)
    kind = np.float64 if input.dtype == jnp.float64 else np.float32
    x = input
    for axis, (m, f) in enumerate(zip(out, scales, strict=True), start=2):
        if not smooth:
            x = _nearest_axis(x, axis, m, f, mode == "nearest-exact")
        else:
            x = (_cubic_axis if mode == "bicubic" else _linear_axis)(x, axis, m, f, bool(align_corners), kind)
    return x


@interpolate.samples
def _(make: Make) -> Iterator[Any]:
    yield make(1, 2, 3), 5
    yield sample(make(1, 2, 3, 4), scale_factor=2)
    yield sample(make(1, 1, 5, 4), (3, 7), mode="bilinear")
    yield sample(make(1, 1, 3, 4), scale_factor=(1.7, 0.6), mode="bilinear")
    yield sample(make(1, 1, 3, 4), (5, 7), mode="bilinear", align_corners=True)
    yield sample(make(1, 1, 4, 3), (7, 5), mode="bicubic")
    yield sample(make(1, 2, 5), 3, mode="linear")
    yield sample(make(1, 1, 5, 6), (2, 4), mode="area")
    yield sample(make(1, 1, 5), 3, mode="nearest-exact")


@interpolate.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(ValueError, "align_corners option", make(1, 1, 3), 2, align_corners=True)
    yield error_sample(ValueError, "size or scale_factor", make(1, 1, 3))


@op("torch nn.functional", oracle="nn.functional.pixel_shuffle")
def pixel_shuffle(input: Array, upscale_factor: int) -> Array:
    """Move channels into space: (*, C·r², H, W) to (*, C, H·r, W·r). Shi et al. 2016, eq. 4."""
    r = upscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        raise refuse(
            RuntimeError,
            "pixel_shuffle",
            f"expects its input's 'channel' dimension to be divisible by the square of upscale_factor, but got input of shape "
            f"{list(input.shape)} and upscale_factor={r}",
        )
    *lead, c, h, w = input.shape
    x = input.reshape(*lead, c // (r * r), r, r, h, w)
    b = len(lead)
    return x.transpose(*range(b + 1), b + 3, b + 1, b + 4, b + 2).reshape(*lead, c // (r * r), h * r, w * r)


@pixel_shuffle.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 8, 2, 3), 2
    yield make(9, 1, 2), 3


@op("torch nn.functional", oracle="nn.functional.pixel_unshuffle")
def pixel_unshuffle(input: Array, downscale_factor: int) -> Array:
    """Move space into channels, the inverse of `pixel_shuffle`: (*, C, H·r, W·r) to (*, C·r², H, W)."""
    r = downscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-2] % r or input.shape[-1] % r:
        raise refuse(
            RuntimeError,
            "pixel_unshuffle",
            f"expects height and width to be divisible by downscale_factor, but got input of shape {list(input.shape)} and "
            f"downscale_factor={r}",
        )
    *lead, c, h, w = input.shape
    x = input.reshape(*lead, c, h // r, r, w // r, r)
    b = len(lead)
    return x.transpose(*range(b + 1), b + 2, b + 4, b + 1, b + 3).reshape(*lead, c * r * r, h // r, w // r)


@pixel_unshuffle.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 2, 4, 6), 2


@op("torch nn.functional", oracle="nn.functional.channel_shuffle", grad_name="NativeChannelShuffle")
def channel_shuffle(input: Array, groups: int) -> Array:
    """Interleave the channels of (N, C, *) between `groups`: view C as (groups, C / groups) and transpose."""
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        raise refuse(
            RuntimeError,
            "channel_shuffle",
            f"Number of channels must be divisible by groups. Got {list(input.shape)} and {groups} groups",
        )
    n, c, *rest = input.shape
    return jnp.swapaxes(input.reshape(n, groups, c // groups, *rest), 1, 2).reshape(input.shape)


@channel_shuffle.samples
def _(make: Make) -> Iterator[Any]:
    yield make(1, 6, 2), 3
