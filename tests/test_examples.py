"""Every example runs in its short mode and reports success."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=[e.stem for e in EXAMPLES])
def test_runs(example: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    made = subprocess.run([sys.executable, str(example), "--quick"], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=600)
    assert made.returncode == 0, f"{made.stdout[-2000:]}\n{made.stderr[-2000:]}"
    assert made.stdout.strip(), "an example says what it did"
