"""Normalisation: subtract a mean, divide by a deviation, scale and shift. Half precision is accumulated in float32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.errors import refuse
from tapejax.ops.samples import Make
from tapejax.ops.window import wide
from tapejax.tape.op import Array, Ints, Scalar, composite, error_sample, op, sample


def _standardise(x: jax.Array, axes: Any, eps: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    mean = jnp.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    var = jnp.mean(centred * centred, axis=axes, keepdims=True)
    return centred * lax.rsqrt(var + jnp.asarray(eps, x.dtype)), mean, var


def _statistics(x: jax.Array, axes: Any, eps: Any) -> tuple[jax.Array, jax.Array]:
    """(mean, 1 / deviation), as torch keeps them for the backward: of `x` in its own precision, half in float32."""
    _, mean, var = _standardise(wide(x), axes, eps)
    return mean, lax.rsqrt(var + jnp.asarray(eps, var.dtype))


def _affine(y: jax.Array, weight: Any, bias: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    if weight is not None:
        y = y * wide(weight).reshape(shape)
    if bias is not None:
        y = y + wide(bias).reshape(shape)
    return y.astype(dtype)


def _check_shape(name: str, x: jax.Array, shape: tuple[int, ...], weight: Any, bias: Any) -> tuple[int, ...]:
    if not shape:
        raise refuse(RuntimeError, name, "Expected normalized_shape to be at least 1-dimensional, but got ()")
    for label, v in (("weight", weight), ("bias", bias)):
        if v is not None and v.shape != shape:
            raise refuse(
                RuntimeError,
                name,
                f"Expected {label} to be of same shape as normalized_shape, but got {label} of shape {list(v.shape)} and "
                f"normalized_shape = {list(shape)}",
            )
    if x.shape[max(x.ndim - len(shape), 0) :] != shape:
        raise refuse(
            RuntimeError,
            name,
            f"Given normalized_shape={list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}], but got "
            f"input of size{list(x.shape)}",
        )
    return tuple(range(x.ndim - len(shape), x.ndim))


@op(
    "torch nn.functional", saves="bias input weight result1 result2", computes="result1 result2", grad_name="NativeLayerNorm",
    oracle="nn.functional.layer_norm",
)  # fmt: skip
def layer_norm(
    input: Array, normalized_shape: Ints, weight: Array | None = None, bias: Array | None = None, eps: Scalar = 1e-5
) -> Array:
    """Standardise over the trailing axes: `(x - mean) / √(var + eps) · weight + bias`, with the biased variance.

    `normalized_shape` is the shape of those axes and of `weight` and `bias`.
    Raises RuntimeError where the trailing axes of `input` differ from it. Ba, Kiros and Hinton 2016, eq. 4.

    >>> import tapejax as tj
    >>> tj.nn.functional.layer_norm(tj.tensor([1.0, 3.0]), (2,), eps=0.0).tolist()
    [-1.0, 1.0]
    """
    axes = _check_shape("layer_norm", input, normalized_shape, weight, bias)
    y, _, _ = _standardise(wide(input), axes, eps)
    return _affine(y, weight, bias, normalized_shape, input.dtype)


@layer_norm.computed
def _(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    return _statistics(input, tuple(range(input.ndim - len(normalized_shape), input.ndim)), eps)


@layer_norm.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), (4,), make(4), make(4)
    yield sample(make(2, 3, 4), (3, 4), make(3, 4), eps=0.1)
    yield sample(make(5), (5,))


@layer_norm.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(RuntimeError, "expected input with shape", make(3, 4), (3,))


@op(
    "torch nn.functional", saves={"input": "input deviation rstd factor weight", "weight": "scaled"}, computes="deviation rstd factor scaled",
    grad_name="FusedRmsNorm", oracle="nn.functional.rms_norm",
)  # fmt: skip
def rms_norm(input: Array, normalized_shape: Ints, weight: Array | None = None, eps: Scalar = None) -> Array:
    """Divide by the root mean square over the trailing axes: `x / √(mean(x²) + eps) · weight`.

    `eps=None` means the element type's machine epsilon. Zhang and Sennrich 2019, eq. 4.
    """
    axes = _check_shape("rms_norm", input, normalized_shape, weight, None)
    x = wide(input)
    small = jnp.finfo(x.dtype).eps if eps is None else eps
    y = x * lax.rsqrt(jnp.mean(x * x, axis=axes, keepdims=True) + jnp.asarray(small, x.dtype))
    return _affine(y, weight, None, normalized_shape, input.dtype)


@rms_norm.computed
def _(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    x = wide(input)
    small = jnp.finfo(x.dtype).eps if eps is None else eps
    rstd = lax.rsqrt(jnp.mean(x * x, axis=tuple(range(x.ndim - len(normalized_shape), x.ndim)), keepdims=True) + jnp.asarray(small, x.dtype))
    return rstd, rstd, x, x * rstd  # what torch's chain of operations saves one by one


@rms_norm.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), (4,), make(4)
    yield sample(make(2, 3, 4), (3, 4), eps=0.1)


@op(
    "torch nn.functional", saves="input weight result1 result2", computes="result1 result2", grad_name="NativeGroupNorm",
    oracle="nn.functional.group_norm",
)  # fmt: skip
def group_norm(
    input: Array, num_groups: int, weight: Array | None = None, bias: Array | None = None, eps: Scalar = 1e-5
) -> Array:
    """Standardise each sample over groups of channels and all positions; `input` is (N, C, *), weight and bias (C,).

    Raises RuntimeError if C is not a multiple of `num_groups`. Wu and He 2018.
    """
    if input.ndim < 2:
        raise refuse(RuntimeError, "group_norm", f"Expected at least 2 dimensions for input tensor but received {input.ndim}")
    n, c = input.shape[:2]
    if num_groups < 1 or c % num_groups:
        raise refuse(
            RuntimeError,
            "group_norm",
            f"Expected number of channels in input to be divisible by num_groups, but got input of shape {list(input.shape)} and "
            f"num_groups={num_groups}",
        )
    x = wide(input).reshape(n, num_groups, -1)
    y, _, _ = _standardise(x, 2, eps)
    return _affine(y.reshape(input.shape), weight, bias, (c,) + (1,) * (input.ndim - 2), input.dtype)


@group_norm.computed
def _(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    n = input.shape[0]
    return tuple(v.reshape(n, num_groups) for v in _statistics(input.reshape(n, num_groups, -1), 2, eps))


@group_norm.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 4, 3), 2, make(4), make(4)
    yield sample(make(2, 6, 2, 2), 3, eps=0.1)
    yield make(3, 4), 1


@group_norm.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(RuntimeError, "divisible by num_groups", make(3, 4), 3)


def _channels(x: jax.Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes a per-channel statistic of (N, C, *) reduces, and the shape that broadcasts it back."""
    return (0, *range(2, x.ndim)), (1, x.shape[1]) + (1,) * (x.ndim - 2)


