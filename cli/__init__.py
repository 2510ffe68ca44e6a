"""The command line: `tapejax check`, `tapejax info`; one file per command.

Installed as `tapejax.cli`. Imports of its own modules are relative, those of the library absolute. Exit codes: 0 all is
well, 1 a gradient is wrong, 2 the target or its arguments are unusable (told in one line on stderr, without a traceback).
"""

from .app import app, main

__all__ = ["app", "main"]
