"""How a tensor prints: torch's text, to the character, from a NumPy array.

Owns the print options and `format_tensor`; imports only `dtypes` and `errors`. Knows no Tensor and no jit, so printing can
be tested against torch without a core. Two steps: look at all numbers that will be shown and choose one `_Column` style for them
(so that they align), then lay the rows out, abridged where there are too many elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapejax import dtypes
from tapejax.errors import refuse


@dataclass(frozen=True)
class PrintOptions:
    """What `set_printoptions` sets; `sci_mode=None` chooses by the range of the numbers."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, edgeitems=2),
    "full": PrintOptions(threshold=math.inf),
}
_options = _PROFILES["default"]


def get_printoptions() -> dict[str, Any]:
    """Return the print options now in force, as keyword arguments of `set_printoptions`."""
    return dict(_options.__dict__)


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how tensors print.

    `precision`: digits after the point (4). `threshold`: more elements than this are abridged (1000). `edgeitems`: how many
    are kept at both ends of an abridged axis (3). `linewidth`: columns per line (80). `profile`: "default", "short" or
    "full", a starting point for the others. `sci_mode`: True or False forces scientific notation on or off; None, also
    when left out, goes back to choosing by the range of the numbers.

    >>> from tapejax.display import set_printoptions
    >>> set_printoptions(precision=2)
    >>> set_printoptions(profile="default")
    """
    global _options
    start = _options
    if profile is not None:
        if profile not in _PROFILES:
            known = ", ".join(_PROFILES)
            raise refuse(ValueError, "set_printoptions", f"unknown profile {profile!r} → use one of {known}")
        start = _PROFILES[profile]
    _options = PrintOptions(
        start.precision if precision is None else precision,
        start.threshold if threshold is None else threshold,
        start.edgeitems if edgeitems is None else edgeitems,
        start.linewidth if linewidth is None else linewidth,
        sci_mode,
    )


def format_tensor(
    array: np.ndarray,
    dtype: dtypes.dtype,
    *,
    requires_grad: bool = False,
    grad_fn_name: str | None = None,
    device: str | None = None,
    name: str = "tensor",
    indent: int = 0,
) -> str:
    """Return the text of a tensor with the values `array`.

    `dtype` names the element type; it is written out unless the value's literal already implies it. `grad_fn_name`, such as
    "MulBackward0", stands for a recorded tensor; `device`, such as "cuda:0", is None on the CPU. `indent` is the column at
    which the text starts, for line wrapping.

    >>> import numpy as np
    >>> from tapejax import dtypes
    >>> print(format_tensor(np.float32([[1, 2.5], [-3, 4]]), dtypes.float32, requires_grad=True))
    tensor([[ 1.0000,  2.5000],
            [-3.0000,  4.0000]], requires_grad=True)
    """
    column = indent + len(name) + 1
    implied = (dtypes.get_default_dtype(), dtypes.get_default_dtype().to_complex(), dtypes.int64, dtypes.bool_)
    notes = []
    if device is not None:
        notes.append(f"device='{device}'")
    if array.size == 0:
        if array.ndim != 1:
            notes.append(f"size={tuple(array.shape)}")
        if dtype is not dtypes.get_default_dtype():
            notes.append(f"dtype={dtype}")
        body = "[]"
    else:
        if _options.edgeitems == 0:
            notes.append(f"size={tuple(array.shape)}")
        if dtype not in implied:
            notes.append(f"dtype={dtype}")
        body = format_values(array, column)
    if grad_fn_name is not None:
        notes.append(f"grad_fn=<{grad_fn_name}>")
    elif requires_grad:
        notes.append("requires_grad=True")
    return _append(f"{name}({body}", notes, column) + ")"


def format_values(array: np.ndarray, column: int = 0) -> str:
    """Return the bracketed values of a non-empty `array`, laid out from text column `column`."""
    if array.dtype.kind == "V" or array.dtype.name in ("float16", "bfloat16"):  # NumPy knows no bfloat16 of its own
        array = array.astype(np.float32)
    abridged = array.size > _options.threshold
    show, width = _style(_ends(array) if abridged else array)
    return _layout(array, show, width, abridged, column)


def _append(text: str, notes: list[str], column: int) -> str:
    """Add the notes after the values, starting a new line where one would pass the right margin."""
    used = len(text) - text.rfind("\n") + 1
    for note in notes:
        length = len(note.replace("tapejax.", "torch."))  # lines break where torch's do, though our name is longer
        if used + length + 2 > _options.linewidth:
            text += ",\n" + " " * column + note
            used = column + length
        else:
            text += ", " + note
            used += length + 2
    return text


def _ends(array: np.ndarray) -> np.ndarray:
    """The elements that an abridged text shows."""
    keep = _options.edgeitems
    for axis, length in enumerate(array.shape):
        if length > 2 * keep:
            array = np.take(array, [*range(keep), *range(length - keep, length)], axis)
    return array


def _layout(array: np.ndarray, show: Callable[[Any], str], width: int, abridged: bool, column: int) -> str:
    if array.ndim == 0:
        return show(array.item())
    keep = _options.edgeitems
    if abridged and keep == 0:
        return "[...]"
    pieces = [*array[:keep], None, *array[-keep:]] if abridged and len(array) > 2 * keep else list(array)
    margin = " " * (column + 1)
    if array.ndim == 1:
        words = [" ..." if piece is None else show(piece.item()) for piece in pieces]
        per_line = max(1, (_options.linewidth - column) // (width + 2))
        lines = [", ".join(words[k : k + per_line]) for k in range(0, len(words), per_line)]
        return "[" + f",\n{margin}".join(lines) + "]"
    rows = ["..." if piece is None else _layout(piece, show, width, abridged, column + 1) for piece in pieces]
    return "[" + ("," + "\n" * (array.ndim - 1) + margin).join(rows) + "]"


def _style(values: np.ndarray) -> tuple[Callable[[Any], str], int]:
    """Choose one way to write all `values`: the function from a Python number to its text, and the text's width."""
    kind = values.dtype.kind
    if kind == "c":
        real, real_width = _style(values.real)
        imag, imag_width = _style(values.imag)

        def both(z: complex) -> str:
            right = imag(z.imag).lstrip()
            return real(z.real) + ("" if right[0] in "+-" else "+") + right + "j"

        return both, real_width + imag_width + 1
    measured = values[np.isfinite(values) & (values != 0)] if kind == "f" else values
    write = _float_text(measured) if kind == "f" else str
    width = max((len(write(v)) for v in measured.ravel().tolist()), default=1)
    return lambda v: write(v).rjust(width), width


def _float_text(values: np.ndarray) -> Callable[[float], str]:
    """Choose the notation by the finite non-zero `values`.

    Whole numbers are written "3.", others with a fixed number of digits; far apart, huge or tiny ones in scientific form.
    """
    if values.size == 0:
        return _whole
    sizes = np.abs(values).astype(np.float64)
    low, high = float(sizes.min()), float(sizes.max())
    far_apart = high > 1000.0 * low or high > 1e8 or low < 1e-4
    if far_apart if _options.sci_mode is None else _options.sci_mode:
        return _scientific
    return _whole if np.all(values == np.ceil(values)) else _fixed


def _scientific(v: float) -> str:
    return f"{v:.{_options.precision}e}"


def _fixed(v: float) -> str:
    return f"{v:.{_options.precision}f}"


def _whole(v: float) -> str:
    return f"{v:.0f}." if math.isfinite(v) else f"{v:.0f}"
