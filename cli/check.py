"""`tapejax check`: is the gradient that the tape gives the gradient of the function?"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .errors import Unusable, first_line
from .results import Limits, Result, Row, check_target
from .table import console, show, summary
from .targets import Target, op_targets, ops_named, targets_of

# typer reads these annotations when it runs, so they are spelled for every Python it supports
_Text = Optional[str]  # noqa: UP045
_Number = Optional[float]  # noqa: UP045
_Texts = Optional[list[str]]  # noqa: UP045


def check(
    target: Annotated[_Text, typer.Argument(help="path.py:function, module:function, or a file with check_* functions")] = None,
    input: Annotated[_Texts, typer.Option("--input", "-i", help="dtype[shape] or dtype[shape]@low:high; once per input")] = None,
    op: Annotated[_Texts, typer.Option("--op", help="check this op on its own samples (repeatable)")] = None,
    ops: Annotated[_Text, typer.Option("--ops", help="'all': check every op of the table")] = None,
    second_order: Annotated[bool, typer.Option("--second-order", help="check the gradient's gradient too")] = False,
    batched: Annotated[bool, typer.Option("--batched", help="compare is_grads_batched=True with a loop")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="one random projection instead of every element")] = False,
    seed: Annotated[int, typer.Option("--seed", help="of the random inputs and projections")] = 0,
    eps: Annotated[_Number, typer.Option("--eps", help="step of the finite differences [default: by dtype]")] = None,
    atol: Annotated[_Number, typer.Option("--atol", help="absolute tolerance [default: by dtype]")] = None,
    rtol: Annotated[_Number, typer.Option("--rtol", help="relative tolerance [default: by dtype]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Compare gradients with central finite differences.

    Exit code: 0 all pass, 1 a gradient is wrong, 2 the target or its arguments are unusable.
    """
    if eps is not None and eps <= 0:
        raise Unusable(f"--eps {eps:g} is not a step → give a positive number, e.g. 1e-6")
    if (atol is not None and atol < 0) or (rtol is not None and rtol < 0):
        raise Unusable("--atol and --rtol must not be negative")
    if ops is not None and ops != "all":
        raise Unusable(f"--ops {ops!r} is not understood → --ops all, or --op NAME for single ops")
    wanted_ops = ["all"] if ops else list(op or ())
    if bool(target) == bool(wanted_ops):
        raise Unusable("name one thing to check → tapejax check file.py:function --input 'float64[3]', or --op NAME, or --ops all")
    if wanted_ops and input:
        raise Unusable("--input does not go with --op: ops are checked on their own samples → leave --input out")
    limits = Limits(eps, atol, rtol)
    out = console()
    started = time.perf_counter()

    def run(one: Target, tick: Callable[[], None] | None) -> list[Result]:
        return check_target(one, limits, second_order=second_order, batched=batched, fast=fast, seed=seed, tick=tick)

    skipped = uncompared = 0
    if target:
        results = _functions(targets_of(target, input or (), seed), run)
    else:
        results, skipped, uncompared = _ops(wanted_ops, run, seed)
    if as_json:
        print(json.dumps({"ok": all(r.ok for r in results), "checks": [r.plain() for r in results]}, indent=2))
    else:
        shown = results if target or len(results) <= 40 else [r for r in results if not r.ok]
        if shown:
            show(shown, out, per_op=not target)
        summary(results, out, time.perf_counter() - started, skipped, uncompared)
    if not all(r.ok for r in results):
        raise typer.Exit(1)


def _functions(targets: Sequence[Target], run: Callable[..., list[Result]]) -> list[Result]:
    found = []
    with _progress("evaluations", None) as tick:
        for one in targets:
            found += run(one, tick)
    return found


def _ops(names: Sequence[str], run: Callable[..., list[Result]], seed: int) -> tuple[list[Result], int, int]:
    """Every sample of every op; per op and order the worst input of all samples is kept."""
    chosen = ops_named(names)
    found: list[Result] = []
    skipped = uncompared = 0
    with _progress("ops", len(chosen)) as tick:
        for one in chosen:
            targets, without_slope = op_targets(one, seed)
            if not targets and "all" not in names:
                none = "no sample of it has a slope to compare with" if without_slope else "it has no samples that can be differentiated"
                why = none if one.differentiable else "its result has no gradient"
                raise Unusable(f"op {one.name}: {why}")
            skipped += not targets
            uncompared += without_slope
            found += _worst_of(one.name, [r for t in targets for r in _tried(t, run)])
            tick()
    return found, skipped, uncompared


def _tried(target: Target, run: Callable[..., list[Result]]) -> list[Result]:
    """An op whose own sample cannot be run is a wrong op, not a wrong command line."""
    try:
        return run(target, None)
    except Unusable as e:
        return [Result(target.name, "gradient", 0.0, 0.0, 0.0, [Row("", "", False, "error", because=first_line(e))])]


def _worst_of(name: str, results: Sequence[Result]) -> Iterator[Result]:
    for order in dict.fromkeys(r.order for r in results):
        same = [r for r in results if r.order == order]
        rows = [(r, row) for r in same for row in r.rows]
        if not rows:
            continue
        wrong = [(r, row) for r, row in rows if not row.ok]
        smooth = [(r, row) for r, row in rows if row.verdict == "ok"]
        result, row = wrong[0] if wrong else max(smooth or rows, key=lambda found: found[1].excess)
        where = result.target if wrong else name
        yield Result(where, order, result.eps, result.atol, result.rtol, [row])


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[], None]]:
    """A bar on stderr, on a terminal only; it goes away when the work is done."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield lambda: None
        return
    columns = (TextColumn("[dim]{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
