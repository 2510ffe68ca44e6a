"""Every way to reach an operation, every precision, and what JAX's transforms make of its body."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from differences import CORNERS, direction, moved
from op_calls import (
    OPS,
    Call,
    array,
    arrays_in,
    call,
    differentiable,
    gradients,
    leaves,
    read,
    resolve,
    samples_of,
    seeds_for,
)
from oracle import torch
from tapejax.tape.infer import apply
from tapejax.tape.op import COMPOSITES, Op, Sample
from tolerances import DIFFERENCE, GRADIENT, IDENTITY, SINGLE, STEP, VALUE, close

ALL = sorted(name for name, op in OPS.items() if samples_of(op))
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


# -- names ---------------------------------------------------------------------------------------------------------------


def spaces(where: str) -> Any:
    return tj if where == "torch" else tj.Tensor if where.startswith("Tensor") else importlib.import_module(f"tapejax.{where.rstrip('_')}")


#: Composites of the same name stand before these.
REDEFINED = {"max_pool1d", "max_pool2d", "max_pool3d"}


def test_every_declared_name_is_reachable() -> None:
    """Function, method and in-place twin are one operation, under all of its names."""
    for op in OPS.values():
        for where in op.expose:
            for name in (op.name, *op.aliases):
                found = getattr(spaces(where), name + "_" * where.endswith("_"))
                assert callable(found) and found.__doc__, f"{where}.{name}"
                assert where.endswith("_") or getattr(found, "__wrapped_op__", None) is op or name in REDEFINED, f"{where}.{name}: another operation"
    for function, places, names in COMPOSITES:
        assert function.__doc__, function
        for where in places:
            for name in names:
                assert hasattr(spaces(where.removesuffix(".property")), name + "_" * where.endswith("_")), f"{where}.{name}"


@needs_torch
def test_names_are_those_of_torch() -> None:
    """What is exposed exists in torch under the same name."""
    missing = []
    for op in OPS.values():
        for where in op.expose:
            their = torch if where == "torch" else torch.Tensor if where.startswith("Tensor") else resolve(torch, where.rstrip("_"))
            missing += [f"{where}.{n}" for n in (op.name, *op.aliases) if not hasattr(their, n + "_" * where.endswith("_"))]
    assert not missing


# -- in place ------------------------------------------------------------------------------------------------------------

#: Samples of in-place twins left out, and why.
NOT_IN_PLACE: dict[str, tuple[Any, str]] = {
    "abs": (lambda s: s.args[0].dtype.kind == "c", "torch refuses complex numbers; here the modulus is written"),
    "addbmm": (lambda s: s.args[0].ndim == 1, "torch resizes the tensor; writing in place never does here"),
}

IN_PLACE = sorted(n for n in ALL if "Tensor_" in OPS[n].expose)


@needs_torch
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_twin(name: str) -> None:
    """`x.name_(...)` leaves torch's values in `x`, gives torch's gradients, and refuses what torch refuses."""
    ours, theirs = [], []
    for s in samples_of(OPS[name]):
        if name in NOT_IN_PLACE and NOT_IN_PLACE[name][0](s):
            continue
        a, b = (_in_place(lib, f"{name}_", s) for lib in (tj, torch))
        assert isinstance(a, str) == isinstance(b, str), f"{name}_{s}: {a}, torch {b}"
        if isinstance(a, str):
            assert a == b, f"{name}_{s}"
        else:
            ours.append(a)
            theirs.append(b)
    mine: list[Any] = []
    expected: list[Any] = []
    if OPS[name].differentiable and ours:  # what has no gradient overwrites the history, here and there
        mine = gradients(ours)
        try:
            expected = gradients(theirs)
        except NotImplementedError:  # acosh_ and the like: torch has the derivative out of place only
            expected = mine
    values = read([o for c in ours for o in c.outputs] + [g for g in mine if g is not None])
    for got, want in zip(values, [array(o) for c in theirs for o in c.outputs], strict=False):
        close(got, want, VALUE.get(got.dtype.name, (0, 0)), f"{name}_")
    for g, e in zip(mine, expected, strict=True):
        g, e = (0 if x is None else array(x) for x in (g, e))
        np.testing.assert_allclose(g, e, *GRADIENT["float64"], err_msg=f"{name}_: gradient")


def _in_place(lib: Any, method: str, s: Sample) -> Any:
    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        y = x.clone()
        assert getattr(y, method)(*args, **kwargs) is y
        return y

    if not s.args or not isinstance(s.args[0], np.ndarray):
        return "no tensor"
    try:
        return Call(lib, run, s)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return type(error).__mro__[-4 if isinstance(error, RuntimeError) else 0].__name__


# -- precision -----------------------------------------------------------------------------------------------------------


def lowered(s: Sample, real: Any, complex_: Any) -> Sample:
    def cast(v: Any) -> Any:
        if isinstance(v, np.ndarray) and v.dtype in (np.float64, np.complex128):
            with np.errstate(over="ignore"):
                return v.astype(complex_ if v.dtype.kind == "c" else real)
        if isinstance(v, (list, tuple)):
            return type(v)(cast(u) for u in v)
        return {k: cast(u) for k, u in v.items()} if isinstance(v, dict) else v

    return Sample(cast(s.args), cast(s.kwargs))


@pytest.mark.parametrize("name", ALL)
def test_single_precision(name: str) -> None:
    """float32 in gives what torch gives: the type, and the values to single precision."""
    op = OPS[name]
    samples = [lowered(s, np.float32, np.complex64) for s in samples_of(op)]
    calls = [call(op, s, grad=False) for s in samples]
    got = iter(read([o for c in calls for o in c.outputs]))
    limits = SINGLE.get(name, SINGLE["default"])
    for s, c in zip(samples, calls, strict=True):
        expected = None if torch is None or op.oracle is None else Call(torch, resolve(torch, op.oracle), s, grad=False).outputs
        for i, _ in enumerate(c.outputs):
            value = next(got)
            if expected is not None:
                close(value, array(expected[i]), limits, f"{name}{s}")


@pytest.mark.parametrize("name", ALL)
def test_half_precision_stays_half(name: str) -> None:
    """bfloat16 in gives the element type that torch gives, where torch has the operation in half precision."""
    op = OPS[name]
    for s in samples_of(op):
        if any(isinstance(v, np.ndarray) and v.dtype.kind == "c" for v in leaves([*s.args, *s.kwargs.values()])):
            continue
        expected = None
        if torch is not None and op.oracle is not None:
            try:
                expected = [o.dtype for o in _halved(torch, resolve(torch, op.oracle), s).outputs]
            except (RuntimeError, NotImplementedError):
                continue
        try:
            got = [o.dtype for o in _halved(tj, op, s).outputs]
        except RuntimeError as error:
            if (expected is not None and s.args[0].shape[-1]) or "Low precision" not in str(error):
                raise
            continue
        if expected is not None:
            assert [d.name for d in got] == [str(d)[6:] for d in expected], f"{name}{s}"


def _halved(lib: Any, function: Any, s: Sample) -> Call:
    def run(*args: Any, **kwargs: Any) -> Any:
        def half(v: Any) -> Any:
            if isinstance(v, (tj.Tensor,) if lib is tj else torch.Tensor):
                return v.to(lib.bfloat16) if v.dtype == lib.float64 else v
            if isinstance(v, (list, tuple)):
                return type(v)(half(u) for u in v)
            return v

        return function(*(half(a) for a in args), **{k: half(v) for k, v in kwargs.items()})

    seeded = isinstance(function, Op) and any(p.role == "seed" for p in function.params)
    return Call(lib, run, s, grad=False, seeded=seeded)


# -- transforms ----------------------------------------------------------------------------------------------------------

#: Not mapped over a batch, and why.
NOT_MAPPED: dict[str, str] = {}


@pytest.mark.parametrize("name", ALL)
def test_bodies_transform(name: str) -> None:
    """⟨u, J v⟩ = ⟨Jᵀ u, v⟩ in every sample, and a batch of two equals two single runs."""
    bodies, arguments = [], []
    for s in samples_of(OPS[name]):
        body, xs = _body(name, s)
        bodies.append(body)
        arguments.append(xs)
    with jax.enable_x64(True):
        tested = jax.jit(lambda all_: [_transformed(b, xs, name not in NOT_MAPPED) for b, xs in zip(bodies, all_, strict=True)])(arguments)
    for s, (forward, backward, single, batch) in zip(samples_of(OPS[name]), tested, strict=True):
        single_precision = any(np.asarray(o).dtype.itemsize <= 4 for o in (*single, *arrays_in((s.args, s.kwargs))))
        if s.smooth:
            limits = (1e-6, 1e-6) if single_precision else IDENTITY
            np.testing.assert_allclose(forward, backward, *limits, err_msg=f"{name}{s}: vjp against jvp", equal_nan=False)
        for one, both in zip(single, batch, strict=True):
            for i in range(2):
                close(both[i], one, VALUE.get(np.asarray(one).dtype.name, (0, 0)), f"{name}{s}: mapped over a batch")


def _body(name: str, s: Sample) -> tuple[Any, list[Any]]:
    """The operation's pure function for this sample, promotion included, and the arrays it is applied to."""
    op = OPS[name]
    node = call(op, s).outputs[0].node
    while node.kind.op is not op:
        node = node.inputs[0]
    kind = node.kind
    xs = [x.value if x.value is not None else x.inputs[0].value for x in node.inputs]
    avals = [x.aval for x in node.inputs]
    with jax.enable_x64(True):
        return lambda *xs: jax.tree.leaves(apply(kind, xs)), [jnp.asarray(x, a.dtype.np) for x, a in zip(xs, avals, strict=True)]


