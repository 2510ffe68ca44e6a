"""Measure a function's derivatives by the tape against finite differences: facts only, no verdict is raised here.

`measure` is what `gradcheck`, `gradgradcheck` and `tapejax check` share. Its result is plain data.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tapejax.autograd.entry import grad
from tapejax.autograd.finite_difference import Evaluator, as_tuple, coordinates, host, tensor_of, tensors_of
from tapejax.engine.materialise import force
from tapejax.tensor import Tensor

Tick = Callable[[], None]


@dataclass
class Pair:
    """One output against one input: how far the tape's derivative is from the finite difference, and where most.

    `part`: "real" or "imaginary" of a complex output, "" of a real one. `mode`: "backward" or "forward". The matrices are
    (elements of the output, elements of the input); for a complex input an entry is d/dre + i d/dim. With `projected` they
    are the 1x1 results of a random projection and the indices are empty.
    """

    output: int
    input: int
    mode: str
    part: str
    analytical: np.ndarray
    numerical: np.ndarray
    output_shape: tuple[int, ...]
    input_shape: tuple[int, ...]
    atol: float
    rtol: float
    projected: bool = False
    ok: bool = field(init=False)
    excess: float = field(init=False)  # the worst error as a multiple of what is tolerated
    max_abs: float = field(init=False)
    max_rel: float = field(init=False)
    output_index: tuple[int, ...] = field(init=False)
    input_index: tuple[int, ...] = field(init=False)
    analytic: Any = field(init=False)
    numeric: Any = field(init=False)

    def __post_init__(self) -> None:
        a, n = self.analytical, self.numerical
        self.output_index = self.input_index = ()
        self.analytic = self.numeric = self.max_abs = self.max_rel = self.excess = 0.0
        self.ok = True
        if not a.size:
            return
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(a == n, 0.0, np.abs(a - n))
            excess = error / (self.atol + self.rtol * np.abs(n))
            floor = self.atol / self.rtol if self.rtol else self.atol
            relative = error / np.maximum(np.maximum(np.abs(a), np.abs(n)), floor or 1.0)
        bad = ~np.isfinite(error)
        excess = np.where(bad, np.inf, excess)
        worst = int(np.argmax(excess))
        self.excess = float(excess.flat[worst])
        self.ok = self.excess <= 1.0
        self.max_abs = float("nan") if bad.any() else float(error.max())
        self.max_rel = float("nan") if bad.any() else float(relative.max())
        self.analytic, self.numeric = a.flat[worst].item(), n.flat[worst].item()
        if not self.projected:
            row, column = np.unravel_index(worst, a.shape)
            self.output_index = tuple(int(i) for i in np.unravel_index(int(row), self.output_shape)) if self.output_shape else ()
            self.input_index = tuple(int(i) for i in np.unravel_index(int(column), self.input_shape)) if self.input_shape else ()


@dataclass
class Rerun:
    """The backward of one output, run a second time: the largest difference."""

    output: int
    difference: float


@dataclass
class WrongType:
    """A gradient whose element type is not its input's."""

    output: int
    input: int
    found: str
    expected: str


@dataclass
class Report:
    """Everything that was measured. `differentiable` are the positions of the outputs that require grad."""

    checked: list[int]
    outputs: list[tuple[tuple[int, ...], str]]
    differentiable: list[int]
    pairs: list[Pair] = field(default_factory=list)
    reruns: list[Rerun] = field(default_factory=list)
    wrong_types: list[WrongType] = field(default_factory=list)
    fast: bool = False

    def of_input(self, k: int) -> list[Pair]:
        return [p for p in self.pairs if p.input == k]


