"""Multi-head attention."""

from __future__ import annotations

import math
from typing import Any

from tapejax import dtypes
from tapejax.nn import functional as F
from tapejax.nn import init
from tapejax.nn.linear import Linear
from tapejax.nn.module import Module
from tapejax.nn.parameter import Parameter
from tapejax.ops import neural
from tapejax.ops.create import empty, zeros
from tapejax.ops.dropout import dropout
from tapejax.ops.join import cat


class NonDynamicallyQuantizableLinear(Linear):
    """A Linear; the name only keeps torch's module listing."""


def _additive(mask: Any, like: Any) -> Any:
    """A mask that is added to scores: a bool mask marks what is hidden."""
    if mask is None or mask.is_floating_point():
        return mask
    if mask.dtype is not dtypes.bool_:
        raise RuntimeError(f"only bool and floating types of attention masks are supported, but got {mask.dtype}")
    return zeros(tuple(mask.shape), dtype=like.dtype, device=like.device).masked_fill(mask, float("-inf"))


class MultiheadAttention(Module):
    """Attend with `num_heads` projections at once. Vaswani et al. 2017, section 3.2.2.

    `query` (L, N, embed_dim), `key` (S, N, kdim), `value` (S, N, vdim); batch first with `batch_first`, or without N.
    `attn_mask` (L, S) or (N·heads, L, S) and `key_padding_mask` (N, S): bool masks hide where True, float ones are
    added. Gives the output and, with `need_weights`, the weights (N, L, S), averaged over heads unless told otherwise.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        if embed_dim % num_heads:
            raise AssertionError(f"embed_dim must be divisible by num_heads, but got {embed_dim} and {num_heads}")
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        self.add_zero_attn = add_zero_attn

        def made(*shape: int) -> Parameter:
            return Parameter(empty(shape, device=device, dtype=dtype))

        if self._qkv_same_embed_dim:
            self.in_proj_weight = made(3 * embed_dim, embed_dim)
            for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                self.register_parameter(name, None)
        else:
            self.q_proj_weight = made(embed_dim, embed_dim)
            self.k_proj_weight = made(embed_dim, self.kdim)
            self.v_proj_weight = made(embed_dim, self.vdim)
            self.register_parameter("in_proj_weight", None)
        self.register_parameter("in_proj_bias", made(3 * embed_dim) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.bias_k = made(1, 1, embed_dim) if add_bias_kv else None
        self.bias_v = made(1, 1, embed_dim) if add_bias_kv else None
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        if self._qkv_same_embed_dim:
            init.xavier_uniform_(self.in_proj_weight)
        else:
            for weight in (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.constant_(self.in_proj_bias, 0.0)
            init.constant_(self.out_proj.bias, 0.0)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                init.xavier_normal_(extra)

    def _projected(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        e = self.embed_dim
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if not self._qkv_same_embed_dim:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif query is key and key is value:
            q, k, v = neural.linear(query, self.in_proj_weight, self.in_proj_bias).split(e, dim=-1)
            return q, k, v
        else:
            weights = self.in_proj_weight.chunk(3)
        q, k, v = (neural.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
        return q, k, v

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        batched = query.dim() == 3
        if query.dim() not in (2, 3):
            raise AssertionError(f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query tensor")
        q, k, v = self._projected(query, key, value)
        if not batched:
            q, k, v = (t.unsqueeze(0) for t in (q, k, v))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))  # (N, L, E)
        n, length, _ = q.shape
        heads, d = self.num_heads, self.head_dim
        grown = 0
        if self.bias_k is not None and self.bias_v is not None:
            k = cat([k, self.bias_k.expand(n, 1, self.embed_dim)], 1)
            v = cat([v, self.bias_v.expand(n, 1, self.embed_dim)], 1)
            grown += 1
        if self.add_zero_attn:
            k, v = (cat([t, zeros((n, 1, self.embed_dim), dtype=t.dtype, device=t.device)], 1) for t in (k, v))
            grown += 1
        source = k.shape[1]
        q = q.reshape(n, length, heads, d).transpose(1, 2)
        k, v = (t.reshape(n, source, heads, d).transpose(1, 2) for t in (k, v))
        mask = _additive(attn_mask, q)
        if mask is not None:
            if mask.dim() == 3:
                if tuple(mask.shape) != (n * heads, length, source - grown):
                    raise RuntimeError(
                        f"The shape of the 3D attn_mask is {tuple(mask.shape)}, but should be {(n * heads, length, source - grown)}."
                    )
                mask = mask.reshape(n, heads, length, source - grown)
            elif tuple(mask.shape) != (length, source - grown):
                raise RuntimeError(
                    f"The shape of the 2D attn_mask is {tuple(mask.shape)}, but should be {(length, source - grown)}."
                )
        padding = _additive(key_padding_mask, q)
        if padding is not None:
            if tuple(padding.shape) != (n, source - grown):
                raise AssertionError(f"expected key_padding_mask of shape {(n, source - grown)}, but got {tuple(padding.shape)}")
            padding = padding.reshape(n, 1, 1, source - grown)
            mask = padding if mask is None else mask + padding
        if mask is not None and grown:
            mask = F.pad(mask, (0, grown))
        drop = self.dropout if self.training else 0.0
        if need_weights:
            scores = (q * (1.0 / math.sqrt(d))) @ k.transpose(-2, -1)
            weights = F.softmax(scores if mask is None else scores + mask, -1)
            if drop:
                weights = dropout(weights, drop)
            out = weights @ v
        else:
            weights = None
            out = neural.scaled_dot_product_attention(q, k, v, mask, drop)
        out = self.out_proj(out.transpose(1, 2).reshape(n, length, self.embed_dim))
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), weights
