"""Run the checks of a target: the measuring core's facts, put in rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tapejax.autograd.gradcheck import batched_gap, gradient_map
from tapejax.autograd.gradient_measure import Report, measure
from tapejax.autograd.suspect import JUMP, KINK, diagnose
from tapejax.tensor import Tensor

from .errors import Unusable, first_line
from .inputs import spelled
from .targets import Target


@dataclass
class Limits:
    """Step and tolerances; None means: by the coarsest element type among the checked inputs."""

    eps: float | None = None
    atol: float | None = None
    rtol: float | None = None

    def for_types(self, types: set[str]) -> tuple[float, float, float]:
        narrow = types & {"float16", "bfloat16"}
        single = types & {"float32", "complex64"}
        eps, atol, rtol = (0.1, 0.1, 0.1) if narrow else (5e-3, 1e-2, 1e-2) if single else (1e-6, 1e-5, 1e-3)
        return self.eps or eps, atol if self.atol is None else self.atol, rtol if self.rtol is None else self.rtol


@dataclass
class Row:
    """One input of one check. `worst` is the element of the input, `output` that of the result."""

    input: str
    type: str
    ok: bool
    verdict: str = "ok"
    max_abs: float | None = None
    max_rel: float | None = None
    worst: list[int] | None = None
    output: list[int] | None = None
    analytic: Any = None
    numeric: Any = None
    because: str = ""
    suspect: str = ""
    excess: float = 0.0


@dataclass
class Result:
    """One check of one target: `order` is "gradient", "second order" or "batched"."""

    target: str
    order: str
    eps: float
    atol: float
    rtol: float
    rows: list[Row] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(r.ok for r in self.rows)

    def plain(self) -> dict[str, Any]:
        """As JSON-ready data: complex numbers become [real, imaginary]."""
        found = {**asdict(self), "ok": self.ok}
        for row in found["rows"]:
            del row["excess"]
            for name, value in row.items():
                if isinstance(value, complex):
                    row[name] = [value.real, value.imag]
                elif isinstance(value, float) and not np.isfinite(value):
                    row[name] = repr(value)
        return found


def check_target(
    target: Target,
    limits: Limits,
    *,
    second_order: bool = False,
    batched: bool = False,
    fast: bool = False,
    seed: int = 0,
    explain: bool = True,
    tick: Callable[[], None] | None = None,
) -> list[Result]:
    """The gradient of the target, and what else was asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _call(target)
        found = [_measured("gradient", target, limits, fast, seed, explain, tick)]
        if second_order:
            twice = _second(target, seed)
            if twice is not None:
                found.append(_measured("second order", twice, limits, fast, seed, explain, tick))
        if batched:
            found.append(_batched(target, limits, seed))
    return found


def _call(target: Target) -> None:
    """See whether the function can be run at all, and gives tensors."""
    try:
        result = target.function(*target.inputs)
        for t in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(t, Tensor):
                t.array()
    except Exception as e:
        given = ", ".join(spelled(t) if isinstance(t, Tensor) else type(t).__name__ for t in target.inputs)
        raise Unusable(f"{target.name} called with ({given}) raised {first_line(e)}") from None
    if not any(isinstance(t, Tensor) for t in (result if isinstance(result, (tuple, list)) else (result,))):
        raise Unusable(f"{target.name} returned {type(result).__name__} → it must return a Tensor, or several")


def _types(inputs: tuple[Any, ...]) -> set[str]:
    return {t.dtype.name for t in inputs if isinstance(t, Tensor) and t.requires_grad}


def _measured(
    order: str, target: Target, limits: Limits, fast: bool, seed: int, explain: bool, tick: Callable[[], None] | None
) -> Result:
    eps, atol, rtol = limits.for_types(_types(target.inputs))
    result = Result(target.name, order, eps, atol, rtol)
    try:
        report = measure(target.function, target.inputs, eps=eps, atol=atol, rtol=rtol, fast=fast, seed=seed, tick=tick)
    except Exception as e:
        result.rows.append(Row("", "", False, "error", because=f"differentiating it raised {first_line(e)}"))
        return result
    for k in report.checked:
        result.rows.append(_row(target, report, k, eps, explain))
    return result


def _row(target: Target, report: Report, k: int, eps: float, explain: bool) -> Row:
    row = Row(target.names[k], spelled(target.inputs[k]), True)
    pairs = report.of_input(k)
    if not pairs:
        return row
    worst = max(pairs, key=lambda p: p.excess)
    row.ok, row.excess = worst.ok, worst.excess
    row.max_abs = float(np.max([p.max_abs for p in pairs]))
    row.max_rel = float(np.max([p.max_rel for p in pairs]))
    if not worst.projected and worst.analytical.size:
        row.worst = list(worst.input_index)
        row.output = list(worst.output_index) if len(report.outputs) == 1 else [worst.output, *worst.output_index]
    row.analytic, row.numeric = worst.analytic, worst.numeric
    shaky = max((r.difference for r in report.reruns), default=0.0)
    if not worst.ok:
        row.verdict = "wrong"
        if explain:
            if worst.projected:
                whole = measure(target.function, target.inputs, eps=eps, atol=worst.atol, rtol=worst.rtol)
                worst = max(whole.of_input(k), key=lambda p: p.excess)
                row.worst, row.output = list(worst.input_index), list(worst.output_index)
                row.analytic, row.numeric = worst.analytic, worst.numeric
            why = diagnose(target.function, target.inputs, worst, eps)
            row.verdict, row.because, row.suspect = why.cause, why.because, why.suspect
            row.ok = target.kinks_pass and why.cause in (KINK, JUMP)
    elif shaky > 0.0:
        row.ok, row.verdict = False, "non-deterministic"
        row.because = f"two backwards at the same values and seed differ by {shaky:.3g}"
    return row


def _second(target: Target, seed: int) -> Target | None:
    """The target's gradient as a target: its inputs and one seed per output. None where the gradient is constant in all of them."""
    try:
        function, inputs = gradient_map(target.function, target.inputs, None, seed)
    except Exception as e:
        raise Unusable(f"{target.name}: the gradient could not be taken: {first_line(e)}") from None
    n = len(inputs) - len(target.inputs)
    if not n:
        return None
    return Target(target.name, function, inputs, (*target.names, *(f"seed {i}" if n > 1 else "seed" for i in range(n))))


def _batched(target: Target, limits: Limits, seed: int) -> Result:
    """`is_grads_batched=True` against a loop over the seeds."""
    eps, atol, rtol = limits.for_types(_types(target.inputs))
    result = Result(target.name, "batched", eps, atol, rtol)
    try:
        gaps = batched_gap(target.function, target.inputs, seed)
    except Exception as e:
        result.rows.append(Row("", "", False, "not batched", because=first_line(e)))
        return result
    for k in sorted({k for _, k, _ in gaps}):
        ok = all(gap <= 1.0 for _, i, gap in gaps if i == k)
        why = "" if ok else "is_grads_batched=True gives another value than a loop over the seeds"
        result.rows.append(Row(target.names[k], spelled(target.inputs[k]), ok, "ok" if ok else "wrong", because=why))
    return result
