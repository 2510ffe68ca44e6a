"""Losses: what training minimises. Each reduces with `reduction`: "none", "mean" or "sum".

The legacy arguments `size_average` and `reduce` are understood by the composites that torch gives them to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.errors import refuse
from tapejax.ops.norm import magnitude
from tapejax.ops.samples import Make
from tapejax.ops.window import wide
from tapejax.tape.op import Array, Scalar, composite, error_sample, op, sample


def reduced(name: str, loss: jax.Array, reduction: str) -> jax.Array:
    """`loss` as it is, its mean or its sum."""
    if reduction == "mean":
        return jnp.mean(loss)
    if reduction == "sum":
        return jnp.sum(loss)
    if reduction == "none":
        return loss
    raise refuse(ValueError, name, f"{reduction} is not a valid value for reduction → none, mean or sum")


def same_size(name: str, input: jax.Array, target: jax.Array, kind: type[Exception] = ValueError) -> None:
    if input.shape != target.shape:
        raise refuse(
            kind,
            name,
            f"Using a target size ({list(target.shape)}) that is different to the input size ({list(input.shape)}) is not allowed",
        )


def fitting(name: str, a: jax.Array, b: jax.Array) -> None:
    try:
        jnp.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise refuse(
            RuntimeError,
            name,
            f"The size of tensor a {list(a.shape)} must match the size of tensor b {list(b.shape)} (or be 1) at every axis",
        ) from None


def picked(name: str, table: jax.Array, target: jax.Array, axis: int) -> jax.Array:
    """The entry of `table` along `axis` that `target` names (without that axis); NaN where it is out of range."""
    if not jnp.issubdtype(target.dtype, jnp.integer):
        raise refuse(RuntimeError, name, f"expected scalar type Long but found {target.dtype} → call target.long()")
    at = jnp.expand_dims(jnp.where(target < 0, table.shape[axis], target), axis)
    return jnp.squeeze(jnp.take_along_axis(table, at, axis=axis, mode="fill", fill_value=jnp.nan), axis)


def _class_axis(name: str, input: jax.Array, target: jax.Array) -> int:
    if input.ndim < 1:
        raise refuse(RuntimeError, name, "input must have at least one axis of classes, but got shape ()")
    axis = 0 if input.ndim == 1 else 1
    wanted = input.shape[:axis] + input.shape[axis + 1 :]
    if target.shape != wanted:
        if input.ndim > 1 and target.ndim and target.shape[0] != input.shape[0]:
            raise refuse(
                ValueError,
                name,
                f"Expected input batch_size ({input.shape[0]}) to match target batch_size ({target.shape[0]}).",
            )
        kind = ValueError if input.ndim <= 2 else RuntimeError
        raise refuse(
            kind,
            name,
            f"Expected target size {list(wanted)}, got {list(target.shape)}: for an input of shape {list(input.shape)} the "
            "classes are on axis 1 and the target has the other axes",
        )
    return axis


def _weighted_nll(
    name: str, logp: jax.Array, target: jax.Array, weight: Any, ignore_index: int, reduction: str, smoothing: Any = None
) -> jax.Array:
    axis = _class_axis(name, logp, target)
    classes = logp.shape[axis]
    if weight is not None and weight.shape != (classes,):
        raise refuse(
            RuntimeError,
            name,
            f"weight tensor should be defined either for all {classes} classes or no classes but got weight of shape "
            f"{list(weight.shape)}",
        )
    counted = target != ignore_index
    safe = jnp.where(counted, target, 0)
    share = counted.astype(logp.dtype)
    if weight is not None:
        weight = lax.stop_gradient(weight).astype(logp.dtype)
        share = jnp.where(counted, jnp.take(weight, safe, mode="clip"), 0)
    # A row that is not counted is selected away, not multiplied by 0: its gradient is 0 even where the mean is 0 / 0.
    loss = jnp.where(counted, -picked(name, logp, safe, axis) * share, 0)
    if smoothing is not None:
        shape = [-1 if a == axis else 1 for a in range(logp.ndim)]
        every = logp if weight is None else logp * weight.reshape(shape)
        spread = jnp.where(counted, -jnp.sum(every, axis=axis), 0)
        eps = jnp.asarray(smoothing, logp.dtype)
        if reduction == "mean":
            return (1 - eps) * (jnp.sum(loss) / jnp.sum(share)) + eps / classes * (jnp.sum(spread) / jnp.sum(share))
        loss = (1 - eps) * loss + eps / classes * spread
    if reduction == "mean":
        return jnp.sum(loss) / jnp.sum(share)
    return reduced(name, loss, reduction)


def _total_weight(target: jax.Array, weight: Any, ignore_index: int, reduction: str, dtype: Any) -> jax.Array:
    """The weights of the targets that count, summed; 0 where nothing is reduced."""
    if reduction == "none":
        return jnp.zeros((), dtype)
    counted = target != ignore_index
    share = 1 if weight is None else jnp.take(weight, jnp.where(counted, target, 0), mode="clip")
    return jnp.sum(jnp.where(counted, share, 0)).astype(dtype)


@op("", saves="input target weight total_weight", computes="total_weight", oracle="nn.functional.nll_loss", name="nll_loss")
def negative_log_likelihood(
    input: Array, target: Array, weight: Array | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Array:
    """Take minus the log-probability of the target class: `-weight[t] · input[n, t]`.

    `input` holds log-probabilities, (C), (N, C) or (N, C, d₁, …); `target` class indices without the C axis.
    Targets equal to `ignore_index` count for nothing and get gradient 0; "mean" divides by the sum of the weights of
    the targets that count (NaN if there are none). A class out of range gives NaN.
    """
    return _weighted_nll("nll_loss", input, target, weight, ignore_index, reduction)


@negative_log_likelihood.computed
def _(input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> Any:
    return (_total_weight(target, weight, ignore_index, reduction, input.dtype),)


@negative_log_likelihood.samples
def _(make: Make) -> Iterator[Any]:
    yield make(4, 3), make.ints(4, high=3)
    yield sample(make(4, 3), make.ints(4, high=3), ignore_index=1)
    yield sample(make(2, 3, 2), make.ints(2, 2, high=3), reduction="none")
    yield make(3), make.ints(high=3)


@op(
    "", saves="log_softmax self target weight total_weight", computes="log_softmax self total_weight", oracle="nn.functional.cross_entropy",
    name="cross_entropy_of_classes", grad_name="NllLoss",
)  # fmt: skip
def cross_entropy_of_classes(
    input: Array,
    target: Array,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: Scalar = 0.0,
) -> Array:
    """Take the cross entropy of logits and class indices. See `cross_entropy`."""
    axis = 0 if input.ndim <= 1 else 1
    if not jnp.issubdtype(input.dtype, jnp.floating):
        raise refuse(
            RuntimeError, "cross_entropy", f'"log_softmax" not implemented for {input.dtype} → pass floating-point logits'
        )
    logp = jax.nn.log_softmax(wide(input), axis=axis) if input.ndim else input
    smoothing = None if isinstance(label_smoothing, float) and label_smoothing == 0.0 else label_smoothing
    return _weighted_nll("cross_entropy", logp, target, weight, ignore_index, reduction, smoothing).astype(input.dtype)


@cross_entropy_of_classes.computed
def _(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: Any = 0.0
) -> Any:
    logp = jax.nn.log_softmax(wide(input), axis=0 if input.ndim <= 1 else 1).astype(input.dtype)
    return logp, logp, _total_weight(target, weight, ignore_index, reduction, input.dtype)


@cross_entropy_of_classes.samples
def _(make: Make) -> Iterator[Any]:
    yield make(4, 3), make.ints(4, high=3)
    yield sample(make(4, 3), make.ints(4, high=3), ignore_index=1, reduction="sum")
    yield sample(make(2, 3, 2), make.ints(2, 2, high=3), label_smoothing=0.2)
    yield sample(make(2, 3, 2), make.ints(2, 2, high=3), label_smoothing=0.2, reduction="none", ignore_index=2)
    yield make(3), make.ints(high=3)


@cross_entropy_of_classes.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(ValueError, "to match target batch_size", make(4, 3), make.ints(3))


@op("", saves={"input": "computed target", "target": "computed"}, oracle="nn.functional.cross_entropy", name="cross_entropy_of_probabilities", grad_name="Div")
def cross_entropy_of_probabilities(
    input: Array,
    target: Array,
    weight: Array | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: Scalar = 0.0,
) -> Array:
    """Take the cross entropy of logits and class probabilities. See `cross_entropy`."""
    if ignore_index >= 0:
        raise refuse(RuntimeError, "cross_entropy", "ignore_index is not supported for floating point target")
    axis = 0 if input.ndim == 1 else 1
    classes = input.shape[axis]
    logp = jax.nn.log_softmax(wide(input), axis=axis)
    wanted = target.astype(logp.dtype)
    eps = jnp.asarray(label_smoothing, logp.dtype)
    wanted = wanted * (1 - eps) + eps / classes
    if weight is not None:
        if weight.shape != (classes,):
            raise refuse(
                RuntimeError,
                "cross_entropy",
                f"weight tensor should be defined either for all {classes} classes or no classes but got weight of shape "
                f"{list(weight.shape)}",
            )
        wanted = wanted * weight.astype(logp.dtype).reshape([-1 if a == axis else 1 for a in range(input.ndim)])
    loss = -jnp.sum(logp * wanted, axis=axis)
    return reduced("cross_entropy", loss, reduction).astype(input.dtype)


@cross_entropy_of_probabilities.samples
def _(make: Make) -> Iterator[Any]:
    yield make(4, 3), make(4, 3, low=0.1, high=0.9)
    yield sample(make(2, 3, 2), make(2, 3, 2, low=0.1), label_smoothing=0.2, reduction="sum")
    yield sample(make(3), make(3, low=0.1))


def legacy(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """What the deprecated pair of flags means."""
    if size_average is None and reduce is None:
        return reduction
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


@composite("nn.functional")
def nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Take minus the log-probability `input` (N, C, …) of each target class (N, …), weighted by class.

    Targets equal to `ignore_index` count for nothing; "mean" divides by the weights that count.
    """
    return negative_log_likelihood(input, target, weight, ignore_index, legacy(size_average, reduce, reduction))


