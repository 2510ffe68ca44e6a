"""Anomaly detection: which backward function is named, where its forward was, and what is left untouched."""

from __future__ import annotations

import warnings

import pytest

import tapejax as tj
from tapejax.autograd import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from tapejax.engine.blame import first_nan
from tapejax.tape.program import Linear, in_order, pending


@pytest.fixture
def x() -> tj.Tensor:
    return tj.tensor([0.0, 1.0, -1.0], requires_grad=True)


def a_line_of_the_user(x: tj.Tensor) -> tj.Tensor:
    return x.sqrt()


def _fails(run, match: str) -> list[str]:
    """Run inside the mode, which must raise; the warnings it gave (but the one about the mode)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match=match), detect_anomaly():
            run()
    texts = [str(w.message) for w in caught]
    assert any("Anomaly Detection has been enabled" in t for t in texts)
    return [t for t in texts if "Anomaly Detection has been enabled" not in t]


def test_names_the_function_and_shows_the_users_line(x: tj.Tensor) -> None:
    named = r"Function 'SqrtBackward0' returned nan values in its 0th output(?s:.*)test_anomaly.py:\d+: return x.sqrt\(\)"
    (told,) = _fails(lambda: a_line_of_the_user(x * 1).sum().backward(), named)
    assert "Error detected in SqrtBackward0. Traceback of forward call that caused the error:" in told
    assert "in a_line_of_the_user" in told and "return x.sqrt()" in told
    assert "/tapejax/" not in told.replace("/tests/", "")
    assert x.grad is None


def test_compiled_replay_still_names_it_and_the_graph_stays_usable(x: tj.Tensor) -> None:
    for _ in range(3):
        _fails(lambda: (x.exp() + a_line_of_the_user(x)).mean().backward(), "Function 'SqrtBackward0' returned nan values in its 0th output")
    with detect_anomaly_quietly():
        y = (x * 2).sum() + a_line_of_the_user(x).sum() * 0
        with pytest.warns(UserWarning, match="Error detected in SqrtBackward0"), pytest.raises(RuntimeError, match="SqrtBackward0"):
            y.backward()
    assert x.grad is None
    y.backward()
    assert x.grad is not None


def detect_anomaly_quietly(check_nan: bool = True) -> detect_anomaly:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return detect_anomaly(check_nan)


def test_a_forward_outside_the_mode_has_no_line(x: tj.Tensor) -> None:
    y = a_line_of_the_user(x).sum()
    (told,) = _fails(y.backward, "Function 'SqrtBackward0' returned nan values")
    assert "Error detected in SqrtBackward0. No forward pass information available" in told


def test_check_nan_false_is_honoured(x: tj.Tensor) -> None:
    with detect_anomaly_quietly(check_nan=False):
        assert tj.is_anomaly_enabled() and not tj.is_anomaly_check_nan_enabled()
        a_line_of_the_user(x).sum().backward()
    assert x.grad.isnan().any()


@pytest.mark.parametrize(
    ("build", "name", "output"),
    [
        (lambda a, b: a / b, "DivBackward0", 1),
        (lambda a, b: (a + float("inf")) * b * 0, "MulBackward0", 1),
        (lambda a, b: (a.log() * a) + b, "LogBackward0", 0),
        (lambda a, b: tj.where(a > 1, a.sqrt(), b) + (a - 1).sqrt() * 1, "SqrtBackward0", 0),
    ],
)
def test_the_output_that_holds_the_nan_is_numbered(build, name: str, output: int) -> None:
    a, b = tj.zeros(2, requires_grad=True), tj.zeros(2, requires_grad=True)
    _fails(lambda: build(a, b).sum().backward(), f"Function '{name}' returned nan values in its {output}th output")


def test_a_nan_that_is_masked_further_down_is_found() -> None:
    x = tj.tensor([-1.0, 1.0], requires_grad=True)
    _fails(lambda: (0 * x.relu().sqrt()).sum().backward(), "Function 'SqrtBackward0' returned nan values")


def test_operations_with_several_outputs_and_integers() -> None:
    x = tj.tensor([[-1.0, 2.0], [0.0, 3.0]], requires_grad=True)
    _fails(lambda: x.sqrt().max(0).values.sum().backward(), "Function 'SqrtBackward0'")
    with detect_anomaly_quietly():
        (x.max(1).values.sum() + x[tj.tensor([0, 1]), tj.tensor([1, 0])].sum()).backward()
    assert x.grad.tolist() == [[0, 2], [1, 1]]


def test_custom_functions_are_checked() -> None:
    class SecondIsNan(tj.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a * 1

        @staticmethod
        def backward(ctx, g):
            return g, g * float("nan")

    a, b = tj.ones(2, requires_grad=True), tj.ones(2, requires_grad=True)
    (told,) = _fails(lambda: SecondIsNan.apply(a * 2, b * 3).sum().backward(), "Function 'SecondIsNanBackward' returned nan values in its 1th output")
    assert "SecondIsNan.apply(a * 2, b * 3)" in told
    assert a.grad is None and b.grad is None


def test_an_error_inside_a_backward_shows_its_forward() -> None:
    class Raises(tj.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a * 1

        @staticmethod
        def backward(ctx, g):
            raise RuntimeError("from inside")

    a = tj.ones(2, requires_grad=True)
    (told,) = _fails(lambda: Raises.apply(a).sum().backward(), "^from inside$")
    assert "Error detected in RaisesBackward. Traceback of forward call that caused the error:" in told


def test_nested_backwards_print_the_chain_of_parents() -> None:
    class Inner(tj.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a * 2

        @staticmethod
        def backward(ctx, g):
            return g * float("nan")

    class Outer(tj.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a.clone()

        @staticmethod
        def backward(ctx, g):
            return Inner.apply(g)

    x = tj.ones(3, requires_grad=True)

    def run() -> None:
        y = Outer.apply(x * 1)
        (g,) = tj.autograd.grad(y.sum(), x, grad_outputs=tj.ones((), requires_grad=True), create_graph=True)
        g.sum().backward()

    first, second = _fails(run, "Function 'InnerBackward' returned nan values in its 0th output")
    assert "Error detected in InnerBackward" in first and "return Inner.apply(g)" in first
    assert "Previous calculation was induced by OuterBackward. Traceback of forward call that induced the previous calculation:" in second
    assert "y = Outer.apply(x * 1)" in second


def test_a_second_order_nan_leads_to_the_first_forward() -> None:
    x = tj.tensor([0.0, 1.0], requires_grad=True)

    def run() -> None:
        y = x.sqrt() * x.detach().sqrt()
        (g,) = tj.autograd.grad(y.sum(), x, create_graph=True)
        (g * 1).sum().backward()

    told = _fails(run, "Function '.*' returned nan values in its")
    assert any("y = x.sqrt() * x.detach().sqrt()" in t for t in told)


def test_higher_orders_are_unchanged_by_the_mode() -> None:
    x = tj.tensor([0.5, 1.0], dtype=tj.float64, requires_grad=True)

    def second() -> list[float]:
        y = (x.sin() * x.exp()).sum() + (x @ x) ** 2 + x.max(0).values
        (g,) = tj.autograd.grad(y, x, create_graph=True)
        (h,) = tj.autograd.grad((g * x).sum(), x)
        return h.tolist()

    expected = second()
    with detect_anomaly_quietly():
        assert second() == pytest.approx(expected)


def test_gradients_hooks_and_retain_graph_are_unchanged_by_the_mode(x: tj.Tensor) -> None:
    seen = []
    with detect_anomaly_quietly():
        y = x.exp()
        y.retain_grad()
        y.register_hook(lambda g: seen.append(g.tolist()))
        z = (y * y).sum()
        z.backward(retain_graph=True)
        z.backward()
        z = (x.exp() ** 2).sum()
        z.item()
        (g,) = tj.autograd.grad(z, x)
    assert len(seen) == 2
    assert x.grad.tolist() == pytest.approx((2 * g).tolist())
    assert y.grad.tolist() == pytest.approx((4 * y).tolist())  # two backwards


def test_only_what_the_wanted_inputs_need_is_checked(x: tj.Tensor) -> None:
    other = tj.tensor([-1.0], requires_grad=True)
    with detect_anomaly_quietly():
        (g,) = tj.autograd.grad((x.exp() + other.sqrt()).sum(), x)
    assert not g.isnan().any()


def test_switching(x: tj.Tensor) -> None:
    assert not is_anomaly_enabled()
    set_detect_anomaly(True)
    try:
        assert tj.is_anomaly_enabled() and tj.is_anomaly_check_nan_enabled()
        with set_detect_anomaly(False):
            assert not is_anomaly_enabled()
        assert is_anomaly_enabled()
    finally:
        set_detect_anomaly(False)
    with set_detect_anomaly(True, check_nan=False):
        assert is_anomaly_enabled() and not tj.is_anomaly_check_nan_enabled()
    assert not is_anomaly_enabled()
    with pytest.warns(UserWarning, match="Anomaly Detection has been enabled"):
        detect_anomaly()
    assert not is_anomaly_enabled()


def test_with_checkpoints_and_saved_tensor_hooks(x: tj.Tensor) -> None:
    from tapejax.utils.checkpoint import checkpoint

    _fails(lambda: checkpoint(lambda a: a.sqrt().sin(), x, use_reentrant=False).sum().backward(), "Function 'SqrtBackward0'")

    def hooked() -> None:
        with tj.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            y = x.sqrt()
        y.sum().backward()

    (told,) = _fails(hooked, "Function 'SqrtBackward0' returned nan values in its 0th output")
    assert "y = x.sqrt()" in told


def test_blame_finds_nothing_in_a_sound_program() -> None:
    a = tj.tensor([1.0, 2.0], requires_grad=True)
    y = (a.sin() * a).sum()
    order = in_order(pending([y._node]))
    linear = Linear(order)
    wanted = [[j for j, n in enumerate(node.inputs) if n.requires_grad] for node in order]
    roots, values = [linear.slot_of(y._node)], [n.value for n in linear.inputs]
    assert first_nan(linear.program(), values, roots, [tj.ones(()).array()], wanted) is None
    place = first_nan(linear.program(), values, roots, [tj.tensor(float("nan")).array()], wanted)
    assert place is not None and linear.order[place[0]].kind.name == "sum"
