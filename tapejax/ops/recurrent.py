"""Recurrent layers: one op is one layer in one direction over the whole sequence, a `lax.scan` inside.

The input projections of all steps are one matrix product outside the scan, so compile time does not grow with length.
Sequences are (T, N, I); gates are stacked as in torch's weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tapejax.errors import refuse
from tapejax.ops.samples import Make
from tapejax.tape.op import Array, composite, op, sample


def _projected(name: str, x: jax.Array, h: jax.Array, w_ih: jax.Array, w_hh: jax.Array, b_ih: Any) -> jax.Array:
    """`x @ w_ihᵀ + b_ih` for every step."""
    if x.ndim != 3 or x.shape[2] != w_ih.shape[1]:
        raise refuse(
            RuntimeError, name, f"input.size(-1) must be equal to input_size. Expected {w_ih.shape[1]}, got {x.shape[-1]}"
        )
    if h.shape != (x.shape[1], w_hh.shape[1]):
        raise refuse(RuntimeError, name, f"Expected hidden size {(x.shape[1], w_hh.shape[1])}, got {list(h.shape)}")
    if x.dtype != w_ih.dtype or h.dtype != x.dtype:
        raise refuse(
            RuntimeError, name, f"input must have the type {w_ih.dtype}, got type {x.dtype} and hidden state of type {h.dtype}"
        )
    found = jnp.einsum("tni,gi->tng", x, w_ih)
    return found if b_ih is None else found + b_ih


def _recur(h: jax.Array, w_hh: jax.Array, b_hh: Any) -> jax.Array:
    found = h @ w_hh.T
    return found if b_hh is None else found + b_hh


_SAVES = "input h0 w_ih w_hh result"


@op("", saves=_SAVES, returns="output h_n", oracle=None)
def rnn_layer(
    input: Array,
    h0: Array,
    w_ih: Array,
    w_hh: Array,
    b_ih: Array | None = None,
    b_hh: Array | None = None,
    nonlinearity: str = "tanh",
    reverse: bool = False,
) -> Array:
    """Run `h ← f(x W_ihᵀ + b_ih + h W_hhᵀ + b_hh)` over time; f is tanh or relu. Gives all states (T, N, H) and the last.

    `input` (T, N, I), `h0` (N, H), `w_ih` (H, I), `w_hh` (H, H). Elman 1990.
    """
    steps = _projected("rnn", input, h0, w_ih, w_hh, b_ih)
    f = jnp.tanh if nonlinearity == "tanh" else jax.nn.relu

    def step(h: jax.Array, x: jax.Array) -> Any:
        h = f(x + _recur(h, w_hh, b_hh))
        return h, h

    last, every = lax.scan(step, h0, steps, reverse=reverse)
    return every, last


@rnn_layer.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 2, 2), make(2, 3), make(3, 2), make(3, 3), make(3), make(3)
    yield sample(make(3, 2, 2), make(2, 3), make(3, 2), make(3, 3), nonlinearity="relu", reverse=True)


@op("", saves=_SAVES, returns="output h_n c_n", oracle=None)
def lstm_layer(
    input: Array,
    h0: Array,
    c0: Array,
    w_ih: Array,
    w_hh: Array,
    b_ih: Array | None = None,
    b_hh: Array | None = None,
    w_hr: Array | None = None,
    reverse: bool = False,
) -> Array:
    """Run an LSTM over time: gates i, f, g, o; `c ← f·c + i·g`, `h ← o·tanh(c)`. Gives all h, the last h and the last c.

    `input` (T, N, I), `h0` (N, P), `c0` (N, H), `w_ih` (4H, I), `w_hh` (4H, P); `w_hr` (P, H), if given, projects each h.
    Hochreiter and Schmidhuber 1997, with forget gates.
    """
    steps = _projected("lstm", input, h0, w_ih, w_hh, b_ih)

    def step(state: Any, x: jax.Array) -> Any:
        h, c = lstm_step(state, x, w_hh, b_hh)
        if w_hr is not None:
            h = h @ w_hr.T
        return (h, c), h

    (h, c), every = lax.scan(step, (h0, c0), steps, reverse=reverse)
    return every, h, c


def lstm_step(state: Any, x: jax.Array, w_hh: jax.Array, b_hh: Any) -> tuple[jax.Array, jax.Array]:
    """One step from projected input `x` (N, 4H)."""
    h, c = state
    i, f, g, o = jnp.split(x + _recur(h, w_hh, b_hh), 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


@lstm_layer.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 2, 2), make(2, 3), make(2, 3), make(12, 2), make(12, 3), make(12), make(12)
    yield sample(make(3, 1, 2), make(1, 2), make(1, 3), make(12, 2), make(12, 2), w_hr=make(2, 3), reverse=True)


@op("", saves=_SAVES, returns="output h_n", oracle=None)
def gru_layer(
    input: Array,
    h0: Array,
    w_ih: Array,
    w_hh: Array,
    b_ih: Array | None = None,
    b_hh: Array | None = None,
    reverse: bool = False,
) -> Array:
    """Run a GRU over time: gates r, z, n; `n = tanh(x_n + r·(h W_nᵀ + b_n))`, `h ← (1 - z)·n + z·h`. Gives all h and the last.

    `input` (T, N, I), `h0` (N, H), `w_ih` (3H, I), `w_hh` (3H, H). Cho et al. 2014, reset gate after the product.
    """
    steps = _projected("gru", input, h0, w_ih, w_hh, b_ih)

    def step(h: jax.Array, x: jax.Array) -> Any:
        h = gru_step(h, x, w_hh, b_hh)
        return h, h

    last, every = lax.scan(step, h0, steps, reverse=reverse)
    return every, last


def gru_step(h: jax.Array, x: jax.Array, w_hh: jax.Array, b_hh: Any) -> jax.Array:
    """One step from projected input `x` (N, 3H)."""
    xr, xz, xn = jnp.split(x, 3, axis=-1)
    hr, hz, hn = jnp.split(_recur(h, w_hh, b_hh), 3, axis=-1)
    r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + r * hn)
    return n + z * (h - n)


@gru_layer.samples
def _(make: Make) -> Iterator[Any]:
    yield make(3, 2, 2), make(2, 3), make(9, 2), make(9, 3), make(9), make(9)
    yield sample(make(3, 2, 2), make(2, 3), make(9, 2), make(9, 3), reverse=True)


def _cell_input(name: str, x: jax.Array, h: jax.Array, w_ih: jax.Array, b_ih: Any) -> jax.Array:
    if x.ndim not in (1, 2) or x.shape[-1] != w_ih.shape[1]:
        raise refuse(RuntimeError, name, f"input has inconsistent input_size: got {x.shape[-1:]}, expected {w_ih.shape[1]}")
    if h.shape[:-1] != x.shape[:-1]:
        raise refuse(RuntimeError, name, f"Input batch size {x.shape[:-1]} doesn't match hidden batch size {h.shape[:-1]}")
    found = x @ w_ih.T
    return found if b_ih is None else found + b_ih


@op("torch", saves="input hx w_ih w_hh result", grad_name="Tanh")
def rnn_tanh_cell(
    input: Array, hx: Array, w_ih: Array, w_hh: Array, b_ih: Array | None = None, b_hh: Array | None = None
) -> Array:
    """Take one step `tanh(x W_ihᵀ + b_ih + h W_hhᵀ + b_hh)`; `input` (N, I) or (I), `hx` (N, H) or (H)."""
    return jnp.tanh(_cell_input("rnn_tanh_cell", input, hx, w_ih, b_ih) + _recur(hx, w_hh, b_hh))


@op("torch", saves="input hx w_ih w_hh result", grad_name="Relu")
def rnn_relu_cell(
    input: Array, hx: Array, w_ih: Array, w_hh: Array, b_ih: Array | None = None, b_hh: Array | None = None
) -> Array:
    """Take one step `relu(x W_ihᵀ + b_ih + h W_hhᵀ + b_hh)`. See `rnn_tanh_cell`."""
    return jax.nn.relu(_cell_input("rnn_relu_cell", input, hx, w_ih, b_ih) + _recur(hx, w_hh, b_hh))


@op("torch", saves="input hx w_ih w_hh")
def gru_cell(input: Array, hx: Array, w_ih: Array, w_hh: Array, b_ih: Array | None = None, b_hh: Array | None = None) -> Array:
    """Take one step of a GRU (see `gru_layer`); `w_ih` (3H, I), `w_hh` (3H, H)."""
    return gru_step(hx, _cell_input("gru_cell", input, hx, w_ih, b_ih), w_hh, b_hh)


@op("", saves="input h c w_ih w_hh", returns="h c", oracle=None, grad_name="LstmCell")
def lstm_cell_step(
    input: Array, h: Array, c: Array, w_ih: Array, w_hh: Array, b_ih: Array | None = None, b_hh: Array | None = None
) -> Array:
    """Take one step of an LSTM (see `lstm_layer`); `w_ih` (4H, I), `w_hh` (4H, H). Gives the new h and c."""
    return lstm_step((h, c), _cell_input("lstm_cell", input, h, w_ih, b_ih), w_hh, b_hh)


def _cell_samples(gates: int) -> Any:
    def samples(make: Make) -> Iterator[Any]:
        yield make(2, 2), make(2, 3), make(gates * 3, 2), make(gates * 3, 3), make(gates * 3), make(gates * 3)
        yield make(2, 2), make(2, 3), make(gates * 3, 2), make(gates * 3, 3)

    return samples


rnn_tanh_cell.samples(_cell_samples(1))
rnn_relu_cell.samples(_cell_samples(1))
gru_cell.samples(_cell_samples(3))


@lstm_cell_step.samples
def _(make: Make) -> Iterator[Any]:
    yield make(2, 2), make(2, 3), make(2, 3), make(12, 2), make(12, 3), make(12), make(12)


@composite("torch")
def lstm_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """Take one step of an LSTM from `hx = (h, c)`; gives the new (h, c)."""
    return tuple(lstm_cell_step(input, *hx, w_ih, w_hh, b_ih, b_hh))
