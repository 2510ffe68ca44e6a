"""Compiles are counted, explained and warned about; programs can be looked at; the caches are bounded and visible."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import tapejax as tj
from tapejax import config
from tapejax.debug import recompile
from tapejax.engine.cache import CACHE, Cache, Executable
from tapejax.tape.program import Program

HERE = os.path.basename(__file__)


@pytest.fixture(autouse=True)
def fresh():
    """Reasons depend on what is cached: every test starts with nothing."""
    tj.debug.clear_cache()
    recompile._families.clear()
    recompile._warned.clear()


def told(run, level=1):
    """What `explain` prints while `run` runs."""
    out = io.StringIO()
    with tj.debug.explain(level, file=out):
        run()
    return out.getvalue()


def step(w, x):
    loss = ((x @ w).tanh() ** 2).mean()
    loss.backward()
    w.grad = None


# -- why ----------------------------------------------------------------------------------------------------------------


def test_first_sight_and_cost():
    text = told(lambda: tj.ones(5).sin().sum().item())
    assert re.match(r"\[tapejax\] program \d+ compiled in \d+\.\d\d s at " + HERE + r":\d+: 3 operations, values only\n    why  first sight\n$", text)


def test_nothing_is_told_about_a_hit():
    tj.ones(5).sin().sum().item()
    assert told(lambda: tj.ones(5).sin().sum().item()) == ""


def test_shape_and_line():
    w = tj.ones(3, 3, requires_grad=True)
    w.grad = None
    step(w, tj.tensor(np.ones((4, 3), np.float32)))
    step(w, tj.tensor(np.ones((4, 3), np.float32)))
    text = told(lambda: step(w, tj.tensor(np.ones((2, 3), np.float32))))
    line = step.__code__.co_firstlineno + 1
    assert f"shape: 'input' of matmul ({HERE}:{line}) is float32[2,3], float32[4,3] in program" in text
    assert "pad to a multiple" in text and "drop the last, smaller batch" in text
    assert f"at {HERE}:{line + 1}" in text  # backward()


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (lambda x: x.double().exp().sum(), lambda x: x.half().exp().sum(), r"dtype: dtype=tapejax.float16 of to_dtype \(.*\), tapejax.float64 in"),
        (lambda x: x.softmax(0).sum(), lambda x: x.softmax(1).sum(), r"static: dim=1 of softmax \(.*\), 0 in program \d+\n    →    every value of 'dim'"),
        (lambda x: (x.sin() * x + x).sum(), lambda x: (x.cos() * x + x).sum(), r"operation: cos \(.*\), where program \d+ has sin"),
        (lambda x: (x + 1).exp().sum(), lambda x: (x + 1 + 1).exp().sum(), r"operations: 1 add more than program \d+"),
        (lambda x: (x * 2.5).sum(), lambda x: (x * 2).sum(), r"dtype: 'other' of mul \(.*\) is int64, float64 in program"),
        (lambda x: (x * x).sum(), lambda x: (x * (x + 0)).sum(), r"operations: 1 add more"),
        (lambda x: tj.cat([x, x]).sum(), lambda x: tj.cat([x, x, x]).sum(), r"operands: cat \(.*\) takes 3 operands, 2 in program"),
        (lambda x: x[:2].sum(), lambda x: x[:1].sum(), r"static: stop=1 of slice .*\n    →    a slice of another length .* mask"),
        (lambda x: tj.zeros(3).sum() + x.sum(), lambda x: tj.zeros(4).sum() + x.sum(), r"shape: size=\(4,\) of zeros .*\n    →    let few sizes occur"),
    ],
)
def test_first_difference(first, second, says):
    x = tj.tensor(np.ones((4, 4), np.float32))
    first(x).item()
    text = told(lambda: second(x).item())
    assert re.search(says, text), text


def test_what_is_kept_alive():
    x = tj.tensor(np.ones(3, np.float32))
    x.exp().sum().item()

    def run():
        y = x.exp()
        y.sum().item()

    text = told(run)
    assert re.search(r"outputs: the result of exp \(.*\) is kept alive, it was not in program \d+\n    →    a variable still holds it: del it", text), text


def test_value_before_backward():
    w = tj.tensor(np.ones(3, np.float32), requires_grad=True)
    (w * w).sum().backward()
    w.grad = None

    def run():
        loss = (w * w).sum()
        loss.item()

    assert "mode: asked for values, keeping what backward needs, in program" in told(run)


def test_gradients_that_are_added():
    w = tj.ones(3, requires_grad=True)
    w.sum().item()
    w.exp().sum().backward()
    w.grad = None
    w.exp().sum().backward()
    text = told(lambda: w.exp().sum().backward())
    assert re.search(r"accumulation: 1 gradients are added to a \.grad that is there, 0 in program", text), text
    assert "zero_grad()" in text


def test_gradients_of_other_tensors():
    w, v = (tj.ones(3, requires_grad=True) for _ in range(2))
    (w.sum() + v.sum()).item()
    loss = (w * v).sum()
    tj.autograd.grad(loss, [w, v])
    loss = (w * v).sum()
    text = told(lambda: tj.autograd.grad(loss, [w]))
    assert "gradients: gradients of 1 tensors, 2 in program" in text or "requires_grad" in text, text


def test_loops_of_another_length():
    w = tj.tensor(np.eye(3, dtype=np.float32))

    def run(n):
        h = tj.ones(2, 3)
        for _ in range(n):
            h = tj.tanh(h @ w)
        h.sum().item()

    run(60)
    assert "rounds: a loop of 61 rounds, 60 in program" in told(lambda: run(61))
    assert "a Python loop of another length is another program" in told(lambda: run(5))


def test_evicted(monkeypatch):
    monkeypatch.setattr(config, "cache_size", 1)
    tj.ones(3).sum().item()
    tj.ones(4).prod().item()
    assert CACHE.evicted
    assert "evicted: the same as program" in told(lambda: tj.ones(3).sum().item())


def test_levels_two_and_three():
    text = told(lambda: tj.ones(3).sin().sum().item(), 2)
    assert "%1: float32[3] = sin(%0)" in text and "return %2" in text and "HloModule" not in text
    assert "HloModule" in told(lambda: tj.ones(3).cos().sum().item(), 3)


def test_explaining_changes_no_program():
    """The programs are the same with and without, so that explaining compiles nothing new."""

    def train():
        w = tj.ones(4, 4, requires_grad=True)
        x = tj.ones(2, 4)
        for _ in range(3):
            y = x @ w
            y.t()[0].exp().sum().backward()
            with tj.no_grad():
                w -= 0.1 * w.grad
                w.grad.zero_()
            loss = (x @ w).sum()
            loss.item()
            loss.backward()
        return w.sum().item()

    plain = train()
    with tj.debug.assert_compiles(0):
        assert train() == plain


def test_environment_variable(tmp_path: Path):
    (tmp_path / "script.py").write_text("import tapejax as tj\nx = tj.ones(3)\n(x\n .exp()).sum().item()\n")
    found = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env={**os.environ, "TAPEJAX_DEBUG": "1", "PYTHONPATH": str(Path(tj.__file__).parents[1])},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.match(r"\[tapejax\] program 1 compiled in .* s at script.py:\d: 3 operations", found.stderr), found.stderr
    assert found.stdout == ""


# -- counting -----------------------------------------------------------------------------------------------------------


def test_compile_count():
    before = tj.debug.compile_count()
    tj.ones(6).exp().sum().item()
    tj.ones(6).exp().sum().item()
    assert tj.debug.compile_count() == before + 1


def test_assert_compiles():
    with tj.debug.assert_compiles(1):
        tj.ones(6).exp().sum().item()
    with tj.debug.assert_compiles(2, at_most=True):
        tj.ones(7).exp().sum().item()
    with pytest.raises(AssertionError, match=r"1 programs were compiled, expected 0:\n\[tapejax\] program .*\n    why  shape"), tj.debug.assert_compiles(0):
        tj.ones(8).exp().sum().item()
    with pytest.raises(AssertionError, match="0 programs were compiled, expected at most -1"), tj.debug.assert_compiles(-1, at_most=True):
        pass
    with pytest.raises(ZeroDivisionError), tj.debug.assert_compiles(5):
        1 / 0  # noqa: B018


# -- warning ------------------------------------------------------------------------------------------------------------


def cube(n):
    return (tj.ones(n) ** 3).sum().item()


def test_a_loop_that_keeps_recompiling_is_warned_about_once():
    with pytest.warns(tj.debug.RecompileWarning, match=r"this line keeps compiling: 9 programs .* differ in shape: .* → let few sizes occur") as seen:
        for n in range(1, 21):
            cube(n)
    assert len(seen) == 1
    assert seen[0].filename == __file__ and seen[0].lineno == cube.__code__.co_firstlineno + 1


def test_the_warning_as_an_error_leaves_the_tape_sound():
    raised = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.debug.RecompileWarning)
        for n in range(1, 12):
            x = tj.ones(n)
            y = (x + 1).sum()
            for attempt in range(2):
                try:
                    assert y.item() == 2 * n
                except tj.debug.RecompileWarning:
                    raised.append((n, attempt))
    assert raised == [(9, 0)]


def test_settled_lines_are_not_warned_about():
    for n in (*range(1, 9), *range(1, 9)):
        cube(n)


def test_other_operations_and_types_are_other_kinds():
    for f in (tj.sin, tj.cos, tj.exp, tj.tanh, tj.sinh, tj.cosh, tj.atan, tj.asinh, tj.sigmoid, tj.erf):
        for d in (tj.float32, tj.float64):
            f(tj.ones(2, dtype=d)).sum().item()


@pytest.mark.parametrize("n", range(31, 42))
def test_a_suite_is_not_a_loop(n):
    cube(n)


def test_lengths_of_loops_count_as_one_kind():
    w = tj.tensor(np.eye(2, dtype=np.float32))
    with pytest.warns(tj.debug.RecompileWarning, match="a Python loop of another length"):
        for n in range(3, 13):
            h = tj.ones(2, 2)
            for _ in range(n):
                h = h @ w
            h.sum().item()


# -- programs -----------------------------------------------------------------------------------------------------------

RNN = """\
%a0: float32[4,4]
%a1: float32[20,2,3]
%a2: int64*
%a3: float32[3,4]
%a4 … %a22: 19 × int64*
%0: float32[2,4] = zeros(size=(2, 4), dtype=tapejax.float32)
%1 … %100: loop of 20 rounds over 5 operations
  all rounds at once
    .1: float32[2,3] = select(%a1, each of %a2 … %a22, dim=0)
    .2: float32[2,4] = matmul(.1, %a3)
  round by round
    .0: float32[2,4] = matmul(.4 before (first %0), %a0)
    .3: float32[2,4] = add(.0, .2)
    .4: float32[2,4] = tanh(.3)