def _transformed(body: Any, xs: list[Any], mapped: bool) -> Any:
    at = [i for i, x in enumerate(xs) if jnp.issubdtype(x.dtype, jnp.inexact) and x.size]
    keep: list[int] = []

    def smooth(*moving: Any) -> list[Any]:
        full = list(xs)
        for i, m in zip(at, moving, strict=True):
            full[i] = m
        out = body(*full)
        keep[:] = [j for j, o in enumerate(out) if jnp.issubdtype(o.dtype, jnp.inexact)]
        return [out[j] for j in keep]

    single = body(*xs)
    forward = backward = jnp.zeros(())
    if at:
        moving = [xs[i] for i in at]
        vs = [jnp.asarray(v, m.dtype) for v, m in zip(seeds_for(moving, 3), moving, strict=True)]
        out, tangents = jax.jvp(smooth, moving, vs)
        us = [jnp.asarray(u, o.dtype) for u, o in zip(seeds_for(out, 4), out, strict=True)]
        _, pull = jax.vjp(smooth, *moving)
        forward, backward = _inner(us, tangents), _inner(pull(us), vs)
    batch = jax.vmap(body)(*[jnp.stack([x, x]) for x in xs]) if mapped and xs else [jnp.stack([o, o]) for o in single]
    return forward, backward, single, batch