@composite("nn.functional")
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Take the cross entropy of logits: `-log softmax(input)[target]`, averaged over the targets that count.

    `input` is (C), (N, C) or (N, C, d₁, …). `target` is class indices (integers, without the C axis), where
    `ignore_index` counts for nothing and gets gradient 0, or probabilities (floats, input's shape; "mean" divides by
    N·d₁·…). `label_smoothing` mixes the target with the uniform distribution. `weight` is (C,). "mean" over nothing
    is NaN, with gradient 0. Raises ValueError for other shapes or smoothing outside [0, 1].

    >>> import tapejax as tj
    >>> loss = tj.nn.functional.cross_entropy(tj.zeros(1, 2), tj.tensor([1]))
    >>> round(loss.item(), 4)
    0.6931
    """
    reduction = legacy(size_average, reduce, reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise refuse(RuntimeError, "cross_entropy", f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    given = {"label_smoothing": label_smoothing} if label_smoothing else {}
    if tuple(input.shape) == tuple(target.shape):
        if not target.is_floating_point():
            raise refuse(
                RuntimeError,
                "cross_entropy",
                f"Expected floating point type for target with class probabilities, got {target.dtype}",
            )
        return cross_entropy_of_probabilities(input, target, weight, ignore_index, reduction, **given)
    return cross_entropy_of_classes(input, target, weight, ignore_index, reduction, **given)


def _pairs(make, target=None, **more):
    """Three reductions of a pairwise loss, away from ties."""
    yield sample(make(3, 2), make(3, 2) if target is None else target(3, 2), **more)
    yield sample(make(4), make(4) if target is None else target(4), reduction="sum", **more)
    yield sample(make(2, 2), make(2, 2) if target is None else target(2, 2), reduction="none", **more)


def _regression(name: str, input: jax.Array, target: jax.Array) -> jax.Array:
    fitting(name, input, target)
    return input - target


def _times_weight(name: str, loss: jax.Array, weight: Any, reduction: str) -> jax.Array:
    if weight is None:
        return reduced(name, loss, reduction)
    if weight.shape != loss.shape:
        raise refuse(
            ValueError, name, f"Inputs and weight must have the same size, but got {list(loss.shape)} and {list(weight.shape)}"
        )
    loss = loss * weight.astype(loss.dtype)
    if reduction == "mean":
        return jnp.sum(loss) / jnp.sum(weight.astype(loss.dtype))
    return reduced(name, loss, reduction)


@op("", promote="common", saves="input target", oracle="nn.functional.mse_loss", name="mse_loss")
def squared_error(input: Array, target: Array, reduction: str = "mean", weight: Array | None = None) -> Array:
    """Take the squared difference `(input - target)²`; shapes broadcast."""
    d = _regression("mse_loss", input, target)
    return _times_weight("mse_loss", d * d, weight, reduction)


@squared_error.samples
def _(make: Make) -> Iterator[Any]:
    yield from _pairs(make)
    yield make(3, 1), make(2)


@op("", promote="common", saves="difference", computes="difference", oracle="nn.functional.l1_loss", name="l1_loss", grad_name="Mean")
def absolute_error(input: Array, target: Array, reduction: str = "mean", weight: Array | None = None) -> Array:
    """Take the absolute difference `|input - target|`; shapes broadcast; gradient 0 where they are equal."""
    return _times_weight("l1_loss", magnitude(_regression("l1_loss", input, target)), weight, reduction)


@absolute_error.computed
def _(input: Any, target: Any, reduction: str, weight: Any = None) -> Any:
    return (input - target,)


@absolute_error.samples
def _(make: Make) -> Iterator[Any]:
    yield from _pairs(make)


@op("", promote="common", saves="input target", oracle="nn.functional.smooth_l1_loss", name="smooth_l1_loss")
def smooth_absolute_error(input: Array, target: Array, reduction: str = "mean", beta: Scalar = 1.0) -> Array:
    """Take `d² / (2·beta)` where `|d| < beta`, else `|d| - beta / 2`, for `d = input - target`; gradient 0 at 0."""
    d = _regression("smooth_l1_loss", input, target)
    b = jnp.asarray(beta, d.dtype)
    near = jnp.abs(lax.stop_gradient(d)) < b
    square = jnp.where(near, d, 0) ** 2 * (0.5 / jnp.where(b > 0, b, 1))
    return reduced("smooth_l1_loss", jnp.where(near, square, magnitude(jnp.where(near, 0, d)) - 0.5 * b), reduction)


@smooth_absolute_error.samples
def _(make: Make) -> Iterator[Any]:
    yield from _pairs(make, beta=0.7)
    yield make(3), make(3)


@op("", promote="common", saves="input target", oracle="nn.functional.huber_loss", name="huber_loss")
def huber_error(input: Array, target: Array, reduction: str = "mean", delta: Scalar = 1.0, weight: Array | None = None) -> Array:
    """Take `d² / 2` where `|d| ≤ delta`, else `delta · (|d| - delta / 2)`, for `d = input - target`. Huber 1964."""
    d = _regression("huber_loss", input, target)
    b = jnp.asarray(delta, d.dtype)
    near = jnp.abs(lax.stop_gradient(d)) <= b
    loss = jnp.where(near, 0.5 * jnp.where(near, d, 0) ** 2, b * (magnitude(jnp.where(near, 1, d)) - 0.5 * b))
    return _times_weight("huber_loss", loss, weight, reduction)


@huber_error.samples
def _(make: Make) -> Iterator[Any]:
    yield from _pairs(make, delta=0.7)


@composite("nn.functional")
def mse_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Any:
    """Take the squared error `(input - target)²`, averaged unless `reduction` says otherwise; shapes broadcast."""
    return squared_error(input, target, legacy(size_average, reduce, reduction), weight)


@composite("nn.functional")
def l1_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Any:
    """Take the absolute error `|input - target|`, averaged unless `reduction` says otherwise; gradient 0 at 0."""
    return absolute_error(input, target, legacy(size_average, reduce, reduction), weight)


@composite("nn.functional")
def smooth_l1_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Any:
    """Take the squared error below `beta` and the absolute error above, joined smoothly; `beta=0` is `l1_loss`.

    Raises RuntimeError for a negative `beta`. Girshick 2015, eq. 3 (beta = 1).
    """
    if beta < 0:
        raise refuse(RuntimeError, "smooth_l1_loss", f"does not support negative values for beta, but got {beta}")
    return smooth_absolute_error(input, target, legacy(size_average, reduce, reduction), beta=beta)


@composite("nn.functional")
def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Any:
    """Take the squared error up to `delta` and a line beyond. Raises RuntimeError unless `delta` > 0."""
    if delta <= 0:
        raise refuse(RuntimeError, "huber_loss", f"does not support non-positive values for delta, but got {delta}")
    return huber_error(input, target, reduction, weight=weight, delta=delta)


@jax.custom_jvp
def _bernoulli(x: jax.Array, t: jax.Array) -> jax.Array:
    """-(t log x + (1 - t) log(1 - x)), logarithms cut off at -100; finite slopes at 0 and 1, by torch's formula."""
    return -(t * jnp.maximum(jnp.log(x), -100) + (1 - t) * jnp.maximum(jnp.log1p(-x), -100))