@op(
    "", saves="input weight result1 result2", computes="result1 result2", returns="output mean var", grad_name="NativeBatchNorm", oracle=None
)  # fmt: skip
def batch_standardise(input: Array, weight: Array | None = None, bias: Array | None = None, eps: Scalar = 1e-5) -> Array:
    """Standardise each channel of (N, C, *) by its own batch statistics; also give the mean and unbiased variance, (C,)."""
    axes, shape = _channels(input)
    y, mean, var = _standardise(wide(input), axes, eps)
    n = input.size // max(input.shape[1], 1)
    unbiased = var.reshape(-1) * (n / max(n - 1, 1))
    return _affine(y, weight, bias, shape, input.dtype), mean.reshape(-1), unbiased


@batch_standardise.computed
def _(input: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    return tuple(v.reshape(-1) for v in _statistics(input, _channels(input)[0], eps))


@batch_standardise.samples
def _(make: Make) -> Iterator[Any]:
    yield make(4, 3), make(3), make(3)
    yield sample(make(2, 3, 2, 2), eps=0.1)


@op(
    "", saves="input running_mean running_var weight result1 result2", computes="result1 result2", grad_name="NativeBatchNorm", oracle=None
)  # fmt: skip
def batch_rescale(
    input: Array,
    running_mean: Array,
    running_var: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: Scalar = 1e-5,
) -> Array:
    """Normalise each channel of (N, C, *) by given statistics."""
    _, shape = _channels(input)
    x = wide(input)
    mean, var = (v.astype(x.dtype).reshape(shape) for v in (running_mean, running_var))
    return _affine((x - mean) * lax.rsqrt(var + jnp.asarray(eps, x.dtype)), weight, bias, shape, input.dtype)


@batch_rescale.computed
def _(input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    nothing = jnp.zeros((0,), running_mean.dtype)  # torch keeps the batch's statistics here, and there are none
    return nothing, nothing


@batch_rescale.samples
def _(make: Make) -> Iterator[Any]:
    yield make(4, 3), make(3), make(3, low=0.5), make(3), make(3)
    yield sample(make(2, 3, 2), make(3), make(3, low=0.5), eps=0.1)


def _update(running: Any, value: Any, momentum: Any) -> None:
    """running ← (1 - momentum)·running + momentum·value, in place."""
    if running is None:
        return
    if isinstance(momentum, float | int):
        running.mul_(1.0 - momentum).add_(value.detach(), alpha=momentum)
    else:  # a tensor: the cumulative average's 1 / n, whose value need not be known yet
        running.mul_(1.0 - momentum).add_(value.detach() * momentum)


@composite("nn.functional")
def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalise each channel of (N, C, *): by batch statistics when `training`, else by the running ones.

    In training the biased variance normalises, and the running mean and *unbiased* variance move by `momentum`,
    in place and outside the graph. Raises ValueError in training for a single value a channel.
    Ioffe and Szegedy 2015, algorithm 1.
    """
    if not training:
        if running_mean is None or running_var is None:
            raise refuse(RuntimeError, "batch_norm", "Expected running_mean and running_var to be defined when training=False")
        return batch_rescale(input, running_mean, running_var, weight, bias, eps=eps)
    shape = tuple(input.shape)
    if math.prod(shape) // max(shape[1], 1) == 1:
        raise refuse(
            ValueError, "batch_norm", f"Expected more than 1 value per channel when training, got input size {list(shape)}"
        )
    out, mean, var = batch_standardise(input, weight, bias, eps=eps)
    _update(running_mean, mean, momentum)
    _update(running_var, var, momentum)
    return out


@op("", saves="input weight", returns="output mean var", grad_name="NativeBatchNorm", oracle=None)
def instance_standardise(input: Array, weight: Array | None = None, bias: Array | None = None, eps: Scalar = 1e-5) -> Array:
    """Standardise each channel of each sample of (N, C, *); also give the batch average of mean and unbiased variance, (C,)."""
    y, mean, var = _standardise(wide(input), tuple(range(2, input.ndim)), eps)
    n = int(np.prod(input.shape[2:]))
    shape = (input.shape[1],) + (1,) * (input.ndim - 2)
    mean, var = (jnp.mean(v, axis=0).reshape(-1) for v in (mean, var))
    return _affine(y, weight, bias, shape, input.dtype), mean, var * (n / max(n - 1, 1))


@instance_standardise.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 3, 4), make(3), make(3)
    yield sample(make(2, 2, 2, 3), eps=0.1)


@composite("nn.functional")
def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalise each channel of each sample of (N, C, *) by its own statistics, or by the running ones.

    Raises ValueError where a channel of a sample has a single value. Ulyanov, Vedaldi and Lempitsky 2016.
    """
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise refuse(
                RuntimeError, "instance_norm", "Expected running_mean and running_var to be defined when use_input_stats=False"
            )
        return batch_rescale(input, running_mean, running_var, weight, bias, eps=eps)
    shape = tuple(input.shape)
    if math.prod(shape[2:]) == 1:
        raise refuse(
            ValueError, "instance_norm", f"Expected more than 1 spatial element when training, got input size {list(shape)}"
        )
    out, mean, var = instance_standardise(input, weight, bias, eps=eps)
    _update(running_mean, mean, momentum)
    _update(running_var, var, momentum)
    return out


@op("nn.functional", saves="input", oracle="nn.functional.local_response_norm")
def local_response_norm(input: Array, size: int, alpha: Scalar = 1e-4, beta: Scalar = 0.75, k: Scalar = 1.0) -> Array:
    """Divide by the activity of `size` neighbouring channels: `x / (k + alpha · mean(x²))^beta`; `input` is (N, C, *).

    The mean counts the zeros beyond the first and last channel. Krizhevsky, Sutskever and Hinton 2012, section 3.3.
    """
    if input.ndim < 3:
        raise refuse(
            ValueError, "local_response_norm", f"Expected 3D or higher dimensionality input (got {input.ndim} dimensions)"
        )
    window = (1, size) + (1,) * (input.ndim - 2)
    pads = [(0, 0), (size // 2, (size - 1) // 2)] + [(0, 0)] * (input.ndim - 2)
    total = lax.reduce_window(input * input, np.zeros((), input.dtype), lax.add, window, (1,) * input.ndim, pads)
    a, b, c = (jnp.asarray(v, input.dtype) for v in (alpha, beta, k))
    return input / (c + a / size * total) ** b


@local_response_norm.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 5, 3), 3
    yield sample(make(1, 4, 2, 2), 2, alpha=0.5, beta=0.5, k=2.0)
