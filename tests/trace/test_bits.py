"""The bits of tests/trace/bits_of_eager.py, compared where they don't depend on the processor.

MKL chooses the order of a sum by the processor, and by the shape and layout of operands, so that one device
gets other bits from a transposed operand. `MKL_CBWR`, read when MKL starts, leaves it one order for all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("bits_of_eager.py")
ROOT = CASES.parents[2]


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_graph_computes_the_bits_of_eager(marked: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked, str(CASES)]
    environment = {**os.environ, "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