@_bernoulli.defjvp
def _bernoulli_jvp(primals: Any, tangents: Any) -> Any:
    (x, t), (dx, dt) = primals, tangents
    slope = (x - t) / jnp.maximum((1 - x) * x, 1e-12)
    odds = jnp.maximum(jnp.log1p(-x), -100) - jnp.maximum(jnp.log(x), -100)
    return _bernoulli(x, t), slope * dx + odds * dt


@op("", saves="input target weight", oracle="nn.functional.binary_cross_entropy", name="binary_cross_entropy")
def bernoulli_cross_entropy(input: Array, target: Array, weight: Array | None = None, reduction: str = "mean") -> Array:
    """Take `-(target · log input + (1 - target) · log(1 - input)) · weight`. See `binary_cross_entropy`."""
    same_size("binary_cross_entropy", input, target)
    target = target.astype(input.dtype)
    loss = _bernoulli(input, target)
    if weight is not None:
        fitting("binary_cross_entropy", loss, weight)
        loss = loss * weight.astype(loss.dtype)
    return reduced("binary_cross_entropy", loss, reduction)


def _unit(make):
    return lambda *shape: make(*shape, low=0.1, high=0.9)


@bernoulli_cross_entropy.samples
def _(make: Make) -> Iterator[Any]:
    u = _unit(make)
    yield u(3, 2), u(3, 2)
    yield sample(u(4), u(4), reduction="sum")
    yield sample(u(2, 3), make.bools(2, 3).astype(float), reduction="none")


