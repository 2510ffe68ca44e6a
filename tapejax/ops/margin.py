"""Margin and ranking losses. At a hinge's corner the gradient is torch's (0, except where noted)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.errors import refuse
from tapejax.ops.loss import fitting, legacy, picked, reduced, same_size
from tapejax.ops.norm import p_norm
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, Scalar, composite, op, sample


def _hinge(x: jax.Array, at_corner: float = 1.0) -> jax.Array:
    """max(x, 0), whose slope at 0 is `at_corner` (1: clamp_min's, 0: relu's)."""
    still = lax.stop_gradient(x)
    return jnp.where(still >= 0 if at_corner else still > 0, x, 0)


@op("", saves="computed target", oracle="nn.functional.hinge_embedding_loss", name="hinge_embedding_loss")
def hinge_embedding(input: Array, target: Array, margin: Scalar = 1.0, reduction: str = "mean") -> Array:
    """Take `input` where target is 1 and `max(0, margin - input)` where it is -1; shapes broadcast."""
    fitting("hinge_embedding_loss", input, target)
    far = _hinge(jnp.asarray(margin, input.dtype) - input)
    loss = jnp.where(target != -1, input, 0) + jnp.where(target != 1, far, 0)
    return reduced("hinge_embedding_loss", loss, reduction)


def _signs(make: Any, *shape: int) -> np.ndarray:
    return np.where(make.bools(*shape), 1, -1)


@hinge_embedding.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 2), _signs(make, 3, 2)
    yield sample(make(4), _signs(make, 4), margin=0.5, reduction="sum")


@op("", saves="computed target", oracle="nn.functional.margin_ranking_loss", name="margin_ranking_loss")
def margin_ranking(input1: Array, input2: Array, target: Array, margin: Scalar = 0.0, reduction: str = "mean") -> Array:
    """Take `max(0, -target · (input1 - input2) + margin)`: target 1 wants input1 the larger, -1 input2."""
    fitting("margin_ranking_loss", input1, input2)
    if input1.ndim != input2.ndim or input1.ndim != target.ndim:
        raise refuse(
            RuntimeError,
            "margin_ranking_loss",
            f"All input tensors should have same dimension but got sizes: input1: {list(input1.shape)}, input2: "
            f"{list(input2.shape)}, target: {list(target.shape)}",
        )
    gap = -target.astype(input1.dtype) * (input1 - input2) + jnp.asarray(margin, input1.dtype)
    return reduced("margin_ranking_loss", _hinge(gap), reduction)


@margin_ranking.samples
def _(make: Make) -> Iterator[Any]:
    yield make(4), make(4), _signs(make, 4)
    yield sample(make(2, 3), make(2, 3), _signs(make, 2, 3), margin=0.7, reduction="sum")


@op("", saves="input1 input2 target", oracle="nn.functional.cosine_embedding_loss", name="cosine_embedding_loss")
def cosine_embedding(input1: Array, input2: Array, target: Array, margin: Scalar = 0.0, reduction: str = "mean") -> Array:
    """Take `1 - cos` where target is 1 and `max(0, cos - margin)` where it is -1; cos along the last axis.

    `input1` and `input2` are (N, D) with target (N), or (D) with target (). The cosine uses `√((‖x‖² + ε)(‖y‖² + ε))`
    with ε = 1e-12.
    """
    if target.ndim not in (0, 1) or input1.ndim != target.ndim + 1 or input2.ndim != input1.ndim:
        raise refuse(
            RuntimeError,
            "cosine_embedding_loss",
            f"{target.ndim}D target tensor expects {target.ndim + 1}D input tensors, but found inputs with sizes "
            f"{list(input1.shape)} and {list(input2.shape)}",
        )
    eps = 1e-12
    square = (jnp.sum(input1 * input1, -1) + eps) * (jnp.sum(input2 * input2, -1) + eps)
    cos = jnp.sum(input1 * input2, -1) / jnp.sqrt(square)
    far = _hinge(cos - jnp.asarray(margin, cos.dtype))
    loss = jnp.where(target == 1, 1 - cos, 0) + jnp.where(target == -1, far, 0)
    return reduced("cosine_embedding_loss", loss, reduction)


@cosine_embedding.samples
def _(make: Make) -> Iterator[Any]:
    yield make(4, 3), make(4, 3), np.array([1, -1, 1, -1])
    yield sample(make(3, 2), make(3, 2), np.array([1, -1, -1]), margin=0.3, reduction="none")


@op(
    "", promote="common", saves="computed", oracle="nn.functional.triplet_margin_loss", name="triplet_margin_loss"
)
def triplet_margin(
    anchor: Array,
    positive: Array,
    negative: Array,
    margin: Scalar = 1.0,
    p: float = 2.0,
    eps: Scalar = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Array:
    """Take `max(0, d(a, p) - d(a, n) + margin)` with `d(x, y) = ‖x - y + eps‖_p` along the last axis.

    `swap` uses min(d(a, n), d(p, n)) for the negative. Balntas et al. 2016.
    """
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise refuse(
            RuntimeError,
            "triplet_margin_loss",
            f"The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: "
            f"anchor {anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs",
        )
    e = jnp.asarray(eps, anchor.dtype)

    def d(x: jax.Array, y: jax.Array) -> jax.Array:
        return p_norm(x - y + e, p, (x.ndim - 1,), False)

    near, far = d(anchor, positive), d(anchor, negative)
    if swap:
        far = jnp.minimum(far, d(positive, negative))
    return reduced("triplet_margin_loss", _hinge(jnp.asarray(margin, near.dtype) + near - far), reduction)


@triplet_margin.samples
def _(make: Make) -> Iterator[Any]:
    yield make(4, 3), make(4, 3), make(4, 3)
    yield sample(make(2, 3), make(2, 3), make(2, 3), margin=2.0, p=1.0, swap=True, reduction="none")


@op("", promote="common", saves="input target", oracle="nn.functional.soft_margin_loss", name="soft_margin_loss")
def soft_margin(input: Array, target: Array, reduction: str = "mean") -> Array:
    """Take `log(1 + exp(-target · input))` for targets 1 and -1, without overflow."""
    fitting("soft_margin_loss", input, target)
    return reduced("soft_margin_loss", jax.nn.softplus(-target * input), reduction)


@soft_margin.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 2), _signs(make, 3, 2)
    yield sample(make(4), _signs(make, 4), reduction="sum")


@op("", saves="input target weight", oracle="nn.functional.multi_margin_loss", name="multi_margin_loss")
def multi_margin(
    input: Array, target: Array, p: int = 1, margin: Scalar = 1.0, weight: Array | None = None, reduction: str = "mean"
) -> Array:
    """Take `Σ_{j≠y} max(0, margin - x[y] + x[j])^p / C` for scores (N, C) or (C) and classes (N) or (); p is 1 or 2."""
    if p not in (1, 2):
        raise refuse(ValueError, "multi_margin_loss", f"only p == 1 and p == 2 supported, but got p={p}")
    if input.ndim not in (1, 2) or (input.ndim == 2 and target.shape != input.shape[:1]):
        raise refuse(
            RuntimeError,
            "multi_margin_loss",
            f"inconsistent target size, expected {list(input.shape[:1])} but got {list(target.shape)}",
        )
    scores, y = (input, target) if input.ndim == 2 else (input[None], target.reshape(1))
    own = picked("multi_margin_loss", scores, y, 1)
    gap = _hinge(jnp.asarray(margin, scores.dtype) - own[:, None] + scores, at_corner=0) ** p
    if weight is not None:
        gap = gap * jnp.take(lax.stop_gradient(weight), y, mode="clip")[:, None].astype(gap.dtype)
    others = jnp.arange(scores.shape[1]) != y[:, None]
    loss = jnp.sum(jnp.where(others, gap, 0), axis=1) / scores.shape[1]
    return reduced("multi_margin_loss", loss if input.ndim == 2 else loss[0], reduction)


@multi_margin.samples
def _(make: Make) -> Iterator[Any]:
    yield make(4, 3), make.ints(4)
    yield sample(make(2, 4), make.ints(2, high=4), p=2, margin=0.6, reduction="none")
    yield make(3), make.ints()


@op("", saves="input target", oracle="nn.functional.multilabel_margin_loss", name="multilabel_margin_loss")
def multilabel_margin(input: Array, target: Array, reduction: str = "mean") -> Array:
    """Take `Σ_y Σ_{j not a target} max(0, 1 - x[y] + x[j]) / C`; `target` lists classes, ended by the first -1.

    `input` and `target` are (N, C) or (C).
    """
    same_size("multilabel_margin_loss", input, target, RuntimeError)
    scores, y = (input, target) if input.ndim == 2 else (input.reshape(1, -1), target.reshape(1, -1))
    classes = scores.shape[1]
    listed = jnp.cumsum(y < 0, axis=1) == 0
    at = jnp.where(listed, y, 0)
    wanted = ((at[..., None] == jnp.arange(classes)) & listed[..., None]).any(axis=1)
    own = jnp.take_along_axis(scores, at, axis=1)
    gap = _hinge(1 - own[:, :, None] + scores[:, None, :], at_corner=0)
    counted = listed[:, :, None] & ~wanted[:, None, :]
    loss = jnp.sum(jnp.where(counted, gap, 0), axis=(1, 2)) / classes
    return reduced("multilabel_margin_loss", loss if input.ndim == 2 else loss[0], reduction)


@multilabel_margin.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 4), np.array([[3, 0, -1, 1], [2, -1, -1, -1]])
    yield sample(make(3), np.array([1, 2, -1]), reduction="sum")


@op("", saves="input target weight", oracle="nn.functional.multilabel_soft_margin_loss", name="multilabel_soft_margin_loss")
def multilabel_soft_margin(input: Array, target: Array, weight: Array | None = None, reduction: str = "mean") -> Array:
    """Take the mean over the last axis of `-(t log σ(x) + (1 - t) log σ(-x)) · weight`."""
    t = target.astype(input.dtype)
    loss = t * jax.nn.softplus(-input) + (1 - t) * jax.nn.softplus(input)
    if weight is not None:
        loss = loss * weight.astype(loss.dtype)
    return reduced("multilabel_soft_margin_loss", jnp.mean(loss, axis=-1), reduction)


@multilabel_soft_margin.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 3), make.bools(2, 3).astype(float)
    yield sample(make(2, 3), make.bools(2, 3).astype(float), make(3, low=0.5), reduction="none")


@composite("nn.functional")
def hinge_embedding_loss(
    input: Any,
    target: Any,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Take `input` where the target is 1 and `max(0, margin - input)` where it is -1."""
    return hinge_embedding(input, target, reduction=legacy(size_average, reduce, reduction), margin=margin)


