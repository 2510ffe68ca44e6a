"""L-BFGS: a quasi-Newton method for full batches, with an optional line search.

Unlike the other optimizers it must look at losses and slopes while it steps, so each evaluation of the closure is a program of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tapejax.autograd.grad_mode import enable_grad, no_grad
from tapejax.errors import refuse
from tapejax.ops.complex import view_as_complex, view_as_real
from tapejax.ops.join import cat
from tapejax.optim.optimizer import Optimizer, check_lr
from tapejax.optim.updates import lbfgs_direction
from tapejax.tensor import Tensor


class Point(NamedTuple):
    """The objective along the search line at step size `t`: loss, flat gradient, directional slope."""

    t: float
    loss: float
    grad: Tensor
    slope: float


class LBFGS(Optimizer):
    """Minimise with the inverse Hessian that the last `history_size` moves imply; `step` takes a closure that returns the loss.

    A step runs up to `max_iter` iterations and `max_eval` evaluations (1.25 `max_iter`); it ends early when the largest
    gradient is below `tolerance_grad`, or the move or the change of the loss below `tolerance_change`.
    `line_search_fn="strong_wolfe"` chooses the step size, otherwise it is `lr`. One parameter group only.

    >>> import tapejax as tj
    >>> x = tj.tensor([-1.0, 2.0], requires_grad=True)
    >>> opt = tj.optim.LBFGS([x], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
    ...     loss.backward()
    ...     return loss
    >>> for _ in range(2):
    ...     loss = opt.step(closure)
    >>> bool(((x - 1).abs() < 1e-2).all())
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_lr("LBFGS", lr)
        super().__init__(
            params,
            {
                "lr": lr,
                "max_iter": max_iter,
                "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                "tolerance_grad": tolerance_grad,
                "tolerance_change": tolerance_change,
                "history_size": history_size,
                "line_search_fn": line_search_fn,
            },
        )
        if len(self.param_groups) != 1:
            raise refuse(ValueError, "LBFGS", "LBFGS doesn't support per-parameter options (parameter groups)")

    @property
    def _params(self) -> list[Tensor]:
        return self.param_groups[0]["params"]  # type: ignore[no-any-return]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Iterate; return the loss at the start of the step."""
        if closure is None:
            raise refuse(
                TypeError,
                "step",
                "LBFGS evaluates the loss several times → pass a closure that recomputes and returns it",
            )
        with no_grad():
            return self._descend(closure)

    def _descend(self, closure: Callable[[], Any]) -> Any:
        group = self.param_groups[0]
        lr = float(group["lr"])
        state = self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)

        def evaluate() -> tuple[Any, float, Tensor]:
            with enable_grad():
                loss = closure()
            state["func_evals"] += 1
            return loss, float(loss), self._flat_grad()

        first_loss, loss, grad = evaluate()
        started = state["func_evals"] - 1
        if _largest(grad) <= group["tolerance_grad"]:
            return first_loss
        d, t = state.get("d"), state.get("t")
        for n in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            if state["n_iter"] == 1:
                d = -grad
                state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
                t = min(1.0, 1.0 / float(grad.abs().sum())) * lr
            else:
                assert d is not None
                self._remember(state, grad - state["prev_flat_grad"], d * t, group["history_size"])
                d = self._direction(state, grad)
                t = lr
            state["prev_flat_grad"], state["prev_loss"] = grad, loss
            slope = float(grad.dot(d))
            if slope > -group["tolerance_change"]:
                break
            if group["line_search_fn"] is not None:
                if group["line_search_fn"] != "strong_wolfe":
                    raise refuse(RuntimeError, "step", "only 'strong_wolfe' is supported")
                origin = [p.detach().clone() for p in self._params]

                def along(t: float, d: Tensor = d, origin: list[Tensor] = origin) -> Point:
                    self._move_by(t, d)
                    _, loss, grad = evaluate()
                    for p, x in zip(self._params, origin, strict=True):
                        p.copy_(x)
                    return Point(t, loss, grad, float(grad.dot(d)))

                found = strong_wolfe(along, t, Point(0.0, loss, grad, slope), _largest(d))
                loss, grad, t = found.loss, found.grad, found.t
                self._move_by(t, d)
            else:
                self._move_by(t, d)
                if n != group["max_iter"]:  # nobody would look at the last gradient
                    _, loss, grad = evaluate()
            if (
                n == group["max_iter"]
                or state["func_evals"] - started >= group["max_eval"]
                or _largest(grad) <= group["tolerance_grad"]
                or _largest(d) * t <= group["tolerance_change"]
                or abs(loss - state["prev_loss"]) < group["tolerance_change"]
            ):
                break
        state["d"], state["t"] = d, t
        return first_loss

    @staticmethod
    def _remember(state: dict[str, Any], change: Tensor, move: Tensor, size: int) -> None:
        """Add a pair to the history unless the curvature along it is not positive."""
        curvature = float(change.dot(move))
        if curvature <= 1e-10:
            return
        if len(state["old_dirs"]) == size:
            for name in ("old_dirs", "old_stps", "ro"):
                state[name].pop(0)
        state["old_dirs"].append(change)
        state["old_stps"].append(move)
        state["ro"].append(1.0 / change.dot(move))
        state["H_diag"] = change.dot(move) / change.dot(change)

    @staticmethod
    def _direction(state: dict[str, Any], grad: Tensor) -> Tensor:
        """The quasi-Newton direction. The history is padded to a power of two, so few programs serve every length."""
        length = len(state["old_dirs"])
        if length == 0:
            return -grad * state["H_diag"]
        missing = (1 << (length - 1).bit_length()) - length
        zero, none = grad * 0, grad[0] * 0
        return lbfgs_direction(
            grad,
            [zero] * missing + state["old_dirs"],
            [zero] * missing + state["old_stps"],
            [none] * missing + state["ro"],
            state["H_diag"],
        )

    def _flat_grad(self) -> Tensor:
        return cat([_flat(p if p.grad is None else p.grad) * (0 if p.grad is None else 1) for p in self._params])

    def _move_by(self, t: float, d: Tensor) -> None:
        at = 0
        for p in self._params:
            n = p.numel() * (2 if p.is_complex() else 1)
            part = d[at : at + n] * t
            p.add_(view_as_complex(part.reshape(*p.shape, 2)) if p.is_complex() else part.reshape(p.shape))
            at += n


