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

#: Samples not compared with finite differences: which, and why.
NO_DIFFERENCES: dict[str, tuple[Any, str]] = {
    "cholesky_ex": (lambda s: np.linalg.eigvalsh(s.args[0]).min() < 0, "no factor exists"),
    "embedding": (lambda s: bool(s.kwargs), "by contract padding_idx gets no gradient, and repeats share theirs"),
    "gumbel_sample": (lambda s: s.args[2], "the hard sample passes the soft one's gradient"),
    "hypot": (lambda s: np.max(s.args[0]) > 1e100, "the step is below the rounding of 1e200"),
    "normal_around": (lambda s: True, "torch gives mean and deviation no gradient through a draw"),
    "nanquantile": (lambda s: np.max(s.args[1]) == 1, "the step leaves [0, 1]"),
    "quantile": (lambda s: np.max(s.args[1]) == 1, "the step leaves [0, 1]"),
    "pinv": (lambda s: s.args[0].ndim == 2 and np.linalg.matrix_rank(s.args[0]) < min(s.args[0].shape), "the step changes the rank"),
    "lstsq_op": (lambda s: True, "the composite detaches the singular values"),
}

#: Only one triangle of the operand is read and torch's gradient is symmetric: the direction has to be symmetric too.
SYMMETRIC = {"cholesky", "cholesky_ex", "eigh", "eigvalsh"}


def smooth(name: str, s: Sample) -> bool:
    """Whether differences make sense for this sample; at infinity and NaN the conventions are torch's and there is no slope."""
    if name in NO_DIFFERENCES and NO_DIFFERENCES[name][0](s):
        return False
    return all(np.isfinite(a).all() for a in arrays_in((s.args, s.kwargs)))


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
