"""Where a sample may be compared with finite differences, and the shifted calls that do it."""

from __future__ import annotations

from typing import Any

import numpy as np

from op_calls import Call, arrays_in, call, with_arrays
from tapejax.tape.op import Op, Sample

#: Samples at ties, jumps and corners: skipped where the slopes to either side differ.
CORNERS = {
    "amax", "amin", "atan2", "clamp", "cummax", "cummin", "fmax", "fmin", "max_dim", "max_full", "max_pool1d", "maximum", "median_dim",
    "median_full", "min_dim", "min_full", "minimum", "mode", "nanmedian_dim", "nanmedian_full", "round", "sign", "sort_op", "topk",
}  # fmt: skip

def direction(rng: np.random.Generator, a: np.ndarray, symmetric: bool) -> np.ndarray | None:
    """A random direction for a double-precision array; others stay where they are."""
    if a.dtype not in (np.float64, np.complex128):
        return None
    v = rng.normal(size=a.shape)
    v = v + 1j * rng.normal(size=a.shape) if a.dtype.kind == "c" else v
    return np.asarray(v + np.conj(np.swapaxes(v, -1, -2)) if symmetric else v)


def moved(op: Op, s: Sample, directions: list[Any], step: float, grad: bool = True) -> Call:
    """The sample's call at arrays + step * directions."""
    arrays = [a if v is None else np.asarray(a + step * v) for a, v in zip(arrays_in((s.args, s.kwargs)), directions, strict=True)]
    return call(op, with_arrays(s, arrays), grad)
