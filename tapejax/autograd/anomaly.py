"""Anomaly detection: every node remembers where the user recorded it, and every gradient is tested for NaN.

The test is one fused reduction over all gradients of a backward. Only when it finds a NaN is the recorded program run
again, op by op, to name the operation (see `engine/blame.py`).
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import tapejax.errors
from tapejax.engine.blame import first_nan, has_nan
from tapejax.engine.materialise import force
from tapejax.tape import modes
from tapejax.tape.aval import Aval
from tapejax.tape.node import SCALAR, VAR, Node
from tapejax.tape.note import note_of
from tapejax.tape.op import Arrays, Op, op
from tapejax.tape.program import Linear
from tapejax.tape.record import record
from tapejax.tensor import grad_fn_name

#: None: off; else whether gradients are tested for NaN.
_STATE: ContextVar[bool | None] = ContextVar("tapejax_anomaly", default=None)

#: The node whose backward is running, for what is recorded by it: (name, origin).
_PARENT: ContextVar[tuple[str, Any] | None] = ContextVar("tapejax_anomaly_parent", default=None)

_PACKAGE = str(Path(tapejax.errors.__file__).parent) + "/"


@op("", oracle=None, differentiable=False)
def any_nan(arrays: Arrays) -> Any:
    """Whether one of the arrays holds a NaN."""
    return jnp.stack([jnp.isnan(x).any() for x in arrays]).any()  # type: ignore[attr-defined]


class Origin:
    """Where a node was recorded: the user's frames, outermost first, and what backward was running."""

    __slots__ = ("frames", "parent")

    def __init__(self) -> None:
        frame: Any = sys._getframe(2)
        found = []
        while frame is not None:
            if not (frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_globals.get("_op").__class__ is Op):  # a generated caller
                found.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        found.reverse()
        self.frames = found
        self.parent = _PARENT.get()

    def text(self) -> str:
        """The frames as Python prints a traceback."""
        return "".join(traceback.format_list([traceback.FrameSummary(c.co_filename, line, c.co_name) for c, line in self.frames]))

    def line(self) -> str:
        """The user's innermost line, in one."""
        if not self.frames:
            return "?"
        code, line = self.frames[-1]
        source = traceback.FrameSummary(code.co_filename, line, code.co_name).line
        return f"{code.co_filename}:{line}: {source}"


def _observe(node: Node, mode: int) -> None:
    if mode & modes.ANOMALY and _STATE.get() is not None and (node.requires_grad or node.kind.name.startswith("function_")):
        note_of(node).line = Origin()


modes.OBSERVERS.append(_observe)


def is_anomaly_enabled() -> bool:
    """Whether anomaly detection is on."""
    return _STATE.get() is not None


def is_anomaly_check_nan_enabled() -> bool:
    """Whether anomaly detection is on and tests gradients for NaN."""
    return bool(_STATE.get())


def _set(state: bool | None) -> None:
    _STATE.set(state)
    modes.switch(modes.ANOMALY, state is not None)


class set_detect_anomaly:
    """Switch anomaly detection on or off, at once; as a context manager, restore it afterwards. See `detect_anomaly`."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = _STATE.get()
        _set(bool(check_nan) if mode else None)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        _set(self._before)


class detect_anomaly:
    """Find out where a NaN gradient or an error in the backward comes from: `with detect_anomaly():` around both passes.

    A backward function that returns NaN raises RuntimeError naming it and the number of its output; a warning shows the
    lines of the forward that recorded it. `check_nan=False` only adds that warning to errors. `.grad` is not touched when
    a NaN was found. For debugging: every gradient becomes an output that is tested.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = bool(check_nan)
        self._before: list[bool | None] = []
        warnings.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should only be enabled for debugging.",
            UserWarning,
            stacklevel=2,
        )

    def __enter__(self) -> None:
        self._before.append(_STATE.get())
        _set(self.check_nan)

    def __exit__(self, *exc: object) -> None:
        _set(self._before.pop())


def watch() -> Watch | None:
    """The observer of a backward that starts now; None when detection is off."""
    check_nan = _STATE.get()
    return None if check_nan is None else Watch(check_nan and not modes.tracing())


