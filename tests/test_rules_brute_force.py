"""Every rule by brute force: the operator whole against the operator split, in float64."""

from __future__ import annotations

import random
import zlib

import pytest
import torch

from hspmd_compiler.annotations.layout import Axis
from hspmd_compiler.errors import DeduceError
from hspmd_compiler.graph.comm_marker import COMM, COMM_BACKWARD
from hspmd_compiler.graph.ir import Ref
from hspmd_compiler.graph.rules import RULES

from .placement_cases import placements
from .rule_cases import B, Case, cases
from .sharded_rows import Mesh, Operand, Sketch, check, random_layout

WAYS = (2, 3, 5)
MICRO_BATCHES = ((), (((0, 3),), ((3, 4),)), (((0, 1),), ((1, 3),), ((3, B),)))
MARKERS = (COMM, COMM_BACKWARD)
"""Their layouts come from the user's text: tests/graph/test_comm_rules.py."""
QUICK, THOROUGH = 9, 150

BY_OP: dict[str, list[Case]] = {}
for _case in (*cases(), *placements()):
    BY_OP.setdefault(_case.op, []).append(_case)


def test_every_rule_has_a_case() -> None:
    assert sorted(RULES) == sorted([*BY_OP, *MARKERS])


@pytest.mark.parametrize("op", sorted(BY_OP))
def test_split_equals_whole(op: str) -> None:
    draws = random.Random(zlib.crc32(op.encode()))
    for number in range(max(QUICK, len(BY_OP[op]) * 3)):
        try_one(BY_OP[op][number % len(BY_OP[op])], draws.randrange(2**32))


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(BY_OP))
def test_split_equals_whole_more_often(op: str) -> None:
    for case in BY_OP[op]:
        for seed in range(THOROUGH):
            try_one(case, seed)


def try_one(case: Case, seed: int) -> None:
    """One random way to split all operands; refused only where samples could meet."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    batch = rng.choice(MICRO_BATCHES)
    mesh = Mesh(rng.choice(WAYS), batch)
    sketch = Sketch(mesh, sequence_parallel=rng.random() < 0.3)
    pending = False

    def take(operand: Operand) -> Ref:
        nonlocal pending
        layout = random_layout(rng, operand, mesh, bool(batch))
        pending |= Axis.BATCH in layout.partial
        return sketch.operand(operand, layout)

    case.build(sketch, take)
    try:
        check(sketch)
    except DeduceError as error:
        if not ("micro-batches" in error.what and batch and (pending or case.coupled)):
            raise AssertionError(f"seed {seed}: {error.text()}\n{describe(sketch)}") from error
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{describe(sketch)}") from error


def describe(sketch: Sketch) -> str:
    """The rows and the layouts of their operands."""
    lines = [f"{sketch.mesh}, sequence parallel {sketch.sequence_parallel}"]
    for row in sketch.rows:
        lines.append(f"%{row.id} {row.op} {row.args} {row.shape or ''} {sketch.layouts.get(row.id, '')}")
    return "\n".join(lines)
