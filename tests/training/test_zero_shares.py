"""What ZeRO stores once, stored by weights of devices: still exact, where it should lie, and saved whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hspmd_compiler.cost_models.steps.stored_bytes import stored_bytes
from hspmd_compiler.layout.shares import assign_units
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.check import check
from hspmd_compiler.program.program import Program
from hspmd_compiler.strategy.strategy import Override, PipelineSpec, StageSpec, Strategy
from hspmd_compiler.verify.values import simulate
from hspmd_compiler.verify.widen import widen_program

from ..fit import check_fit
from .test_end_to_end import ADAMW, EXACT, LocalOptimizers, batches, compare, reference, start
from .test_end_to_end_gloo import CONFIG, train_like_eager
from .test_zero_gloo import compiled
from .test_zero_training import trained_elements
from .training_cases import ALL, FIRST, SECOND, graph_of, program_for


def stage(devices: tuple[int, ...], weights: tuple[int, ...], layers: tuple[int, int] = ALL) -> StageSpec:
    return StageSpec(devices, layers, zero_shares=weights)


HOLDER = Strategy(
    (
        PipelineSpec((stage((0,), (1,)),), (4, 1)),
        PipelineSpec((stage((1,), (0,)),), (3, 1)),
        PipelineSpec((stage((2,), (5,)),), (1,)),
    )
)
"""The third computes one sample of ten and stores five sixths; the second nothing."""
CASES = {
    "holder": HOLDER,
    "alike": Strategy(
        tuple(
            PipelineSpec(
                (stage((p,), (weight,), FIRST), stage((p + 2,), (2 - weight,), SECOND)), ((3, 2), (4, 1))[p]
            )
            for p, weight in enumerate((0, 2))
        )
    ),
    "tensor parallel": Strategy(
        (
            PipelineSpec((stage((0, 1), (2, 0)),), (3, 2)),
            PipelineSpec((stage((2, 3, 4), (3, 1, 1)),), (4, 1)),
        )
    ),
    "copies in a stage": Strategy(
        (PipelineSpec((stage((0, 1, 2), (1, 0, 3)),), (5, 5)),),
        overrides=(Override("**", duplicate=True),),
    ),
}
QUICK = {
    ("mlp-ce", "holder", 1),
    ("mlp-ce", "holder", 2),
    ("gpt2", "alike", 3),
    ("llama", "tensor parallel", 3),
    ("mlp-ce", "copies in a stage", 3),
}


def made(subject: str, case: str, zero: int) -> Program:
    return program_for(graph_of(subject), replace(CASES[case], zero=zero))


@pytest.mark.parametrize(
    ("subject", "case", "zero"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow)
        for each in ((s, c, z) for s in ("mlp-ce", "llama", "gpt2") for c in CASES for z in (1, 2, 3))
    ],
)
def test_training_is_exact(subject: str, case: str, zero: int) -> None:
    program = made(subject, case, zero)
    check(program)
    check_fit(program)
    found = simulate(
        widen_program(program), start(subject, True), batches(subject, True), LocalOptimizers(ADAMW)
    )
    compare(found, reference(subject, True), EXACT, ADAMW.lr)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_memory_lies_by_weights(zero: int) -> None:
    """Optimizer state from 1 on, gradients from 2, parameters from 3; all of it once."""
    elements = trained_elements("mlp-ce")
    counts = assign_units(elements, (1, 0, 5))
    held = [stored_bytes(rank, OptimizerConfig()) for rank in made("mlp-ce", "holder", zero).ranks]
    assert [each.state for each in held] == [2 * 4 * count for count in counts]
    gradients = counts if zero >= 2 else [elements] * 3
    assert [each.gradients for each in held] == [4 * count for count in gradients]
    parameters = counts if zero == 3 else [elements] * 3
    assert [each.parameters for each in held] == [4 * count for count in parameters]


def test_equal_weights_are_no_weights() -> None:
    """Byte for byte, also where pieces differ by an element."""
    plain = replace(
        HOLDER,
        zero=2,
        pipelines=tuple(
            replace(each, stages=(replace(each.stages[0], zero_shares=None),)) for each in HOLDER.pipelines
        ),
    )
    equal = replace(
        plain,
        pipelines=tuple(
            replace(each, stages=(replace(each.stages[0], zero_shares=(3,)),)) for each in plain.pipelines
        ),
    )
    assert program_for(graph_of("mlp-ce"), plain) == program_for(graph_of("mlp-ce"), equal)


def test_processes_train_like_eager(tmp_path: Path) -> None:
    """With a rank that stores nothing; weights, gradients and norms are those of eager, and saved whole."""
    train_like_eager("mlp-ce", compiled("mlp-ce", replace(HOLDER, zero=3), CONFIG, tmp_path / "artifact"))
