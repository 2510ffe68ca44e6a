"""Forward mode: tangents recorded beside values.

While a level is open every recorded node whose inputs have tangents gets one of its own: one more node, whose body is
`jax.jvp` of the op's body. Views and in-place writes need no rules here, because a write is a node. A tangent is
differentiable like any other value, so reverse over forward and forward over reverse are nothing special.

Levels are stacked for the function transforms; `dual_level` opens one at a time, as in torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tapejax.autograd import function
from tapejax.autograd.gradients import zeros_like_aval
from tapejax.autograd.lifted import lower, lowered
from tapejax.errors import refuse
from tapejax.storage.cell import NO_GRAD
from tapejax.storage.view import Lens, alias_of, detach_value, made_view, overlay
from tapejax.tape import modes
from tapejax.tape.infer import apply
from tapejax.tape.modes import FORWARD, INFERENCE, MODE
from tapejax.tape.node import VAR, Kind, Node
from tapejax.tape.op import Array, Arrays, Op, op
from tapejax.tape.record import PICK, kind_of, pick, record, record_kind
from tapejax.tensor import Tensor, wrap


class Level:
    """The tangents of one forward pass, by node. A tangent lives as long as its value, and no longer than the level."""

    __slots__ = ("tangents",)

    def __init__(self) -> None:
        self.tangents: weakref.WeakKeyDictionary[Node, Node] = weakref.WeakKeyDictionary()

    def tangent(self, node: Node) -> Node | None:
        found = self.tangents.get(node)
        while found is None and node.kind is VAR and node.inputs:
            node = node.inputs[0]
            found = self.tangents.get(node)
        return found


#: The open levels, outermost first; while the tangent of one is recorded, only those outside it look on.
_LEVELS: ContextVar[tuple[Level, ...]] = ContextVar("tapejax_forward_levels", default=())
_ENABLED: ContextVar[bool] = ContextVar("tapejax_forward_enabled", default=True)


def _set_levels(levels: tuple[Level, ...]) -> None:
    _LEVELS.set(levels)
    modes.switch(FORWARD, bool(levels) and _ENABLED.get())


# -- the rule ----------------------------------------------------------------------------------------------------------


def _jvp_body(arrays: Arrays, kind: Kind, which: tuple[int, ...]) -> Any:
    given: Any = arrays
    n = len(kind.inputs)
    primals = list(given[:n])
    moving = tuple(primals[i] for i in which)
    tangents = tuple(t.astype(p.dtype) if t.dtype != p.dtype else t for p, t in zip(moving, given[n:], strict=True))

    def run(*xs: Any) -> Any:
        for i, x in zip(which, xs, strict=True):
            primals[i] = x
        return apply(kind, primals)

    _, out = jax.jvp(run, moving, tangents)
    if isinstance(out, (tuple, list)):
        return tuple(
            jnp.zeros(t.shape, a.dtype.np) if t.dtype == jax.dtypes.float0 else t
            for t, a in zip(out, kind.aval, strict=True)
        )
    return out


JVP = Op(_jvp_body, "", {"name": "jvp", "oracle": None})

#: What stands for a kind when it is pushed forward (a mapped program without its gradient stops, for one).
TWINS: dict[Op, Callable[[Kind], Kind]] = {}


@op("", oracle=None)
def drop_tangent(input: Array) -> Any:
    """Return `input`, which carries no tangent from here on."""
    return input


_PASS_ON = frozenset((function.function_output, function.function_alias, lowered))


def push(node: Node, level: Level, inputs: tuple[Node, ...]) -> None:
    """Record the tangent of `node` (which was recorded on `inputs`) at `level`, if any of its inputs has one."""
    tangents = level.tangents
    kind = node.kind
    if isinstance(kind, str):
        return
    if len(inputs) == 1:
        t = level.tangent(inputs[0])
        if t is None:
            return
        given: list[Node | None] = [t]
    else:
        given = [level.tangent(x) for x in inputs]
        if not any(g is not None for g in given):
            return
    which = kind.op
    if which is overlay:
        made = given[1]
        if made is not None and made.aval is not node.aval:
            made = None
    elif which is detach_value:
        return
    elif which in _PASS_ON:
        made = given[0]
    elif which is PICK:
        made = pick(given[0], kind.statics[0]) if kind.aval.differentiable and given[0] is not None else None
    elif kind.differentiable:
        made = _recorded(TWINS[which](kind) if which in TWINS else kind, inputs, given)
    else:
        return
    if made is not None:
        tangents[node] = made


def _saves(kind: Kind, which: tuple[int, ...]) -> dict[str, tuple[str, ...]]:
    """What the backward of `kind`'s JVP needs, for tangents of the operands `which`.

    The gradient of a tangent needs what the kind's backward needs for that operand. An operand that this slope depends on
    has a gradient too: it needs the tangent, and the values of the slope, itself only where the kind is curved in it.
    """
    found: dict[str, dict[str, None]] = {}
    for i in which:
        slope = {*kind.saves.get("*", ()), *kind.saves.get(kind.operands[i], ())}
        if not slope:
            continue
        values = {f"primal{j}": o for j, o in enumerate(kind.operands) if o in slope}
        found.setdefault(f"tangent{i}", {}).update(dict.fromkeys(values))
        for j, o in enumerate(kind.operands):
            if o in slope or "result" in slope:
                curved = o in kind.saves.get("*", ()) or o in kind.saves.get(o, ())
                others = [n for n in values if curved or n != f"primal{j}"]
                found.setdefault(f"primal{j}", {}).update(dict.fromkeys((f"tangent{i}", *others)))
    return {of: tuple(names) for of, names in found.items()}


def _recorded(kind: Kind, inputs: tuple[Node, ...], given: Sequence[Node | None]) -> Node | None:
    which = tuple([i for i, t in enumerate(given) if t is not None and inputs[i].aval.differentiable])
    if not which:
        return None
    operands = (*inputs, *[given[i] for i in which])
    avals = tuple([x.aval for x in operands])  # type: ignore[union-attr]
    key = (kind, which, avals)
    found = JVP.kinds.get(key)
    if found is None:
        names = tuple(f"primal{i}" for i in range(len(inputs))) + tuple(f"tangent{i}" for i in which)
        found = Kind(JVP, ((len(operands),),), (kind, which), avals, names)
        found.casts = (None,) * len(operands)
        found.aval, found.avals = kind.aval, kind.avals
        found.differentiable = True
        found.saves = _saves(kind, which)
        JVP.kinds[key] = found
    return record_kind(found, operands)  # type: ignore[arg-type]


def _observe(node: Node, mode: int) -> None:
    if not mode & FORWARD or mode & INFERENCE:
        return
    levels = _LEVELS.get()
    try:
        for depth in range(len(levels) - 1, -1, -1):
            _LEVELS.set(levels[:depth])
            if not depth:
                MODE.set(mode & ~FORWARD)
            push(node, levels[depth], node.inputs)
    finally:
        _LEVELS.set(levels)
        MODE.set(mode)


modes.OBSERVERS.append(_observe)


@contextmanager
def _outside(levels: tuple[Level, ...], depth: int) -> Any:
    """Let only the levels outside number `depth` look on."""
    before = MODE.get()
    token = _LEVELS.set(levels[:depth])
    MODE.set(before if depth else before & ~FORWARD)
    try:
        yield
    finally:
        MODE.set(before)
        _LEVELS.reset(token)


# -- dual tensors ------------------------------------------------------------------------------------------------------


class _DualLens(Lens):
    """A view that adds a tangent to what it reads, and keeps the tangent of what is written through it."""

    __slots__ = ("level", "tangent")

    def __init__(self, level: Level, tangent: Node | None, of: Node) -> None:
        super().__init__(kind_of(function.function_alias, (1,), (), (of,)), ())
        self.level = weakref.ref(level.tangents)
        self.tangent = tangent

    def get(self, base: Node) -> Node:
        node = record(function.function_alias, (1,), (), (base,))
        self._mark(node, self.tangent)
        return node

    def _mark(self, node: Node, tangent: Node | None) -> None:
        tangents = self.level()
        if tangents is None:
            return
        if tangent is None:
            tangents.pop(node, None)
        else:
            tangents[node] = tangent

    def put(self, base: Node, value: Node) -> Node:
        tangents = self.level()
        node = record(drop_tangent, (1,), (), (value,))
        if tangents is not None:
            if self.tangent is not None:
                self.tangent = tangents.get(value)
            self._mark(node, tangents.get(base))
        return node


class UnpackedDualTensor(NamedTuple):
    """What `unpack_dual` returns."""

    primal: Any
    tangent: Any


def dual(tensor: Tensor, tangent: Node, level: Level) -> Tensor:
    """A view of `tensor` that carries `tangent` at `level`."""
    node = tensor.node
    lens = _DualLens(level, tangent, node)
    made = wrap(lens.get(node))
    made_view(tensor, made, lens)
    made._alias.flags &= ~NO_GRAD
    return made


def _check(level: int | None) -> Level | None:
    levels = _LEVELS.get()
    number = len(levels) - 1 if level is None else level
    return levels[number] if 0 <= number < len(levels) else None


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """Return a view of `tensor` that carries `tangent`, from which the tangents of everything computed with it follow.

    Both floating point or complex, of the same shape. RuntimeError outside `dual_level`, for a tensor that is dual already
    or a tangent that is itself dual; ValueError for integers.
    """
    if not _LEVELS.get() and level is None:
        raise refuse(
            RuntimeError,
            "make_dual",
            "Trying to create a dual Tensor for forward AD but no level exists, make sure to enter_dual_level() first.",
        )
    for name, t in (("primal", tensor), ("tangent", tangent)):
        if not t.dtype.is_differentiable:
            raise refuse(
                ValueError, "make_dual", f"Expected {name} to be floating point or complex, but got: {t.dtype}"
            )
    found = _check(level)
    if found is None:
        raise refuse(
            RuntimeError,
            "make_dual",
            f"Invalid level given to _make_dual: {level}, but there are {len(_LEVELS.get())} levels",
        )
    check_tangent(tensor, tangent)
    number = len(_LEVELS.get()) - 1 if level is None else level
    if not _ENABLED.get():
        return (
            tensor.detach()
            if not tensor.requires_grad
            else wrap(record(function.function_alias, (1,), (), (tensor.node,)))
        )
    if found.tangent(tensor.node) is not None:
        raise refuse(
            RuntimeError,
            "make_dual",
            f"Making a dual Tensor based on a Tensor that already has a forward gradient at the same level {number} is not supported.",
        )
    if found.tangent(tangent.node) is not None:
        raise refuse(
            RuntimeError,
            "make_dual",
            f"Setting a forward grad that itself has a forward gradient at the same level {number} is not supported.",
        )
    return dual(tensor, tangent.node, found)


def check_tangent(tensor: Tensor, tangent: Tensor) -> None:
    if tensor._node.aval.shape != tangent._node.aval.shape:
        raise refuse(
            RuntimeError,
            "make_dual",
            "Trying to set a forward gradient that has a different size than that of the original Tensor, this is not supported. Tensor is of"
            f" size {list(tensor.shape)} while the given forward gradient is of size {list(tangent.shape)}.",
        )


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """Return `(primal, tangent)` of a dual tensor; the tangent is None where there is none."""
    found = _check(level)
    if found is None or not _ENABLED.get():
        return UnpackedDualTensor(tensor, None)
    tangent = found.tangent(tensor.node)
    if tangent is None:
        return UnpackedDualTensor(tensor, None)
    lens = _DualLens(found, None, tensor.node)
    primal = wrap(lens.get(tensor.node))
    made_view(tensor, primal, lens)
    return UnpackedDualTensor(primal, wrap(lower(tangent, 0)))


# -- levels ------------------------------------------------------------------------------------------------------------


def enter_dual_level() -> int:
    """Open a level and return its number; RuntimeError if one is open."""
    if _LEVELS.get():
        raise refuse(RuntimeError, "enter_dual_level", "Nested forward mode AD is not supported at the moment")
    _set_levels((Level(),))
    return 0


def exit_dual_level(*, level: int | None = None) -> None:
    """Close the level; every tangent made in it is gone."""
    levels = _LEVELS.get()
    number = len(levels) - 1 if level is None else level
    if not levels or number < 0:
        raise refuse(RuntimeError, "exit_dual_level", "Dual level must be a positive number.")
    if number != len(levels) - 1:
        raise refuse(
            RuntimeError,
            "exit_dual_level",
            f"Trying to exit a forward AD level that was not the last one that was created: {number}",
        )
    _close(levels[-1])
    _set_levels(levels[:-1])


def _close(level: Level) -> None:
    level.tangents = weakref.WeakKeyDictionary()


class dual_level:
    """Open a forward-mode level for a block: `with dual_level(): ...`. Tangents vanish at its end."""

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(self, *exc: object) -> None:
        exit_dual_level()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        import functools

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with dual_level():
                return function(*args, **kwargs)

        return inside


@contextmanager
def nested_level() -> Any:
    """A level inside those that are open, for the function transforms."""
    before = _LEVELS.get()
    enabled = _ENABLED.set(True)
    level = Level()
    _set_levels((*before, level))
    try:
        yield level
    finally:
        _ENABLED.reset(enabled)
        _set_levels(before)
        _close(level)


class _set_fwd_grad_enabled:
    """Switch forward mode on or off, at once or for a block."""

    def __init__(self, mode: bool) -> None:
        self.before = _ENABLED.get()
        _ENABLED.set(bool(mode))
        _set_levels(_LEVELS.get())

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        _ENABLED.set(self.before)
        _set_levels(_LEVELS.get())


def _is_fwd_grad_enabled() -> bool:
    return _ENABLED.get()


def __getattr__(name: str) -> Any:
    if name == "_current_level":
        return len(_LEVELS.get()) - 1
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# -- custom Functions ----------------------------------------------------------------------------------------------------


def _after_forward(
    cls: type[function.Function], ctx: Any, args: tuple[Any, ...], read: Sequence[Node | None], outputs: tuple[Any, ...]
) -> None:
    """Give the outputs of a custom Function the tangents that its `jvp` says."""
    if not MODE.get() & FORWARD:
        return
    levels = _LEVELS.get()
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        given = [None if x is None else level.tangent(x) for x in read]
        if any(g is not None for g in given):
            with _outside(levels, depth):
                _call_jvp(cls, ctx, args, outputs, given, level)


def _call_jvp(
    cls: type[function.Function],
    ctx: Any,
    args: tuple[Any, ...],
    outputs: tuple[Any, ...],
    given: list[Any],
    level: Level,
) -> None:
    name = cls.__name__
    tangents: list[Tensor | None] = []
    for a, g in zip(args, given, strict=True):
        if g is not None:
            tangents.append(wrap(g))
        elif isinstance(a, Tensor) and ctx._materialize and a.dtype.is_differentiable:
            tangents.append(wrap(zeros_like_aval(a.node.aval)))
        else:
            tangents.append(None)
    found = cls.jvp(ctx, *tangents)
    results = found if isinstance(found, tuple) else (found,)
    if len(results) != len(outputs):
        raise refuse(
            RuntimeError,
            name,
            f"Function's jvp returned an invalid number of forward gradients (expected {len(outputs)} but got {len(results)})",
        )
    storages = {id(alias_of(a).storage) for a in args if isinstance(a, Tensor)}
    for i, (out, tangent) in enumerate(zip(outputs, results, strict=True)):
        if not isinstance(out, Tensor) or tangent is None:
            if tangent is not None:
                raise refuse(
                    RuntimeError,
                    name,
                    f"jvp returned a gradient for output {i}, which is not a Tensor → return None there",
                )
            continue
        if not isinstance(tangent, Tensor):
            raise refuse(
                RuntimeError, name, f"expected Variable or None (got {type(tangent).__name__}) for grad output {i}."
            )
        check_tangent(out, tangent)
        is_input = any(out is a for a in args)
        if is_input:
            position = next(j for j, a in enumerate(args) if a is out)
            if tangent is not tangents[position]:
                raise refuse(
                    RuntimeError,
                    name,
                    "An inplace custom Function is not modifying the forward mode gradients inplace. If the forward is modifying an input"
                    " inplace, then the jvp function must modify the corresponding gradient inplace.",
                )
        elif (
            out._alias is not None
            and out._alias.lenses
            and id(out._alias.storage) in storages
            and not tangent._is_view()
        ):
            raise refuse(
                RuntimeError,
                name,
                "A custom Function's forward is returning a view (or an input as-is) but the jvp is not returning a view.",
            )
        level.tangents[out.node] = tangent.node
        if is_input and out._alias is not None:
            _write_back(out, tangent.node, level)


def _write_back(tensor: Tensor, tangent: Node, level: Level) -> None:
    """The tangent of a written view is part of its base's."""
    alias = tensor._alias
    if alias.lenses:
        for lens in alias.lenses:
            if isinstance(lens, _DualLens):
                lens.tangent = tangent


function.AFTER_FORWARD.append(_after_forward)

__all__ = [
    "UnpackedDualTensor",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "make_dual",
    "unpack_dual",
]
