"""Ranks on CPUs keep what a step frees: the next takes no page from the system. Loading keeps nothing."""

from __future__ import annotations

import resource
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.freed_memory import OWN_SETTINGS, keep_freed_memory, map_large_blocks
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import Timeouts
from hspmd_compiler.runtime.timing.resident import held_bytes
from tests.runtime import hand_made

QUICK = StartOptions(timeouts=Timeouts(timedelta(seconds=20), timedelta(seconds=20)))
HELD_MIB = 112
BLOCKS_BYTES = 64 << 20


def new_pages(engine: Engine, emit: Emit) -> None:
    """Pages that the system maps for what was freed just before: many blocks, and a large one.

    left: bytes that the process still holds of blocks that were freed before the first step.
    """
    before = held_bytes(torch.device("cpu"))
    held = [torch.ones(1 << 18) for _ in range(64)]
    del held
    left = held_bytes(torch.device("cpu")) - before
    engine.step(hand_made.batch(0))
    counts = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = [torch.ones(1 << 18) for _ in range(64)] + [torch.ones(48 << 18)]
        del held
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    emit({"pages": counts, "left": left})


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_what_a_rank_frees_it_uses_again(tmp_path: Path) -> None:
    artifact = hand_made.save(tmp_path / "artifact", OptimizerConfig())
    records: list[dict[str, object]] = []
    launch(artifact, new_pages, QUICK, on_record=lambda record: records.append(dict(record)))
    ((counts, left),) = ((record["pages"], record["left"]) for record in records)  # type: ignore[misc]
    whole = HELD_MIB * (1 << 20) // resource.getpagesize()
    assert left < BLOCKS_BYTES / 8  # type: ignore[operator]
    assert sorted(counts[2:])[1] < whole / 20, counts  # one may find blocks in another order


@pytest.mark.parametrize("name", OWN_SETTINGS)
def test_what_the_user_set_stays(name: str) -> None:
    assert not map_large_blocks({name: "1"})
    assert not keep_freed_memory({name: "1"})
