"""Convolutions as modules."""

from __future__ import annotations

import math
from typing import Any

from tapejax.nn import init
from tapejax.nn.module import Module
from tapejax.nn.parameter import Parameter
from tapejax.ops import convolution, resample
from tapejax.ops.create import empty
from tapejax.ops.window import per_axis

_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    spatial = 0
    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        output_padding: Any,
        dilation: Any,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        name, n = type(self).__name__, self.spatial
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError(f"in_channels must be divisible by groups, but got {in_channels} and {groups}")
        if out_channels % groups:
            raise ValueError(f"out_channels must be divisible by groups, but got {out_channels} and {groups}")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'valid', 'same'}}")
            if padding == "same" and any(s != 1 for s in per_axis(name, "stride", stride, n)):
                raise ValueError("padding='same' is not supported for strided convolutions")
        if padding_mode not in _MODES:
            raise ValueError(f"padding_mode must be one of {_MODES}, but got padding_mode='{padding_mode}'")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = per_axis(name, "kernel_size", kernel_size, n)
        self.stride = per_axis(name, "stride", stride, n)
        self.padding = padding if isinstance(padding, str) else per_axis(name, "padding", padding, n)
        self.dilation = per_axis(name, "dilation", dilation, n)
        self.output_padding = per_axis(name, "output_padding", output_padding, n)
        self.groups = groups
        self.padding_mode = padding_mode
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        self.weight = Parameter(empty((first, second // groups, *self.kernel_size), device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty((out_channels,), device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values, uniform in ±1 / √fan_in."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            if fan_in:
                bound = 1 / math.sqrt(fan_in)
                init.uniform_(self.bias, -bound, bound)

    def _padded(self, input: Any) -> tuple[Any, Any]:
        """The input with any padding that is not zeros, and the padding that is left to the convolution."""
        if self.padding_mode == "zeros":
            return input, self.padding
        if self.padding == "valid":
            return input, 0
        amounts: list[int] = []
        for axis in reversed(range(self.spatial)):
            if self.padding == "same":
                total = self.dilation[axis] * (self.kernel_size[axis] - 1)
                amounts += [total // 2, total - total // 2]
            else:
                amounts += [int(self.padding[axis])] * 2
        return resample.pad(input, tuple(amounts), mode=self.padding_mode), 0

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        zeros = (0,) * self.spatial
        if self.padding != zeros:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self.spatial:
            text += f", dilation={self.dilation}"
        if self.output_padding != zeros:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Conv(_ConvNd):
    apply_op: Any = None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, 0, dilation, groups, bias, padding_mode, device, dtype
        )

    def forward(self, input: Any) -> Any:
        input, padding = self._padded(input)
        return self.apply_op(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Conv):
    """Slide filters along one axis: (N, in_channels, L) to (N, out_channels, L'). See `nn.functional.conv1d`."""

    spatial = 1
    apply_op = convolution.conv1d


class Conv2d(_Conv):
    """Slide filters over an image: (N, in_channels, H, W) to (N, out_channels, H', W'). See `nn.functional.conv2d`.

    >>> import tapejax as tj
    >>> tj.nn.Conv2d(1, 4, 3, padding=1)
    Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
    """

    spatial = 2
    apply_op = convolution.conv2d


class Conv3d(_Conv):
    """Slide filters through a volume: (N, in_channels, D, H, W). See `nn.functional.conv3d`."""

    spatial = 3
    apply_op = convolution.conv3d


class _ConvTranspose(_ConvNd):
    transposed = True
    apply_op: Any = None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def forward(self, input: Any, output_size: Any = None) -> Any:
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        return self.apply_op(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _extra(self, input: Any, output_size: Any) -> tuple[int, ...]:
        """The output padding that gives `output_size`."""
        n = self.spatial
        wanted = tuple(output_size)[-n:]
        found = []
        for axis, size in enumerate(tuple(input.shape)[-n:]):
            least = (
                (size - 1) * self.stride[axis] - 2 * self.padding[axis] + self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
            )
            most = least + self.stride[axis] - 1
            if not least <= wanted[axis] <= most:
                raise ValueError(
                    f"requested an output size of {wanted}, but valid sizes range from {least} to {most} on axis {axis}"
                )
            found.append(wanted[axis] - least)
        return tuple(found)


class ConvTranspose1d(_ConvTranspose):
    """Scatter filters along one axis: the transpose of `Conv1d`."""

    spatial = 1
    apply_op = convolution.conv_transpose1d


class ConvTranspose2d(_ConvTranspose):
    """Scatter filters over an image: the transpose of `Conv2d`."""

    spatial = 2
    apply_op = convolution.conv_transpose2d


class ConvTranspose3d(_ConvTranspose):
    """Scatter filters through a volume: the transpose of `Conv3d`."""

    spatial = 3
    apply_op = convolution.conv_transpose3d


class Unfold(Module):
    """Copy sliding windows of an image into columns. See `nn.functional.unfold`."""

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Any) -> Any:
        return convolution.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Module):
    """Add columns of windows into an image. See `nn.functional.fold`."""

    def __init__(self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__()
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Any) -> Any:
        return convolution.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, dilation={self.dilation}, "
            f"padding={self.padding}, stride={self.stride}"
        )
