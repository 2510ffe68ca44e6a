"""`tapejax check` and `tapejax info`: verdicts, exit codes, one-line refusals, plain text in pipes."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tapejax as tj
from tapejax.tape.op import TABLE

if importlib.util.find_spec("tapejax.cli") is None:  # running from the source folder, where the package is still called cli
    _path = Path(__file__).resolve().parent.parent / "cli"
    _spec = importlib.util.spec_from_file_location("tapejax.cli", _path / "__init__.py", submodule_search_locations=[str(_path)])
    assert _spec is not None and _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["tapejax.cli"] = _module
    _spec.loader.exec_module(_module)

cli: Any = importlib.import_module("tapejax.cli")

SOURCE = '''
import tapejax as tj

class Wrong(tj.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0].exp()

def loss(x, w):
    return (x @ w).tanh().sum()

def wrong(x):
    return Wrong.apply(x)

def raises(x):
    return x.reshape(7)

def number(x):
    return 3

def complex_loss(z):
    return (z * z.conj()).real.sum()

def counted(x, n):
    return x[n].sum()
'''


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "model_under_check.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model_under_check", raising=False)

    def call(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as left:
            cli.main(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert "\x1b" not in out + err
        return Outcome(int(left.value.code or 0), out, err)

    return call


FILE = "model_under_check.py"
LOSS = ("check", f"{FILE}:loss", "--input", "float64[3,4]", "--input", "float64[4]")


def test_a_right_gradient_leaves_0(run: Any) -> None:
    found = run(*LOSS)
    assert found.code == 0
    lines = found.out.splitlines()
    assert re.fullmatch(r"check +input +type +max abs +max rel +worst at +analytic +numeric +verdict", lines[0])
    assert "float64[3,4]" in lines[1] and "float64[4]" in lines[2] and lines[2].endswith("✓ ok")
    assert lines[1].index("float64") == lines[2].index("float64")
    assert lines[-1].startswith("1 passed")


def test_a_wrong_gradient_leaves_1_and_is_placed(run: Any) -> None:
    found = run("check", f"{FILE}:wrong", "-i", "float64[3]")
    assert found.code == 1
    assert "✗ wrong rule" in found.out and "2 times the finite difference" in found.out
    assert re.search(r"suspect: WrongBackward at model_under_check\.py:\d+", found.out)


def test_second_order_batched_fast(run: Any) -> None:
    found = run(*LOSS, "--second-order", "--batched")
    assert found.code == 0 and "(second order)" in found.out and "(batched)" in found.out and "seed" in found.out
    assert run(*LOSS, "--fast").code == 0
    assert run("check", f"{FILE}:wrong", "-i", "float64[3]", "--fast").code == 1


def test_json(run: Any) -> None:
    found = json.loads(run(*LOSS, "--json").out)
    assert found["ok"] is True
    (check,) = found["checks"]
    assert check["order"] == "gradient" and [r["input"] for r in check["rows"]] == ["x", "w"]
    assert check["rows"][0]["max_abs"] < 1e-6 and len(check["rows"][0]["worst"]) == 2
    wrong = run("check", f"{FILE}:wrong", "-i", "float64[3]", "--json")
    assert wrong.code == 1 and json.loads(wrong.out)["checks"][0]["rows"][0]["verdict"] == "wrong rule"
    assert json.loads(run("check", f"{FILE}:complex_loss", "-i", "complex128[2]", "--json").out)["ok"] is True


def test_inputs_of_every_kind(run: Any) -> None:
    assert run("check", f"{FILE}:loss", "-i", "float64[3]@0.1:2", "-i", "float64[3]@-1:-0.5").code == 0
    assert run("check", f"{FILE}:counted", "-i", "float64[5,2]", "-i", "int64[3]@0:5").code == 0
    assert run("check", f"{FILE}:counted", "-i", "float64[5]", "-i", "bool[5]").code == 0
    assert run("check", f"{FILE}:loss", "-i", "float32[3,4]", "-i", "float32[4]").code == 0


def test_seed_makes_inputs_reproducible(run: Any) -> None:
    rows = [json.loads(run(*LOSS, "--json", "--seed", s).out)["checks"][0]["rows"] for s in ("1", "1", "2")]
    assert rows[0] == rows[1] != rows[2]


def test_module_target(run: Any) -> None:
    assert run("check", "model_under_check:loss", "-i", "float64[3]", "-i", "float64[3]").code == 0


def test_a_file_says_what_to_check(run: Any, tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(
        "import numpy as np\nimport tapejax as tj\n"
        "def check_sin(x): return x.sin()\n"
        "def check_pair(): return (lambda a, b: a * b), (tj.ones(2, dtype=tj.float64), tj.ones(2, dtype=tj.float64))\n"
        "def example_inputs(): return np.ones(3)\n"
    )
    found = run("check", "several.py")
    assert found.code == 0 and "several.py:check_sin" in found.out and "several.py:check_pair" in found.out
    assert run("check", "several.py:check_sin").code == 0


def test_ops_are_checked_on_their_samples(run: Any) -> None:
    found = run("check", "--op", "sin", "--op", "mul", "--fast")
    assert found.code == 0 and found.out.startswith("op ") and "2 passed" in found.out


def test_samples_without_a_slope_are_counted_and_not_compared(run: Any) -> None:
    """A draw that passes another gradient on, infinity and NaN: torch's conventions, which no difference shows."""
    found = run("check", "--op", "gumbel_sample", "--op", "cummax", "--fast")
    assert found.code == 0 and "2 passed, 2 samples not compared (no slope there)" in found.out
    found = run("check", "--op", "normal_around")
    assert found.code == 2 and "no sample of it has a slope" in found.out + found.err


