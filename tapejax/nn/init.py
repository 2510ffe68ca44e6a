"""Filling parameters with initial values. Every function writes in place, outside the graph, and returns the tensor."""

from __future__ import annotations

import math
import warnings
from typing import Any

from tapejax.autograd.grad_mode import no_grad
from tapejax.errors import refuse
from tapejax.ops.decompose import qr


def calculate_gain(nonlinearity: str, param: Any = None) -> float:
    """Return the factor by which an activation shrinks a signal's deviation (its recommended gain)."""
    linear = ("linear", "sigmoid", *(f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)))
    if nonlinearity in linear:
        return 1
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, int | float):
            raise refuse(ValueError, "calculate_gain", f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity == "selu":
        return 3.0 / 4
    raise refuse(ValueError, "calculate_gain", f"Unsupported nonlinearity {nonlinearity}")


def _fans(tensor: Any) -> tuple[int, int]:
    """How many inputs each output sums, and how many outputs each input feeds."""
    shape = tuple(tensor.shape)
    if len(shape) < 2:
        raise refuse(
            ValueError, "init", f"Fan in and fan out can not be computed for tensor with fewer than 2 dimensions: {shape}"
        )
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


_calculate_fan_in_and_fan_out = _fans


@no_grad()
def uniform_(tensor: Any, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Any:
    """Fill with values evenly distributed in [a, b)."""
    return tensor.uniform_(a, b, generator=generator)


@no_grad()
def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Any:
    """Fill with normal values."""
    return tensor.normal_(mean, std, generator=generator)


@no_grad()
def trunc_normal_(
    tensor: Any, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Any = None
) -> Any:
    """Fill with normal values conditioned on [a, b], by inverting the distribution function."""
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of values may be incorrect.",
            stacklevel=2,
        )
    low, high = (math.erf((v - mean) / std / math.sqrt(2.0)) for v in (a, b))
    tensor.uniform_(low, high, generator=generator)
    return tensor.erfinv_().mul_(std * math.sqrt(2.0)).add_(mean).clamp_(min=a, max=b)


@no_grad()
def constant_(tensor: Any, val: float) -> Any:
    """Fill with `val`."""
    return tensor.fill_(val)


def ones_(tensor: Any) -> Any:
    """Fill with 1."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Any) -> Any:
    """Fill with 0."""
    return constant_(tensor, 0.0)


@no_grad()
def eye_(tensor: Any) -> Any:
    """Make a matrix the identity (ones on the diagonal)."""
    if tensor.dim() != 2:
        raise refuse(ValueError, "eye_", f"Only tensors with 2 dimensions are supported, but got {tensor.dim()}")
    tensor.zero_()
    tensor.diagonal().fill_(1)
    return tensor


@no_grad()
def dirac_(tensor: Any, groups: int = 1) -> Any:
    """Make a convolution's weight pass its input channels through unchanged (as many as there are outputs)."""
    if tensor.dim() not in (3, 4, 5):
        raise refuse(ValueError, "dirac_", "Only tensors with 3, 4, or 5 dimensions are supported")
    shape = tuple(tensor.shape)
    if shape[0] % groups:
        raise refuse(ValueError, "dirac_", f"dim 0 must be divisible by groups, but got {shape[0]} and {groups}")
    per_group = shape[0] // groups
    centre = tuple(k // 2 for k in shape[2:])
    tensor.zero_()
    for g in range(groups):
        for d in range(min(per_group, shape[1])):
            tensor[(g * per_group + d, d, *centre)] = 1
    return tensor


def xavier_uniform_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Fill uniformly in ±gain·√(6 / (fan_in + fan_out)). Glorot and Bengio 2010, eq. 16."""
    fan_in, fan_out = _fans(tensor)
    bound = gain * math.sqrt(6.0 / (fan_in + fan_out))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Fill with normal values of deviation gain·√(2 / (fan_in + fan_out)). Glorot and Bengio 2010."""
    fan_in, fan_out = _fans(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / (fan_in + fan_out)), generator)


def _deviation(tensor: Any, a: float, mode: str, nonlinearity: str) -> float:
    if mode.lower() not in ("fan_in", "fan_out"):
        raise refuse(ValueError, "kaiming", f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    fan = _fans(tensor)[mode.lower() == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: Any, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Any:
    """Fill uniformly in ±gain·√(3 / fan), with the gain of a leaky relu of slope `a`. He et al. 2015."""
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=2)
        return tensor
    bound = math.sqrt(3.0) * _deviation(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Any, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Any:
    """Fill with normal values of deviation gain / √fan, with the gain of a leaky relu of slope `a`. He et al. 2015."""
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=2)
        return tensor
    return normal_(tensor, 0.0, _deviation(tensor, a, mode, nonlinearity), generator)


@no_grad()
def orthogonal_(tensor: Any, gain: float = 1, generator: Any = None) -> Any:
    """Fill with a (semi-)orthogonal matrix times `gain`; trailing axes are flattened. Saxe et al. 2013."""
    if tensor.dim() < 2:
        raise refuse(ValueError, "orthogonal_", "Only tensors with 2 or more dimensions are supported")
    if not tensor.numel():
        return tensor
    rows = tensor.shape[0]
    cols = tensor.numel() // rows
    draw = tensor.detach().clone().normal_(0, 1, generator=generator).reshape(rows, cols)
    if rows < cols:
        draw = draw.t()
    q, r = qr(draw)
    q = q * r.diagonal().sign()
    return tensor.copy_((q.t() if rows < cols else q).reshape(tuple(tensor.shape))).mul_(gain)


@no_grad()
def sparse_(tensor: Any, sparsity: float, std: float = 0.01, generator: Any = None) -> Any:
    """Fill a matrix with normal values, then set a share `sparsity` of each column to 0. Martens 2010."""
    if tensor.dim() != 2:
        raise refuse(ValueError, "sparse_", "Only tensors with 2 dimensions are supported")
    rows = tensor.shape[0]
    zeros = math.ceil(sparsity * rows)
    order = tensor.detach().clone().uniform_(0, 1, generator=generator).argsort(0).argsort(0)
    return tensor.normal_(0, std, generator=generator).mul_((order >= zeros).to(tensor.dtype))
