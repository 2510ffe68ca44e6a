"""The typer application and its entry point."""

from __future__ import annotations

import sys

import typer

from . import check, info, show
from .errors import Unusable

app = typer.Typer(
    name="tapejax",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="torch's autograd on JAX: check gradients, show programs, look at the installation.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("check")(check.check)
app.command("info")(info.info)
app.command("show")(show.show)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    try:
        code = app(args=arguments, prog_name="tapejax", standalone_mode=False)
    except Unusable as e:
        code = _complain(str(e))
    except typer.Abort:
        code = 130
    except KeyboardInterrupt:
        code = 130
    except Exception as e:
        code = getattr(e, "exit_code", None)
        if code is None:
            raise
        message = getattr(e, "format_message", lambda: "")()
        if message and code:
            _complain(f"{message.rstrip('.')} → see `tapejax --help`")
    sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> int:
    print(f"tapejax: {message}", file=sys.stderr)
    return 2
