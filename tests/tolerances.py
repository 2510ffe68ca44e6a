"""How far two results may be apart, per element type: the one place. A wider entry says why."""

from __future__ import annotations

from typing import Any

import numpy as np

#: (relative, absolute) for values computed by the same formula in another order.
VALUE = {
    "bfloat16": (4e-2, 1e-2),
    "float16": (5e-3, 2e-3),
    "float32": (5e-5, 5e-6),
    "float64": (1e-8, 1e-9),
    "complex64": (5e-5, 5e-6),
    "complex128": (1e-8, 1e-9),
}

#: Gradients add up more terms than values do.
GRADIENT = VALUE | {"float64": (1e-6, 1e-8), "complex128": (1e-6, 1e-8)}

#: Central differences in float64 with step STEP: the error is about STEP² plus rounding / STEP.
STEP = 1e-5
DIFFERENCE = (2e-5, 2e-6)

#: ⟨u, J v⟩ and ⟨Jᵀ u, v⟩ are the same number up to rounding.
IDENTITY = (1e-9, 1e-9)

#: Single precision against torch, for operations that lose digits by themselves.
SINGLE = {
    "default": (2e-4, 2e-5),
    "slogdet": (1e-3, 1e-4),  # the logarithm of a determinant near 1
    "det": (1e-3, 1e-4),  # a product of pivots that cancel
}


def close(got: Any, expected: Any, limits: tuple[float, float], what: str) -> None:
    """Assert that two arrays have one shape, one element type and, within `limits`, the same values."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    assert got.dtype == expected.dtype, f"{what}: dtype {got.dtype}, expected {expected.dtype}"
    if got.dtype.kind not in "fcV":
        np.testing.assert_array_equal(got, expected, err_msg=what)
    else:
        np.testing.assert_allclose(got, expected, rtol=limits[0], atol=limits[1], err_msg=what)
