"""Calls of declared operations from their own samples, in tapejax and in torch, many at once.

Compiling costs more than anything else here, so all samples of an operation are read in one program.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import tapejax as tj
from oracle import torch
from tapejax.dtypes import dtype as Dtype
from tapejax.engine.materialise import force
from tapejax.ops.samples import Make
from tapejax.tape.op import TABLE, Op, Sample

#: Declared operations that the op modules own (the tape, the views, autograd and the optimizers declare a few more).
OPS = {name: op for name, op in TABLE.items() if op.impl.__module__.startswith("tapejax.ops.")}


def samples_of(op: Op) -> list[Sample]:
    return op.sample_inputs(Make(0))


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """The arrays of a sample, in the order in which `Call` turns them into tensors."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from arrays_in(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from arrays_in(v)


def replaced(value: Any, arrays: Iterator[np.ndarray]) -> Any:
    """`value` with its arrays taken from `arrays`."""
    if isinstance(value, np.ndarray):
        return next(arrays)
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(v, arrays) for v in value)
    if isinstance(value, dict):
        return {k: replaced(v, arrays) for k, v in value.items()}
    return value


def with_arrays(sample: Sample, arrays: Sequence[np.ndarray]) -> Sample:
    given = iter(arrays)
    return Sample(replaced(sample.args, given), replaced(sample.kwargs, given))


def resolve(lib: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        lib = getattr(lib, part)
    return lib


def leaves(made: Any) -> list[Any]:
    """The tensors of a result, in order."""
    if isinstance(made, (list, tuple)):
        return [t for m in made for t in leaves(m)]
    return [made]


class Call:
    """One sample applied in one library: `inputs` (every tensor made from an array) and `outputs`."""

    def __init__(self, lib: Any, function: Callable[..., Any], sample: Sample, grad: bool = True, seeded: bool = False) -> None:
        self.lib = lib
        self.grad = grad
        self.inputs: list[Any] = []
        args, kwargs = self.tensors(sample.args), self.tensors(sample.kwargs)
        if seeded:
            kwargs["generator"] = lib.Generator().manual_seed(0)
        self.args, self.kwargs = args, kwargs
        with warnings.catch_warnings():
            if lib is torch:
                warnings.simplefilter("ignore")
            self.result = function(*args, **kwargs)
        self.outputs = leaves(self.result)

    def tensors(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            t = self.lib.from_numpy(np.array(value))
            if self.grad and value.dtype.kind in "fc":
                t.requires_grad_()
            self.inputs.append(t)
            return t
        if isinstance(value, Dtype):
            return value if self.lib is tj else getattr(torch, value.name)
        if isinstance(value, (list, tuple)):
            return type(value)(self.tensors(v) for v in value)
        if isinstance(value, dict):
            return {k: self.tensors(v) for k, v in value.items()}
        return value


def call(op: Op, sample: Sample, grad: bool = True) -> Call:
    """Record `op` on tensors made from `sample`; random operations draw from a generator of their own."""
    return Call(tj, op, sample, grad, seeded=any(p.role == "seed" for p in op.params))


def torch_call(op: Op, sample: Sample) -> Call:
    return Call(torch, resolve(torch, op.oracle or ""), sample)


def array(t: Any) -> np.ndarray:
    """The value of a tensor of either library."""
    if isinstance(t, tj.Tensor):
        return np.asarray(t.array())
    return t.detach().resolve_conj().resolve_neg().numpy()


def read(tensors: Sequence[Any]) -> list[np.ndarray]:
    """The values of many tensors, computed by one program."""
    force([t.node for t in tensors if isinstance(t, tj.Tensor)], keep_residuals=False)
    return [array(t) for t in tensors]


def seeds_for(arrays: Sequence[Any], draw: int = 1) -> list[np.ndarray]:
    """Output-side gradients: reproducible, of the shapes and types of `arrays` (anything with shape and dtype)."""
    rng = np.random.default_rng(draw)
    made = []
    for a in arrays:
        g = rng.uniform(0.5, 1.5, tuple(a.shape))
        if np.issubdtype(a.dtype, np.complexfloating):
            g = g + 1j * rng.uniform(0.5, 1.5, tuple(a.shape))
        made.append(np.asarray(g))
    return made


def differentiable(calls: Sequence[Call]) -> tuple[list[Any], list[Any], list[np.ndarray]]:
    """Outputs that require grad, inputs that do, and seeds, over all calls."""
    outputs = [o for c in calls for o in c.outputs if o.requires_grad]
    inputs = [x for c in calls for x in c.inputs if x.requires_grad]
    specs = [np.empty(tuple(o.shape), np.complex128 if o.is_complex() else np.float64) for o in outputs]
    return outputs, inputs, seeds_for(specs)


def gradients(calls: Sequence[Call]) -> list[Any]:
    """The gradient of every input that requires grad (None where unused), of all calls, in one backward."""
    outputs, inputs, seeds = differentiable(calls)
    if not outputs:
        return []
    lib = calls[0].lib
    given = [lib.from_numpy(s).to(o.dtype) for s, o in zip(seeds, outputs, strict=True)]
    return list(lib.autograd.grad(outputs, inputs, given, allow_unused=True))
