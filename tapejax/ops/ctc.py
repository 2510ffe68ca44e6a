"""Connectionist temporal classification: the likelihood of a label sequence over all its alignments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.errors import refuse
from tapejax.ops.loss import reduced
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, composite, error_sample, op, sample


def _log_sum(*terms: jax.Array) -> jax.Array:
    """log Σ exp, -inf (with gradient 0, to any order) where every term is."""
    stacked = jnp.stack(terms)
    top = lax.stop_gradient(jnp.max(stacked, axis=0))
    none = top == -jnp.inf
    total = jnp.sum(jnp.exp(stacked - jnp.where(none, 0, top)), axis=0)
    return jnp.where(none, -jnp.inf, jnp.log(jnp.where(none, 1, total)) + top)


@op("", saves="log_probs targets input_lengths target_lengths", name="ctc_loss", oracle=None)
def aligned_likelihood(
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Array:
    """Take minus the log-likelihood of `targets` (N, S) under `log_probs` (T, N, C), summed over alignments.

    See `ctc_loss`. The gradient is the exact one: minus the probability of being in each class at each frame.
    (Torch adds exp(log_probs), which a preceding log_softmax cancels: gradients of the logits agree.)
    Graves et al. 2006, section 4.1, in log space; the time loop is one scan.
    """
    name = "ctc_loss"
    if not 0 <= blank < log_probs.shape[2]:
        raise refuse(RuntimeError, name, f"blank must be in label range [0, {log_probs.shape[2]}), but got {blank}")
    frames, batch, classes = log_probs.shape
    if targets.shape[:1] != (batch,) or input_lengths.shape != (batch,) or target_lengths.shape != (batch,):
        raise refuse(
            RuntimeError,
            name,
            f"input_lengths must be of size batch_size ({batch}), and so must target_lengths and targets, but got "
            f"{list(input_lengths.shape)}, {list(target_lengths.shape)} and {list(targets.shape)}",
        )
    labels = targets.shape[1]
    # states: blank, label, blank, label, …, blank
    path = jnp.full((batch, 2 * labels + 1), blank, jnp.int64).at[:, 1::2].set(targets)
    skips = jnp.zeros(path.shape, bool).at[:, 2:].set((path[:, 2:] != path[:, :-2]) & (path[:, 2:] != blank))
    valid = jnp.arange(path.shape[1]) <= 2 * target_lengths[:, None]
    path = jnp.where(valid, jnp.clip(path, 0, classes - 1), blank)  # padding may hold anything
    emitted = jnp.take_along_axis(log_probs, jnp.broadcast_to(path, (frames, *path.shape)), axis=2)

    def shift(a: jax.Array, k: int) -> jax.Array:
        return jnp.pad(a, ((0, 0), (k, 0)), constant_values=-jnp.inf)[:, : a.shape[1]]

    def step(alpha: jax.Array, frame: Any) -> Any:
        emit, t = frame
        jump = jnp.where(skips, shift(alpha, 2), -jnp.inf)
        moved = jnp.where(valid, _log_sum(alpha, shift(alpha, 1), jump) + emit, -jnp.inf)
        return jnp.where((t < input_lengths)[:, None], moved, alpha), None

    before = jnp.full(path.shape, -jnp.inf, log_probs.dtype).at[:, 0].set(0)
    first = jnp.where((jnp.arange(path.shape[1]) < 2) & valid, emitted[0], -jnp.inf) if frames else before
    # without a single frame only the empty target is possible
    first = jnp.where((input_lengths > 0)[:, None], first, before)
    alpha, _ = lax.scan(step, first, (emitted[1:], jnp.arange(1, max(frames, 1))))
    end = jnp.take_along_axis(alpha, 2 * target_lengths[:, None].astype(jnp.int64), axis=1)[:, 0]
    last = jnp.take_along_axis(alpha, jnp.maximum(2 * target_lengths[:, None].astype(jnp.int64) - 1, 0), axis=1)[:, 0]
    loss = -_log_sum(end, jnp.where(target_lengths > 0, last, -jnp.inf))
    if zero_infinity:
        loss = jnp.where(loss == jnp.inf, 0, loss)
    if reduction == "mean":
        loss = loss / jnp.maximum(target_lengths, 1).astype(loss.dtype)
    return reduced(name, loss, reduction)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))


@aligned_likelihood.samples
def _(make: Make) -> Iterator[Any]:
    logp = _log_softmax(make(6, 2, 4))
    yield sample(logp, np.array([[1, 2, 2], [3, 1, 0]]), np.array([6, 5]), np.array([3, 2]), reduction="none")
    yield logp, np.array([[1, 2], [3, 3]]), np.array([6, 4]), np.array([2, 2])
    yield sample(logp, np.array([[1, 2], [3, 3]]), np.array([6, 2]), np.array([2, 2]), zero_infinity=True)


@aligned_likelihood.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(
        RuntimeError, "blank must be in label range", make(3, 1, 2), np.array([[1]]), np.array([3]), np.array([1]), blank=2
    )


@composite("nn.functional")
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Take the CTC loss of log-probabilities (T, N, C) or (T, C): minus the log-likelihood over all alignments.

    `targets` are labels without blanks, (N, S) padded or all concatenated (the lengths are then read from the data);
    `input_lengths` and `target_lengths` are (N), tensors or sequences of ints. "mean" divides each loss by its target
    length, then averages. A target that no alignment reaches has loss inf (0 with `zero_infinity`), gradient 0.
    """
    unbatched = log_probs.dim() == 2
    if log_probs.dim() not in (2, 3):
        raise refuse(RuntimeError, "ctc_loss", f"log_probs must be (T, N, C) or (T, C), but got {tuple(log_probs.shape)}")
    if unbatched:
        log_probs = log_probs.unsqueeze(1)
    heads, sizes = (_lengths(targets, v) for v in (input_lengths, target_lengths))
    if unbatched and targets.dim() == 1:
        targets = targets.unsqueeze(0)
    elif targets.dim() == 1:
        counts = sizes.tolist()
        longest, start, at = max(counts, default=0), 0, []
        for n in counts:
            at.append([min(start + i, max(targets.shape[0] - 1, 0)) for i in range(longest)])
            start += n
        if start != targets.shape[0]:
            raise refuse(
                RuntimeError, "ctc_loss", f"expected the concatenated targets to hold {start} labels, but got {targets.shape[0]}"
            )
        targets = targets[targets.new_tensor(np.asarray(at, np.int64).reshape(len(counts), longest))]
    loss = aligned_likelihood(log_probs, targets, heads, sizes, blank, reduction, zero_infinity)
    return loss.squeeze(0) if unbatched and reduction == "none" else loss


def _lengths(like: Any, lengths: Any) -> Any:
    """Lengths as a 1-d integer tensor."""
    if hasattr(lengths, "dim"):
        return lengths.reshape(-1)
    return like.new_tensor(np.asarray(lengths, np.int64).reshape(-1))
