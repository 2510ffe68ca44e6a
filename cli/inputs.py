"""`--input 'float64[3,4]@0.1:2'`: a reproducible random tensor from a few characters."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tapejax import dtypes
from tapejax.tensor import Tensor, leaf_tensor

from .errors import Unusable

_SPEC = re.compile(r"(?P<dtype>[a-z]+\d*)(\[(?P<shape>[\d,\s]*)\])?(@(?P<low>[^:]+):(?P<high>[^:]+))?")
_FORM = "write dtype[shape] or dtype[shape]@low:high, e.g. 'float64[3,4]', 'int64[5]@0:10', 'float64[]'"


def random_input(spec: str, rng: np.random.Generator) -> Tensor:
    """Draw the tensor that `spec` names; floating and complex ones require grad.

    Without a range: normal (floating, complex), 0 to 2 (integers). With one: uniform in [low, high), integers too.
    """
    found = _SPEC.fullmatch(spec.strip())
    if found is None:
        raise Unusable(f"--input {spec!r} is not understood → {_FORM}")
    try:
        dtype = dtypes.of(found["dtype"])
    except TypeError:
        names = " ".join(d.name for d in dtypes.ALL)
        raise Unusable(f"--input {spec!r}: {found['dtype']!r} is not an element type → one of {names}") from None
    entries = [e.strip() for e in (found["shape"] or "").split(",")]
    if entries[-1] == "":
        entries.pop()
    if "" in entries:
        raise Unusable(f"--input {spec!r}: the shape has an empty entry → {_FORM}")
    values = _draw(dtype, tuple(map(int, entries)), _range(spec, found["low"], found["high"]), rng)
    return leaf_tensor(np.asarray(values).astype(dtype.np), dtype, None, dtype.is_differentiable)


def _range(spec: str, low: str | None, high: str | None) -> tuple[float, float] | None:
    if low is None or high is None:
        return None
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise Unusable(f"--input {spec!r}: the range {low}:{high} is not two numbers → {_FORM}") from None
    if not bounds[0] < bounds[1]:
        raise Unusable(f"--input {spec!r}: the range {low}:{high} is empty → low must be below high")
    return bounds


def _draw(dtype: dtypes.dtype, shape: tuple[int, ...], bounds: tuple[float, float] | None, rng: np.random.Generator) -> Any:
    if dtype.category == 0:
        return rng.random(shape) < 0.5
    if dtype.category == 1:
        low, high = bounds or (0, 3)
        return rng.integers(int(low), max(int(high), int(low) + 1), shape)

    def real() -> Any:
        return rng.standard_normal(shape) if bounds is None else rng.uniform(*bounds, shape)

    return real() + 1j * real() if dtype.is_complex else real()


def spelled(t: Tensor) -> str:
    """`float64[3,4]`."""
    return f"{t.dtype.name}[{','.join(map(str, t.shape))}]"


def differentiable(tensors: Any) -> tuple[Any, ...]:
    """Inputs as they come from the user's code: arrays become tensors, and if nothing requires grad all that can do."""
    found = [_as_tensor(t) for t in tensors]
    if any(isinstance(t, Tensor) and t.requires_grad for t in found):
        return tuple(found)
    return tuple(t.detach().clone().requires_grad_() if isinstance(t, Tensor) and t.dtype.is_differentiable else t for t in found)  # type: ignore[attr-defined]


def _as_tensor(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return leaf_tensor(x, dtypes.of(x.dtype))
    return x
