"""gradcheck and gradgradcheck: right functions pass, and every planted fault is found, named and placed."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest

import tapejax as tj
from oracle import torch
from tapejax.autograd import GradcheckError, gradcheck, gradgradcheck
from tapejax.autograd.gradient_measure import measure
from tapejax.engine.cache import CACHE

X = (0.3, -0.7, 1.1)


def leaf(values: Any = X, dtype: Any = tj.float64) -> Any:
    return tj.tensor(values, dtype=dtype, requires_grad=True)


def function(forward: Any, backward: Any) -> Any:
    class Made(tj.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return backward(g, ctx.saved_tensors[0])

    return Made.apply


twice_wrong = function(tj.sin, lambda g, x: 2 * g * x.cos())


def failure(func: Any, inputs: Any, **options: Any) -> str:
    with pytest.raises(GradcheckError) as caught:
        gradcheck(func, inputs, **options)
    return str(caught.value)


# -- what is right passes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [False, True])
def test_right_functions_pass(fast: bool) -> None:
    a, b = leaf(np.arange(6.0).reshape(2, 3) / 7), leaf(np.arange(12.0).reshape(3, 4) / 9 - 0.5)
    assert gradcheck(lambda a, b: (a @ b).tanh(), (a, b), fast_mode=fast)
    assert gradcheck(lambda a, b: [(a @ b).sum(), a.exp()], [a, b], fast_mode=fast)


@pytest.mark.parametrize("fast", [False, True])
def test_complex_inputs_and_outputs_pass(fast: bool) -> None:
    z = leaf([0.3 + 1j, -0.7 + 0.2j], tj.complex128)
    assert gradcheck(lambda t: t * t.conj() + t.sin(), z, fast_mode=fast)
    assert gradcheck(lambda t: t.abs() ** 2, z, fast_mode=fast)
    assert gradcheck(lambda t: tj.complex(t, t * t), leaf(), fast_mode=fast)


def test_only_inputs_that_require_grad_are_checked() -> None:
    constant = tj.tensor([2.0, 3.0, 4.0], dtype=tj.float64)
    report = measure(lambda a, b, n: a * b * n, (leaf(), constant, 2))
    assert report.checked == [0]
    assert gradcheck(lambda a, b, n: a * b * n, (leaf(), constant, 2))


def test_a_function_that_ignores_its_arguments_sees_the_perturbation() -> None:
    layer = tj.nn.Linear(3, 2).double()
    x = tj.ones(4, 3, dtype=tj.float64)
    assert gradcheck(lambda *_: layer(x).tanh(), tuple(layer.parameters()))


def test_non_leaf_and_scalar_inputs() -> None:
    assert gradcheck(tj.sin, leaf() * 2)
    assert gradcheck(tj.sin, leaf(0.4))


def test_inputs_are_left_alone() -> None:
    x = leaf()
    view = x[1:]
    before = x.detach().numpy().copy()
    gradcheck(tj.sin, x)
    assert x.detach().numpy().tobytes() == before.tobytes()
    assert x.grad is None and x.is_leaf
    with tj.no_grad():
        x += 1
    assert view.tolist() == x.tolist()[1:]


def test_inputs_are_restored_when_the_function_raises() -> None:
    x = leaf()
    calls = [0]

    def third(t: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyError("third call")
        return t.sin()

    with pytest.raises(KeyError):
        gradcheck(third, x)
    assert x.tolist() == list(X)


def test_every_evaluation_runs_the_same_program() -> None:
    def f(t: Any) -> Any:
        return (t.sin() * 3).exp()

    gradcheck(f, leaf(np.linspace(-1, 1, 4)))
    before = CACHE.compiled
    gradcheck(f, leaf(np.linspace(0, 1, 4)))
    assert CACHE.compiled == before


def test_output_without_grad_must_be_constant() -> None:
    assert gradcheck(lambda t: tj.ones(3), leaf())
    assert "Numerical gradient for function expected to be zero" in failure(lambda t: t.detach() * 2, leaf())


def test_forward_mode() -> None:
    assert gradcheck(lambda a, b: (a * b).sin(), (leaf(), leaf()), check_forward_ad=True)
    assert gradcheck(lambda a, b: (a * b).sin(), (leaf(), leaf()), check_forward_ad=True, check_backward_ad=False, fast_mode=True)


def test_batched_gradients() -> None:
    assert gradcheck(lambda x: x.exp() * x, leaf(), check_batched_grad=True)


def test_second_order() -> None:
    assert gradgradcheck(lambda t: t**3, leaf())
    assert gradgradcheck(lambda a, b: (a * b).sin(), (leaf(), leaf()))
    assert gradgradcheck(lambda t: t**3, leaf(), grad_outputs=tj.ones(3, dtype=tj.float64))
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradgradcheck(function(lambda t: t**3, lambda g, t: 3 * g * (t * t).detach()), leaf())


# -- planted faults: found, explained, placed --------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [False, True])
def test_wrong_rule_is_placed_at_the_function_and_line(fast: bool) -> None:
    text = failure(lambda t: (twice_wrong(t * 1.5).exp()).sum(), leaf(), fast_mode=fast)
    assert re.search(r"Jacobian mismatch for output 0 with respect to input 0", text)
    assert "looks like wrong rule" in text and "2 times the finite difference" in text
    assert re.search(r"suspect +MadeBackward at test_gradcheck\.py:\d+", text)


def test_report_names_the_input_the_output_and_the_element() -> None:
    bad_at_2 = function(tj.sin, lambda g, x: g * x.cos() * tj.tensor([1.0, 1.0, 3.0], dtype=tj.float64))
    text = failure(lambda a, b: (a * 2, a + bad_at_2(b)), (leaf(), leaf()))
    assert "output 1 with respect to input 1" in text
    assert "d output1[2] / d input1[2]" in text
    assert f"numerical {np.cos(1.1):.7g}"[:14] in text
    assert "analytical" in text


def test_wrong_complex_rule_names_the_part() -> None:
    unconjugated = function(lambda z: z * z, lambda g, z: 2 * g * z)
    text = failure(unconjugated, leaf([1 + 2j], tj.complex128))
    assert "While considering the imaginary part of complex outputs only" in text


def test_kink_is_called_a_kink() -> None:
    text = failure(lambda t: (t * 2).relu().sum(), leaf([0.0, 1.0, -2.0]))
    assert "looks like kink" in text and "0 to the left and 2 to the right" in text
    assert "suspect    ReluBackward0 at test_gradcheck.py" in text
    assert gradcheck(tj.relu, leaf())


def test_jump_is_called_a_jump() -> None:
    assert "looks like jump" in failure(lambda t: (t * 2 + t.sign()).sum(), leaf([0.0, 1.0]))


def test_missing_path_is_placed_at_the_detach() -> None:
    text = failure(lambda t: t.sin() + t.detach() ** 2, leaf())
    assert "looks like missing path" in text and re.search(r"suspect +detach\(\) at test_gradcheck\.py:\d+", text)

    def under_no_grad(t: Any) -> Any:
        with tj.no_grad():
            factor = t.exp()
        return t * factor

    assert re.search(r"suspect +exp under no_grad at test_gradcheck\.py:\d+", failure(under_no_grad, leaf()))


@pytest.mark.filterwarnings("ignore:Input #0 requires gradient")
def test_float32_is_too_coarse_for_the_default_step() -> None:
    def f(t: Any) -> Any:
        return (t * 37.0).sin() * 11

    text = failure(f, leaf(dtype=tj.float32))
    assert "looks like too little precision" in text and "float64" in text
    assert gradcheck(lambda t: t.sin(), leaf(dtype=tj.float32), eps=1e-2, atol=1e-2, rtol=1e-2)


@pytest.mark.filterwarnings("ignore:Input #0 requires gradient")
def test_a_wrong_rule_in_float32_is_not_excused_by_precision() -> None:
    assert "looks like wrong rule" in failure(twice_wrong, leaf(dtype=tj.float32))


def test_non_deterministic_backward() -> None:
    tick = [0]

    def shaky(g: Any, x: Any) -> Any:
        tick[0] += 1
        return g * x.cos() * (1 + 1e-7 * tick[0])

    f = function(tj.sin, shaky)
    assert "Backward is not reentrant" in failure(f, leaf())
    assert gradcheck(f, leaf(), nondet_tol=1e-3, atol=1e-3)


def test_non_deterministic_function() -> None:
    tj.manual_seed(0)
    text = failure(lambda t: tj.nn.functional.dropout(t, 0.5), leaf(np.ones(30)), nondet_tol=10.0)
    assert "looks like non-deterministic" in text


def test_backward_that_ignores_its_seed() -> None:
    assert not gradcheck(function(tj.sin, lambda g, x: x.cos()), leaf(), raise_exception=False)
    assert "backward not multiplied by grad_output" in failure(function(lambda x: x.sum(), lambda g, x: tj.ones_like(x)), leaf())


def test_undefined_gradients(tl: Any) -> None:
    class Picky(tl.autograd.Function):
        """Does not expect an undefined gradient."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any) -> Any:
            return a * 2 + b * 3

    x = tl.tensor([0.3, 0.4], dtype=tl.float64, requires_grad=True)
    with pytest.raises(TypeError):
        tl.autograd.gradcheck(Picky.apply, x)


