"""Gradients of weights apart from backward passes: every number is one device's, and memory goes on time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from hspmd_compiler.errors import VerifyError
from hspmd_compiler.program.program import Instruction, Op, OutputKind, Program
from hspmd_compiler.strategy.strategy import (
    PipelineSpec,
    Recompute,
    RecomputeKind,
    ScheduleKind,
    StageSpec,
    Strategy,
)

from ..verify.planted import with_rank
from .drawn_schedules import drawn_schedule
from .equal_to_eager import Case
from .training_cases import Batch, gpt2, llama, tokens

LAYERS = 4
CASES: dict[str, Case] = {}


def case(name: str) -> Case:
    """Traced once."""
    if name not in CASES:
        build = {"llama": lambda: llama(3, LAYERS), "gpt2": lambda: gpt2(LAYERS)}[name]
        CASES[name] = Case.of(build, batch())
    return CASES[name]


def batch() -> Batch:
    return tokens(0)


def unequal(zero: int = 0, sequence_parallel: bool = False, kind: str = "none") -> Strategy:
    """Three stages of unlike depth and width, two, and one; unlike numbers of micro-batches."""
    remade = () if kind == "none" else (Recompute((0, LAYERS), RecomputeKind(kind)),)
    deep = (StageSpec((0, 1), (0, 2)), StageSpec((2,), (2, 3)), StageSpec((3, 4), (3, 4)))
    flat = (StageSpec((5,), (0, 1)), StageSpec((6,), (1, 4)))
    pipelines = (
        PipelineSpec(deep, (1, 1, 1, 1), remade),
        PipelineSpec(flat, (2, 1), remade),
        PipelineSpec((StageSpec((7,), (0, 4)),), (1, 1, 1), remade),
    )
    return Strategy(pipelines, schedule=ScheduleKind.ZB_H1, zero=zero, sequence_parallel=sequence_parallel)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zb_h1_is_exact_on_unequal_pipelines(zero: int) -> None:
    splits(case("llama").check(unequal(zero)))


@pytest.mark.parametrize("kind", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_zb_h1_is_exact_with_sequence_parallel_and_recompute(name: str, kind: str) -> None:
    splits(case(name).check(unequal(2, True, kind)))


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("seed", range(2))
def test_texts_with_weights_are_exact(zero: int, seed: int) -> None:
    """Some stages leave gradients of weights to later, as long as they like."""
    random = Random(seed)
    base = unequal(zero)
    own = tuple(
        replace(each, schedule=drawn_schedule(random, len(each.stages), len(each.micro_batches), splits=True))
        for each in base.pipelines
    )
    points = replace(base, pipelines=own, zero=zero if zero < 2 else 1)
    case("gpt2").check(points)


def splits(program: Program) -> None:
    """Every stage but the first has two segments; gradients of matrices come from the later one."""
    for own in program.ranks:
        segments = program.classes[own.class_name].segments
        apart = [each for each in own.instructions if each.op is Op.WEIGHTS]
        assert len(apart) == (len(own.rows) if own.stage else 0)
        early, late = (
            {
                output.name
                for each in own.instructions
                if each.op is op
                for output in segments[each.segment].outputs
                if output.kind is OutputKind.GRAD
            }
            for op in (Op.BACKWARD, Op.WEIGHTS)
        )
        assert not early & late and bool(late) == bool(own.stage)
        names = {name for name in late | early if "mlp" in name and name.endswith("weight")}
        assert not own.stage or names <= late


def left_out(found: list[Instruction], at: int) -> list[Instruction]:
    return found[:at] + found[at + 1 :]


def twice(found: list[Instruction], at: int) -> list[Instruction]:
    return [*found[: at + 1], found[at], *found[at + 1 :]]


def too_early(found: list[Instruction], at: int) -> list[Instruction]:
    """Before the backward pass that leaves them."""
    own = next(n for n, each in enumerate(found) if each.op is Op.BACKWARD and each.mb == found[at].mb)
    return [*found[:own], found[at], *found[own:at], *found[at + 1 :]]


def of_another(found: list[Instruction], at: int) -> list[Instruction]:
    """Of a micro-batch that has had its turn."""
    return [*found[:at], replace(found[at], mb=found[at].mb - 1), *found[at + 1 :]]


@pytest.mark.parametrize("plant", [left_out, twice, too_early, of_another])
def test_planted_faults_are_seen(plant: Callable[[list[Instruction], int], list[Instruction]]) -> None:
    """Of the last rank of a pipeline, in the order of its weights."""
    program = case("llama").check(unequal())
    own = next(own for own in program.ranks if own.stage == 2)
    at = [number for number, each in enumerate(own.instructions) if each.op is Op.WEIGHTS][1]
    wrong = with_rank(program, own, instructions=plant(own.instructions, at))
    with pytest.raises(VerifyError):
        case("llama").compare(wrong)
