"""Recurrent layers and cells. A layer's time loop is one recorded op, so long sequences cost no compile time."""

from __future__ import annotations

import math
import warnings
from typing import Any

from tapejax.nn import init
from tapejax.nn.module import Module
from tapejax.nn.parameter import Parameter
from tapejax.ops import recurrent
from tapejax.ops.create import empty, zeros
from tapejax.ops.dropout import dropout
from tapejax.ops.join import cat, stack

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


class RNNBase(Module):
    """Stacked recurrent layers, one or two directions. Subclasses choose the cell."""

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(hidden_size, int):
            raise TypeError(f"hidden_size should be of type int, got: {type(hidden_size).__name__}")
        if hidden_size <= 0:
            raise ValueError("hidden_size must be greater than zero")
        if num_layers <= 0:
            raise ValueError("num_layers must be greater than zero")
        if not 0 <= dropout <= 1:
            raise ValueError("dropout should be a number in range [0, 1] representing the probability of an element being zeroed")
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers greater "
                f"than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=3,
            )
        if proj_size < 0 or proj_size >= hidden_size:
            raise ValueError(
                f"proj_size should be a positive integer smaller than hidden_size, or zero to disable projections: {proj_size}"
            )
        if proj_size > 0 and mode != "LSTM":
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        directions = 2 if bidirectional else 1
        out = proj_size or hidden_size
        gates = _GATES[mode] * hidden_size
        for layer in range(num_layers):
            for suffix in self._suffixes(layer):
                width = input_size if layer == 0 else out * directions
                shapes: dict[str, tuple[int, ...]] = {"weight_ih": (gates, width), "weight_hh": (gates, out)}
                if bias:
                    shapes |= {"bias_ih": (gates,), "bias_hh": (gates,)}
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                for name, shape in shapes.items():
                    setattr(self, name + suffix, Parameter(empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"] if self.bidirectional else [f"_l{layer}"]

    def reset_parameters(self) -> None:
        """Draw new initial values, uniform in ±1 / √hidden_size."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def flatten_parameters(self) -> None:
        """Do nothing: XLA lays out the weights."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The weights of each layer and direction."""
        names = [
            "weight_ih",
            "weight_hh",
            *(["bias_ih", "bias_hh"] if self.bias else []),
            *(["weight_hr"] if self.proj_size else []),
        ]
        return [[getattr(self, n + s) for n in names] for layer in range(self.num_layers) for s in self._suffixes(layer)]

    def _layer(self, suffix: str, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run one layer in one direction: all outputs, then the final state."""
        w_ih, w_hh = getattr(self, f"weight_ih{suffix}"), getattr(self, f"weight_hh{suffix}")
        b_ih, b_hh = (getattr(self, f"bias_ih{suffix}"), getattr(self, f"bias_hh{suffix}")) if self.bias else (None, None)
        reverse = suffix.endswith("_reverse")
        if self.mode == "LSTM":
            w_hr = getattr(self, f"weight_hr{suffix}") if self.proj_size else None
            return recurrent.lstm_layer(x, *state, w_ih, w_hh, b_ih, b_hh, w_hr, reverse=reverse)
        if self.mode == "GRU":
            return recurrent.gru_layer(x, *state, w_ih, w_hh, b_ih, b_hh, reverse=reverse)
        kind = "tanh" if self.mode == "RNN_TANH" else "relu"
        return recurrent.rnn_layer(x, *state, w_ih, w_hh, b_ih, b_hh, nonlinearity=kind, reverse=reverse)

    def _run(self, input: Any, given: tuple[Any, ...] | None) -> tuple[Any, tuple[Any, ...]]:
        if input.dim() not in (2, 3):
            raise ValueError(f"{self.mode}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        single = input.dim() == 2
        if single:
            x = input.unsqueeze(1)
        else:
            x = input.transpose(0, 1) if self.batch_first else input
        if x.shape[2] != self.input_size:
            raise RuntimeError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[2]}")
        batch = x.shape[1]
        count = self.num_layers * (2 if self.bidirectional else 1)
        out = self.proj_size or self.hidden_size
        widths = (out, self.hidden_size) if self.mode == "LSTM" else (out,)
        if given is None:
            given = tuple(zeros((count, batch, w), dtype=x.dtype, device=x.device) for w in widths)
        else:
            if single:
                if any(s.dim() != 2 for s in given):
                    raise RuntimeError(f"For unbatched 2-D input, hx should also be 2-D but got {given[0].dim()}-D tensor")
                given = tuple(s.unsqueeze(1) for s in given)
            elif any(s.dim() != 3 for s in given):
                raise RuntimeError(f"For batched 3-D input, hx should also be 3-D but got {given[0].dim()}-D tensor")
            for which, (s, w) in enumerate(zip(given, widths, strict=True)):
                if tuple(s.shape) != (count, batch, w):
                    raise RuntimeError(f"Expected hidden[{which}] size {(count, batch, w)}, got {list(s.shape)}")
        finals: list[tuple[Any, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for suffix in self._suffixes(layer):
                every, *final = self._layer(suffix, x, tuple(s[len(finals)] for s in given))
                outputs.append(every)
                finals.append(tuple(final))
            x = outputs[0] if len(outputs) == 1 else cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = dropout(x, self.dropout, self.training)
        states = tuple(stack([f[i] for f in finals]) for i in range(len(widths)))
        if single:
            return x.squeeze(1), tuple(s.squeeze(1) for s in states)
        return (x.transpose(0, 1) if self.batch_first else x), states

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if self.proj_size:
            text += f", proj_size={self.proj_size}"
        if self.num_layers != 1:
            text += f", num_layers={self.num_layers}"
        if not self.bias:
            text += f", bias={self.bias}"
        if self.batch_first:
            text += f", batch_first={self.batch_first}"
        if self.dropout:
            text += f", dropout={self.dropout}"
        if self.bidirectional:
            text += f", bidirectional={self.bidirectional}"
        return text


class RNN(RNNBase):
    """Run `h ← tanh(x W_ihᵀ + b_ih + h W_hhᵀ + b_hh)` (or relu) over sequences.

    Input (T, N, input_size), (N, T, input_size) with `batch_first`, or (T, input_size); `hx` (layers·directions, N,
    hidden_size), zero if absent. Gives the last layer's outputs and the final state of every layer and direction.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(mode, input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Any = None) -> Any:
        output, (state,) = self._run(input, None if hx is None else (hx,))
        return output, state


class LSTM(RNNBase):
    """Run a long short-term memory over sequences; `hx` is `(h, c)`. See `RNN` for shapes.

    >>> import tapejax as tj
    >>> y, (h, c) = tj.nn.LSTM(2, 3)(tj.zeros(5, 1, 2))
    >>> tuple(y.shape), tuple(h.shape)
    ((5, 1, 3), (1, 1, 3))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype
        )

    def forward(self, input: Any, hx: Any = None) -> Any:
        return self._run(input, None if hx is None else tuple(hx))


class GRU(RNNBase):
    """Run a gated recurrent unit over sequences. See `RNN` for shapes."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__("GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype)

    def forward(self, input: Any, hx: Any = None) -> Any:
        output, (state,) = self._run(input, None if hx is None else (hx,))
        return output, state


class RNNCellBase(Module):
    """One step of a recurrent layer."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        gates = num_chunks * hidden_size
        self.weight_ih = Parameter(empty((gates, input_size), device=device, dtype=dtype))
        self.weight_hh = Parameter(empty((gates, hidden_size), device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty((gates,), device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values, uniform in ±1 / √hidden_size."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _weights(self) -> tuple[Any, ...]:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

    def _start(self, input: Any) -> Any:
        if input.dim() not in (1, 2):
            raise ValueError(f"{type(self).__name__}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        return zeros((*tuple(input.shape)[:-1], self.hidden_size), dtype=input.dtype, device=input.device)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else f", bias={self.bias}")


class RNNCell(RNNCellBase):
    """Take one step `h ← tanh(x W_ihᵀ + b_ih + h W_hhᵀ + b_hh)` (or relu); input (N, input_size) or (input_size)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Any = None) -> Any:
        start = self._start(input) if hx is None else hx
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        step = recurrent.rnn_tanh_cell if self.nonlinearity == "tanh" else recurrent.rnn_relu_cell
        return step(input, start, *self._weights())

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}")


class LSTMCell(RNNCellBase):
    """Take one step of an LSTM; `hx` is `(h, c)`, zero if absent; gives the new `(h, c)`."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Any, hx: Any = None) -> Any:
        start = (self._start(input),) * 2 if hx is None else hx
        return recurrent.lstm_cell(input, start, *self._weights())


class GRUCell(RNNCellBase):
    """Take one step of a GRU; `hx` is zero if absent."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Any, hx: Any = None) -> Any:
        return recurrent.gru_cell(input, self._start(input) if hx is None else hx, *self._weights())
