"""Every declared operation from its own samples: values, types, gradients, and that nothing compiles twice."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from differences import CORNERS, direction, moved
from op_calls import OPS, Call, arrays_in, call, differentiable, gradients, read, samples_of, torch_call
from oracle import compiled, torch
from tapejax.ops.samples import Make
from tapejax.tape.op import TABLE
from tolerances import DIFFERENCE, GRADIENT, STEP, VALUE, close

ALL = sorted(name for name, op in OPS.items() if samples_of(op))

#: Declared operations without samples, and why.
NO_SAMPLES = {
    "rrelu_sample": "drawn slopes; test_random_ops.py",
    "of_example": "means something under vmap only",
}

def test_every_operation_has_samples() -> None:
    without = {name for name, op in OPS.items() if not samples_of(op)}
    assert without == set(NO_SAMPLES)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_has_a_docstring(name: str) -> None:
    first, _, _ = (TABLE[name].__doc__ or "").strip().partition("\n\n")
    assert re.match(r"[A-Z`].*[.:)]$", first, re.DOTALL), first


@pytest.mark.parametrize("name", ALL)
def test_value_gradient_and_differences(name: str) -> None:
    """Against torch where it has the operation; the gradient against central differences along random directions."""
    op = OPS[name]
    samples = samples_of(op)
    calls = [call(op, s) for s in samples]
    grads = gradients(calls)
    values = read([o for c in calls for o in c.outputs] + [g for g in grads if g is not None])
    for c in calls:
        for o in c.outputs:
            assert (o.node.value.shape, o.node.value.dtype) == (o.node.aval.shape, o.node.aval.dtype.np), f"{name}: inferred {o.node.aval}"
    if torch is not None and op.oracle is not None:
        _same_as_torch(name, samples, calls, grads)
    plain = [call(op, s, grad=False) for s in samples]  # held: what nobody holds is donated, by another program
    for got, again in zip(values, read([o for c in plain for o in c.outputs]), strict=False):
        close(again, got, VALUE.get(got.dtype.name, (0, 0)), f"{name}: recorded for gradients and not")
    before = compiled()
    if grads:
        _same_as_differences(name, samples, calls, grads)
    again = [call(op, s) for s in samples]
    read([o for c in again for o in c.outputs] + [g for g in gradients(again) if g is not None])
    assert compiled() == before, f"{name}: a second run compiled something"


def _same_as_torch(name: str, samples: list[Any], calls: list[Call], grads: list[Any]) -> None:
    theirs = [torch_call(OPS[name], s) for s in samples]
    for s, c, t in zip(samples, calls, theirs, strict=True):
        assert len(c.outputs) == len(t.outputs), f"{name}{s}: {len(c.outputs)} outputs, torch {len(t.outputs)}"
        for got, expected in zip(c.outputs, t.outputs, strict=True):
            close(read([got])[0], read([expected])[0], VALUE.get(got.dtype.name, (0, 0)), f"{name}{s}")
            assert got.requires_grad == expected.requires_grad, f"{name}{s}: requires_grad is {got.requires_grad}"
    expected = gradients(theirs)
    where = [(s, i) for s, c in zip(samples, calls, strict=True) for i, x in enumerate(c.inputs) if x.requires_grad]
    for g, e, (s, i) in zip(grads, expected, where if grads else [], strict=True):
        if e is None or g is None:
            missing = np.zeros(1) if g is e else read([e if g is None else g])[0]
            assert not missing.any(), f"{name}{s}: gradient {i} is {g}, torch {e}"
        else:
            close(read([g])[0], read([e])[0], GRADIENT[g.dtype.name], f"{name}{s}: gradient {i}")


def _same_as_differences(name: str, samples: list[Any], calls: list[Call], grads: list[Any]) -> None:
    """⟨gradient, v⟩ against the central difference of ⟨seed, f⟩ along v, per sample."""
    rng = np.random.default_rng(2)
    outputs, _, seeds = differentiable(calls)
    at = iter(read(outputs))
    middle = [[next(at) if o.requires_grad else None for o in c.outputs] for c in calls]
    for _ in range(2):
        directions = [[direction(rng, a, s.symmetric) for a in arrays_in((s.args, s.kwargs))] for s in samples]
        up, down = (_moved(name, samples, directions, sign * STEP) for sign in (1, -1))
        given, mine = iter(seeds), iter(grads)
        for s, c, vs, above, below, here in zip(samples, calls, directions, up, down, middle, strict=True):
            left = right = inner = 0.0
            for u, d, m in zip(above, below, here, strict=True):
                if m is not None:
                    seed = next(given)
                    right += np.vdot(seed, _step(u, m)).real
                    left += np.vdot(seed, _step(m, d)).real
            for x, v in zip(c.inputs, vs, strict=True):
                if x.requires_grad:
                    g = next(mine)
                    inner += 0.0 if g is None or v is None else np.vdot(read([g])[0], v).real
            if not s.has_slope or (name in CORNERS and not np.isclose(left, right, rtol=1e-3, atol=1e-3)):
                continue
            np.testing.assert_allclose(inner, (left + right) / 2, *DIFFERENCE, err_msg=f"{name}{s}: gradient against central difference")


def _moved(name: str, samples: list[Any], directions: list[Any], step: float) -> list[list[np.ndarray]]:
    """The outputs of every sample at arrays + step * directions."""
    made = [moved(OPS[name], s, vs, step, grad=False) for s, vs in zip(samples, directions, strict=True)]
    values = iter(read([o for c in made for o in c.outputs]))
    return [[next(values) for _ in c.outputs] for c in made]


def _step(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """(above - below) / STEP; what is equal (infinities, NaNs) has not moved."""
    with np.errstate(invalid="ignore"):
        return np.where((above == below) | (np.isnan(above) & np.isnan(below)), 0, above - below) / STEP


@pytest.mark.parametrize("name", sorted(n for n, op in OPS.items() if op.error_inputs(Make(0))))
def test_refusals(name: str) -> None:
    """Every error sample raises its class with torch's key phrase, in the house's form."""
    op = OPS[name]
    for e in op.error_inputs(Make(0)):
        with pytest.raises(e.error, match=e.match) as caught:
            call(op, e)  # type: ignore[arg-type]
        assert re.match(r"[\w.]+\(\): ", str(caught.value)), str(caught.value)
