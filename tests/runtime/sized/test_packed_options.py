"""Packed rows with all that training may ask for at once: dropout, recomputation, ZeRO, clipping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hspmd_compiler.options import Precision
from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.runtime.batches.sized_data import SizedFactoryData
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.shards import cut_shard
from hspmd_compiler.runtime.train import train
from hspmd_compiler.strategy.strategy import Recompute, RecomputeKind, SizesSpec, Strategy
from hspmd_compiler.verify.widen import default_type, widen_program
from tests.passes.sized_cases import SizedCase, planned
from tests.passes.test_sized import PIECES
from tests.passes.test_sized_compile import Attending, rows
from tests.passes.test_sized_dropout import batch, everywhere

from ..thread_ranks import Meeting, ThreadTransport, in_threads
from .processes import train_in_processes
from .test_sized_steps import CONFIG, ROWS
from .trained_steps import Given, StepEnd, check_training, train_in_threads

SLOW = pytest.mark.slow


def options(zero: int, precision: Precision = Precision.MODEL) -> SizedCase:
    """Unlike pipelines and cuts of tokens; one computes all of its layers again, one its attention."""
    torch.manual_seed(0)
    kinds = (RecomputeKind.FULL, RecomputeKind.SELECTIVE)
    pipelines = [
        replace(each, recompute=(Recompute((0, 2), kind),))
        for each, kind in zip(PIECES.pipelines, kinds, strict=True)
    ]
    strategy = Strategy(tuple(pipelines), sequence_parallel=True, zero=zero, sizes=SizesSpec(tokens=(1, 200)))
    build = lambda: Attending(everywhere)  # noqa: E731
    return SizedCase.of(build, rows, strategy, Count.TOKENS, 200, precision=precision)


def steps() -> list[Given]:
    return [
        (planned(Count.TOKENS, *pipelines, **sizes)[0], batch(*pipelines[0], *pipelines[1]))
        for pipelines, sizes in ROWS
    ]


@pytest.mark.parametrize(
    ("zero", "precision"),
    [
        pytest.param(1, Precision.MODEL, marks=SLOW),
        pytest.param(2, Precision.MODEL, marks=SLOW),
        pytest.param(3, Precision.MODEL, marks=SLOW),
        (3, Precision.BFLOAT16),
    ],
)
def test_all_at_once(zero: int, precision: Precision) -> None:
    """The norm of gradients is clipped; each step is eager's with its own masks."""
    case, given = options(zero, precision), steps()
    found = train_in_threads(case.program, case.state, given, CONFIG)
    check_training(case.build, case.state, given, CONFIG, found)


@SLOW
@pytest.mark.parametrize("zero", [1, 3])
def test_all_at_once_in_processes(zero: int, tmp_path: Path) -> None:
    case, given = options(zero), steps()
    found = train_in_processes(case.program, case.state, given, CONFIG, tmp_path)
    check_training(case.build, case.state, given, CONFIG, found)


def documents(epoch: int) -> Iterator[list[dict[str, Tensor]]]:
    """Rows of documents, as a factory gives them."""
    drawn = torch.Generator().manual_seed(epoch)
    for _ in range(3):
        made = []
        for _ in range(3):
            lengths = torch.randint(1, 9, (3,), generator=drawn).tolist()
            torch.manual_seed(int(torch.randint(1 << 30, (), generator=drawn)))
            made.append({name: value[0] for name, value in batch(*lengths).items()})
        yield made


def test_training_goes_on_where_it_was_kept() -> None:
    """Masks too: they follow the step and the place of a token in it."""
    case, meeting = options(2), Meeting()
    wide = widen_program(case.program)
    every = list(documents(0))

    def factory() -> Iterator[list[dict[str, Tensor]]]:
        yield from every

    def job(rank: int) -> tuple[list[StepEnd], dict[str, Tensor]]:
        def begun(state: dict[str, Tensor]) -> tuple[Engine, SizedFactoryData]:
            shards = wide.ranks[rank].shards
            params = {each.name: cut_shard(each, state[each.name], torch.device("cpu")) for each in shards}
            engine = Engine(wide, CONFIG, ThreadTransport(meeting, rank, wide.world_size), params)
            assert engine.active.sizes is not None
            return engine, SizedFactoryData(factory, engine.shape, engine.active.sizes)

        ends: list[StepEnd] = []
        first, data = begun(case.state)
        train(first, data, steps=1, on_step=lambda each: ends.append(ended(first, each.loss)))
        second, again = begun(first.state_dict())
        second.load_optimizer_state_dict(first.optimizer_state_dict(), first.steps)
        again.load_state_dict(data.state_dict())
        train(second, again, steps=2, on_step=lambda each: ends.append(ended(second, each.loss)))
        return ends, second.state_dict()

    with default_type(torch.float64):
        found = in_threads(wide.world_size, meeting, job)[0]
    given: list[Given] = [
        (None, {name: torch.cat([row[name] for row in of])[None] for name in of[0]}) for of in every
    ]
    check_training(case.build, case.state, given, CONFIG, found)


def ended(engine: Engine, loss: float) -> StepEnd:
    return StepEnd(loss, engine.grad_norm, engine.grads())