def test_an_op_with_a_wrong_rule_is_found(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(tj.autograd.Function):
        forward = staticmethod(lambda ctx, x: x.sin())
        backward = staticmethod(lambda ctx, g: g)

    monkeypatch.setattr(TABLE["sin"], "call", Wrong.apply)
    found = run("check", "--op", "sin")
    assert found.code == 1 and "✗ wrong rule" in found.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name one thing to check"),
        (("nowhere.py:f",), "no such file"),
        (("model_under_chekc.py:loss",), "did you mean model_under_check.py?"),
        (("no_such_module:f",), "no such module"),
        ((f"{FILE}:los",), "did you mean loss?"),
        ((FILE,), "no check_* functions"),
        ((f"{FILE}:loss",), "needs inputs"),
        ((f"{FILE}:loss", "-i", "float64[3]"), "does not take 1 inputs"),
        ((f"{FILE}:loss", "-i", "float64[3", "-i", "float64[3]"), "is not understood"),
        ((f"{FILE}:loss", "-i", "flot[3]", "-i", "float64[3]"), "is not an element type"),
        ((f"{FILE}:loss", "-i", "float64[3]@2:1", "-i", "float64[3]"), "is empty"),
        ((f"{FILE}:wrong", "-i", "int64[3]"), "no input can be differentiated"),
        ((f"{FILE}:raises", "-i", "float64[3]"), "raised RuntimeError"),
        ((f"{FILE}:number", "-i", "float64[3]"), "returned int"),
        (("--op", "sni"), "did you mean sin"),
        (("--op", "floor_divide"), "op floor_divide"),
        (("--ops", "some"), "--ops all"),
        (("--op", "sin", "-i", "float64[3]"), "leave --input out"),
        ((f"{FILE}:loss", "--eps", "-1"), "not a step"),
        ((f"{FILE}:loss", "--bogus"), "--bogus"),
        ((f"{FILE}:loss", "--eps", "many"), "--eps"),
    ],
)
def test_what_is_unusable_is_told_in_one_line_and_leaves_2(run: Any, arguments: tuple[str, ...], says: str) -> None:
    found = run("check", *arguments)
    assert found.code == 2, found
    assert found.out == ""
    assert says in found.err and found.err.startswith("tapejax: ") and found.err.count("\n") == 1


def test_a_file_that_does_not_run(run: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import tapejax\n\n1 / 0\n")
    found = run("check", "broken.py:f")
    assert found.code == 2 and "ZeroDivisionError" in found.err and "(broken.py:3)" in found.err


def test_info(run: Any) -> None:
    found = run("info")
    assert found.code == 0
    for word in ("versions", "jax ", "devices", "float64", "program cache"):
        assert word in found.out
    facts = json.loads(run("info", "--json").out)
    assert facts["dtypes"][0] == "bool" and facts["cache"]["limit"] > 0


def test_help(run: Any) -> None:
    assert run("--help").code == 0
    assert "second-order" in run("check", "--help").out
