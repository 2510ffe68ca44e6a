"""Layers without state: affine maps, embeddings and attention.

Convolutions, pooling, normalisation, resampling and recurrent layers stand in files of their own; they are declared along.
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
from tapejax.ops.samples import Make
from tapejax.ops.window import wide
from tapejax.tape.op import Array, Scalar, Seed, composite, error_sample, op, sample


@op("nn.functional", saves={"input": "weight", "weight": "input"}, grad_name="Addmm", oracle="nn.functional.linear")
def linear(input: Array, weight: Array, bias: Array | None = None) -> Array:
    """Apply an affine map: `input @ weightᵀ + bias`.

    `input` is (*, I), `weight` (O, I) or (I,), `bias` (O,) or (); result (*, O), or (*) for a 1-d weight.
    Raises RuntimeError where the last axes or the element types differ.

    >>> import tapejax as tj
    >>> tj.nn.functional.linear(tj.tensor([1.0, 2.0]), tj.tensor([[3.0, 4.0]]), tj.tensor([0.5])).tolist()
    [11.5]
    """
    if not 1 <= weight.ndim <= 2 or input.ndim < 1:
        raise refuse(
            RuntimeError,
            "linear",
            f"expects input (*, I) and weight (O, I), but got {tuple(input.shape)} and {tuple(weight.shape)}",
        )
    if input.dtype != weight.dtype:
        raise refuse(
            RuntimeError,
            "linear",
            f"mat1 and mat2 must have the same dtype, but got {input.dtype} and {weight.dtype} → convert one of them with .to()",
        )
    if input.shape[-1] != weight.shape[-1]:
        rows, cols = math.prod(input.shape[:-1]), input.shape[-1]
        t = "x".join(map(str, weight.shape[::-1]))
        raise refuse(
            RuntimeError,
            "linear",
            f"mat1 and mat2 shapes cannot be multiplied ({rows}x{cols} and {t}): the last axis of input {tuple(input.shape)} is "
            f"{cols}, but weight {tuple(weight.shape)} takes {weight.shape[-1]} features",
        )
    out = lax.dot_general(input, weight, (((input.ndim - 1,), (weight.ndim - 1,)), ((), ())))
    if bias is None:
        return out
    try:
        fits = np.broadcast_shapes(out.shape, bias.shape) == out.shape
    except ValueError:
        fits = False
    if not fits:
        raise refuse(
            RuntimeError,
            "linear",
            f"The size of tensor bias {tuple(bias.shape)} must match the size of the output {tuple(out.shape)} at the last axis",
        )
    return out + bias.astype(out.dtype)


@linear.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), make(2, 4), make(2)
    yield make(2, 3, 4), make(5, 4)
    yield make(4), make(2, 4), make(2)
    yield make(3, 4), make(4)
    yield make.complex(2, 3), make.complex(2, 3)


@linear.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(RuntimeError, "shapes cannot be multiplied", make(3, 4), make(2, 3))


@op("torch nn.functional", saves="input1 input2 weight", grad_name="Trilinear", oracle="nn.functional.bilinear")
def bilinear(input1: Array, input2: Array, weight: Array, bias: Array | None = None) -> Array:
    """Apply a bilinear map: `out[o] = Σ_ij input1[i] · weight[o, i, j] · input2[j] + bias[o]`.

    `input1` is (*, I), `input2` (*, J), `weight` (O, I, J), `bias` (O,); result (*, O).
    """
    if input1.shape[:-1] != input2.shape[:-1] or weight.ndim != 3 or weight.shape[1:] != (input1.shape[-1], input2.shape[-1]):
        raise refuse(
            RuntimeError,
            "bilinear",
            f"input sizes must match weight size: input1 {tuple(input1.shape)}, input2 {tuple(input2.shape)} and weight "
            f"{tuple(weight.shape)}, expected (*, I), (*, J) and (O, I, J)",
        )
    out = jnp.einsum("...i,oij,...j->...o", input1, weight, input2)
    return out if bias is None else out + bias


@bilinear.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 2), make(3, 4), make(2, 2, 4), make(2)
    yield make(2, 2, 3), make(2, 2, 2), make(1, 3, 2)


def _rows(name: str, input: jax.Array, weight: jax.Array, max_norm: Any, by_frequency: bool) -> jax.Array:
    """The rows of `weight` at `input`; NaN where the index is out of range (its value is not known when recording)."""
    if not jnp.issubdtype(input.dtype, jnp.integer):
        raise refuse(
            RuntimeError,
            name,
            f"Expected tensor for argument 'indices' to have one of the following scalar types: Long, Int; but got {input.dtype}",
        )
    if weight.ndim != 2:
        raise refuse(RuntimeError, name, f"'weight' must be 2-D, but got shape {tuple(weight.shape)}")
    if max_norm is not None:
        raise refuse(
            NotImplementedError,
            name,
            f"max_norm={max_norm} rewrites weight in place → renormalise it yourself under no_grad: weight.renorm(2, 0, {max_norm})",
        )
    count = weight.shape[0]
    at = jnp.where(input < 0, count, input)
    found = jnp.take(weight, at, axis=0, mode="fill", fill_value=jnp.nan)
    if by_frequency:
        times = jnp.zeros(count, weight.dtype).at[at].add(1, mode="drop")
        share = jnp.take(times, at, mode="clip")[..., None]
        still = lax.stop_gradient(found)
        found = still + (found - still) / jnp.maximum(share, 1)
    return found


@op("nn.functional", saves="input", grad_name="Embedding", oracle="nn.functional.embedding")
def embedding(
    input: Array,
    weight: Array,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    """Look up rows: `input` holds integers (*), `weight` is (V, D); result (*, D).

    Row `padding_idx` (negative counts from the end) gets no gradient; `scale_grad_by_freq` divides each row's
    gradient by how often it was looked up; `sparse` is accepted, the gradient is dense. An index out of range
    gives NaN. Raises NotImplementedError for `max_norm`.

    >>> import tapejax as tj
    >>> tj.nn.functional.embedding(tj.tensor([1, 0]), tj.tensor([[1.0], [2.0]])).tolist()
    [[2.0], [1.0]]
    """
    found = _rows("embedding", input, weight, max_norm, scale_grad_by_freq)
    if padding_idx is None:
        return found
    row = padding(padding_idx, weight.shape[0], "embedding")
    return jnp.where((input == row)[..., None], lax.stop_gradient(found), found)


def padding(index: int, rows: int, name: str) -> int:
    """`index` counted from the start."""
    if not -rows <= index < rows:
        raise refuse(AssertionError, name, f"padding_idx must be within num_embeddings: got {index} for {rows} rows")
    return index % rows


@embedding.samples
def _(make: Make) -> Iterator[Any]:
    yield make.ints(2, 3, high=4), make(4, 2)
    yield sample(make.ints(5, high=3), make(3, 2), padding_idx=-1, smooth=False)  # that row has no gradient by contract
    yield sample(np.array([0, 1, 1, 2, 1]), make(3, 2), scale_grad_by_freq=True, smooth=False)  # nor repeats the whole one
    yield np.array(1), make(3, 2)


@embedding.error_samples
def _(make: Make) -> Iterator[Any]:
    yield error_sample(RuntimeError, "Expected tensor for argument", make(3), make(3, 2))


@op("nn.functional", saves="input weight", grad_name="EmbeddingBag", oracle="nn.functional.embedding_bag")
def embedding_bag(
    input: Array,
    weight: Array,
    offsets: Array | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Array:
    """Look up rows and reduce them by bag: "sum", "mean" or "max"; result (bags, D), zeros for an empty bag.

    `input` is (B, L), one bag a row, or 1-d with `offsets` (the start of each bag). `per_sample_weights` (sum only)
    scales the rows. Rows at `padding_idx` are left out. With `scale_grad_by_freq` the gradient of each row is divided
    by how often it was looked up, as in `embedding`.
    """
    if mode not in ("sum", "mean", "max"):
        raise refuse(ValueError, "embedding_bag", f"mode has to be one of sum, mean or max, but got {mode!r}")
    if per_sample_weights is not None and (mode != "sum" or per_sample_weights.shape != input.shape):
        raise refuse(
            NotImplementedError if mode != "sum" else ValueError,
            "embedding_bag",
            f"per_sample_weights was not None: it is only supported for mode='sum' (got mode={mode!r}) and must have the same "
            f"shape as the input ({tuple(input.shape)}), but got {tuple(per_sample_weights.shape)}",
        )
    flat = input.reshape(-1)
    if input.ndim == 2:
        if offsets is not None:
            raise refuse(ValueError, "embedding_bag", "if input is 2D, then offsets has to be None, as input is treated as bags")
        bags = input.shape[0]
        bag = jnp.repeat(jnp.arange(bags), input.shape[1])
    elif input.ndim == 1 and offsets is not None and offsets.ndim == 1:
        bags = offsets.shape[0] - int(include_last_offset)
        bag = jnp.searchsorted(offsets[:bags], jnp.arange(input.shape[0]), side="right") - 1
    else:
        raise refuse(
            ValueError,
            "embedding_bag",
            f"input has to be 2D, or 1D with offsets has to be a 1D Tensor, but got input of {input.ndim}D",
        )
    found = _rows("embedding_bag", flat, weight, max_norm, scale_grad_by_freq)
    kept = jnp.ones(flat.shape, bool) if padding_idx is None else flat != padding(padding_idx, weight.shape[0], "embedding_bag")
    if mode == "max":
        mine = (bag[None, :] == jnp.arange(bags)[:, None]) & kept
        at = jnp.argmax(jnp.where(mine[..., None], lax.stop_gradient(found), -jnp.inf), axis=1)
        best = jnp.take_along_axis(found, at, axis=0)
        return jnp.where(mine.any(axis=1)[:, None], best, 0)
    if per_sample_weights is not None:
        found = found * per_sample_weights.reshape(-1, 1)
    total = jax.ops.segment_sum(jnp.where(kept[:, None], found, 0), bag, bags)
    if mode == "sum":
        return total
    counts = jax.ops.segment_sum(kept.astype(weight.dtype), bag, bags)
    return total / jnp.maximum(counts, 1)[:, None]


@embedding_bag.samples
def _(make: Make) -> Iterator[Any]:
    yield make.ints(2, 3, high=4), make(4, 2)
    yield sample(make.ints(5, high=3), make(3, 2), np.array([0, 2, 2, 4]), mode="sum", per_sample_weights=make(5))
    yield sample(make.ints(2, 3, high=4), make.distinct(4, 2), mode="max")
    yield sample(make.ints(2, 3, high=3), make(3, 2), padding_idx=1)


@op("", oracle=None, differentiable=False)
def one_hot_of(input: Array, num_classes: int) -> Array:
    """Give int64 indicators: 1 where the new last axis, `num_classes` long, equals the index."""
    return (input[..., None] == jnp.arange(num_classes)).astype(jnp.int64)


@one_hot_of.samples
def _(make: Make) -> Iterator[Any]:
    yield make.ints(2, 3), 3


@composite("nn.functional")
def one_hot(input: Any, num_classes: int = -1) -> Any:
    """Give int64 indicators (*, num_classes) of the indices (*); -1 classes reads the largest index from the data.

    Raises RuntimeError for indices that are not int64, negative, or too large.
    """
    if str(input.dtype).rsplit(".", 1)[-1] != "int64":
        raise refuse(
            RuntimeError, "one_hot", "one_hot is only applicable to index tensor of type LongTensor → call .long() first"
        )
    if num_classes <= 0 and not input.numel():
        raise refuse(RuntimeError, "one_hot", "Can not infer total number of classes from empty tensor → pass num_classes=")
    if input.numel():
        low, high = int(input.min().item()), int(input.max().item())
        if low < 0:
            raise refuse(RuntimeError, "one_hot", f"Class values must be non-negative, but the smallest is {low}")
        if num_classes <= 0:
            num_classes = high + 1
        elif high >= num_classes:
            raise refuse(
                RuntimeError,
                "one_hot",
                f"Class values must be smaller than num_classes, but the largest of {num_classes} is {high}",
            )
    return one_hot_of(input, num_classes)


def _attend(
    query: jax.Array, key: jax.Array, value: jax.Array, attn_mask: Any, is_causal: bool, scale: Any, grouped: bool, drop: Any
) -> jax.Array:
    name = "scaled_dot_product_attention"
    if not query.dtype == key.dtype == value.dtype:
        raise refuse(
            RuntimeError,
            name,
            f"Expected query, key, and value to have the same dtype, but got {query.dtype}, {key.dtype} and {value.dtype}",
        )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise refuse(
            RuntimeError,
            name,
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not fit: expected (*, L, E), "
            "(*, S, E) and (*, S, F)",
        )
    if is_causal and attn_mask is not None:
        raise refuse(RuntimeError, name, "Explicit attn_mask should not be set when is_causal=True → fold it into the mask")
    if grouped:
        key = jnp.repeat(key, query.shape[-3] // key.shape[-3], axis=-3)
        value = jnp.repeat(value, query.shape[-3] // value.shape[-3], axis=-3)
    q, k = wide(query), wide(key)
    factor = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
    scores = jnp.matmul(q * jnp.asarray(factor, q.dtype), jnp.swapaxes(k, -1, -2))
    if is_causal:
        attn_mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if attn_mask is not None:
        if attn_mask.dtype == jnp.bool_:
            scores = jnp.where(attn_mask, scores, -jnp.inf)
        else:
            scores = scores + attn_mask.astype(scores.dtype)
    # A row with nothing to attend to gives zeros, not NaN.
    top = lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf))
    weights = jnp.exp(scores - jnp.where(top == -jnp.inf, 0, top))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1, total)
    if drop is not None:
        weights = drop(weights)
    return jnp.matmul(weights, wide(value)).astype(query.dtype)


@op("", saves="query key value", oracle="nn.functional.scaled_dot_product_attention", name="scaled_dot_product_attention")
def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Scalar = None,
    enable_gqa: bool = False,
) -> Array:
    """Average `value` by similarity: `softmax(query @ keyᵀ · scale + mask) @ value`.

    `query` is (*, L, E), `key` (*, S, E), `value` (*, S, F); result (*, L, F). `attn_mask` broadcasts to (*, L, S): a
    bool mask keeps where True, a float mask is added. `is_causal` keeps the lower triangle. `scale` defaults to 1/√E.
    With `enable_gqa`, heads (axis -3) of key and value are repeated to those of query. A row with nothing to attend to
    gives 0 with gradient 0. Vaswani et al. 2017, eq. 1.
    """
    return _attend(query, key, value, attn_mask, is_causal, scale, enable_gqa, None)


@attention.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 3, 4), make(2, 5, 4), make(2, 5, 2)
    yield sample(make(2, 3, 4), make(2, 3, 4), make(2, 3, 4), is_causal=True)
    yield sample(make(1, 3, 4), make(1, 2, 4), make(1, 2, 4), np.array([[True, False], [False, False], [True, True]]), scale=0.3)
    yield sample(make(1, 1, 3, 4), make(1, 1, 2, 4), make(1, 1, 2, 4), attn_mask=make(3, 2))
    yield sample(make(1, 4, 3, 2), make(1, 2, 3, 2), make(1, 2, 3, 2), enable_gqa=True)


@op("", saves="query key value", oracle=None, grad_name="ScaledDotProductAttention")
def attention_with_dropout(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: Scalar = 0.0,
    is_causal: bool = False,
    scale: Scalar = None,
    enable_gqa: bool = False,
    *,
    seed: Seed,
) -> Array:
    """Average `value` by similarity, with weights dropped at rate `dropout_p`. See `scaled_dot_product_attention`."""

    def drop(weights: jax.Array) -> jax.Array:
        keep = 1 - jnp.asarray(dropout_p, jnp.float32)
        mask = jax.random.uniform(seed, weights.shape, jnp.float32) < keep
        return jnp.where(mask, weights / jnp.where(keep > 0, keep, 1).astype(weights.dtype), 0)

    return _attend(query, key, value, attn_mask, is_causal, scale, enable_gqa, drop)


@composite("nn.functional")
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Average `value` (*, S, F) by the similarity of `query` (*, L, E) to `key` (*, S, E).

    `softmax(query @ keyᵀ · scale + mask) @ value`: a bool `attn_mask` keeps where True, a float one is added; weights
    are dropped at rate `dropout_p` (always: pass 0 when evaluating). A row with nothing to attend to gives 0.
    """
    if dropout_p > 0.0:
        factor = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
        return attention_with_dropout(query, key, value, attn_mask, dropout_p, is_causal, factor, enable_gqa)
    if scale is None:
        return attention(query, key, value, attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)
    return attention(query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)


