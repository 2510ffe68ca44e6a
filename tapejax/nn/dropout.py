"""Dropout as modules: active in training mode only."""

from __future__ import annotations

from typing import Any, ClassVar

from tapejax.nn.module import Module
from tapejax.ops import dropout


class _Dropout(Module):
    function: ClassVar[Any]

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if p < 0 or p > 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p = p
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return type(self).function(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Zero elements with probability `p` in training. See `nn.functional.dropout`."""

    function = staticmethod(dropout.dropout)


class Dropout1d(_Dropout):
    """Zero whole channels of (N, C, L) or (C, L) with probability `p` in training."""

    function = staticmethod(dropout.dropout1d)


class Dropout2d(_Dropout):
    """Zero whole channels of (N, C, H, W) with probability `p` in training."""

    function = staticmethod(dropout.dropout2d)


class Dropout3d(_Dropout):
    """Zero whole channels of (N, C, D, H, W) or (C, D, H, W) with probability `p` in training."""

    function = staticmethod(dropout.dropout3d)


class AlphaDropout(_Dropout):
    """Drop elements to SELU's saturation value with probability `p` in training."""

    function = staticmethod(dropout.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """Drop whole channels to SELU's saturation value with probability `p` in training."""

    function = staticmethod(dropout.feature_alpha_dropout)