def _flat(x: Tensor) -> Tensor:
    """The elements in one row; a complex number is a pair of reals."""
    return (view_as_real(x) if x.is_complex() else x).reshape(-1)


def _largest(x: Tensor) -> float:
    return float(x.abs().max())


def strong_wolfe(
    along: Callable[[float], Point],
    t: float,
    start: Point,
    scale: float,
    c1: float = 1e-4,
    c2: float = 0.9,
    tries: int = 25,
) -> Point:
    """Find a step size at which the loss fell enough and the slope flattened enough (Nocedal and Wright, algorithms 3.5, 3.6).

    `along(t)` evaluates the objective, `scale` is the direction's largest element: intervals below 1e-9 / scale end the search.
    """

    def too_high(p: Point) -> bool:
        return p.loss > start.loss + c1 * p.t * start.slope

    def flat(p: Point) -> bool:
        return abs(p.slope) <= -c2 * start.slope

    last, now, tried = start, along(t), 0
    while True:  # go outwards until a minimum is bracketed
        if tried == tries:
            ends = [start, now]
            break
        if too_high(now) or (tried > 1 and now.loss >= last.loss):
            ends = [last, now]
            break
        if flat(now):
            return now
        if now.slope >= 0:
            ends = [last, now]
            break
        t = cubic_minimum(last, now, (now.t + 0.01 * (now.t - last.t), now.t * 10))
        last, now = now, along(t)
        tried += 1

    low, high = (0, 1) if ends[0].loss <= ends[1].loss else (1, 0)
    crowded = False
    while tried < tries and abs(ends[1].t - ends[0].t) * scale >= 1e-9:  # shrink the bracket
        left, right = sorted((ends[0].t, ends[1].t))
        t = cubic_minimum(ends[0], ends[1])
        margin = 0.1 * (right - left)
        if min(right - t, t - left) < margin:  # twice in a row too near an end: move away from it
            if crowded or t >= right or t <= left:
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                crowded = False
            else:
                crowded = True
        else:
            crowded = False
        now = along(t)
        tried += 1
        if too_high(now) or now.loss >= ends[low].loss:
            ends[high] = now
            low, high = (0, 1) if ends[0].loss <= ends[1].loss else (1, 0)
            continue
        if flat(now):
            return now
        if now.slope * (ends[high].t - ends[low].t) >= 0:
            ends[high] = ends[low]
        ends[low] = now
    return ends[low]


def cubic_minimum(a: Point, b: Point, bounds: tuple[float, float] | None = None) -> float:
    """Return the minimum of the cubic through two points with their slopes, kept within `bounds` (or between the points)."""
    left, right = bounds or sorted((a.t, b.t))
    if a.t > b.t:
        a, b = b, a
    mixed = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = mixed**2 - a.slope * b.slope
    if square < 0:
        return (left + right) / 2
    root = math.sqrt(square)
    t = b.t - (b.t - a.t) * ((b.slope + root - mixed) / (b.slope - a.slope + 2 * root))
    return min(max(t, left), right)
