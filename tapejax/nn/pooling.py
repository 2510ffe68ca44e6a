"""Pooling as modules."""

from __future__ import annotations

from typing import Any, ClassVar

from tapejax.nn.module import Module
from tapejax.ops import pooling


class _MaxPool(Module):
    function: ClassVar[Any]

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Any) -> Any:
        return type(self).function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """Take the maximum of each window of (N, C, L). See `nn.functional.max_pool1d`."""

    function = staticmethod(pooling.max_pool1d_function)


class MaxPool2d(_MaxPool):
    """Take the maximum of each window of (N, C, H, W). See `nn.functional.max_pool2d`."""

    function = staticmethod(pooling.max_pool2d_function)


class MaxPool3d(_MaxPool):
    """Take the maximum of each window of (N, C, D, H, W). See `nn.functional.max_pool3d`."""

    function = staticmethod(pooling.max_pool3d_function)


class AvgPool1d(Module):
    """Average each window of (N, C, L). See `nn.functional.avg_pool1d`."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True
    ) -> None:
        super().__init__()
        self.kernel_size = _single(kernel_size)
        self.stride = _single(kernel_size if stride is None else stride)
        self.padding = _single(padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Any) -> Any:
        return pooling.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


def _single(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


class _AvgPool(Module):
    function: ClassVar[Any]

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Any) -> Any:
        return type(self).function(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPool):
    """Average each window of (N, C, H, W). See `nn.functional.avg_pool2d`."""

    function = staticmethod(pooling.avg_pool2d)


class AvgPool3d(_AvgPool):
    """Average each window of (N, C, D, H, W). See `nn.functional.avg_pool3d`."""

    function = staticmethod(pooling.avg_pool3d)


class _LPPool(Module):
    function: ClassVar[Any]

    def __init__(self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Any) -> Any:
        return type(self).function(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPool):
    """Take the power mean of each window of (N, C, L). See `nn.functional.lp_pool1d`."""

    function = staticmethod(pooling.lp_pool1d)


class LPPool2d(_LPPool):
    """Take the power mean of each window of (N, C, H, W). See `nn.functional.lp_pool2d`."""

    function = staticmethod(pooling.lp_pool2d)


class _Adaptive(Module):
    function: ClassVar[Any]

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Any) -> Any:
        return type(self).function(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _AdaptiveMax(_Adaptive):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Any) -> Any:
        return type(self).function(input, self.output_size, self.return_indices)


class AdaptiveAvgPool1d(_Adaptive):
    """Average (N, C, L) down to `output_size`. See `nn.functional.adaptive_avg_pool1d`."""

    function = staticmethod(pooling.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_Adaptive):
    """Average (N, C, H, W) down to `output_size`. See `nn.functional.adaptive_avg_pool2d`."""

    function = staticmethod(pooling.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_Adaptive):
    """Average (N, C, D, H, W) down to `output_size`. See `nn.functional.adaptive_avg_pool3d`."""

    function = staticmethod(pooling.adaptive_avg_pool3d)


class AdaptiveMaxPool1d(_AdaptiveMax):
    """Take the maximum of each cell of (N, C, L) divided into `output_size`. See `nn.functional.adaptive_max_pool1d`."""

    function = staticmethod(pooling.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMax):
    """Take the maximum of each cell of (N, C, H, W) divided into `output_size`. See `nn.functional.adaptive_max_pool2d`."""

    function = staticmethod(pooling.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMax):
    """Take the maximum of each cell of (N, C, D, H, W) divided into `output_size`. See `nn.functional.adaptive_max_pool3d`."""

    function = staticmethod(pooling.adaptive_max_pool3d)
