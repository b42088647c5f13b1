"""Ranks that were given different batches: told on every rank before anything is updated."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hspmd_compiler.errors import RunError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.runtime.batches.batch_check import MODULUS, BatchCheck, digest
from hspmd_compiler.runtime.batches.data import BatchShape, FactoryData
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.train import train

from . import hand_made
from .hand_made import own_rows
from .test_run import QUICK

SGD = OptimizerConfig(name=OptimizerName.SGD, lr=0.1)
ROWS = ([(0, 2), (2, 3)], [(0, 2), (2, 3)], [(3, 6)], [(3, 6)], [(3, 6)])
KEYS = (("x",), ("x", "y"), ("x",), ("x", "y"), ("y",))


class Told:
    """A transport that only knows what all ranks would say."""

    world_size = len(ROWS)

    def __init__(self, rank: int, values: list[object]) -> None:
        self.rank = rank
        self.gathered = 0
        self._values = values

    def gather_objects(self, value: object) -> list[object]:
        self._values[self.rank] = value
        self.gathered += 1
        return self._values


def total(batches: list[dict[str, Tensor]], local: bool) -> int:
    """The sum over ranks, in float64 as the reduction forms it."""
    readers: list[object] = [None] * len(ROWS)
    checks = [BatchCheck(Told(rank, readers), ROWS[rank], KEYS[rank]) for rank in range(len(ROWS))]  # type: ignore[arg-type]
    for check in checks:
        check._transport.gather_objects(check._own)
    addends = [check.addend(batch, local, {}) for check, batch in zip(checks, batches, strict=True)]
    return int(torch.tensor(addends, dtype=torch.float64).sum()) % MODULUS


def test_a_rank_that_reads_nothing_gathers_with_the_others() -> None:
    """As one of a stage in the middle, or one that a strategy leaves idle: else the others wait for it."""
    transport = Told(0, [None] * len(ROWS))
    check = BatchCheck(transport, [], [])  # type: ignore[arg-type]
    for _ in range(2):
        check.addend({}, True, {"lr": "0.1"})
    assert transport.gathered == 1


values = st.lists(st.integers(-3, 3), min_size=6, max_size=6)


@given(values, values, st.integers(0, 4), st.sampled_from("xy"))
def test_the_sum_is_zero_where_batches_are_alike(x: list[int], other: list[int], rank: int, key: str) -> None:
    batch = {"x": torch.tensor(x), "y": torch.tensor(x).double()}
    batches = [dict(batch) for _ in ROWS]
    assert total(batches, local=False) == 0
    batches[rank][key] = torch.tensor(other).to(batch[key].dtype)
    assert (total(batches, local=False) == 0) == (x == other)


@given(values, values, st.integers(0, 4), st.sampled_from("xy"))
def test_own_rows_are_compared_where_ranks_share_them(
    x: list[int], other: list[int], rank: int, key: str
) -> None:
    batch = {"x": torch.tensor(x), "y": torch.tensor(x)}
    batches = [{name: own_rows(batch, rows)[name] for name in KEYS[i]} for i, rows in enumerate(ROWS)]
    assert total(batches, local=True) == 0
    shared = [i for i in range(len(ROWS)) if ROWS[i] == ROWS[rank] and key in KEYS[i]]
    if rank in shared:
        batches[rank][key] = own_rows({key: torch.tensor(other)}, ROWS[rank])[key]
        differs = len(shared) > 1 and not torch.equal(
            batches[rank][key], batches[shared[rank == shared[0]]][key]
        )
        assert (total(batches, local=True) != 0) == differs


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.bool])
def test_digest_sees_order_and_signs(dtype: torch.dtype) -> None:
    value = (torch.arange(12) % 5 - 2).view(4, 3).to(dtype)
    others = [value.flip(0), value.flip(1), value.t(), -value if dtype != torch.bool else ~value]
    assert all(digest(value) != digest(other) for other in others)
    assert digest(value.t().contiguous().t()) == digest(value)
    assert digest(value[:0]) == 0


def clash(engine: Engine, batch: dict[str, Tensor], local: bool = False) -> str:
    with pytest.raises(RunError) as caught:
        engine.step(batch, local=local)
    return caught.value.text()


def test_every_rank_refuses_and_can_go_on(tmp_path: Path) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)

    def job(engine: Engine, emit: Emit) -> None:
        batch = hand_made.batch(0)
        shuffled = {key: value[torch.randperm(5)] for key, value in batch.items()}
        text = clash(engine, shuffled if engine.rank == 2 else batch)
        assert (
            "different batches in step 1" in text and "digest of rank 0-1: " in text and "; rank 2: " in text
        )
        assert "target" in text and "same global batch" in text
        rows = {key: value for key, value in own_rows(batch, engine.rows).items() if key in engine.keys}
        wrong = {key: -value for key, value in rows.items()}
        text = clash(engine, wrong if engine.rank == 1 else rows, local=True)
        assert "rank 0: " in text and "; rank 1: " in text and "target" not in text
        engine.lr = 0.1 + engine.rank // 2
        text = clash(engine, batch)
        assert "different settings in step 1" in text and "rank 0-1: 0.1; rank 2: 1.1" in text
        engine.lr = 0.1
        assert engine.steps == 0
        emit({"loss": engine.step(batch)})

    records: list[dict[str, object]] = []
    launch(directory, job, QUICK, on_record=lambda record: records.append(dict(record)))
    expected = float(hand_made.loss_of(hand_made.initial(3), hand_made.batch(0)))
    assert records == [{"loss": pytest.approx(expected, rel=1e-13)}]


def test_each_rank_loads_its_own_rows(tmp_path: Path) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)

    def batches(seed: int, rows: list[tuple[int, int]], keys: frozenset[str]) -> Iterator[dict[str, Tensor]]:
        own = own_rows(hand_made.batch(seed), rows)
        yield {key: own[key] for key in keys}

    def job(engine: Engine, emit: Emit) -> None:
        data = FactoryData(batches, engine.shape, 7, engine.rows, engine.keys)
        train(engine, data, steps=1, on_step=lambda record: emit({"loss": record.loss}))

    records: list[dict[str, object]] = []
    launch(directory, job, QUICK, on_record=lambda record: records.append(dict(record)))
    expected = float(hand_made.loss_of(hand_made.initial(3), hand_made.batch(7)))
    assert records == [{"loss": pytest.approx(expected, rel=1e-13)}]


def test_generators_are_seeded_before_each_epoch() -> None:
    def batches() -> Iterator[dict[str, Tensor]]:
        drawn = [float(torch.rand(())), float(numpy.random.rand()), random.random()]
        yield {"x": torch.tensor([drawn])}

    def drawn(seed: int) -> list[Tensor]:
        random.seed()
        numpy.random.seed()
        torch.seed()
        data = FactoryData(batches, BatchShape(1, {"x": ((1, 3), "float32")}), seed)
        return [batch["x"] for _ in range(2) for batch in data]

    first, again, other = drawn(-5), drawn(-5), drawn(6)
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other)) and not torch.equal(first[0], first[1])
