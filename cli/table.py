"""How results look: aligned columns, colours only on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .results import Result, Row

_COLUMNS = ("input", "type", "max abs", "max rel", "worst at", "analytic", "numeric", "verdict")
_PIPE_WIDTH = 160  # a pipe has no width of its own; nothing is wrapped or cut there


def console(stderr: bool = False) -> Console:
    """A console for one of the two streams; plain text unless it is a terminal (NO_COLOR is respected by rich)."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH, color_system=None)
    return made


def put(table: Table, out: Console) -> None:
    """Print a table; without the padding behind the last column where nobody sees colours."""
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().splitlines():
        out.print(line.rstrip(), markup=False, soft_wrap=True)


def show(results: Sequence[Result], out: Console, per_op: bool = False) -> None:
    """One table with an aligned block per check; failures are explained underneath."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    lead = "op" if per_op else "check"
    table.add_column(lead, no_wrap=True)
    for name in _COLUMNS:
        right = name in ("max abs", "max rel", "analytic", "numeric")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for result in results:
        title = result.target if result.order == "gradient" else f"{result.target} ({result.order})"
        for i, row in enumerate(result.rows):
            table.add_row(Text(title, style="bold") if i == 0 else "", *_cells(row))
    if table.__rich_measure__(out, out.options.update(width=1000)).maximum > out.width:
        _show_narrow(results, out)
    else:
        put(table, out)
    for result in results:
        for row in result.rows:
            if not row.ok:
                _explain(result, row, out)


def _show_narrow(results: Sequence[Result], out: Console) -> None:
    """The name of each check on a line of its own, for terminals that the whole table does not fit."""
    for result in results:
        title = result.target if result.order == "gradient" else f"{result.target} ({result.order})"
        out.print(Text(title, style="bold"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in _COLUMNS:
            table.add_column(name, justify="right" if name in ("max abs", "max rel", "analytic", "numeric") else "left", overflow="fold")
        for row in result.rows:
            table.add_row(*_cells(row))
        put(table, out)


def _cells(row: Row) -> list[Any]:
    verdict = Text(f"✓ {row.verdict}" if row.ok else f"✗ {row.verdict}", style="green" if row.ok else "bold red")
    return [
        Text(row.input),
        Text(row.type, style="cyan"),
        _small(row.max_abs),
        _small(row.max_rel),
        Text(_place(row)),
        _number(row.analytic) if row.max_abs is not None else "",
        _number(row.numeric) if row.max_abs is not None else "",
        verdict,
    ]


def _place(row: Row) -> str:
    """`[0, 3]` of the input, with `→ [1]` of the output unless that is a scalar."""
    if row.worst is None:
        return ""
    return f"[{', '.join(map(str, row.worst))}]" + (f" → [{', '.join(map(str, row.output))}]" if row.output else "")


def _small(x: float | None) -> str:
    return "" if x is None else "0" if x == 0 else f"{x:.1e}"


def _number(x: Any) -> str:
    return "" if x is None else f"{x:.4g}" if isinstance(x, complex) else f"{x:.6g}"


def _explain(result: Result, row: Row, out: Console) -> None:
    place = f"{result.target}{'' if result.order == 'gradient' else f' ({result.order})'}{f', {row.input}' if row.input else ''}"
    text = Text.assemble(("✗ ", "bold red"), (place, "bold"), f": {row.verdict}")
    if row.because:
        text.append(f"; {row.because}")
    out.print(text, soft_wrap=True)
    if row.suspect:
        out.print(Text.assemble("  suspect: ", (row.suspect, "bold yellow")), soft_wrap=True)


def summary(results: Sequence[Result], out: Console, seconds: float, skipped: int = 0, uncompared: int = 0) -> None:
    """The last line: how many checks passed, how many samples were not compared, with which step and tolerances."""
    wrong = sum(not r.ok for r in results)
    passed = len(results) - wrong
    parts = [f"{passed} passed"] + ([f"{wrong} wrong"] if wrong else []) + ([f"{skipped} without samples to differentiate"] if skipped else [])
    parts += [f"{uncompared} sample{'s' * (uncompared > 1)} not compared (no slope there)"] if uncompared else []
    limits = sorted({(r.eps, r.atol, r.rtol) for r in results})
    how = " · ".join(f"eps {e:g}, atol {a:g}, rtol {t:g}" for e, a, t in limits)
    style = "bold red" if wrong else "bold green"
    out.print(Text.assemble((", ".join(parts), style), (f"  ({how}; {seconds:.1f} s)", "dim")), soft_wrap=True)
