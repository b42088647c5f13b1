"""`make demo` as it is: five processes train like one device, within two minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 240  # seconds, for machines that run other tests beside it


@pytest.mark.slow
def test_the_demo_ends_equal() -> None:
    done = subprocess.run(
        [sys.executable, "examples/quickstart/demo.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EQUAL: five ranks train as one device does" in done.stdout
    assert "NOT EQUAL" not in done.stdout
    assert sum(line.startswith("│") for line in done.stdout.splitlines()) >= 20