@op(
    "",
    saves="input target weight pos_weight",
    oracle="nn.functional.binary_cross_entropy_with_logits",
    name="binary_cross_entropy_with_logits",
)
def bernoulli_cross_entropy_of_logits(
    input: Array, target: Array, weight: Array | None = None, reduction: str = "mean", pos_weight: Array | None = None
) -> Array:
    """Take the binary cross entropy of logits without forming the probability. See `binary_cross_entropy_with_logits`."""
    same_size("binary_cross_entropy_with_logits", input, target)
    target = target.astype(input.dtype)
    # log(1 + exp(-x)) without overflow; jax.nn.softplus is smooth to any order
    rest = jax.nn.softplus(-input)
    if pos_weight is None:
        loss = (1 - target) * input + rest
    else:
        fitting("binary_cross_entropy_with_logits", target, pos_weight)
        loss = (1 - target) * input + (1 + (pos_weight.astype(input.dtype) - 1) * target) * rest
    if weight is not None:
        fitting("binary_cross_entropy_with_logits", loss, weight)
        loss = loss * weight.astype(loss.dtype)
    return reduced("binary_cross_entropy_with_logits", loss, reduction)


@bernoulli_cross_entropy_of_logits.samples
def _(make: Make) -> Iterator[Any]:
    u = _unit(make)
    yield make(3, 2), u(3, 2)
    yield sample(make(4), u(4), reduction="sum", pos_weight=np.array([2]))
    yield sample(make(2, 3), u(2, 3), np.array([1, 2, 3]), reduction="none")


