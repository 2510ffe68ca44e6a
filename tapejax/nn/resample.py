"""Padding, resizing and moving between channels and space, as modules."""

from __future__ import annotations

from typing import Any, ClassVar

from tapejax.nn.module import Module
from tapejax.ops import resample


class _Pad(Module):
    spatial = 0
    mode: ClassVar[str]

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = tuple(padding) if isinstance(padding, list | tuple) else (padding,) * (2 * self.spatial)

    def forward(self, input: Any) -> Any:
        return resample.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    mode = "constant"

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Any) -> Any:
        return resample.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_ConstantPad):
    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ConstantPad1d(_ConstantPad):
    """Enlarge the last axis by `padding` (an int or (before, after, …), last axis first) with a constant."""

    spatial = 1


class ConstantPad2d(_ConstantPad):
    """Enlarge the last 2 axes by `padding` (an int or (before, after, …), last axis first) with a constant."""

    spatial = 2


class ConstantPad3d(_ConstantPad):
    """Enlarge the last 3 axes by `padding` (an int or (before, after, …), last axis first) with a constant."""

    spatial = 3


class ZeroPad1d(_ZeroPad):
    """Enlarge the last axis by `padding` (an int or (before, after, …), last axis first) with zeros."""

    spatial = 1


class ZeroPad2d(_ZeroPad):
    """Enlarge the last 2 axes by `padding` (an int or (before, after, …), last axis first) with zeros."""

    spatial = 2


class ZeroPad3d(_ZeroPad):
    """Enlarge the last 3 axes by `padding` (an int or (before, after, …), last axis first) with zeros."""

    spatial = 3


class ReflectionPad1d(_Pad):
    """Enlarge the last axis by `padding` (an int or (before, after, …), last axis first) with the mirrored input."""

    spatial = 1
    mode = "reflect"


class ReflectionPad2d(_Pad):
    """Enlarge the last 2 axes by `padding` (an int or (before, after, …), last axis first) with the mirrored input."""

    spatial = 2
    mode = "reflect"


class ReflectionPad3d(_Pad):
    """Enlarge the last 3 axes by `padding` (an int or (before, after, …), last axis first) with the mirrored input."""

    spatial = 3
    mode = "reflect"


class ReplicationPad1d(_Pad):
    """Enlarge the last axis by `padding` (an int or (before, after, …), last axis first) with the edge value."""

    spatial = 1
    mode = "replicate"


class ReplicationPad2d(_Pad):
    """Enlarge the last 2 axes by `padding` (an int or (before, after, …), last axis first) with the edge value."""

    spatial = 2
    mode = "replicate"


class ReplicationPad3d(_Pad):
    """Enlarge the last 3 axes by `padding` (an int or (before, after, …), last axis first) with the edge value."""

    spatial = 3
    mode = "replicate"


class CircularPad1d(_Pad):
    """Enlarge the last axis by `padding` (an int or (before, after, …), last axis first) with the other end."""

    spatial = 1
    mode = "circular"


class CircularPad2d(_Pad):
    """Enlarge the last 2 axes by `padding` (an int or (before, after, …), last axis first) with the other end."""

    spatial = 2
    mode = "circular"


class CircularPad3d(_Pad):
    """Enlarge the last 3 axes by `padding` (an int or (before, after, …), last axis first) with the other end."""

    spatial = 3
    mode = "circular"


class Upsample(Module):
    """Resize the spatial axes of (N, C, *spatial). See `nn.functional.interpolate`."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size = size
        each = isinstance(scale_factor, tuple | list)
        self.scale_factor = tuple(float(f) for f in scale_factor) if each else float(scale_factor) if scale_factor else None
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Any) -> Any:
        return resample.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        how = f"scale_factor={self.scale_factor!r}" if self.scale_factor is not None else f"size={self.size!r}"
        return f"{how}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Resize an image by repeating pixels."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Resize an image bilinearly, corners aligned."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Module):
    """Move channels into space. See `nn.functional.pixel_shuffle`."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Any) -> Any:
        return resample.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Move space into channels. See `nn.functional.pixel_unshuffle`."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Any) -> Any:
        return resample.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Interleave channels between groups. See `nn.functional.channel_shuffle`."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Any) -> Any:
        return resample.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"
