"""Fixtures and profiles shared by the tests."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest

import tapejax
from oracle import torch

hypothesis.settings.register_profile("dev", max_examples=100, deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", max_examples=2000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "open_fault(title): tapejax does not hold this rule yet; torch does")
    config.addinivalue_line("markers", "slow: takes more than a few seconds (run with --slow)")
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line("filterwarnings", "ignore::tapejax.debug.RecompileWarning")  # tests try many shapes from one line


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
        fault = item.get_closest_marker("open_fault")
        if fault is not None and getattr(item, "callspec", None) and item.callspec.params.get("tl") != "torch":
            item.add_marker(pytest.mark.xfail(strict=True, reason=fault.args[0]))


@pytest.fixture(autouse=True)
def grad_mode() -> Any:
    """A test that fails inside a mode must not take the others with it."""
    yield
    for lib in (tapejax, torch):
        if lib is not None:
            lib.set_grad_enabled(True)


@pytest.fixture(params=["tapejax", "torch"])
def tl(request: pytest.FixtureRequest) -> Any:
    """The library under test and, with the same program text and the same assertions, torch."""
    if request.param == "tapejax":
        return tapejax
    if torch is None:
        pytest.skip("torch is not installed")
    return torch