@bernoulli_cross_entropy_of_logits.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(ValueError, "target size", make(3), make(2))


@composite("nn.functional")
def binary_cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Take `-(target · log input + (1 - target) · log(1 - input))` of probabilities, times a broadcast `weight`.

    Logarithms are cut off at -100 and gradients stay finite at 0 and 1. Raises ValueError where sizes differ.
    """
    return bernoulli_cross_entropy(input, target, weight, legacy(size_average, reduce, reduction))


@composite("nn.functional")
def binary_cross_entropy_with_logits(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    """Take the binary cross entropy of `sigmoid(input)` stably; `pos_weight` scales the positive term, broadcast.

    Gradient `sigmoid(input) - target` for any magnitude. Raises ValueError where sizes differ.
    """
    return bernoulli_cross_entropy_of_logits(input, target, weight, legacy(size_average, reduce, reduction), pos_weight)


@op("", promote="common", saves={"input": "target", "target": "input target"}, oracle="nn.functional.kl_div", name="kl_div")
def relative_entropy(input: Array, target: Array, reduction: str = "mean", log_target: bool = False) -> Array:
    """Take `target · (log target - input)` for log-probabilities `input`; terms with target 0 are 0. See `kl_div`."""
    fitting("kl_div", input, target)
    if log_target:
        return reduced("kl_div", jnp.exp(target) * (target - input), reduction)
    return reduced("kl_div", jax.scipy.special.xlogy(target, target) - target * input, reduction)


@relative_entropy.samples
def _(make: Make) -> Iterator[Any]:
    yield from _pairs(make, _unit(make))
    yield from _pairs(make, log_target=True)


@composite("nn.functional")
def kl_div(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Any:
    """Take the Kullback–Leibler divergence of `target` from exp(`input`): `target · (log target - input)`, elementwise.

    "batchmean" divides the sum by the first axis (the divergence itself); "mean" divides by every element.
    """
    reduction = legacy(size_average, reduce, reduction)
    if reduction == "batchmean":
        total = relative_entropy(input, target, "sum", log_target)
        return total / input.shape[0] if input.dim() else total
    return relative_entropy(input, target, reduction, log_target)


@op("", promote="common", saves="input target", oracle="nn.functional.poisson_nll_loss", name="poisson_nll_loss")
def poisson_nll(
    input: Array, target: Array, log_input: bool = True, full: bool = False, eps: Scalar = 1e-8, reduction: str = "mean"
) -> Array:
    """Take minus the Poisson log-likelihood of counts. See `poisson_nll_loss`."""
    fitting("poisson_nll_loss", input, target)
    if log_input:
        loss = jnp.exp(input) - target * input
    else:
        loss = input - target * jnp.log(input + jnp.asarray(eps, input.dtype))
    if full:
        big = target > 1
        t = jnp.where(big, target, 2)
        loss = loss + jnp.where(big, t * jnp.log(t) - t + 0.5 * jnp.log(2 * math.pi * t), 0)
    return reduced("poisson_nll_loss", loss, reduction)


@poisson_nll.samples
def _(make: Make) -> Iterator[Any]:
    yield from _pairs(make, lambda *s: make(*s, low=0.2, high=4))
    yield sample(make(4, low=0.5), make(4, low=1.5, high=4), log_input=False, full=True)


@composite("nn.functional")
def poisson_nll_loss(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """Take `exp(input) - target · input` (or, for rates, `input - target · log(input + eps)`).

    `full` adds Stirling's approximation of log target! where target > 1.
    """
    return poisson_nll(input, target, log_input, full, reduction=legacy(size_average, reduce, reduction), eps=eps)


@op("", saves="computed", oracle="nn.functional.gaussian_nll_loss", name="gaussian_nll_loss", grad_name="Mean")
def gaussian_nll(
    input: Array, target: Array, var: Array, full: bool = False, eps: Scalar = 1e-6, reduction: str = "mean"
) -> Array:
    """Take `(log v + (input - target)² / v) / 2` for `v = max(var, eps)`. See `gaussian_nll_loss`."""
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var[..., None]
        elif input.shape[:-1] != var.shape[:-1] or var.shape[-1:] != (1,):
            try:
                jnp.broadcast_shapes(var.shape, input.shape)
            except ValueError:
                raise refuse(ValueError, "gaussian_nll_loss", f"var is of incorrect size {list(var.shape)}") from None
    # clamped outside the graph: the gradient passes to var even below eps
    v = var + lax.stop_gradient(jnp.maximum(var, jnp.asarray(eps, var.dtype)) - var)
    loss = 0.5 * (jnp.log(v) + (input - target) ** 2 / v)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduced("gaussian_nll_loss", loss, reduction)


@gaussian_nll.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 2), make(3, 2), make(3, 2, low=0.5)
    yield sample(make(3, 2), make(3, 2), make(3, 1, low=0.5), full=True, reduction="sum")


@composite("nn.functional")
def gaussian_nll_loss(input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Any:
    """Take minus the Gaussian log-likelihood with variance `var` (a tensor or number), not below `eps`.

    `full` adds the constant log(2π) / 2. Nix and Weigend 1994.
    """
    if isinstance(var, float | int):
        if var < 0:
            raise refuse(ValueError, "gaussian_nll_loss", f"var has negative entry/entries: {var}")
        var = input.detach() * 0 + var
    return gaussian_nll(input, target, var, full, reduction=reduction, eps=eps)
