"""inference_mode: what it marks, what it refuses, and that it costs nothing outside."""

from __future__ import annotations

import asyncio
import threading

import pytest

import tapejax as tj

SAVED = "Inference tensors cannot be saved for backward"
WRITTEN = "Inplace update to inference tensor outside InferenceMode is not allowed"


@pytest.fixture
def normal() -> tj.Tensor:
    return tj.ones(2, requires_grad=True)


@pytest.fixture
def inferred() -> tj.Tensor:
    with tj.inference_mode():
        return tj.ones(2)


def test_what_is_made_inside_is_inference_and_not_recorded(normal: tj.Tensor) -> None:
    with tj.inference_mode():
        made = [normal * 2, tj.zeros(2), tj.tensor([1.0]), tj.randn(3), normal.sum(), normal.max(0).values]
        assert tj.is_inference_mode_enabled() and not tj.is_grad_enabled()
    assert all(t.is_inference() and tj.is_inference(t) and not t.requires_grad for t in made)
    assert not tj.is_inference_mode_enabled() and tj.is_grad_enabled()
    assert not normal.is_inference()


def test_enable_grad_inside_records_nothing(normal: tj.Tensor) -> None:
    with tj.inference_mode(), tj.enable_grad():
        assert not (normal * 2).requires_grad
        assert not (normal * normal).exp().requires_grad


def test_mode_false_records_even_under_no_grad(normal: tj.Tensor) -> None:
    with tj.inference_mode(), tj.inference_mode(False):
        y = normal * 2
    assert y.requires_grad and not y.is_inference()
    with tj.no_grad(), tj.inference_mode(mode=False):
        assert tj.is_grad_enabled()
    assert tj.is_grad_enabled()


def test_results_of_operations_outside_are_normal_and_views_stay_inference(inferred: tj.Tensor) -> None:
    assert not (inferred + 1).is_inference() and not inferred.clone().is_inference()
    assert all(v.is_inference() for v in (inferred.view(1, 2), inferred[0], inferred.detach(), inferred.unbind()[0], inferred.data))


def test_views_of_normal_tensors_made_inside_are_normal_but_refuse_recorded_writes(normal: tj.Tensor) -> None:
    base = tj.ones(2)
    with tj.inference_mode():
        of_leaf, of_base = normal.view(2), base.view(2)
        of_base.add_(1)
    assert not of_leaf.is_inference() and not of_base.is_inference()
    assert base.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="A view was created in inference mode and is being modified inplace in normal mode"):
        of_leaf.add_(1)
    with pytest.raises(RuntimeError, match="A view was created in inference mode"):
        of_base.add_(normal)
    of_base.add_(1)  # nothing requires grad
    assert base.tolist() == [3, 3]


def test_saving_an_inference_tensor_for_backward_raises_when_recorded(normal: tj.Tensor, inferred: tj.Tensor) -> None:
    linear = tj.nn.functional.linear
    for attempt in (lambda: inferred * normal, lambda: normal * inferred, lambda: linear(inferred, normal.view(1, 2))):
        for _ in range(2):  # the second time the kind is known
            with pytest.raises(RuntimeError, match=SAVED):
                attempt()
    with tj.no_grad():
        assert (inferred * normal).tolist() == [1, 1]
    assert (inferred * tj.ones(2)).tolist() == [1, 1]
    y = (normal + inferred) * 3  # nothing of `inferred` is saved
    y.sum().backward()
    assert normal.grad is not None and normal.grad.tolist() == [3, 3]
    (inferred.clone() * normal).sum().backward()


def test_a_function_may_not_save_an_inference_tensor(normal: tj.Tensor, inferred: tj.Tensor) -> None:
    class Keep(tj.autograd.Function):
        @staticmethod
        def forward(ctx, x, a):
            ctx.save_for_backward(a)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2, None

    with pytest.raises(RuntimeError, match=SAVED):
        Keep.apply(normal, inferred)


def test_inplace_outside_raises_and_inside_works(inferred: tj.Tensor) -> None:
    for attempt in (lambda: inferred.add_(1), lambda: inferred.view(2).mul_(2), lambda: inferred.zero_(), lambda: inferred[0].fill_(3)):
        with pytest.raises(RuntimeError, match=WRITTEN):
            attempt()
        with tj.no_grad(), pytest.raises(RuntimeError, match=WRITTEN):
            attempt()
    with tj.inference_mode():
        inferred.add_(1)
        inferred[0] = 7.0
    assert inferred.tolist() == [7, 2] and inferred.is_inference()


def test_a_normal_tensor_written_inside_or_from_an_inference_tensor_stays_normal(inferred: tj.Tensor) -> None:
    x = tj.zeros(2)
    with tj.inference_mode():
        x.add_(1)
    assert not x.is_inference() and x._version == 1
    x.copy_(inferred)
    assert not x.is_inference() and inferred.is_inference() and x.tolist() == [1, 1]
    w = tj.ones(2, requires_grad=True)
    (w * x).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [1, 1]


def test_a_leaf_may_be_updated_inside(normal: tj.Tensor) -> None:
    with tj.inference_mode():
        normal.add_(1)
    assert normal.requires_grad and normal.is_leaf and normal.tolist() == [2, 2]
    (normal * normal).sum().backward()
    assert normal.grad is not None and normal.grad.tolist() == [4, 4]


def test_requires_grad_and_version_are_refused(inferred: tj.Tensor) -> None:
    with pytest.raises(RuntimeError, match="Setting requires_grad=True on inference tensor outside InferenceMode is not allowed"):
        inferred.requires_grad_()
    with pytest.raises(RuntimeError, match="Setting requires_grad=True on inference tensor"):
        inferred.requires_grad = True
    with pytest.raises(RuntimeError, match="Inference tensors do not track version counter"):
        _ = inferred._version
    assert inferred._base is None and inferred.view(2)._base is None
    with tj.inference_mode():
        assert tj.ones(2, requires_grad=True).requires_grad


def test_as_decorator_on_functions_generators_and_coroutines() -> None:
    @tj.inference_mode
    def bare() -> bool:
        return tj.is_inference_mode_enabled()

    @tj.inference_mode()
    def called() -> bool:
        return tj.is_inference_mode_enabled()

    @tj.inference_mode(mode=False)
    def off() -> bool:
        return tj.is_inference_mode_enabled()

    @tj.inference_mode()
    def generate():
        yield tj.is_inference_mode_enabled()
        yield tj.is_inference_mode_enabled()

    @tj.inference_mode()
    async def wait() -> bool:
        await asyncio.sleep(0)
        return tj.is_inference_mode_enabled()

    assert bare() and called() and not off()
    seen = []
    for inside in generate():
        seen.append((inside, tj.is_inference_mode_enabled()))
    assert seen == [(True, False)] * 2
    assert asyncio.run(wait())


def test_the_mode_belongs_to_its_thread() -> None:
    seen = []
    with tj.inference_mode():
        thread = threading.Thread(target=lambda: seen.append(tj.is_inference_mode_enabled()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_the_mode_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), tj.inference_mode():
        raise ZeroDivisionError
    assert tj.is_grad_enabled() and not tj.is_inference_mode_enabled()


def test_batch_norm_statistics_move_inside() -> None:
    norm = tj.nn.BatchNorm1d(2)
    with tj.inference_mode():
        norm(tj.randn(4, 2))
    assert not norm.running_mean.is_inference()
    norm(tj.randn(4, 2)).sum().backward()
