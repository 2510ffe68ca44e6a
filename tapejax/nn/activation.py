"""Activations as modules."""

from __future__ import annotations

from typing import Any

from tapejax.nn import functional as F
from tapejax.nn.module import Module
from tapejax.nn.parameter import Parameter
from tapejax.ops.create import full


def _maybe_inplace(text: str, inplace: bool) -> str:
    return ", ".join(t for t in (text, "inplace=True" if inplace else "") if t)


class ReLU(Module):
    """Take `max(x, 0)`; gradient 0 at 0."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.relu(input, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace("", self.inplace)


class ReLU6(Module):
    """Clamp to [0, 6]."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.relu6(input, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace("", self.inplace)


class Sigmoid(Module):
    """Take `1 / (1 + exp(-x))`."""

    def forward(self, input: Any) -> Any:
        return F.sigmoid(input)


class Tanh(Module):
    """Take the hyperbolic tangent."""

    def forward(self, input: Any) -> Any:
        return F.tanh(input)


class SiLU(Module):
    """Take `x · sigmoid(x)`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.silu(input, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace("", self.inplace)


class Mish(Module):
    """Take `x · tanh(softplus(x))`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.mish(input, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace("", self.inplace)


class Hardsigmoid(Module):
    """Take `clamp(x + 3, 0, 6) / 6`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.hardsigmoid(input, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace("", self.inplace)


class Hardswish(Module):
    """Take `x · clamp(x + 3, 0, 6) / 6`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.hardswish(input, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace("", self.inplace)


class ELU(Module):
    """Take `x` above 0 and `alpha · (exp(x) - 1)` below."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.elu(input, self.alpha, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace(f"alpha={self.alpha}", self.inplace)


class CELU(Module):
    """Take `max(0, x) + min(0, alpha · (exp(x / alpha) - 1))`."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.celu(input, self.alpha, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace(f"alpha={self.alpha}", self.inplace)


class SELU(Module):
    """Take the scaled ELU that keeps zero mean and unit variance."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.selu(input, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace("", self.inplace)


class GELU(Module):
    """Take `x · Φ(x)`, or its tanh approximation."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Any) -> Any:
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Hardshrink(Module):
    """Zero what lies within ±lambd."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Any) -> Any:
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return f"{self.lambd}"


class LeakyReLU(Module):
    """Take `x` above 0 and `negative_slope · x` below."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.leaky_relu(input, self.negative_slope, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace(f"negative_slope={self.negative_slope}", self.inplace)


class LogSigmoid(Module):
    """Take `log sigmoid(x)` without overflow."""

    def forward(self, input: Any) -> Any:
        return F.logsigmoid(input)


class Softplus(Module):
    """Take `log(1 + exp(beta · x)) / beta`, linear where `beta · x > threshold`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Any) -> Any:
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Softshrink(Module):
    """Move towards 0 by `lambd`, to 0 within ±lambd."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Any) -> Any:
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return f"{self.lambd}"


class Softsign(Module):
    """Take `x / (1 + |x|)`."""

    def forward(self, input: Any) -> Any:
        return F.softsign(input)


class Tanhshrink(Module):
    """Take `x - tanh(x)`."""

    def forward(self, input: Any) -> Any:
        return F.tanhshrink(input)


class Hardtanh(Module):
    """Clamp to [min_val, max_val]; gradient 0 at the ends."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        if not min_val < max_val:
            raise AssertionError(f"Hardtanh(): max_val must be larger than min_val, but got [{min_val}, {max_val}]")
        self.min_val = min_val
        self.max_val = max_val
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.hardtanh(input, self.min_val, self.max_val, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace(f"min_val={self.min_val}, max_val={self.max_val}", self.inplace)


class RReLU(Module):
    """Take `x` above 0 and `a · x` below, with `a` drawn from [lower, upper) in training and their mean otherwise."""

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower = lower
        self.upper = upper
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.rrelu(input, self.lower, self.upper, self.training, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace(f"lower={self.lower}, upper={self.upper}", self.inplace)


class Threshold(Module):
    """Take `x` above `threshold` and `value` elsewhere."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold = threshold
        self.value = value
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.threshold(input, self.threshold, self.value, inplace=self.inplace)

    def extra_repr(self) -> str:
        return _maybe_inplace(f"threshold={self.threshold}, value={self.value}", self.inplace)


class GLU(Module):
    """Halve the axis `dim` into (a, b) and take `a · sigmoid(b)`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class PReLU(Module):
    """Take `x` above 0 and `weight · x` below, with a trained slope, one or one a channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(full((num_parameters,), float(init), device=device, dtype=dtype))

    def forward(self, input: Any) -> Any:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class _AlongDim(Module):
    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax(_AlongDim):
    """Take `exp(x) / Σ exp(x)` along `dim`."""

    def forward(self, input: Any) -> Any:
        return F.softmax(input, self.dim)


class LogSoftmax(_AlongDim):
    """Take `x - log Σ exp(x)` along `dim`."""

    def forward(self, input: Any) -> Any:
        return F.log_softmax(input, self.dim)


class Softmin(_AlongDim):
    """Take `exp(-x) / Σ exp(-x)` along `dim`."""

    def forward(self, input: Any) -> Any:
        return F.softmin(input, self.dim)


class Softmax2d(Module):
    """Take the softmax over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Any) -> Any:
        if input.dim() not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.dim()}D instead")
        return F.softmax(input, -3)
