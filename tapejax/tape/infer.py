"""Shape and dtype inference: run the op's body abstractly once, remember the answer.

The first sight of an (op, statics, input avals) costs 0.2 ms, every later one a dict lookup. What is wrong with the
arguments is raised here, while the user's line is on the stack, never later inside XLA.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tapejax import config, devices, dtypes
from tapejax.errors import refuse
from tapejax.tape.aval import Aval, aval_of
from tapejax.tape.node import Kind
from tapejax.tape.op import TABLE, Op, Param, cast_targets


def infer(op: Op, key: Any, form: tuple[Any, ...], statics: tuple[Any, ...], inputs: tuple[Aval, ...]) -> Kind:
    """Make and remember the Kind for this call; raise torch's error if the call is wrong."""
    present = [p for p in op.params if p.role != "static"]
    operands: list[str] = []
    for p, f in zip(present, form, strict=True):
        operands += [p.name] * (2 if p.role == "seed" else f[0] if isinstance(f, tuple) else f or 0)
    kind = Kind(op, form, statics, inputs, tuple(operands))
    device = _one_device(op, inputs)
    kind.casts = _casts(op, present, kind)
    if op.promote in ("common", "float"):
        check_broadcast(op.name, [a for a, t in zip(inputs, kind.casts, strict=True) if t is not None])
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype.np) for a in inputs]
    with jax.enable_x64(True):
        try:
            out = jax.eval_shape(lambda *xs: apply(kind, xs), *specs)
        except (RuntimeError, IndexError, NotImplementedError):
            raise
        except (TypeError, ValueError) as e:
            if str(e).startswith(f"{op.name}(") or "(): " in str(e)[:60]:
                raise  # the op's own words
            shapes = ", ".join(f"{n} {a.dtype.name}{list(a.shape)}" for n, a in zip(operands, inputs, strict=True))
            reason = str(e).split("\n")[0]
            raise refuse(RuntimeError, op.name, f"these arguments do not fit together: {shapes} ({reason})") from None
    if isinstance(out, (tuple, list)):
        kind.avals = tuple(_aval(o, device) for o in out)
        kind.aval = kind.avals
        kind.differentiable = op.differentiable and any(a.differentiable for a in kind.avals)
    else:
        kind.aval = _aval(out, device)
        kind.differentiable = op.differentiable and kind.aval.differentiable
    if any(a.inference for a in inputs if a.__class__ is Aval):
        _inference_rules(kind)
    if len(op.kinds) >= config.kinds_limit:  # programs of forgotten kinds compile again
        op.kinds.clear()
    op.kinds[key] = kind
    return kind


class _SavesInference:
    """In the place of `kind.differentiable`: raises when a node that requires grad is about to be recorded."""

    def __init__(self, kind: Kind) -> None:
        self.name = kind.name

    def __bool__(self) -> bool:
        raise refuse(
            RuntimeError,
            self.name,
            "Inference tensors cannot be saved for backward. To work around this, you can make a clone to get a normal tensor and use it in"
            " autograd, or use no_grad() instead of inference_mode().",
        )


def _inference_rules(kind: Kind) -> None:
    """Views of inference tensors are inference tensors; backward must not need one."""
    if kind.op.put is not None or kind.name == "detach_value":
        kind.aval = kind.aval.marked(kind.inputs[0].inference)
    saved = kind.saved_at_most
    if kind.differentiable and any(a.inference and n in saved for n, a in zip(kind.operands, kind.inputs, strict=True)):
        kind.differentiable = _SavesInference(kind)


def apply(kind: Kind, arrays: Any) -> Any:
    """Run the op's body on arrays (or tracers), operands cast as its promotion rule says."""
    op = kind.op
    arguments: dict[str, Any] = dict(zip(op.statics, kind.statics, strict=True))
    values = iter(zip(arrays, kind.casts, strict=True))

    def take() -> Any:
        x, target = next(values)
        return x if target is None or x.dtype == target.np else _cast(x, target)

    for p, f in zip((p for p in op.params if p.role != "static"), kind.form, strict=True):
        if p.role == "seed":
            seed, counter = take(), take()
            arguments[p.name] = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), counter)
        elif isinstance(f, tuple):
            arguments[p.name] = tuple(take() for _ in range(f[0]))
        elif f:
            arguments[p.name] = take()
    return op.impl(**arguments)


def _cast(x: Any, target: dtypes.dtype) -> Any:
    if np.issubdtype(x.dtype, np.complexfloating) and not target.is_complex and target is not dtypes.bool_:
        x = x.real
    return x.astype(target.np)


def _casts(op: Op, present: list[Param], kind: Kind) -> tuple[Any, ...]:
    """Targets for every input: `Array` operands follow the op's rule, numbers and seeds are left alone."""
    arrays = {p.name for p in present if p.role in ("array", "optional", "arrays")}
    ruled = [a for n, a in zip(kind.operands, kind.inputs, strict=True) if n in arrays]
    targets = iter(cast_targets(op, ruled, kind.statics))
    return tuple(next(targets) if n in arrays else None for n in kind.operands)


def _aval(spec: Any, device: Any) -> Aval:
    return aval_of(tuple(spec.shape), dtypes.of(spec.dtype), device)


def _one_device(op: Op, inputs: tuple[Aval, ...]) -> Any:
    found = {a.device for a in inputs if not a.weak and a.shape}
    if len(found) > 1:
        names = " and ".join(sorted(str(devices.of_aval(d)) for d in found))
        raise refuse(
            RuntimeError, op.name, f"Expected all tensors to be on the same device, but found at least two devices, {names}! → use .to()"
        )
    if found:
        return found.pop()
    return next((a.device for a in inputs if not a.weak), None)


def check_broadcast(name: str, operands: list[Aval]) -> tuple[int, ...]:
    """The broadcast shape, or torch's error naming the two sizes that do not match."""
    shape: tuple[int, ...] = ()
    for a in operands:
        other = a.shape
        n = max(len(shape), len(other))
        left, right = (1,) * (n - len(shape)) + shape, (1,) * (n - len(other)) + other
        merged = []
        for axis, (p, q) in enumerate(zip(left, right, strict=True)):
            if p != q and p != 1 and q != 1:
                raise refuse(
                    RuntimeError,
                    name,
                    f"The size of tensor a ({p}) must match the size of tensor b ({q}) at non-singleton dimension {axis}"
                    f" (shapes {shape} and {other})",
                )
            merged.append(q if p == 1 else p)
        shape = tuple(merged)
    return shape


def forget() -> None:
    """Drop every cached inference (the default dtype changed)."""
    for op in TABLE.values():
        op.kinds.clear()


dtypes._on_default_change.append(forget)
