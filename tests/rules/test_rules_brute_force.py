"""Every rule by brute force: the operator whole against the operator split, in float64."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from enum import Enum
from itertools import cycle, product

import pytest
import torch

from hspmd_compiler.errors import DeduceError
from hspmd_compiler.ir.graph import Ref
from hspmd_compiler.ir.own_names import ANCHORS, OF_USERS
from hspmd_compiler.layout.layout import Axis, Coordinate, Layout
from hspmd_compiler.rules.rules import RULES
from hspmd_compiler.verify.rules.split_operands import Operand, StageMesh, random_layout
from hspmd_compiler.verify.rules.split_operator import OperandSketch, check

from ..quick import quick_are
from .along_dim_cases import along_dims
from .expert_cases import experts
from .index_put_cases import index_puts
from .one_of_each_line import one_of_each_line
from .placement_cases import placements
from .rule_cases import B, Case, cases
from .transform_cases import transforms
from .window_cases import windows

WAYS = (2, 3, 5)
MICRO_BATCHES = ((), (((0, 3),), ((3, 4),)), (((0, 1),), ((1, 3),), ((3, B),)))
MARKERS = (*OF_USERS, *ANCHORS)
"""Their layouts come from texts: tests/trace/test_comm_rules.py, tests/passes/test_layouts.py."""
QUICK, MOST, THOROUGH = 6, 200, 150


class Cut(Enum):
    """How ranks share a dim of an operand."""

    UNEVEN = "pieces of unequal lengths"
    EMPTY = "a rank without a piece"


EVERY = frozenset(product(WAYS, Cut))

BY_OP: dict[str, list[Case]] = {}
for _case in (*cases(), *placements(), *along_dims(), *windows(), *transforms(), *index_puts(), *experts()):
    BY_OP.setdefault(_case.op, []).append(_case)
QUICK_OPS = one_of_each_line(BY_OP, BY_OP)
"""The slow run has the others, whose rules are equal to one of these."""


def test_every_rule_has_a_case() -> None:
    assert sorted(RULES) == sorted([*BY_OP, *MARKERS])


@pytest.mark.parametrize("op", quick_are(sorted(BY_OP), QUICK_OPS))
def test_split_equals_whole(op: str) -> None:
    """All cases, until each number of ways was met with pieces of unequal lengths and with empty ones."""
    draws = random.Random(zlib.crc32(op.encode()))
    cases, at_least = BY_OP[op], max(QUICK, len(BY_OP[op]) * 2)
    ways, left = cycle(WAYS), set(EVERY)
    for number in range(MOST):
        if number >= at_least and not left:
            return
        left -= try_one(cases[number % len(cases)], draws.randrange(2**32), next(ways))
    pytest.fail(f"{op}: not met in {MOST} tries: {left}")


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(BY_OP))
def test_split_equals_whole_more_often(op: str) -> None:
    for case in BY_OP[op]:
        for seed in range(THOROUGH):
            try_one(case, seed, WAYS[seed % len(WAYS)])


def try_one(case: Case, seed: int, ways: int) -> set[tuple[int, Cut]]:
    """One random way to split all operands; refused, which is no proof, only where samples could meet."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    batch = rng.choice(MICRO_BATCHES)
    mesh = StageMesh(ways, batch)
    sketch = OperandSketch(mesh, sequence_parallel=rng.random() < 0.3, rng=random.Random(seed))
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
        return set()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{describe(sketch)}") from error
    return {(ways, cut) for layout in sketch.layouts.values() for cut in cuts_of(layout, ways)}


def cuts_of(layout: Layout, ways: int) -> Iterator[Cut]:
    """What the ranks' shares of a layout are like."""
    factors = [factor for factor in layout.factors() if factor.of_ranks is not None and not factor.contrib]
    for factor in factors:
        lengths = {sum(high - low for low, high in factor.held(Coordinate(rank, 0))) for rank in range(ways)}
        if 0 in lengths:
            yield Cut.EMPTY
        if len(lengths - {0}) > 1:
            yield Cut.UNEVEN


def describe(sketch: OperandSketch) -> str:
    """The rows and the layouts of their operands."""
    lines = [f"{sketch.mesh}, sequence parallel {sketch.sequence_parallel}"]
    for row in sketch.rows:
        lines.append(f"%{row.id} {row.op} {row.args} {row.shape or ''} {sketch.layouts.get(row.id, '')}")
    return "\n".join(lines)