def measure(
    func: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    backward: bool = True,
    forward: bool = False,
    fast: bool = False,
    seed: int = 0,
    tick: Tick | None = None,
) -> Report:
    """Differentiate `func(*inputs)` on the tape and by central differences.

    Inputs that require grad are checked. Outputs that do not are expected to be constant: their pairs (mode "constant",
    analytic zeros) are made only when no output at all requires grad. `tick` is called after every evaluation step.
    """
    at = Evaluator(func, inputs)
    found = tensors_of(func(*inputs))
    differentiable = [j for j, t in enumerate(found) if t.requires_grad]
    report = Report(list(at.at), [(tuple(t.shape), t.dtype.name) for t in found], differentiable, fast=fast)
    probe = _Fast(at, found, seed) if fast else None
    numerical = {k: probe.slope(k, eps) if probe else at.jacobian(k, eps, tick) for k in at.at}

    def compare(mode: str, j: int, k: int, analytical: np.ndarray) -> None:
        matrices = _parts(analytical, numerical[k][j], found[j], at.inputs[k], fast)
        tolerance = atol * probe.scale(k, j) if probe else atol
        for part, a, n in matrices:
            report.pairs.append(Pair(j, k, mode, part, a, n, tuple(found[j].shape), tuple(at.inputs[k].shape), tolerance, rtol, fast))

    if not differentiable:
        for j in range(len(found)):
            for k in at.at:
                compare("constant", j, k, np.zeros_like(numerical[k][j]))
        return report
    if forward:
        for k in at.at:
            columns = probe.pushed(k) if probe else forward_jacobian(at, k, tick)
            for j in differentiable:
                compare("forward", j, k, columns[j])
    if backward:
        force([found[j].node for j in differentiable])  # else the first backward runs a program of its own, which rounds differently
        for j in differentiable:

            def once(j: int = j) -> Any:
                return probe.pulled(found[j], j) if probe else backward_jacobian(found[j], at, tick)

            first, types = once()
            again, _ = once()
            gap = _largest(first, again)
            if 0.0 < gap < 1e-12:  # rounding of the first run; a function that does not repeat itself differs again
                gap = _largest(again, once()[0])
            report.reruns.append(Rerun(j, gap))
            for k, found_type in types.items():
                expected = at.inputs[k].dtype.name
                if found_type != expected:
                    report.wrong_types.append(WrongType(j, k, found_type, expected))
            for k in at.at:
                compare("backward", j, k, first[k])
    report.pairs.sort(key=lambda p: p.part != "imaginary")  # imaginary parts are told first, as torch does
    return report


def _largest(a: dict[int, np.ndarray], b: dict[int, np.ndarray]) -> float:
    return max((_difference(a[k], b[k]) for k in a), default=0.0)


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    if not a.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.nanmax(np.where(np.isnan(gap), np.inf, gap)))


