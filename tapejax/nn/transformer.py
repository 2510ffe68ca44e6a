"""Transformer layers and stacks. Vaswani et al. 2017; normalising first is Xiong et al. 2020."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tapejax.nn import functional as F
from tapejax.nn import init
from tapejax.nn.attention import MultiheadAttention
from tapejax.nn.container import ModuleList
from tapejax.nn.dropout import Dropout
from tapejax.nn.linear import Linear
from tapejax.nn.module import Module
from tapejax.nn.norm import LayerNorm
from tapejax.ops.create import full


def _activation(given: Any) -> Callable[[Any], Any]:
    if callable(given):
        return given
    if given not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {given}")
    return F.relu if given == "relu" else F.gelu


def _causal(mask: Any, is_causal: bool | None, size: int, like: Any) -> Any:
    """The mask to use: the given one, or a causal one where only the hint was given."""
    if mask is not None or not is_causal:
        return mask
    return full((size, size), float("-inf"), dtype=like.dtype, device=like.device).triu(1)


def _length(x: Any, batch_first: bool) -> int:
    return x.shape[0] if x.dim() == 2 else x.shape[1 if batch_first else 0]


class TransformerEncoderLayer(Module):
    """Self-attention and a two-layer perceptron, each with dropout, a residual connection and a LayerNorm.

    `src` (S, N, d_model), (N, S, d_model) with `batch_first`, or (S, d_model). `norm_first` normalises before.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        at: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, **at)
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **at)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **at)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **at)
        self.norm2 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **at)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.activation = _activation(activation)

    def forward(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False) -> Any:
        mask = _causal(src_mask, is_causal, _length(src, self.self_attn.batch_first), src)
        x = src
        if self.norm_first:
            x = x + self._attend(self.norm1(x), mask, src_key_padding_mask)
            return x + self._feed_forward(self.norm2(x))
        x = self.norm1(x + self._attend(x, mask, src_key_padding_mask))
        return self.norm2(x + self._feed_forward(x))

    def _attend(self, x: Any, mask: Any, padding: Any) -> Any:
        return self.dropout1(self.self_attn(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=False)[0])

    def _feed_forward(self, x: Any) -> Any:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerDecoderLayer(Module):
    """Self-attention, attention to the encoder's memory and a two-layer perceptron. See `TransformerEncoderLayer`."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        at: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=batch_first, bias=bias, **at)
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=batch_first, bias=bias, **at)
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, **at)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, **at)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **at)
        self.norm2 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **at)
        self.norm3 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **at)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.dropout3 = Dropout(dropout)
        self.activation = _activation(activation)

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        mask = _causal(tgt_mask, tgt_is_causal, _length(tgt, self.self_attn.batch_first), tgt)
        x = tgt
        if self.norm_first:
            x = x + self._attend(self.norm1(x), mask, tgt_key_padding_mask)
            x = x + self._look(self.norm2(x), memory, memory_mask, memory_key_padding_mask)
            return x + self._feed_forward(self.norm3(x))
        x = self.norm1(x + self._attend(x, mask, tgt_key_padding_mask))
        x = self.norm2(x + self._look(x, memory, memory_mask, memory_key_padding_mask))
        return self.norm3(x + self._feed_forward(x))

    def _attend(self, x: Any, mask: Any, padding: Any) -> Any:
        return self.dropout1(self.self_attn(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=False)[0])

    def _look(self, x: Any, memory: Any, mask: Any, padding: Any) -> Any:
        found = self.multihead_attn(x, memory, memory, attn_mask=mask, key_padding_mask=padding, need_weights=False)
        return self.dropout2(found[0])

    def _feed_forward(self, x: Any) -> Any:
        return self.dropout3(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoder(Module):
    """A stack of copies of `encoder_layer`, with a final `norm` if given."""

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.mask_check = mask_check

    def forward(self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None) -> Any:
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """A stack of copies of `decoder_layer`, with a final `norm` if given."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(decoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        for layer in self.layers:
            tgt = layer(
                tgt,
                memory,
                tgt_mask,
                memory_mask,
                tgt_key_padding_mask,
                memory_key_padding_mask,
                bool(tgt_is_causal),
                memory_is_causal,
            )
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder and a decoder: `src` (S, N, d_model) and `tgt` (T, N, d_model) to (T, N, d_model)."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        at: dict[str, Any] = {"device": device, "dtype": dtype}
        shared = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)
        if custom_encoder is None:
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **at)
            custom_encoder = TransformerEncoder(TransformerEncoderLayer(*shared, **at), num_encoder_layers, norm)
        if custom_decoder is None:
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **at)
            custom_decoder = TransformerDecoder(TransformerDecoderLayer(*shared, **at), num_decoder_layers, norm)
        self.encoder = custom_encoder
        self.decoder = custom_decoder
        for p in self.parameters():
            if p.dim() > 1:
                init.xavier_uniform_(p)
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def forward(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal, memory_is_causal
        )

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Any:
        """Return a float mask (sz, sz): -inf above the diagonal, 0 elsewhere."""
        return full((sz, sz), float("-inf"), dtype=dtype, device=device).triu(1)
