"""Say why a derivative and a finite difference disagree, and which operation at which line is to blame.

Runs only after a mismatch was measured. The cause is read off a few more evaluations around the worst element; the place
is found by checking, one by one and in isolation, the operations and custom Functions that the function recorded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapejax import dtypes
from tapejax.autograd import function
from tapejax.autograd.finite_difference import Evaluator, coordinates, host
from tapejax.autograd.gradient_measure import Pair, measure
from tapejax.tape import modes
from tapejax.tape.node import VAR, Node
from tapejax.tape.record import record_kind
from tapejax.tensor import Tensor, grad_fn_name, leaf_tensor, wrap

KINK, JUMP, PRECISION, RANDOM, MISSING, WRONG = (
    "kink", "jump", "too little precision", "non-deterministic", "missing path", "wrong rule",
)  # fmt: skip

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MOST_CHECKED = 64  # operations checked in isolation before giving up


@dataclass
class Diagnosis:
    """Why (one of the constants above, and a sentence) and where (`SinBackward at file.py:12`; empty if not found)."""

    cause: str
    because: str
    suspect: str = ""


def diagnose(func: Callable[..., Any], inputs: Sequence[Any], pair: Pair, eps: float) -> Diagnosis:
    """Explain a pair that is not `ok`. `func` and `inputs` as they were measured."""
    at = Evaluator(func, inputs)
    found = _cause(at, pair, eps)
    if found.cause not in (PRECISION, RANDOM):
        _locate(func, inputs, found)
    return found


def _cause(at: Evaluator, pair: Pair, eps: float) -> Diagnosis:
    once, twice = at.values()[pair.output], at.values()[pair.output]
    if not np.array_equal(once, twice, equal_nan=True):
        gap = float(np.nanmax(np.abs(once - twice)))
        return Diagnosis(RANDOM, f"two evaluations at the same inputs differ by {gap:.3g}: fix the random numbers or the state it depends on")
    if pair.projected or not np.isfinite(pair.max_abs):
        what = "the tape's derivative" if not np.isfinite(np.abs(pair.analytic)) else "the finite difference"
        if not np.isfinite(pair.max_abs):
            return Diagnosis(WRONG, f"{what} is not finite here")
        return Diagnosis(WRONG, "a random projection of the Jacobian differs; check without fast mode for the element")
    row, column, imaginary = _coordinates(at, pair)

    def sides(h: float) -> tuple[float, float]:
        right, left = at.one_sided(pair.input, h, column)
        return float(right[pair.output][row]), float(left[pair.output][row])

    analytic = float(np.imag(pair.analytic) if imaginary else np.real(pair.analytic))
    numeric = float(np.imag(pair.numeric) if imaginary else np.real(pair.numeric))
    error = abs(analytic - numeric)
    tolerance = pair.atol + pair.rtol * abs(numeric)
    size = max(1.0, abs(float(at.at[pair.input][column])))
    machine = _machine(at, pair)
    coarse = size * machine ** (1 / 3)
    if eps < coarse:
        (r1, l1), (r2, l2) = sides(coarse), sides(coarse / 2)
        better = (2 * (r2 + l2) - (r1 + l1) / 2) / 3  # Richardson: the h² term cancels
        if abs(better - analytic) <= 0.25 * error and abs(better - analytic) <= 0.05 * max(abs(better), abs(analytic)) + tolerance:
            kind = "float32 or narrower" if machine > 1e-10 else "cancellation in float64"
            return Diagnosis(
                PRECISION,
                f"with a step of {coarse:.1e} the finite difference is {better:.6g}, close to the tape's {analytic:.6g}: the step {eps:.1e} drowns in"
                f" rounding ({kind}) → check float64 inputs, or pass eps={coarse:.0e} and matching tolerances",
            )
    small, large = max(10 * eps, coarse), 10 * max(10 * eps, coarse)
    (r1, l1), (r2, l2) = sides(small), sides(large)
    gap1, gap2 = abs(r1 - l1), abs(r2 - l2)
    enough = max(tolerance, 0.2 * error)
    steep1, steep2 = max(abs(r1 - analytic), abs(l1 - analytic)), max(abs(r2 - analytic), abs(l2 - analytic))
    if steep1 > 5 * steep2 and steep1 > tolerance:
        return Diagnosis(JUMP, f"the function jumps here: the difference is {numeric:.6g} with step {eps:.1e} and {(r2 + l2) / 2:.6g} with step {large:.1e}")
    if gap1 > enough and gap1 > 0.3 * gap2:
        low, high = min(r1, l1) - tolerance, max(r1, l1) + tolerance
        if low <= analytic <= high:
            return Diagnosis(
                KINK,
                f"one-sided differences disagree, {l1:.6g} to the left and {r1:.6g} to the right, and the tape's value lies between: move the input"
                " away from the kink",
            )
    if analytic == 0.0 and np.imag(pair.analytic) == 0.0:
        return Diagnosis(MISSING, "the tape's derivative is exactly 0: the gradient does not flow along a path that the value takes")
    ratio = f", {analytic / numeric:.4g} times the finite difference" if numeric else ""
    return Diagnosis(WRONG, f"the tape's derivative is stable and wrong{ratio}")


def _coordinates(at: Evaluator, pair: Pair) -> tuple[int, int, bool]:
    """The worst element as real coordinates (row, column), and whether its imaginary part is the worse one."""
    row = int(np.ravel_multi_index(pair.output_index, pair.output_shape)) if pair.output_shape else 0
    column = int(np.ravel_multi_index(pair.input_index, pair.input_shape)) if pair.input_shape else 0
    if pair.part:
        row = 2 * row + (pair.part == "imaginary")
    imaginary = False
    if at.inputs[pair.input].is_complex():
        gap = complex(pair.analytic) - complex(pair.numeric)
        imaginary = abs(gap.imag) > abs(gap.real)
        column = 2 * column + imaginary
    return row, column, imaginary


def _machine(at: Evaluator, pair: Pair) -> float:
    """The coarsest machine epsilon between the input and the output."""
    assert at.shapes is not None
    return max(_epsilon(at.inputs[pair.input].dtype), _epsilon(at.shapes[pair.output][1]))


def _epsilon(d: dtypes.dtype) -> float:
    bits = {"float64": 52, "complex128": 52, "float32": 23, "complex64": 23, "float16": 10, "bfloat16": 7}
    return 2.0 ** -bits.get(d.name, 52)


# -- where --------------------------------------------------------------------------------------------------------------


@dataclass
class _Call:
    """A custom Function's call, to be repeated in isolation."""

    cls: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    line: str