def test_batched_check_of_a_function_that_cannot_be_batched() -> None:
    right = function(tj.sin, lambda g, x: g * x.cos() if g.sum().item() else g * 0)  # reads a value
    assert gradcheck(right, leaf())
    text = failure(right, leaf(), check_batched_grad=True)
    assert "batched gradient computation" in text


def test_wrong_gradient_dtype() -> None:
    report = measure(lambda t: t.sin(), (leaf(),))
    assert report.wrong_types == []
    assert gradcheck(tj.sin, leaf(), check_grad_dtypes=True)


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_refusals(tl: Any) -> None:
    check = tl.autograd.gradcheck
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        check(tl.sin, tl.ones(3, dtype=tl.float64))
    with pytest.raises(AssertionError, match="at least one of"):
        check(tl.sin, tl.ones(3, dtype=tl.float64), check_backward_ad=False)
    x = tl.ones(3, requires_grad=True)
    with pytest.warns(UserWarning, match="not a double precision floating point"):
        check(lambda t: t * 1.0, x, eps=1e-2, atol=1e-2, rtol=1e-2)
    wrong = tl.ones(3, dtype=tl.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="Jacobian mismatch for output 0 with respect to input 0"):
        check(lambda t: t.sin() + t.detach(), wrong)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_signatures_are_torchs() -> None:
    import inspect

    for name in ("gradcheck", "gradgradcheck"):
        ours = inspect.signature(getattr(tj.autograd, name)).parameters
        theirs = inspect.signature(getattr(torch.autograd, name)).parameters
        assert [(p.name, p.kind, p.default) for p in ours.values()] == [(p.name, p.kind, p.default) for p in theirs.values()]


def test_error_class_is_importable_from_the_module() -> None:
    assert importlib.import_module("tapejax.autograd.gradcheck").GradcheckError is GradcheckError
    assert issubclass(GradcheckError, RuntimeError)