return %100"""


def rnn(rounds=20):
    w, u, x = (tj.tensor(np.ones(s, np.float32)) for s in ((4, 4), (3, 4), (rounds, 2, 3)))
    h = tj.zeros(2, 4)
    for t in range(rounds):
        h = tj.tanh(h @ w + x[t] @ u)
    return h


def test_program_of_a_pending_value():
    x = tj.tensor(np.ones(3, np.float32))
    y = (x * 2).sin()
    with tj.debug.assert_compiles(0):
        found = tj.debug.program(y)
    assert str(found) == "%a0: float32[3]\n%a1: int64*\n%0: float32[3] = mul(%a0, %a1)\n%1: float32[3] = sin(%0)\nreturn %1"


def test_last_program():
    with pytest.raises(RuntimeError, match="no program has run yet"):
        tj.debug.program()
    y = tj.ones(3).sin()
    y.sum().item()
    assert "sin(%0)" in str(tj.debug.program(y)) and "sin(%0)" in str(tj.debug.program())
    with pytest.raises(TypeError, match="expected Tensors"):
        tj.debug.program(3)


def test_lines_are_named_while_explaining():
    with tj.debug.explain(file=io.StringIO()):
        y = tj.ones(3).sin()
    assert f"= sin(%0)  # {HERE}:{test_lines_are_named_while_explaining.__code__.co_firstlineno + 2}" in str(tj.debug.program(y))


def test_loops_are_shown_as_loops():
    assert str(tj.debug.program(rnn())) == RNN


def test_drawings():
    found = tj.debug.program(rnn())
    dot = found.dot()
    assert dot.startswith("digraph") and dot.count("{") == dot.count("}") and dot.count("subgraph") == 1
    assert "20 rounds" in dot and "style=dashed" in dot
    root = ET.fromstring(found.svg())
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "%0 zeros" in texts and ".4 tanh" in texts and any("20 rounds" in t for t in texts)
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = [[float(r.get(k)) for k in ("x", "y", "width", "height")] for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("class")]
    assert all(x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h in boxes)
    small = [b for b, r in zip(boxes, [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("class")], strict=True) if r.get("class") != "loop"]
    for i, (x, y, w, h) in enumerate(small):
        for x2, y2, w2, h2 in small[:i]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y  # nothing lies on something else
    assert found._repr_svg_() == found.svg()


def test_nested_loops_are_drawn():
    w = tj.tensor(np.eye(3, dtype=np.float32))
    h = tj.ones(2, 3)
    for _ in range(20):
        for _ in range(40):
            h = tj.tanh(h @ w)
        h = h.sin() * 2
    found = tj.debug.program(h)
    assert found.text.count("loop of") == 2
    ET.fromstring(found.svg())


# -- caches -------------------------------------------------------------------------------------------------------------


def executable(name: str, nbytes: int) -> Executable:
    made = Executable(name, None, {}, Program((), ()), ("values", ()), ())
    made.nbytes = nbytes
    return made


@pytest.mark.parametrize(("size", "nbytes", "kept"), [(3, 1 << 40, "c d e"), (100, 25, "d e"), (100, 5, "e")])
def test_least_recently_used_goes_first(monkeypatch, size, nbytes, kept):
    monkeypatch.setattr(config, "cache_size", size)
    monkeypatch.setattr(config, "cache_bytes", nbytes)
    cache = Cache()
    for name in "abcde":
        cache.put(executable(name, 10))
    assert " ".join(cache.entries) == kept
    assert cache.nbytes == 10 * len(cache.entries) and cache.evicted == 5 - len(cache.entries) and cache.compiled == 5


def test_use_keeps_an_entry(monkeypatch):
    monkeypatch.setattr(config, "cache_size", 2)
    cache = Cache()
    cache.put(executable("a", 1))
    cache.put(executable("b", 1))
    assert cache.get("a").key == "a" and cache.get("z") is None
    cache.put(executable("c", 1))
    assert list(cache.entries) == ["a", "c"]
    cache.weigh(cache.entries["c"], config.cache_bytes + 1)
    assert list(cache.entries) == ["c"]


def test_eviction_in_use(monkeypatch):
    """A program that was evicted compiles again and gives the same."""
    monkeypatch.setattr(config, "cache_size", 2)
    with pytest.warns(tj.debug.RecompileWarning, match="which had left the cache → raise TAPEJAX_CACHE_SIZE"):
        values = [[cube(n) for n in range(1, 6)] for _ in range(2)]
    assert values[0] == values[1] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert tj.debug.cache_info().entries == 2


def test_cache_info():
    before = tj.debug.cache_info()
    assert before.entries == 0 and before.bytes == 0
    for _ in range(3):
        tj.ones(9).log().sum().item()
    after = tj.debug.cache_info()
    assert (after.entries, after.misses - before.misses, after.hits - before.hits, after.launches - before.launches) == (1, 1, 2, 3)
    assert after.bytes > 0 and after.seconds > before.seconds and after.kinds > 0
    tj.debug.clear_cache()
    assert tj.debug.cache_info().entries == 0


def test_kinds_are_bounded(monkeypatch):
    from tapejax.ops.elementwise import exp

    monkeypatch.setattr(config, "kinds_limit", 4)
    for n in range(1, 9):
        assert exp(tj.zeros(n)).sum().item() == n
    assert len(exp.kinds) <= 8


WARM = """
import jax, jax.monitoring, collections
before = jax.config.values.copy()
import tapejax as tj
assert {dir!r} or before == jax.config.values, "importing changed JAX's settings"
if {call!r}:
    tj.ones(2).sum().item()  # JAX has decided that there is no cache
    tj.debug.set_cache_dir({call!r})
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **k: counts.update([event.split("/")[-1]]))
tj.manual_seed(0)
net = tj.nn.Sequential(tj.nn.Linear(4, 8), tj.nn.Tanh(), tj.nn.Dropout(), tj.nn.Linear(8, 1))
opt = tj.optim.Adam(net.parameters())
for _ in range(2):
    opt.zero_grad()
    loss = net(tj.ones(3, 4)).square().mean()
    loss.backward()
    opt.step()
w = tj.eye(3, requires_grad=True)
h = tj.ones(2, 3)
for _ in range(50):
    h = tj.tanh(h @ w)
(loss.item(), h.sum()).__getitem__(1).backward()
print(counts["cache_hits"], counts["cache_misses"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["environment", "call"])
def test_second_process_starts_warm(tmp_path: Path, how: str):
    folder = str(tmp_path / "cache")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TAPEJAX", "JAX_"))}
    environment["PYTHONPATH"] = str(Path(tj.__file__).parents[1])
    if how == "environment":
        environment["TAPEJAX_CACHE_DIR"] = folder
    source = WARM.format(dir=how == "environment", call=folder if how == "call" else "")
    outcome = []
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", source], env={**environment, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        outcome.append(tuple(map(int, found.stdout.split())))
    (_, made), (hits, misses) = outcome
    assert made > 0 and misses == 0 and hits == made