def name_of(node: Node) -> str:
    """torch's name of the node's backward; the gradient of one op is named after the op."""
    if node.kind is not VAR and node.kind.name == "pick" and node.inputs:
        node = node.inputs[0]
    if node.kind is not VAR and node.kind.name == "pull":
        instructions = node.kind.statics[0].program.instructions
        names = [k.op.grad_name for k, _, _ in instructions if k is not VAR and k.name != "pick"]
        return f"{names[0]}BackwardBackward0" if len(names) == 1 else "PullBackward0"
    return grad_fn_name(node)


def _origin(node: Node) -> Origin | None:
    return node.note.line if node.note is not None and node.kind is not VAR else None


class Watch:
    """What one backward computed, in order, until it is known to be free of NaN."""

    def __init__(self, check_nan: bool) -> None:
        self.check_nan = check_nan
        self.events: list[Any] = []

    def inner(self, nodes: Sequence[Node]) -> list[Node]:
        """Those values inside a piece whose gradients are to be tested."""
        return [n for n in nodes if n.aval.__class__ is Aval and n.aval.differentiable] if self.check_nan else []

    def piece(self, order: list[Node], roots: list[Node], seeds: list[Node], results: Sequence[Node]) -> None:
        if self.check_nan:
            self.events.append((order, roots, seeds, results))

    def function(self, node: Node, results: Sequence[Node | None]) -> None:
        if self.check_nan:
            self.events.append((node, results))

    def enter(self, node: Node) -> Any:
        """From now on what is recorded is part of the backward of `node`."""
        return _PARENT.set((name_of(node), _origin(node)))

    def leave(self, token: Any) -> None:
        _PARENT.reset(token)

    def check(self) -> None:
        """Raise if a gradient recorded so far holds a NaN."""
        events, self.events = self.events, []
        results = [g for e in events for g in e[-1] if g is not None and g.aval.dtype.is_differentiable]
        if not results:
            return
        before = modes.switch(modes.ANOMALY, False)
        try:
            flag = record(any_nan, ((len(results),),), (), tuple(results))
            force([flag, *results], keep_residuals=False)
            if not bool(flag.value):
                return
            for e in events:
                if len(e) == 2:
                    self._blame_function(*e)
                elif any(g.aval.dtype.is_differentiable and has_nan(g.value) for g in e[-1]):
                    self._blame_piece(*e[:-1])
        finally:
            modes.MODE.set(before)

    def _blame_function(self, node: Node, results: Sequence[Node | None]) -> None:
        for i, g in enumerate(results):
            if g is not None and has_nan(g.value):
                self._raise(node, i)

    def _blame_piece(self, order: list[Node], roots: list[Node], seeds: list[Node]) -> None:
        linear = Linear(order)
        slots = [linear.slot_of(r) for r in roots]
        force([x for x in (*linear.inputs, *seeds) if x.kind is not SCALAR], keep_residuals=False)
        wanted = [[j for j, x in enumerate(n.inputs) if x.requires_grad] for n in order]
        place = first_nan(linear.program(), [x.value for x in linear.inputs], slots, [s.value for s in seeds], wanted)
        i, j = place if place is not None else (len(order) - 1, 0)
        self._raise(order[i], j)

    def _raise(self, node: Node, output: int) -> None:
        name, origin = name_of(node), _origin(node)
        tell(name, origin)
        where = f" Its forward was recorded at {origin.line()}" if origin is not None else ""
        raise RuntimeError(f"Function '{name}' returned nan values in its {output}th output.{where}")


def tell(name: str, origin: Origin | None) -> None:
    """Warn with the forward of a backward function that failed, and with what that forward was part of."""
    if origin is None:
        warnings.warn(
            f"Error detected in {name}. No forward pass information available. Enable detect anomaly during forward pass for more information.",
            UserWarning,
            stacklevel=2,
        )
        return
    warnings.warn(f"Error detected in {name}. Traceback of forward call that caused the error:\n{origin.text()}", UserWarning, stacklevel=2)
    parent = origin.parent
    while parent is not None:
        name, above = parent
        if above is None:
            text = f"\n\nPrevious calculation was induced by {name}. No forward pass information available."
        else:
            text = f"\n\nPrevious calculation was induced by {name}. Traceback of forward call that induced the previous calculation:\n{above.text()}"
        warnings.warn(text, UserWarning, stacklevel=2)
        parent = above.parent if above is not None else None


def tell_of(node: Node) -> None:
    tell(name_of(node), _origin(node))


__all__ = ["detect_anomaly", "is_anomaly_check_nan_enabled", "is_anomaly_enabled", "set_detect_anomaly"]
