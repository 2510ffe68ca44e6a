"""Printing equals torch's, to the character, once "torch." is read as "tapejax."."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from tapejax import display, dtypes

torch = pytest.importorskip("torch")

SHAPES = [(), (1,), (7,), (20,), (2, 3), (3, 17), (2, 2, 2, 3), (0,), (0, 3), (1001,), (40, 30), (3, 500), (10, 11, 12)]
OPTIONS = [
    {"profile": "default"},
    {"profile": "short"},
    {"profile": "full"},
    {"precision": 2},
    {"linewidth": 120},
    {"threshold": 5, "edgeitems": 2},
    {"threshold": 3, "edgeitems": 1, "linewidth": 40},
    {"threshold": 3, "edgeitems": 0},
    {"sci_mode": True},
    {"sci_mode": False},
]


@pytest.fixture(autouse=True)
def default_options() -> Iterator[None]:
    yield
    display.set_printoptions(profile="default")
    torch.set_printoptions(profile="default")


def ours(t: torch.Tensor) -> str:
    dtype = dtypes.of(str(t.dtype))
    bare = t.detach()
    array = bare.float().numpy().astype(ml_dtypes.bfloat16) if t.dtype is torch.bfloat16 else bare.numpy()
    name = None if t.grad_fn is None else type(t.grad_fn).__name__
    return display.format_tensor(array, dtype, requires_grad=t.requires_grad, grad_fn_name=name)


def theirs(t: torch.Tensor) -> str:
    return repr(t).replace("torch.", "tapejax.")


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, style: str) -> torch.Tensor:
    x = np.asarray(rng.normal(size=shape))
    if style == "spread":
        x = x * 10.0 ** rng.integers(-5, 9, size=shape)
    elif style == "whole":
        x = np.round(x * 20)
    elif style == "zero":
        x = x * 0
    elif style == "tiny":
        x = x * 1e-5
    elif style in ("holes", "whole holes"):
        x = np.round(x * 5) if style == "whole holes" else x
        x = np.where(rng.random(shape) < 0.3, np.nan, x)
        x = np.where(rng.random(shape) < 0.2, -np.inf, x)
    kind = getattr(torch, dtype)
    if kind.is_complex:
        return torch.complex(torch.tensor(x), torch.tensor(np.asarray(np.roll(x, 1) * 3))).to(kind)
    if not kind.is_floating_point:
        finite = np.nan_to_num(np.asarray(x), neginf=0.0)
        bound = np.clip(finite * 10, 0 if dtype.startswith("u") else -100, 100)
        return torch.tensor(np.asarray(bound > 0) if dtype == "bool" else np.asarray(bound).astype(dtype))
    return torch.tensor(np.asarray(x)).to(kind)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_table_of_shapes_types_and_magnitudes(options: dict) -> None:
    torch.set_printoptions(**options)
    display.set_printoptions(**options)
    rng = np.random.default_rng(0)
    styles = ("plain", "spread", "whole", "zero", "tiny", "holes", "whole holes")
    for shape, dtype, style in itertools.product(SHAPES, ("float32", "float64", "complex64", "int64"), styles):
        if options.get("profile") != "full" or np.prod(shape) < 100:
            t = draw(rng, shape, dtype, style)
            assert ours(t) == theirs(t), (shape, dtype, style)


@pytest.mark.parametrize("dtype", [d.name for d in dtypes.ALL])
def test_every_element_type_and_note(dtype: str) -> None:
    rng = np.random.default_rng(1)
    for shape, style in itertools.product(SHAPES, ("plain", "whole", "holes")):
        t = draw(rng, shape, dtype, style)
        assert ours(t) == theirs(t)
        if t.is_floating_point() or t.is_complex():
            leaf = t.clone().requires_grad_()
            assert ours(leaf) == theirs(leaf)
            assert ours(leaf * 2) == theirs(leaf * 2)


def test_the_default_type_is_the_unmarked_one() -> None:
    cases = [torch.zeros(2, dtype=torch.float64), torch.zeros(2), torch.zeros(0), torch.zeros(1, dtype=torch.complex64)]
    torch.set_default_dtype(torch.float64)
    dtypes.set_default_dtype(dtypes.float64)
    try:
        for t in cases:
            assert ours(t) == theirs(t)
    finally:
        torch.set_default_dtype(torch.float32)
        dtypes.set_default_dtype(dtypes.float32)


def test_the_device_is_named_off_the_cpu() -> None:
    text = display.format_tensor(np.float32([1, 2]), dtypes.float32, device="cuda:0", grad_fn_name="ExpBackward0")
    assert text == "tensor([1., 2.], device='cuda:0', grad_fn=<ExpBackward0>)"


def test_options_are_refused_and_reported() -> None:
    with pytest.raises(ValueError, match="unknown profile 'tiny'"):
        display.set_printoptions(profile="tiny")
    display.set_printoptions(precision=7, sci_mode=True)
    assert display.get_printoptions()["precision"] == 7
    display.set_printoptions(linewidth=100)  # leaving sci_mode out goes back to choosing, the rest stays
    assert display.get_printoptions() == {
        "precision": 7, "threshold": 1000, "edgeitems": 3, "linewidth": 100, "sci_mode": None,
    }  # fmt: skip
