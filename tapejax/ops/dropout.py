"""Dropout: random masks drawn from a key operand, so that replays and backward see the mask of the forward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.errors import refuse
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, Scalar, Seed, composite, op

# The value that SELU saturates at (-scale · alpha); alpha dropout sets dropped elements to it.
_SATURATION = -1.7580993408473766


def _kept(shape: tuple[int, ...], p: Any, seed: Any) -> jax.Array:
    return jax.random.uniform(seed, shape, jnp.float32) >= jnp.asarray(p, jnp.float32)


def _mask_shape(x: jax.Array, features: bool) -> tuple[int, ...]:
    return x.shape[:2] + (1,) * (x.ndim - 2) if features else x.shape


def _scale(x: jax.Array, p: Any) -> jax.Array:
    keep = 1 - jnp.asarray(p, x.dtype)
    return jnp.where(keep > 0, 1 / jnp.where(keep > 0, keep, 1), 0)


@op("", saves="other", computes="other", oracle=None, grad_name="NativeDropout")
def dropped(input: Array, p: Scalar, features: bool, seed: Seed) -> Array:
    """Zero elements (or whole channels of (N, C, *)) with probability `p` and scale the rest by 1 / (1 - p)."""
    return jnp.where(_kept(_mask_shape(input, features), p, seed), input * _scale(input, p), 0)


@dropped.computed
def _(input: Any, p: Any, features: bool, seed: Any) -> Any:
    return (jnp.where(_kept(_mask_shape(input, features), p, seed), _scale(input, p), 0),)


@dropped.samples
def _(make: Make) -> Iterator[Any]:
    yield make(4, 5), 0.5, False
    yield make(2, 3, 2), 0.3, True


def _alpha_scale(q: jax.Array) -> jax.Array:
    return jnp.where(q > 0, jax.lax.rsqrt(jnp.where(q > 0, q * (1 + (1 - q) * _SATURATION**2), 1)), 0)


@op("", saves="other", computes="other", oracle=None, grad_name="AlphaDropout")
def alpha_dropped(input: Array, p: Scalar, features: bool, seed: Seed) -> Array:
    """Set elements to SELU's saturation value with probability `p`, then restore zero mean and unit variance."""
    q = 1 - jnp.asarray(p, input.dtype)
    a = _alpha_scale(q)
    b = -a * (1 - q) * _SATURATION
    kept = _kept(_mask_shape(input, features), p, seed)
    return jnp.where(kept, input * a, jnp.asarray(_SATURATION, input.dtype) * a) + b


@alpha_dropped.computed
def _(input: Any, p: Any, features: bool, seed: Any) -> Any:
    return (jnp.where(_kept(_mask_shape(input, features), p, seed), _alpha_scale(1 - jnp.asarray(p, input.dtype)), 0),)


@alpha_dropped.samples
def _(make: Make) -> Iterator[Any]:
    yield make(4, 5), 0.5, False
    yield make(2, 3, 2), 0.3, True


def _apply(name: str, drop: Any, input: Any, p: float, training: bool, inplace: bool, features: bool) -> Any:
    if p < 0.0 or p > 1.0:
        raise refuse(ValueError, name, f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    out = drop(input, float(p), features)
    return input.copy_(out) if inplace else out


@composite("torch nn.functional")
def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Zero each element with probability `p`, independently, and scale the rest by 1 / (1 - p) when `training`.

    Otherwise, and for p = 0, `input` itself. The gradient passes through the same mask. Raises ValueError unless
    0 ≤ p ≤ 1. Srivastava et al. 2014.

    >>> import tapejax as tj
    >>> tj.nn.functional.dropout(tj.ones(2), 0.5, training=False).tolist()
    [1.0, 1.0]
    """
    return _apply("dropout", dropped, input, p, training, inplace, False)


@composite("torch nn.functional")
def feature_dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Zero whole channels of (N, C, *) with probability `p` and scale the rest by 1 / (1 - p)."""
    return _apply("feature_dropout", dropped, input, p, training, inplace, True)


def _channels(name: str, input: Any, p: float, training: bool, inplace: bool, spatial: int) -> Any:
    if input.dim() == spatial + 1:  # (C, *spatial): one sample
        out = _apply(name, dropped, input.unsqueeze(0), p, training, False, True).squeeze(0)
        return input.copy_(out) if inplace else out
    return _apply(name, dropped, input, p, training, inplace, True)


@composite("nn.functional")
def dropout1d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Zero whole channels of (N, C, L) or (C, L). See `dropout`. Raises RuntimeError for other ranks."""
    if input.dim() not in (2, 3):
        raise refuse(RuntimeError, "dropout1d", f"Expected 2D or 3D input, but received a {input.dim()}D input")
    return _channels("dropout1d", input, p, training, inplace, 1)


@composite("nn.functional")
def dropout2d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Zero whole channels of (N, C, H, W). See `dropout`."""
    return _apply("dropout2d", dropped, input, p, training, inplace, True)


@composite("nn.functional")
def dropout3d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Zero whole channels of (N, C, D, H, W) or (C, D, H, W). See `dropout`."""
    return _channels("dropout3d", input, p, training, inplace, 3)


@composite("torch nn.functional")
def alpha_dropout(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
    """Drop elements to SELU's saturation value, keeping mean and variance. Klambauer et al. 2017, section 3."""
    return _apply("alpha_dropout", alpha_dropped, input, p, training, inplace, False)


@composite("torch nn.functional")
def feature_alpha_dropout(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
    """Drop whole channels of (N, C, *) to SELU's saturation value, keeping mean and variance."""
    return _apply("feature_alpha_dropout", alpha_dropped, input, p, training, inplace, True)
