"""Devices in several stages of a pipeline train like one device: rings and Vs, unlike stages and batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import load
from hspmd_compiler.errors import DeduceError, InternalError, VerifyError
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.pages.schedule_page import schedule_lines, stages_of
from hspmd_compiler.program.check import check, problems_of_program
from hspmd_compiler.program.program import Op, Program
from hspmd_compiler.strategy.schedules.schedule_text import read_schedule
from hspmd_compiler.strategy.schedules.schedule_time import grid
from hspmd_compiler.strategy.strategy import PipelineSpec, ScheduleKind, StageSpec, Strategy
from hspmd_compiler.verify.eager import whole_state
from hspmd_compiler.verify.reference import Reference
from hspmd_compiler.verify.training import compare_training

from ..fit import check_fit
from .training_cases import BATCH, SUBJECTS, Mlp, gpt2, llama, program_for, traced

LAYERS, STEPS = 5, 2
ADAMW = OptimizerConfig(lr=1e-2, eps=1e-4, weight_decay=0.1)
RING = PipelineSpec(
    (
        StageSpec((0, 1), (0, 1)),
        StageSpec((2,), (1, 3)),
        StageSpec((0, 1), (3, 4)),
        StageSpec((2,), (4, 5)),
    ),
    (2, 1, 2),
)
V = PipelineSpec(
    (
        StageSpec((3, 4), (0, 2)),
        StageSpec((5,), (2, 3)),
        StageSpec((5,), (3, 4)),
        StageSpec((3, 4), (4, 5), (2, 1)),
    ),
    (1, 3, 1),
)
TIED_V = replace(V, stages=(*V.stages[:3], replace(V.stages[3], shares=None)), micro_batches=(4, 1, 3, 2))
TEXT = """
0F0 0F1 2F0 2B0 2F1 2W0 0B0 2B1 2W1 0B1 0F2 2F2 2B2 2W2 0B2
1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1 1F2 3F2 3B2 1B2
"""
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp-ce": lambda: Mlp(nn.functional.cross_entropy, LAYERS),
    "llama": lambda: llama(kv_heads=3, layers=LAYERS),
    "gpt2": lambda: gpt2(LAYERS),
}


def program_of(subject: str, strategy: Strategy) -> Program:
    return program_for(traced(MODELS[subject](), SUBJECTS[subject].batch(0), BATCH), strategy)


def train(subject: str, strategy: Strategy) -> Program:
    """Losses, gradients and parameters are one device's; the ranks run the schedule that they should."""
    program = program_of(subject, strategy)
    check(program)
    check_fit(program)
    state = {name: value.detach().clone() for name, value in whole_state(MODELS[subject]()).items()}
    batches = [SUBJECTS[subject].batch(step) for step in range(STEPS)]
    compare_training(program, Reference(MODELS[subject], state, None), batches, ADAMW)
    for number in range(len(strategy.pipelines)):
        lines = schedule_lines(stages_of(program, number))
        assert lines == grid(strategy.schedule_of(number)).splitlines()
    return program


def by_hand() -> PipelineSpec:
    schedule, problems = read_schedule(TEXT, RING.lanes)
    assert not problems
    return replace(RING, schedule=schedule)


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy((RING, V), zero=1),
        Strategy((RING, V), schedule=ScheduleKind.GPIPE),
        Strategy((by_hand(), V), zero=1),
    ],
    ids=["1f1b", "gpipe", "by hand"],
)
def test_rings_and_vs_are_exact(strategy: Strategy) -> None:
    program = train("mlp-ce", strategy)
    assert [own.stages for own in program.ranks] == [(0, 2)] * 2 + [(1, 3)] + [(0, 3)] * 2 + [(1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "strategy"),
    [
        ("llama", Strategy((RING, V), zero=1)),
        ("llama", Strategy((RING, V), sequence_parallel=True)),
        ("llama", Strategy((RING, V), receives_ahead=3)),
        ("gpt2", Strategy((TIED_V,), zero=1)),
    ],
)
def test_models_of_layers_are_exact(subject: str, strategy: Strategy) -> None:
    """GPT-2 ties its embedding to its head: with a V both are on the same devices, in one piece."""
    program = train(subject, strategy)
    if subject == "gpt2":
        names = [shard.name for shard in program.ranks[0].shards]
        assert len(names) == len(set(names)) and "transformer.wte.weight" in names