def _inner(us: Any, vs: Any) -> Any:
    """Σ u v without conjugation: JAX's transposition is that of the complex-linear map."""
    total = jnp.zeros(())
    for u, v in zip(us, vs, strict=True):
        total = total + jnp.sum(jnp.where(jnp.isfinite(u * v), u * v, 0)).real
    return total


# -- second order --------------------------------------------------------------------------------------------------------

#: Second derivatives not compared with differences of the first, and why.
NOT_TWICE: dict[str, tuple[Any, str]] = {
    "eigvals": (lambda s: True, "JAX has no second derivative of eigenvectors, and says so"),
    "norm": (lambda s: bool((s.args[0] == 0).any()), "a norm has no second derivative at 0"),
}


@pytest.mark.parametrize("name", sorted(n for n in ALL if OPS[n].differentiable and n not in CORNERS))
def test_second_order(name: str) -> None:
    """H v from a gradient of the gradient, against the central difference of gradients along v."""
    op = OPS[name]
    left_out = NOT_TWICE[name][0] if name in NOT_TWICE else lambda s: False
    samples = [s for s in samples_of(op) if s.smooth and not left_out(s)][:2]
    calls = [call(op, s) for s in samples]
    outputs, inputs, seeds = differentiable(calls)
    if not outputs:
        return
    given = [tj.from_numpy(seed).to(o.dtype) for seed, o in zip(seeds, outputs, strict=True)]
    first = tj.autograd.grad(outputs, inputs, given, create_graph=True, allow_unused=True)
    moving = [g is not None and g.requires_grad for g in first]
    rng = np.random.default_rng(5)
    directions = [[direction(rng, a, OPS[name].triangle) for a in arrays_in((s.args, s.kwargs))] for s in samples]
    along = [v for c, vs in zip(calls, directions, strict=True) for x, v in zip(c.inputs, vs, strict=True) if x.requires_grad]
    twice: list[Any] = [None] * len(inputs)
    if any(moving):
        gs = [g for g, m in zip(first, moving, strict=True) if m]
        ws = [tj.from_numpy(np.zeros(tuple(g.shape)) if v is None else v).to(g.dtype) for g, v, m in zip(first, along, moving, strict=True) if m]
        twice = list(tj.autograd.grad(gs, inputs, ws, allow_unused=True))
    ends = []
    for sign in (1, -1):
        ends.append([None if g is None else array(g) for g in gradients([moved(op, s, vs, sign * STEP) for s, vs in zip(samples, directions, strict=True)])])
    for i, (h, up, down) in enumerate(zip(twice, *ends, strict=True)):
        if along[i] is None:
            continue
        slope = np.zeros(()) if up is None else (up - down) / (2 * STEP)
        got = np.zeros(slope.shape) if h is None else array(h)
        np.testing.assert_allclose(got, np.broadcast_to(slope, got.shape), *DIFFERENCE, err_msg=f"{name}{samples}: second order, input {i}")