class _Watch:
    """What the function recorded: nodes in order with the user's line, and calls of custom Functions."""

    def __init__(self) -> None:
        self.nodes: list[tuple[Node, str, bool]] = []  # node, line, inside a custom Function
        self.ends: list[str] = []  # where a value stopped requiring grad though it depends on one that does
        self.calls: list[_Call] = []

    def saw(self, node: Node, mode: int) -> None:
        line, inside = _where()
        self.nodes.append((node, line, inside))
        kind: Any = node.kind
        cut = not node.requires_grad and node.aval is not None and kind.avals is None and node.aval.differentiable
        if cut and not inside and any(x.requires_grad for x in node.inputs):
            name = {"detach_value": "detach()"}.get(kind.name, f"{kind.name} under no_grad" if not mode & modes.GRAD else kind.name)
            self.ends.append(f"{name} at {line}" if line else name)

    def called(self, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls.append(_Call(cls, args, kwargs, _where()[0]))
        return NotImplemented


def _where() -> tuple[str, bool]:
    """The user's file and line, and whether a custom Function's forward is running."""
    frame: Any = sys._getframe(2)
    line, inside = "", False
    while frame is not None:
        path = frame.f_code.co_filename
        if path == function.__file__ and frame.f_code.co_name == "_apply":
            inside = True
        if not line and not path.startswith((_PACKAGE, "<")):
            line = f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return line, inside


@contextmanager
def _watching() -> Iterator[_Watch]:
    watch = _Watch()
    modes.OBSERVERS.append(watch.saw)
    function.AROUND_APPLY.append(watch.called)
    before = modes.switch(modes.ANOMALY, True)
    try:
        yield watch
    finally:
        modes.MODE.set(before)
        function.AROUND_APPLY.remove(watch.called)
        modes.OBSERVERS.remove(watch.saw)


def _locate(func: Callable[..., Any], inputs: Sequence[Any], found: Diagnosis) -> None:
    """Fill in the suspect; a wrong value that no operation explains is a path that the gradient misses."""
    try:
        with _watching() as watch:
            func(*inputs)
        found.suspect = _custom(watch) or _builtin(watch)
    except Exception:  # a diagnosis must not hide what it was to explain
        return
    if not found.suspect and watch.ends and found.cause in (WRONG, MISSING):
        found.cause = MISSING
        found.because = "a path that the value takes lets no gradient through"
        found.suspect = watch.ends[0]


def _custom(watch: _Watch) -> str:
    """The first custom Function whose own derivative is wrong on the values it was called with."""
    for call in watch.calls:
        args = [_fresh(a) for a in call.args]
        if not any(isinstance(a, Tensor) and a.requires_grad for a in args):
            continue

        def run(*tensors: Any, call: _Call = call) -> Any:
            return call.cls.apply(*tensors, **call.kwargs)

        if not _sound(run, args):
            return f"{call.cls.__name__}Backward at {call.line}"
    return ""


def _fresh(a: Any) -> Any:
    """A leaf of the same value, in float64 so that rounding is not blamed on the operation."""
    if not isinstance(a, Tensor):
        return a
    wide = {"float": dtypes.float64, "complex": dtypes.complex128}.get(_family(a.dtype), a.dtype)
    return leaf_tensor(host(a).astype(wide.np), wide, None, a.requires_grad)


def _family(d: dtypes.dtype) -> str:
    return "complex" if d.is_complex else "float" if d.is_floating_point else ""


def _sound(run: Callable[..., Any], args: Sequence[Any]) -> bool:
    try:
        report = measure(run, args, eps=1e-6, atol=1e-4, rtol=1e-3, fast=True)
    except Exception:
        return True
    return all(p.ok or not np.isfinite(p.max_abs) for p in report.pairs)


def _builtin(watch: _Watch) -> str:
    """The first recorded operation whose derivative disagrees with differences around the values it got."""
    checked: set[Any] = set()
    for node, line, inside in watch.nodes:
        if inside or not node.requires_grad or node.kind is VAR or (node.note is not None and node.note.cut is not None):
            continue
        kind: Any = node.kind
        if kind.name in ("pick", "overlay", "pull", "pull_residuals") or node.inputs is None or not node.inputs:
            continue
        values = [coordinates(host(wrap(x))).tobytes() if x.requires_grad else b"" for x in node.inputs]
        mark = (kind, tuple(values))
        if mark in checked:
            continue
        checked.add(mark)
        if len(checked) > _MOST_CHECKED:
            return ""
        args = [_leaf_of(x) for x in node.inputs]
        if any(x.aval.dtype.itemsize < 8 and x.requires_grad for x in node.inputs):
            continue

        def run(*tensors: Any, kind: Any = kind) -> Any:
            return wrap(record_kind(kind, tuple(t.node if isinstance(t, Tensor) else t for t in tensors)))

        if kind.avals is None and not _sound(run, args):
            return f"{grad_fn_name(node)} at {line}" if line else grad_fn_name(node)
    return ""


def _leaf_of(x: Node) -> Any:
    """The value of an operand as a tensor of its own (a Python number stays the scalar node it is)."""
    if isinstance(x.kind, str) and x.kind == "scalar":
        return x
    made = wrap(x).detach()
    return leaf_tensor(host(made), x.aval.dtype, None, x.requires_grad)


__all__ = ["JUMP", "KINK", "MISSING", "PRECISION", "RANDOM", "WRONG", "Diagnosis", "diagnose"]