def test_what_stays_on_a_device_is_not_sent() -> None:
    """The turn of a V: from stage 1 to 2, and back."""
    program = program_of("mlp-ce", Strategy((V,)))
    sent = [each for each in program.ranks[2].instructions if each.op is Op.SEND]
    assert len(sent) == 2 * len(V.micro_batches)
    for own in program.ranks:
        assert all(piece.peer != own.rank for step in own.transfers for piece in step.sends)


def test_an_artifact_is_proved_row_by_row(tmp_path: Path) -> None:
    """Written, read back, and each value of the graph compared."""
    batch = SUBJECTS["mlp-ce"].batch(0)
    made = hspmd.compile(lambda: (MODELS["mlp-ce"](), batch), strategy=Strategy((RING, V)), optimizer=ADAMW)
    made.save(tmp_path / "artifact")
    program = load(tmp_path / "artifact").program
    assert [own.segment_stages for own in program.ranks] == [
        own.segment_stages for own in made.artifact.program.ranks
    ]
    report = made.verify(values=True, rows=True)
    assert report.rows is not None and len(report.rows.compared) > 60


@pytest.mark.parametrize("rank", [0, 2])
def test_stages_that_change_places_are_found(rank: int) -> None:
    """The first actions of two stages of the same device, the other way round."""
    program = program_of("mlp-ce", Strategy((RING, V)))
    own = program.ranks[rank]
    forwards = [at for at, each in enumerate(own.instructions) if each.op is Op.FORWARD]
    first = forwards[0]
    other = next(at for at in forwards if own.stage_of(own.instructions[at].segment) != own.stages[0])
    own.instructions = [*own.instructions]
    own.instructions[first], own.instructions[other] = own.instructions[other], own.instructions[first]
    with pytest.raises((VerifyError, InternalError)):
        check_fit(program)


def test_segments_without_a_stage_are_found() -> None:
    program = program_of("mlp-ce", Strategy((RING,)))
    program.ranks[0] = replace(program.ranks[0], segment_stages=(0, 2))
    assert any("stages of 2 segments" in what for _, what in problems_of_program(program))


@pytest.mark.slow
def test_unlike_pieces_of_one_parameter_are_refused() -> None:
    unlike = (*TIED_V.stages[:3], replace(TIED_V.stages[3], shares=(2, 1)))
    with pytest.raises(DeduceError) as refused:
        program_of("gpt2", Strategy((replace(TIED_V, stages=unlike),)))
    assert "transformer.wte.weight lies in two ways on the same ranks" in str(refused.value)


class TwoCounts(nn.Module):
    """A mean over labels in its first layer, and in its last one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks[0](x)
        early = nn.functional.cross_entropy(hidden, y)
        for block in self.blocks[1:]:
            hidden = block(hidden)
        return early + nn.functional.cross_entropy(hidden, y)


def test_sums_over_the_batch_in_two_stages_of_a_device_are_refused() -> None:
    batch = {"x": torch.randn(4, 6), "y": torch.tensor([0, 1, -100, 2])}
    stages = (StageSpec((0,), (0, 1)), StageSpec((1,), (1, 2)), StageSpec((0,), (2, 3)))
    with pytest.raises(DeduceError) as refused:
        program_for(traced(TwoCounts(), batch, 4), Strategy((PipelineSpec(stages, (2, 2)),)))
    assert "sums over the batch meet in several stages of the same devices" in str(refused.value)
