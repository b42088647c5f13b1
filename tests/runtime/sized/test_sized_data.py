"""Data of unequal lengths: a plan for each batch that a factory gives, and training on them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hspmd_compiler.base.pipeline_schedule import ScheduleKind
from hspmd_compiler.errors import RunError
from hspmd_compiler.options import Arithmetic
from hspmd_compiler.program.sized.plan_check import check_plan, in_order
from hspmd_compiler.program.sized.size_range import SizeRange
from hspmd_compiler.program.sized.sizes import Count, MicroSizes
from hspmd_compiler.program.sized.spread import spread_rows, spread_samples
from hspmd_compiler.program.sized.step_plan import StepPlan
from hspmd_compiler.runtime.batches.data import BatchShape
from hspmd_compiler.runtime.batches.sized_data import SizedFactoryData, planned_batch
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.shards import cut_shard
from hspmd_compiler.runtime.train import StepRecord, train
from hspmd_compiler.verify.widen import default_type, widen_program
from tests.training.training_cases import HEADS, WIDE

from ..thread_ranks import Meeting, ThreadTransport, in_threads
from .test_sized_steps import CONFIG, samples
from .trained_steps import Given, StepEnd, check_training

PROBE = in_order([[MicroSizes(1, 11)] * 2, [MicroSizes(1, 11)], [MicroSizes(1, 5)]], Count.TOKENS)
TOKENS = SizeRange(Count.TOKENS, 1, 100, (PROBE,), (2, 1, 1), ScheduleKind.ONE_F_ONE_B, (2, 3))
RING = replace(TOKENS, groups=((1, 2),))
SAMPLES = replace(
    TOKENS,
    unit=Count.SAMPLES,
    degrees=(),
    probes=(in_order([[MicroSizes(11)] * 2, [MicroSizes(11)], [MicroSizes(5)]], Count.SAMPLES),),
)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.sampled_from([TOKENS, RING]))
def test_rows_of_any_lengths_are_shared_out(lengths: list[int], sizes: SizeRange) -> None:
    plan = spread_rows(lengths, sizes, [(length,) for length in lengths])
    check_plan(plan, sizes)
    assert plan.total(Count.TOKENS) == sum(lengths)


@given(st.integers(1, 3000))
def test_any_number_of_samples_is_shared_out(count: int) -> None:
    plan = spread_samples(count, SAMPLES)
    check_plan(plan, SAMPLES)
    assert plan.total(Count.SAMPLES) == count


def test_shares_are_those_of_the_strategy() -> None:
    loads = [sum(micro.tokens for micro in own) for own in spread_rows([10] * 38, TOKENS).pipelines]
    assert loads == [220, 110, 50]
    assert [sum(micro.samples for micro in own) for own in spread_samples(76, SAMPLES).pipelines] == [
        44,
        22,
        10,
    ]


def test_rows_become_one() -> None:
    rows = [{"x": torch.arange(count), "y": torch.ones(count, 2)} for count in (3, 1, 5)]
    batch, plan = planned_batch(rows, TOKENS)
    assert {key: tuple(value.shape) for key, value in batch.items()} == {"x": (1, 9), "y": (1, 9, 2)}
    for micro in (micro for own in plan.pipelines for micro in own):
        held = batch["x"][0, micro.first : micro.first + micro.tokens]
        assert torch.equal(held, torch.arange(micro.tokens))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "a batch is a list"),
        (torch.ones(3), "a batch is a Tensor"),
        ([{"x": torch.ones(3)}, {"y": torch.ones(3)}], "row 1"),
        ([{"x": torch.ones(3), "y": torch.ones(2)}], r"x \[3\], y \[2\]"),
        ([{"x": torch.ones(3)}, 5], "row 1"),
        ([{"x": 3}], r"x \[\]"),
    ],
)
def test_what_is_no_batch_is_told(given: object, told: str) -> None:
    with pytest.raises(RunError, match=told):
        planned_batch(given, TOKENS)


def test_a_row_beyond_the_range_is_told_by_its_batch() -> None:
    sizes = replace(TOKENS, low=2)
    whole = [[2, 3], [sizes.high, sizes.high + 1, 4, 1]]

    def factory(epoch: int) -> Iterator[object]:
        yield from ([{"x": torch.ones(length)} for length in lengths] for lengths in whole)

    data = iter(SizedFactoryData(factory, BatchShape(1, {}), sizes))
    next(data)
    with pytest.raises(RunError) as caught:
        next(data)
    assert str(caught.value).splitlines() == [
        "RunError: rows of batch 2 of epoch 0 are not of a length that the program takes",
        f"  row 1 {sizes.high + 1} tokens",
        "  row 3 1 tokens",
        f"  rule  it was compiled for 2 to {sizes.high} tokens a row; the first is row 0",
        "  fix   cut or fill such rows, or compile with sizes.tokens that hold their lengths",
    ]
    with pytest.raises(RunError, match="rows of a batch are not of a length"):
        planned_batch({"x": torch.ones(1)}, sizes)


def test_a_factory_of_rows_is_refused() -> None:
    def factory(rows: object) -> Iterator[dict[str, Tensor]]:
        yield {}

    with pytest.raises(RunError, match="asks for rows, which each step chooses"):
        SizedFactoryData(factory, BatchShape(1, {}), TOKENS)


def batches(epoch: int) -> Iterator[object]:
    """Of unlike sizes, the last with a plan of its own."""
    drawn = random.Random(epoch)
    rng = torch.Generator().manual_seed(epoch)  # of its own: ranks are threads here
    for step in range(3):
        count = drawn.randrange(3, 60)
        x, y = (torch.randn(count, width, generator=rng, dtype=torch.float64) for width in (WIDE, HEADS))
        batch = {"x": x, "y": y}
        yield batch if step < 2 else (batch, StepPlan(((), (MicroSizes(count),))))


def test_that_nothing_is_compiled_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    case, meeting = samples(), Meeting()

    def job(rank: int) -> None:
        params: dict[str, Tensor] = {
            each.name: torch.zeros(each.shape) for each in case.program.ranks[rank].shards
        }
        transport = ThreadTransport(meeting, rank, case.program.world_size)
        Engine(case.program, CONFIG, transport, params, arithmetic=Arithmetic(torch_compile=True))

    in_threads(case.program.world_size, meeting, job)
    assert case.program.world_size > 1
    assert caplog.text.count("the program runs as it stands, not compiled") == 1


def test_training_goes_on_where_it_was_kept() -> None:
    """Two epochs and a step, resumed within the second, are those of eager on the same batches."""
    case, meeting = samples(), Meeting()
    wide = widen_program(case.program)

    def job(rank: int) -> tuple[list[StepRecord], list[StepEnd], dict[str, Tensor]]:
        records: list[StepRecord] = []
        ends: list[StepEnd] = []

        def engine_at(state: dict[str, Tensor]) -> Engine:
            shards = wide.ranks[rank].shards
            params = {each.name: cut_shard(each, state[each.name], torch.device("cpu")) for each in shards}
            return Engine(wide, CONFIG, ThreadTransport(meeting, rank, wide.world_size), params)

        def source(engine: Engine) -> SizedFactoryData:
            assert engine.active.sizes is not None
            return SizedFactoryData(batches, engine.shape, engine.active.sizes)

        def taken(engine: Engine, record: StepRecord) -> None:
            records.append(record)
            ends.append(StepEnd(record.loss, record.grad_norm, engine.grads()))

        first = engine_at(case.state)
        data = source(first)
        train(first, data, steps=4, on_step=lambda record: taken(first, record))
        second = engine_at(first.state_dict())
        second.load_optimizer_state_dict(first.optimizer_state_dict(), first.steps)
        again = source(second)
        again.load_state_dict(data.state_dict())
        train(second, again, steps=3, on_step=lambda record: taken(second, record))
        return records, ends, second.state_dict()

    with default_type(torch.float64):
        records, ends, params = in_threads(wide.world_size, meeting, job)[0]
    steps: list[Given] = []
    for epoch in range(3):
        for each in batches(epoch):
            steps.append((None, each[0] if isinstance(each, tuple) else each))  # type: ignore[arg-type]
    check_training(case.build, case.state, steps[:7], CONFIG, (ends, params))
    assert [record.samples for record in records] == [len(batch["x"]) for _, batch in steps[:7]]
    assert [record.epoch for record in records] == [0, 0, 0, 1, 1, 1, 2]