def _parts(a: np.ndarray, n: np.ndarray, output: Tensor, input: Tensor, projected: bool) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Split real matrices over coordinates into matrices over elements, per part of a complex output."""
    if projected:
        return [("", a, n)]
    if input.dtype.is_complex:
        a, n = a[:, 0::2] + 1j * a[:, 1::2], n[:, 0::2] + 1j * n[:, 1::2]
    if not output.dtype.is_complex:
        return [("", a, n)]
    return [("imaginary", a[1::2], n[1::2]), ("real", a[0::2], n[0::2])]


def pull(output: Tensor, at: Evaluator, seed: np.ndarray) -> tuple[dict[int, np.ndarray], dict[int, str]]:
    """Gradients (as coordinates) of one output under `seed`, with their element types; zeros where it is not used."""
    wanted = list(at.at)
    grads = grad(output, [at.inputs[k] for k in wanted], tensor_of(seed, output), retain_graph=True, allow_unused=True)
    force([g.node for g in grads if g is not None])
    rows, types = {}, {}
    for k, g in zip(wanted, grads, strict=True):
        if g is None:
            rows[k] = np.zeros_like(at.at[k])
            continue
        types[k] = g.dtype.name
        rows[k] = coordinates(host(g)) if g.is_complex() == at.inputs[k].is_complex() else _real_rows(host(g), at.inputs[k])
    return rows, types


def _real_rows(array: np.ndarray, like: Tensor) -> np.ndarray:
    return coordinates(array.astype(np.complex128)) if like.is_complex() else coordinates(array.real)


def backward_jacobian(output: Tensor, at: Evaluator, tick: Tick | None = None) -> tuple[dict[int, np.ndarray], dict[int, str]]:
    """Per input, the Jacobian of `output` over coordinates, a row per backward."""
    n = output.numel() * (2 if output.is_complex() else 1)
    found: dict[int, np.ndarray] = {k: np.zeros((n, len(c))) for k, c in at.at.items()}
    types: dict[int, str] = {}
    seed = np.zeros(n)
    for i in range(n):
        seed[i] = 1.0
        rows, types = pull(output, at, seed)
        seed[i] = 0.0
        for k, row in rows.items():
            found[k][i] = row
        if tick is not None:
            tick()
    return found, types


def forward_ad() -> Any:
    """`tapejax.autograd.forward_ad`."""
    try:
        return importlib.import_module("tapejax.autograd.forward_ad")
    except ModuleNotFoundError:
        raise NotImplementedError("gradcheck(): forward mode (tapejax.autograd.forward_ad) is not there yet → check_forward_ad=False") from None


def push(at: Evaluator, tangents: dict[int, np.ndarray]) -> list[np.ndarray]:
    """Per output, the coordinates of its tangent when inputs carry `tangents` (zeros for none)."""
    ad = forward_ad()
    with ad.dual_level():
        duals = []
        for k, x in enumerate(at.inputs):
            primal = x.detach().clone() if k in at.at else x
            duals.append(ad.make_dual(primal, tensor_of(tangents[k], x)) if k in tangents else primal)
        found = []
        for t in tensors_of(at.func(*duals)):
            primal, tangent = ad.unpack_dual(t)
            found.append(np.zeros_like(coordinates(host(primal))) if tangent is None else _real_rows(host(tangent), primal))
    return found


def forward_jacobian(at: Evaluator, k: int, tick: Tick | None = None) -> list[np.ndarray]:
    """Per output, the Jacobian with respect to input `k` over coordinates, a column per tangent."""
    columns = []
    tangent = np.zeros_like(at.at[k])
    for i in range(len(tangent)):
        tangent[i] = 1.0
        columns.append(push(at, {k: tangent}))
        tangent[i] = 0.0
        if tick is not None:
            tick()
    if not columns:
        return [np.zeros((len(v), 0)) for v in at.values()]
    return [np.stack(c, axis=1) for c in zip(*columns, strict=True)]


class _Fast:
    """Random projections: one direction per input and one seed per output instead of whole Jacobians.

    Entries are positive, so that a wrong entry cannot cancel a wrong entry of the same sign.
    """

    def __init__(self, at: Evaluator, outputs: Sequence[Tensor], seed: int) -> None:
        rng = np.random.default_rng(seed)

        def direction(n: int) -> np.ndarray:
            v = rng.uniform(0.1, 1.0, n)
            return v / np.linalg.norm(v) if n else v

        self.at = at
        self.along = {k: direction(len(c)) for k, c in at.at.items()}
        self.seeds = [direction(t.numel() * (2 if t.is_complex() else 1)) for t in outputs]

    def scale(self, k: int, j: int) -> float:
        """How much an error of one in every entry of the Jacobian moves the projection."""
        return float(self.along[k].sum() * self.seeds[j].sum()) or 1.0

    def _seeded(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.array([[float(s @ c)]]) for s, c in zip(self.seeds, columns, strict=True)]

    def slope(self, k: int, eps: float) -> list[np.ndarray]:
        return self._seeded(self.at.slope(k, eps, direction=self.along[k]))

    def pushed(self, k: int) -> list[np.ndarray]:
        return self._seeded(push(self.at, {k: self.along[k]}))

    def pulled(self, output: Tensor, j: int) -> tuple[dict[int, np.ndarray], dict[int, str]]:
        rows, types = pull(output, self.at, self.seeds[j])
        return {k: np.array([[float(row @ self.along[k])]]) for k, row in rows.items()}, types


__all__ = ["Pair", "Report", "Rerun", "WrongType", "as_tuple", "forward_ad", "measure", "pull", "push"]