@composite("nn.functional")
def margin_ranking_loss(
    input1: Any,
    input2: Any,
    target: Any,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Take `max(0, -target · (input1 - input2) + margin)` for targets 1 and -1."""
    return margin_ranking(input1, input2, target, reduction=legacy(size_average, reduce, reduction), margin=margin)


@composite("nn.functional")
def cosine_embedding_loss(
    input1: Any,
    input2: Any,
    target: Any,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Take `1 - cos(input1, input2)` where the target is 1 and `max(0, cos - margin)` where it is -1."""
    return cosine_embedding(input1, input2, target, reduction=legacy(size_average, reduce, reduction), margin=margin)


@composite("nn.functional")
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Take `max(0, d(anchor, positive) - d(anchor, negative) + margin)` with p-norm distances.

    Raises ValueError unless `margin` > 0.
    """
    if margin <= 0:
        raise refuse(ValueError, "triplet_margin_loss", f"margin must be greater than 0, got {margin}")
    reduction = legacy(size_average, reduce, reduction)
    return triplet_margin(anchor, positive, negative, p=float(p), swap=swap, reduction=reduction, margin=margin, eps=eps)


@composite("nn.functional")
def soft_margin_loss(
    input: Any, target: Any, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Any:
    """Take `log(1 + exp(-target · input))` for targets 1 and -1."""
    return soft_margin(input, target, legacy(size_average, reduce, reduction))


@composite("nn.functional")
def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Take the multi-class hinge loss `Σ_{j≠y} max(0, margin - x[y] + x[j])^p / C` of scores (N, C)."""
    reduction = legacy(size_average, reduce, reduction)
    return multi_margin(input, target, p, weight=weight, reduction=reduction, margin=margin)


@composite("nn.functional")
def multilabel_margin_loss(
    input: Any, target: Any, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> Any:
    """Take the multi-label hinge loss; `target` lists the classes of each row, ended by -1."""
    return multilabel_margin(input, target, legacy(size_average, reduce, reduction))


@composite("nn.functional")
def multilabel_soft_margin_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Take the mean over classes of the binary cross entropy of logits (N, C) with targets 0 and 1."""
    return multilabel_soft_margin(input, target, weight, legacy(size_average, reduce, reduction))


@composite("nn.functional")
def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Any = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """Take `max(0, d(anchor, positive) - d(anchor, negative) + margin)` with a distance of your own."""
    if distance_function is None:
        return triplet_margin_loss(anchor, positive, negative, margin=margin, swap=swap, reduction=reduction)
    if margin <= 0:
        raise refuse(ValueError, "triplet_margin_with_distance_loss", f"margin must be greater than 0, got {margin}")
    near, far = distance_function(anchor, positive), distance_function(anchor, negative)
    if swap:
        far = far.minimum(distance_function(positive, negative))
    loss = (near - far + margin).clamp_min(0)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
