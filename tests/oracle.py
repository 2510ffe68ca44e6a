"""The oracle: torch, running the same program text as tapejax.

A rule's test takes the fixture `tl` ("torch-like") and runs once for each library, so that what it asserts is shown to
be torch's behaviour where torch is installed, and holds recorded values where it is not. Random programs are compared
by `observe`, which turns what a program did into plain data.
"""

from __future__ import annotations

import gc
import importlib.util
import warnings
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np

import tapejax
from tapejax.engine.cache import CACHE

torch: Any = None
if importlib.util.find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)

#: Per element type, how far two results may be apart: (relative, absolute).
TOLERANCE = {"float16": (1e-2, 1e-3), "bfloat16": (4e-2, 1e-2), "float32": (2e-5, 1e-6), "float64": (1e-9, 1e-12)}
TOLERANCE |= {"complex64": TOLERANCE["float32"], "complex128": TOLERANCE["float64"]}


def is_tensor(x: Any) -> bool:
    return isinstance(x, tapejax.Tensor) or (torch is not None and isinstance(x, torch.Tensor))


def square_of(lib: Any) -> Any:
    """A custom Function, x², that saves its input."""

    class Square(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return Square


def numbers(x: Any) -> Any:
    """Tensors as nested lists of Python numbers, containers entered, anything else as it is."""
    if is_tensor(x):
        return x.detach().tolist()
    if isinstance(x, dict):
        return {k: numbers(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [numbers(v) for v in x]
    return x


def near(got: Any, expected: Any, rel: float = 2e-5, absolute: float = 1e-6) -> bool:
    """Whether two nested structures of numbers agree."""
    got, expected = numbers(got), numbers(expected)
    if isinstance(expected, dict):
        return isinstance(got, dict) and got.keys() == expected.keys() and all(near(got[k], expected[k], rel, absolute) for k in expected)
    if isinstance(expected, list):
        return isinstance(got, list) and len(got) == len(expected) and all(near(g, e, rel, absolute) for g, e in zip(got, expected, strict=True))
    if isinstance(expected, (bool, str)) or expected is None or got is None or isinstance(got, (str, list, dict)):
        return bool(got == expected)
    return bool(np.allclose(got, expected, rtol=rel, atol=absolute, equal_nan=True))


def grad_or_none(x: Any) -> Any:
    """`x.grad` as numbers, without torch's warning for non-leaves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return None if x.grad is None else numbers(x.grad)


def compiled() -> int:
    """How many programs tapejax has compiled so far."""
    return CACHE.compiled


@contextmanager
def dies(*objects: Any) -> Any:
    """Assert that objects die by reference count alone: yield weakrefs; the caller drops its own references inside."""
    refs = [weakref.ref(o) for o in objects]
    was = gc.isenabled()
    gc.disable()
    del objects
    try:
        yield refs
        assert all(r() is None for r in refs), f"still alive: {[i for i, r in enumerate(refs) if r() is not None]}"
    finally:
        if was:
            gc.enable()


def raised(program: Callable[[], Any]) -> str | None:
    """The name of the class of the exception that `program` raises; None if it does not."""
    try:
        program()
    except Exception as error:
        return type(error).__name__
    return None
