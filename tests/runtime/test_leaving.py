"""A user's own loop under torchrun ends as it should: no thread of the transport outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hspmd_compiler.options import OptimizerConfig, OptimizerName
from tests.runtime import hand_made

ROOT = Path(__file__).resolve().parents[2]
THREADS = Path("/proc/self/task")

LOOP = """
import atexit, sys
from pathlib import Path

def names():
    return sorted((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())

atexit.register(lambda: print("left", *names()))  # runs last

import hspmd_compiler as hspmd
from tests.runtime.hand_made import batch

engine = hspmd.load(sys.argv[1])
for step in range(2):
    engine.step(batch(step))
weights = engine.state_dict()
print("held", *names())
"""


@pytest.mark.skipif(not THREADS.is_dir(), reason="threads are listed in /proc")
def test_threads_end_before_the_interpreter(tmp_path: Path, free_port: int) -> None:
    """Gloo's threads release tensors after the last step; in an ending interpreter that is an abort."""
    directory = hand_made.save(tmp_path / "artifact", OptimizerConfig(OptimizerName.SGD, lr=0.1))
    shared = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
    shared |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LOOP, str(directory)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    for rank in ranks:
        out, err = rank.communicate(timeout=120)
        assert rank.returncode == 0, err
        held, left = out.splitlines()
        assert "gloo" in held
        assert "gloo" not in left
