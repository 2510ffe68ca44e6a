"""Convolutions and the patch operations behind them: (N, C, *spatial) layout, unbatched input allowed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tapejax.errors import refuse
from tapejax.ops.samples import Make
from tapejax.ops.window import batched, per_axis, shifted
from tapejax.tape.op import Array, composite, error_sample, op, sample

_LETTERS = "DHW"


def _check(name: str, x: jax.Array, weight: jax.Array, bias: Any, in_channels: int, groups: int) -> None:
    if weight.ndim != x.ndim:
        raise refuse(RuntimeError, name, f"expected a {x.ndim}-dimensional weight, but got weight of size {list(weight.shape)}")
    if x.dtype != weight.dtype or (bias is not None and bias.dtype != x.dtype):
        kinds = f"Input type ({x.dtype}) and weight type ({weight.dtype})"
        raise refuse(RuntimeError, name, f"{kinds} and bias type should be the same → convert with .to(dtype)")
    if groups < 1:
        raise refuse(RuntimeError, name, f"non-positive groups is not supported, but got groups={groups}")
    if x.shape[1] != in_channels:
        raise refuse(
            RuntimeError,
            name,
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input{list(x.shape)} to have "
            f"{in_channels} channels, but got {x.shape[1]} channels instead",
        )


def _finish(name: str, out: jax.Array, bias: Any, unbatched: bool) -> jax.Array:
    if bias is not None:
        if bias.shape != (out.shape[1],):
            raise refuse(
                RuntimeError,
                name,
                f"expected bias to be 1-dimensional with {out.shape[1]} elements, but got bias of size {list(bias.shape)}",
            )
        out = out + bias.reshape((-1,) + (1,) * (out.ndim - 2))
    return out[0] if unbatched else out


def _layout(n: int) -> tuple[str, str, str]:
    spatial = _LETTERS[3 - n :]
    return ("NC" + spatial, "OI" + spatial, "NC" + spatial)


def _conv(name: str, n: int, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    x, unbatched = batched(name, x, n)
    _check(name, x, weight, bias, weight.shape[1] * groups if weight.ndim > 1 else 0, groups)
    if weight.shape[0] % groups:
        raise refuse(
            RuntimeError,
            name,
            f"expected weight to have a multiple of groups={groups} output channels, but got {weight.shape[0]}",
        )
    stride, dilation = per_axis(name, "stride", stride, n), per_axis(name, "dilation", dilation, n)
    kernel = weight.shape[2:]
    if min(stride) < 1 or min(dilation) < 1:
        raise refuse(
            RuntimeError, name, f"non-positive stride or dilation is not supported: stride={stride}, dilation={dilation}"
        )
    if padding == "same":
        if max(stride) > 1:
            raise refuse(ValueError, name, f"padding='same' is not supported for strided convolutions, but got stride={stride}")
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [(t // 2, t - t // 2) for t in total]
    elif padding == "valid":
        pads = [(0, 0)] * n
    elif isinstance(padding, str):
        raise refuse(ValueError, name, f"Invalid padding string {padding!r}, should be one of 'valid', 'same'")
    else:
        pads = [(p, p) for p in per_axis(name, "padding", padding, n)]
        if min(p for p, _ in pads) < 0:
            raise refuse(RuntimeError, name, f"negative padding is not supported, but got padding={padding}")
    for axis, (size, (a, b), k, d) in enumerate(zip(x.shape[2:], pads, kernel, dilation, strict=True)):
        if size + a + b < d * (k - 1) + 1:
            raise refuse(
                RuntimeError,
                name,
                f"Calculated padded input size per channel: {size + a + b} on spatial axis {axis}. Kernel size: {d * (k - 1) + 1}. "
                "Kernel size can't be greater than actual input size",
            )
    out = lax.conv_general_dilated(
        x, weight, stride, pads, rhs_dilation=dilation, dimension_numbers=_layout(n), feature_group_count=groups
    )
    return _finish(name, out, bias, unbatched)


_SAVES = {"input": "weight", "weight": "input"}


@op("torch nn.functional", saves=_SAVES, grad_name="Convolution", oracle="nn.functional.conv1d")
def conv1d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    """Slide filters along one axis: `out[n, o, i] = bias[o] + Σ_c Σ_k weight[o, c, k] · input[n, c, i·stride + k·dilation - padding]`.

    `input` is (N, C, L) or (C, L), `weight` (O, C / groups, K), `bias` (O,). `padding` is an int, "valid" (0) or
    "same" (stride 1 only; an odd total leaves the extra zero on the right). Result (N, O, L').
    Raises RuntimeError for channels or sizes that do not fit. Cross-correlation, as in torch.
    """
    return _conv("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@conv1d.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 3, 6), make(4, 3, 3), make(4)
    yield sample(make(2, 4, 7), make(4, 2, 2), make(4), stride=2, padding=1, groups=2)
    yield sample(make(2, 5), make(3, 2, 4), padding="same")
    yield sample(make(1, 2, 9), make(3, 2, 3), dilation=2, padding="valid")


@conv1d.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(RuntimeError, "channels", make(2, 3, 6), make(4, 2, 3))
    yield error_sample(RuntimeError, "greater than actual input size", make(2, 3, 2), make(4, 3, 3))


@op("torch nn.functional", saves=_SAVES, grad_name="Convolution", oracle="nn.functional.conv2d")
def conv2d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    """Slide filters over an image (cross-correlation, see `conv1d`).

    `input` is (N, C, H, W) or (C, H, W), `weight` (O, C / groups, KH, KW), `bias` (O,); `stride`, `padding` and
    `dilation` are an int or (height, width); `padding` may be "same" or "valid". Result (N, O, H', W').

    >>> import tapejax as tj
    >>> tj.nn.functional.conv2d(tj.ones(1, 1, 3, 3), tj.ones(1, 1, 2, 2)).tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    return _conv("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@conv2d.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 3, 5, 4), make(4, 3, 3, 2), make(4)
    yield sample(make(1, 4, 6, 5), make(6, 2, 3, 3), make(6), stride=(2, 1), padding=(1, 2), groups=2)
    yield sample(make(2, 5, 5), make(3, 2, 3, 2), padding="same", dilation=(1, 2))


@conv2d.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(RuntimeError, "Expected 3D .unbatched. or 4D .batched. input", make(3, 6), make(4, 3, 3, 3))
    yield error_sample(ValueError, "Invalid padding string", make(1, 3, 6, 6), make(4, 3, 3, 3), padding="full")


@op("torch nn.functional", saves=_SAVES, grad_name="Convolution", oracle="nn.functional.conv3d")
def conv3d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    """Slide filters through a volume: `input` (N, C, D, H, W), `weight` (O, C / groups, KD, KH, KW). See `conv1d`."""
    return _conv("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


@conv3d.samples
def _(make: Make) -> Iterator[Any]:
    yield make(1, 2, 3, 4, 3), make(2, 2, 2, 2, 2), make(2)
    yield sample(make(2, 3, 3, 3), make(2, 1, 2, 1, 2), stride=(1, 2, 1), padding=1, groups=2)


def _conv_transpose(
    name: str, n: int, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, extra: Any, groups: int, dilation: Any
) -> Any:
    x, unbatched = batched(name, x, n)
    _check(name, x, weight, bias, weight.shape[0], groups)
    if weight.shape[0] % groups:
        raise refuse(
            RuntimeError, name, f"expected weight to have a multiple of groups={groups} input channels, but got {weight.shape[0]}"
        )
    stride, dilation = per_axis(name, "stride", stride, n), per_axis(name, "dilation", dilation, n)
    padding, extra = per_axis(name, "padding", padding, n), per_axis(name, "output_padding", extra, n)
    for e, s, d in zip(extra, stride, dilation, strict=True):
        if e >= s and e >= d:
            raise refuse(
                RuntimeError, name, f"output padding must be smaller than either stride or dilation, but got {e}, {s} and {d}"
            )
    kernel = weight.shape[2:]
    pads = [(d * (k - 1) - p, d * (k - 1) - p + e) for d, k, p, e in zip(dilation, kernel, padding, extra, strict=True)]
    for size, (a, b), s, d, k in zip(x.shape[2:], pads, stride, dilation, kernel, strict=True):
        if (size - 1) * s + 1 + a + b - d * (k - 1) < 1:
            raise refuse(RuntimeError, name, f"input of size {list(x.shape)} with padding={padding}: Output size is too small")
    i, o = weight.shape[:2]
    w = jnp.flip(weight, range(2, 2 + n)).reshape(groups, i // groups, o, *kernel)
    w = jnp.swapaxes(w, 1, 2).reshape(groups * o, i // groups, *kernel)
    out = lax.conv_general_dilated(
        x,
        w,
        (1,) * n,
        pads,
        lhs_dilation=stride,
        rhs_dilation=dilation,
        dimension_numbers=_layout(n),
        feature_group_count=groups,
    )
    return _finish(name, out, bias, unbatched)


@op("torch nn.functional", saves=_SAVES, grad_name="Convolution", oracle="nn.functional.conv_transpose1d")
def conv_transpose1d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Array:
    """Scatter filters along one axis: the transpose of `conv1d` with the same weight, stride and padding.

    `input` is (N, C, L) or (C, L), `weight` (C, O / groups, K). Result length
    `(L - 1)·stride - 2·padding + dilation·(K - 1) + output_padding + 1`.
    """
    return _conv_transpose("conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation)


@conv_transpose1d.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 3, 4), make(3, 2, 3), make(2)
    yield sample(make(4, 4), make(4, 3, 3), stride=2, padding=1, output_padding=1, groups=2, dilation=2)


@op("torch nn.functional", saves=_SAVES, grad_name="Convolution", oracle="nn.functional.conv_transpose2d")
def conv_transpose2d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Array:
    """Scatter filters over an image: the transpose of `conv2d`; `weight` is (C, O / groups, KH, KW). See `conv_transpose1d`."""
    return _conv_transpose("conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation)


@conv_transpose2d.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 3, 3, 2), make(3, 2, 3, 2), make(2)
    yield sample(make(1, 4, 3, 3), make(4, 1, 3, 2), make(2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2)


@op("torch nn.functional", saves=_SAVES, grad_name="Convolution", oracle="nn.functional.conv_transpose3d")
def conv_transpose3d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Array:
    """Scatter filters through a volume: the transpose of `conv3d`; `weight` is (C, O / groups, KD, KH, KW). See `conv_transpose1d`."""
    return _conv_transpose("conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups, dilation)


@conv_transpose3d.samples
def _(make: Make) -> Iterator[Any]:
    yield sample(make(1, 2, 2, 3, 2), make(2, 1, 2, 2, 2), make(1), stride=2, padding=1)


def _patches(x: jax.Array, kernel: tuple, dilation: tuple, padding: tuple, stride: tuple, out: tuple) -> jax.Array:
    x = jnp.pad(x, [(0, 0), (0, 0)] + [(p, p) for p in padding])
    offsets = itertools.product(*(range(k) for k in kernel))
    cells = [shifted(x, [i * d for i, d in zip(o, dilation, strict=True)], out, stride) for o in offsets]
    found = jnp.stack(cells, axis=2)  # (N, C, K, OH, OW)
    return found.reshape(x.shape[0], x.shape[1] * len(cells), out[0] * out[1])


def _window_counts(name: str, size: tuple, kernel: tuple, dilation: tuple, padding: tuple, stride: tuple) -> tuple[int, ...]:
    out = tuple(
        (s + 2 * p - d * (k - 1) - 1) // t + 1 for s, k, d, p, t in zip(size, kernel, dilation, padding, stride, strict=True)
    )
    if min(out) < 1:
        raise refuse(
            RuntimeError,
            name,
            f"spatial size {tuple(size)} and kernel_size={kernel} give sliding blocks {out}: must be at least one",
        )
    return out


@op("", oracle="nn.functional.unfold")
def im2col(input: Array, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Array:
    """Copy every sliding window of an image into a column: (N, C, H, W) to (N, C·KH·KW, windows).

    Overlapping elements are copied, so their gradients add up. Exposed as `nn.functional.unfold`.
    """
    x, unbatched = batched("im2col", input, 2)
    k, d, p, s = (
        per_axis("im2col", n, v, 2)
        for n, v in (("kernel_size", kernel_size), ("dilation", dilation), ("padding", padding), ("stride", stride))
    )
    out = _patches(x, k, d, p, s, _window_counts("im2col", x.shape[2:], k, d, p, s))
    return out[0] if unbatched else out


@im2col.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 2, 4, 3), 2
    yield sample(make(2, 5, 5), (2, 3), dilation=(2, 1), padding=(1, 0), stride=2)


@im2col.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(RuntimeError, "at least one", make(1, 1, 2, 2), 3)


@op("", oracle="nn.functional.fold")
def col2im(input: Array, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Array:
    """Add columns of windows back into an image: the transpose of `im2col`. (N, C·KH·KW, windows) to (N, C, *output_size).

    Exposed as `nn.functional.fold`. Raises RuntimeError if the number of windows does not fit `output_size`.
    """
    size, k, d, p, s = (
        per_axis("col2im", n, v, 2)
        for n, v in (
            ("output_size", output_size),
            ("kernel_size", kernel_size),
            ("dilation", dilation),
            ("padding", padding),
            ("stride", stride),
        )
    )
    if input.ndim not in (2, 3):
        raise refuse(RuntimeError, "fold", f"Expected 2D or 3D (batch mode) tensor for input, but got size {list(input.shape)}")
    x = input[None] if input.ndim == 2 else input
    out = _window_counts("fold", size, k, d, p, s)
    if x.shape[1] % (k[0] * k[1]):
        raise refuse(
            RuntimeError,
            "fold",
            f"Expected size of input's dimension 1 to be divisible by the product of kernel_size, but got "
            f"input.size(1)={x.shape[1]} and kernel_size={k}",
        )
    if x.shape[2] != out[0] * out[1]:
        raise refuse(
            RuntimeError,
            "fold",
            f"output_size={size}, kernel_size={k}: expected size of input's dimension 2 to match the calculated number of "
            f"sliding blocks {out[0]} * {out[1]} = {out[0] * out[1]}, but got {x.shape[2]}",
        )
    image = jax.ShapeDtypeStruct((x.shape[0], x.shape[1] // (k[0] * k[1]), *size), x.dtype)
    (folded,) = jax.linear_transpose(lambda y: _patches(y, k, d, p, s, out), image)(x)
    return folded[0] if input.ndim == 2 else folded


@col2im.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 8, 6), (4, 3), 2
    yield sample(make(8, 4), (4, 4), 2, stride=2)
    yield sample(make(6, 6), (5, 4), (2, 3), dilation=(2, 1), padding=(1, 1), stride=2)


@composite("nn.functional")
def unfold(input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """Extract sliding windows of an image as columns. See `im2col`."""
    return im2col(input, kernel_size, dilation, padding, stride)


@composite("nn.functional")
def fold(input: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """Add columns of windows into an image. See `col2im`."""
    return col2im(input, output_size, kernel_size, dilation, padding, stride)