# -- views ---------------------------------------------------------------------------------------------------------------

#: Views whose elements share memory: what a write leaves there is not defined in torch.
OVERLAP: dict[str, Any] = {
    "unfold": lambda s: s.args[2] > s.args[3],
    "as_strided": lambda s: True,
    "expand": lambda s: 0 in leaves(s.args[1:]),
}

VIEWS = sorted(n for n in ALL if OPS[n].is_view and OPS[n].oracle is not None)


@needs_torch
@pytest.mark.parametrize("name", VIEWS)
def test_writing_through_a_view(name: str) -> None:
    """`v = view(base); v.mul_(w)` changes the base as in torch, and so do the gradients of the base and of w."""
    op = OPS[name]
    ours, theirs = [], []
    for s in samples_of(op):
        if name in OVERLAP and OVERLAP[name](s):
            continue
        a, b = (_written(lib, function, s) for lib, function in ((tj, op), (torch, resolve(torch, op.oracle or ""))))
        if isinstance(a, str) or isinstance(b, str):
            assert a == b, f"{name}{s}"
            continue
        ours.append(a)
        theirs.append(b)
    mine, expected = gradients(ours), gradients(theirs)
    for got, want in zip(read([o for c in ours for o in c.outputs]), [array(o) for c in theirs for o in c.outputs], strict=True):
        close(got, want, VALUE[got.dtype.name], name)
    for g, e in zip(mine, expected, strict=True):
        close(array(g), array(e), GRADIENT[g.dtype.name], f"{name}: gradient")


def _written(lib: Any, function: Any, s: Sample) -> Any:
    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        base = x * 1
        v = function(base, *args, **kwargs)
        w = lib.arange(v.numel(), dtype=lib.float64).reshape(tuple(v.shape)) + 2
        v.mul_(w.requires_grad_())
        return base, v, w * 1

    try:
        return Call(lib, run, s)
    except RuntimeError as error:
        return type(error).__name__


# -- what backward needs -------------------------------------------------------------------------------------------------

#: Where what is kept for backward differs from torch, and why.
KEEPS_OTHERWISE = {
    "adaptive_avg_pool2d": "torch takes a mean, which keeps nothing, when the output has one element",
    "lerp": "a weight that is a number is an operand here, and kept like one",
}


@needs_torch
@pytest.mark.parametrize("name", sorted(n for n in ALL if OPS[n].differentiable and OPS[n].oracle is not None and n not in KEEPS_OTHERWISE))
def test_backward_refuses_where_torch_does(name: str) -> None:
    """A second backward, and a backward after an operand or the result was written in place, raise exactly where torch raises."""
    op = OPS[name]
    s = next((s for s in samples_of(op) if any(a.dtype.kind in "fc" for a in arrays_in((s.args, s.kwargs)))), None)
    if s is None:
        return
    ours, theirs = (_refusals(lib, function, s) for lib, function in ((tj, op), (torch, resolve(torch, op.oracle or ""))))
    assert ours == theirs, f"{name}{s}"


_OWN_PREFIX = re.compile(r"^[\w.]+\(\): ")  # the house's messages begin with the operation


def _refusals(lib: Any, function: Any, s: Sample) -> dict[str, str | None]:
    found = {}
    operands = [i for i, a in enumerate(arrays_in((s.args, s.kwargs))) if a.dtype.kind in "fc"]
    for what in ["again", "result", *operands]:
        hold: list[Any] = []

        def run(*args: Any, hold: list[Any] = hold, **kwargs: Any) -> Any:
            def fresh(v: Any) -> Any:
                if isinstance(v, (list, tuple)):
                    return type(v)(fresh(u) for u in v)
                if isinstance(v, (tj.Tensor if lib is tj else torch.Tensor)) and v.requires_grad:
                    hold.append(v.clone())
                    return hold[-1]
                return v

            return function(*(fresh(a) for a in args), **{k: fresh(v) for k, v in kwargs.items()})

        c = Call(lib, run, s)
        root = next((o for o in c.outputs if o.requires_grad), None)
        if root is None:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if what == "again":
                    lib.autograd.grad(root, hold, lib.ones_like(root), allow_unused=True)
                elif what == "result":
                    with lib.no_grad():
                        root.mul_(1)
                else:
                    with lib.no_grad():
                        hold[operands.index(what)].mul_(1)
                lib.autograd.grad(root, hold, lib.ones_like(root), allow_unused=True)
                found[str(what)] = None
            except RuntimeError as error:
                found[str(what)] = "second time" if "second time" in str(error) else "modified" if "modified" in str(error) else _OWN_PREFIX.sub("", str(error))[:40]
    return found
