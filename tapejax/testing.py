"""torch.testing: comparing tensors with a message that says where they differ, and random tensors for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejax import dtypes
from tapejax.ops.create import tensor
from tapejax.tensor import Tensor

_TOLERANCE = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}  # fmt: skip


def assert_close(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_dtype: bool = True,
    check_device: bool = True,
    msg: str | None = None,
) -> None:
    """Raise AssertionError unless the values agree: |actual - expected| ≤ atol + rtol · |expected|, by dtype unless given."""
    if isinstance(actual, (list, tuple)) and isinstance(expected, (list, tuple)):
        if len(actual) != len(expected):
            raise AssertionError(f"The length of the sequences mismatch: {len(actual)} != {len(expected)}")
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=check_dtype, msg=msg)
        return
    if isinstance(actual, dict):
        if set(actual) != set(expected):
            raise AssertionError(f"The keys of the mappings do not match: {sorted(map(str, set(actual) ^ set(expected)))}")
        for k in actual:
            assert_close(actual[k], expected[k], rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=check_dtype, msg=msg)
        return
    if isinstance(actual, Tensor) and isinstance(expected, Tensor):
        if check_dtype and actual.dtype is not expected.dtype:
            raise AssertionError(f"The values for attribute 'dtype' do not match: {actual.dtype} != {expected.dtype}.")
        if tuple(actual.shape) != tuple(expected.shape):
            raise AssertionError(f"The values for attribute 'shape' do not match: {actual.shape} != {expected.shape}.")
    a = actual.detach().numpy() if isinstance(actual, Tensor) else np.asarray(actual)
    e = expected.detach().numpy() if isinstance(expected, Tensor) else np.asarray(expected)
    r, t = max((_TOLERANCE.get(str(x.dtype), (0.0, 0.0)) for x in (a, e)), default=(0.0, 0.0))
    r, t = (r if rtol is None else rtol), (t if atol is None else atol)
    wide = np.complex128 if a.dtype.kind == "c" or e.dtype.kind == "c" else np.float64
    close = np.isclose(a.astype(wide), e.astype(wide), rtol=r, atol=t, equal_nan=equal_nan)
    if not close.all():
        off = np.abs(a.astype(wide) - e.astype(wide))
        where = np.unravel_index(int(np.nanargmax(np.where(close, -1, off))), close.shape) if close.ndim else ()
        raise AssertionError(
            msg
            or f"Tensor-likes are not close!\n\nMismatched elements: {int((~close).sum())} / {close.size}\nGreatest absolute difference:"
            f" {off[where]} at index {tuple(map(int, where))} (up to {t} allowed, relative {r})"
        )


def make_tensor(
    *shape: Any,
    dtype: Any = dtypes.float32,
    device: Any = None,
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Return a tensor of random values in [low, high) (by default [-9, 9], [0, 1] for bool) from the default generator."""
    from tapejax.rng import default_generator

    size = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    d = dtypes.of(dtype)
    rng = np.random.default_rng(default_generator.draw())
    if d is dtypes.bool_:
        values: Any = rng.random(size) < 0.5
    elif d.category == 1:
        values = rng.integers(int(-9 if low is None and d.is_signed else low or 0), int(10 if high is None else high), size)
    else:
        bounds = (-9.0 if low is None else low, 9.0 if high is None else high)
        values = rng.uniform(*bounds, size)
        if d.is_complex:
            values = values + 1j * rng.uniform(*bounds, size)
    if exclude_zero:
        values = np.where(values == 0, 1, values)
    return tensor(np.asarray(values), dtype=d, device=device, requires_grad=requires_grad)