@attention_with_dropout.samples
def _(make: Make) -> Iterator[Any]:
    yield sample(make(2, 3, 4), make(2, 5, 4), make(2, 5, 2), dropout_p=0.5)


@op("", saves="result", oracle=None)
def gumbel_sample(logits: Array, tau: Scalar, hard: bool, dim: int, seed: Seed) -> Array:
    """Draw `softmax((logits + Gumbel noise) / tau)`; `hard` gives the one-hot argmax with the soft gradient."""
    noise = jax.random.gumbel(seed, logits.shape, logits.dtype)
    soft = jax.nn.softmax((logits + noise) / jnp.asarray(tau, logits.dtype), axis=dim)
    if not hard:
        return soft
    axis = dim % logits.ndim
    chosen = jnp.argmax(lax.stop_gradient(soft), axis=axis, keepdims=True)
    one = (lax.broadcasted_iota(chosen.dtype, soft.shape, axis) == chosen).astype(soft.dtype)
    return one + (soft - lax.stop_gradient(soft))


@gumbel_sample.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 4), 0.7, False, -1
    yield sample(make(3, 4), 1.0, True, 0, smooth=False)  # the hard draw passes the soft one's gradient


@composite("nn.functional")
def gumbel_softmax(logits: Any, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Any:
    """Draw a relaxed one-hot sample along `dim`; `hard=True` returns the one-hot vector with the relaxed gradient.

    Jang, Gu and Poole 2017. `eps` has no effect.
    """
    return gumbel_sample(logits, tau, hard, dim)


@composite("nn.functional")
def normalize(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: Any = None) -> Any:
    """Scale slices along `dim` to unit p-norm: `x / max(‖x‖_p, eps)`; a zero slice stays zero, with gradient 1/eps."""
    return input / input.norm(p, dim, keepdim=True).clamp_min(eps)
