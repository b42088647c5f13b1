"""Markers in model code lay a value out as they say, and change no number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler import comm
from hspmd_compiler.annotations.of_layout import layout_states
from hspmd_compiler.errors import AnnotationError
from hspmd_compiler.ir.graph import Row
from hspmd_compiler.ir.own_names import COMM, COMM_BACKWARD, is_marker
from hspmd_compiler.passes.annotate import annotate
from hspmd_compiler.passes.deduction.deduce_all import deduce, deduce_all
from hspmd_compiler.passes.texts.annotated_text import annotated_text
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy

from ..quick import quick_are
from ..training.equal_to_eager import Case

SAMPLES, TOKENS, WIDTH, INNER = 4, 6, 8, 12
Texts = tuple[tuple[str, str], ...]


class Block(nn.Module):
    """Norm, up, GELU, down beside the input, with a marker at every place, its name for a text."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = comm(x, "in")
        inner = comm(self.norm(x), "norm")
        inner = comm(self.up(inner), "up")
        inner = comm(nn.functional.gelu(inner), "gelu")
        weight = comm(self.down.weight, "weight")
        out = comm(nn.functional.linear(inner, weight, self.down.bias), "down")
        return comm(x + out, "out")


class Model(nn.Module):
    """Blocks, then a head; markers in every block, and around the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = comm(x, "x")
        for block in self.blocks:
            x = comm(block(x), "between")
        logits = comm(self.head(x), "logits")
        return comm(nn.functional.mse_loss(logits, y), "loss")


@cache
def traced() -> Case:
    generator = torch.Generator().manual_seed(1)
    batch = {
        "x": torch.randn(SAMPLES, TOKENS, WIDTH, generator=generator),
        "y": torch.randn(SAMPLES, TOKENS, 3, generator=generator),
    }
    return Case.of(Model, batch)


def case_of(marks: Texts) -> Case:
    """The traced model with these texts in its markers, and without the markers of other places."""
    case, by_place = traced(), dict(marks)

    def written(row: Row) -> Row:
        if not is_marker(row.op):
            return row
        place = str(row.args[1])
        if place in by_place:
            return replace(row, args=(row.args[0], by_place[place]))
        return replace(row, op="aten.alias.default", args=row.args[:1])

    return replace(case, graph=replace(case.graph, rows=[written(row) for row in case.graph.rows]))


def layouts(marks: Texts, strategy: Strategy, op: str = COMM) -> list[str]:
    """The states of every marker's value, pipeline by pipeline."""
    graph = case_of(marks).graph
    _, placements = annotate(graph, strategy)
    found = []
    for number, (spec, placement) in enumerate(zip(strategy.pipelines, placements, strict=True)):
        deduced = deduce(graph, number, spec, placement)
        for row in graph.rows:
            if row.op == op and row.id in deduced.logical:
                value = deduced.logical[row.id]
                found.append(str(layout_states(value.layout, spec.stages[value.stage].tp)))
    return found


ONE = Strategy((P((S((0, 1, 2, 3), (0, 2)),), (3, 1)),))
TWO = Strategy((P((S((0, 1), (0, 2)),), (2, 1)), P((S((2, 3, 4), (0, 2)),), (1,))))
STAGES = Strategy(
    (P((S((0, 1), (0, 1)), S((2, 3, 4), (1, 2))), (2, 1)), P((S((5,), (0, 2)),), (1,))),
)
SEQUENCE = Strategy((P((S((0, 1, 2, 3), (0, 2)),), (3, 1)),), sequence_parallel=True)
WIDE = Strategy(
    (P((S((0, 1), (0, 1)), S((2, 3), (1, 2))), (1,)), P((S((9, 8, 4, 5, 7, 6), (0, 2)),), (2, 1))),
)
LINE = Strategy((P((S((1, 0), (0, 1)), S((2,), (1, 2))), (3, 1)),))


def texts(**by_place: str) -> Texts:
    return tuple(by_place.items())


CASES = {
    "features uneven": (texts(up="[0,1,2,3] <S2(5,0,4,3)>"), ONE),
    "features with copies": (texts(gelu="[0,1,2,3] <S2(0:5,3:6,6:6,5:12)>"), ONE),
    "features by pairs": (texts(gelu="[0,1,2,3] <Dx2 S2x2>"), ONE),
    "in blocks": (texts(up="[0,1,2,3] <S2x4{4,8(5,1,1,1)}>"), ONE),
    "in units": (texts(up="[0,1,2,3] <S2x4/2>"), ONE),
    "devices in another order": (texts(up="[3,1,0,2] <S2(5,0,4,3)>"), ONE),
    "tokens": (texts(norm="[0,1,2,3] <S1(1,1,2,2)>", out="[0,1,2,3] <S1x4>"), ONE),
    "whole": (texts(gelu="[0,1,2,3] <Dx4>", norm="[0,1,2,3] <Dx4>"), ONE),
    "pending sum kept": (texts(down="[0,1,2,3] <Px4>"), ONE),
    "pending sum to tokens": (texts(down="[0,1,2,3] <S1x4>"), ONE),
    "pending sum to features": (texts(down="[0,1,2,3] <S2(3,3,2,0)>"), ONE),
    "weight on its other dim": (texts(weight="[0,1,2,3] <S0x4>"), ONE),
    "weight whole": (texts(weight="[0,1,2,3] <Dx4>"), ONE),
    "input": (texts(x="[0,1,2,3] <S1x4>"), ONE),
    "logits": (texts(logits="[0,1,2,3] <S2(1,0,1,1)>"), ONE),
    "tokens where they are tokens": (texts(norm="[0,1,2,3] <S1x4>"), SEQUENCE),
    "gathered tokens": (texts(norm="[0,1,2,3] <Dx4>", out="[0,1,2,3] <Dx4>"), SEQUENCE),
    "other tokens": (texts(out="[0,1,2,3] <S1(0,1,2,3)>"), SEQUENCE),
    "features of tokens": (texts(norm="[0,1,2,3] <S2x4>"), SEQUENCE),
    "two pipelines": (texts(up="[0,1 | 2,3,4] <S2(7,5) | Dx3> hetero=0"), TWO),
    "weight in two pipelines": (texts(weight="[2,3,4 | 0,1] <S0x3 | S1x2> hetero=dup"), TWO),
    "stages": (texts(gelu="[0,1 | 2,3,4 | 5] <S2x2 | S1x3 | R> hetero=0"), STAGES),
    "between stages": (texts(between="[0,1 | 2,3,4 | 5] <S2x2 | S1x3 | R> hetero=0"), STAGES),
    "stages of one pipeline": (texts(out="[0,1 | 2] <S2x2 | R> hetero=dup"), LINE),
    "loss in two pipelines": (texts(loss="[0,1 | 2,3,4] <Dx2 | Dx3> hetero=partial"), TWO),
    "two dims": (texts(up="[0,1,2,3] <S1x2 S2(5,7)>", down="[0,1,2,3] <S2(1,7) S1x2>"), ONE),
    "two dims of a weight": (texts(weight="[2,0,1,3] <S1x2 S0(3,5)>"), ONE),
    "samples": (texts(up="[0,1,2,3] <S0x4>"), ONE),
    "samples and features": (texts(gelu="[0,3,2,1] <S2(0,12) S0x2>"), ONE),
    "addends of pieces": (texts(down="[0,1,2,3] <S1x2 Px2>"), ONE),
    "addends with copies": (texts(down="[0,1,2,3] <Px2 Dx2>"), ONE),
    "addends of overlapping pieces": (texts(down="[0,1,2,3] <Px2 S2(0:5,3:8)>"), ONE),
    "addends of samples": (texts(down="[0,1,2,3] <Px2 S0x2>"), ONE),
    "one layout behind another": (texts(norm="[0,1,2,3] <S1x2 S2x2>", up="[0,1,2,3] <S2x2 S1x2>"), SEQUENCE),
    "two dims in some stages": (
        texts(out="[4,5,6,7,8,9 | 0,1 | 2,3] <S2x2 S1x3 | Dx2 | S0x2> hetero=0"),
        WIDE,
    ),
    "everywhere": (
        texts(**dict.fromkeys(("norm", "down", "out", "in", "x"), "[0,1,2,3] <S2(3,2,2,1)>")),
        SEQUENCE,
    ),
}
QUICK = (
    *("features with copies", "in blocks", "devices in another order", "tokens", "whole"),
    *("pending sum kept", "pending sum to features", "weight on its other dim", "other tokens"),
    *("weight in two pipelines", "stages", "loss in two pipelines", "samples and features"),
    *("addends of overlapping pieces", "addends of samples", "two dims in some stages", "everywhere"),
)
"""One of each kind of layout, and of each kind of place."""


@pytest.mark.parametrize("name", quick_are(CASES, QUICK))
def test_numbers_stay(name: str) -> None:
    marks, strategy = CASES[name]
    case_of(marks).check(strategy)


def test_values_lie_as_the_marker_says() -> None:
    assert layouts(texts(gelu="[0,1,2,3] <S2(5,0,4,3)>"), ONE) == ["S2(5,0,4,3)"] * 2
    assert layouts(texts(gelu="[0,1,2,3] <Dx4>"), ONE) == ["Dx4"] * 2
    assert layouts(texts(down="[0,1,2,3] <Px4>"), ONE) == ["Px4"] * 2
    assert layouts(texts(gelu="[3,1,0,2] <S2(5,0,4,3)>"), ONE) == ["S2(5:9,0:0,9:12,0:5)"] * 2
    assert layouts(texts(gelu="[0,1,2,3] <S2(5,7) S1x2>"), ONE) == ["S2(5,7) S1x2"] * 2
    assert layouts(texts(gelu="[0,2,1,3] <S2(5,7) S1x2>"), ONE) == ["S1x2 S2(5,7)"] * 2
    assert layouts(texts(gelu="[0,1,2,3] <S0x2 S2x2>"), ONE) == ["S0x2 S2x2"] * 2
    assert layouts(texts(down="[0,1,2,3] <Dx2 Px2>"), ONE) == ["Dx2 Px2"] * 2
    assert layouts(texts(down="[0,1,2,3] <S1x2 Px2>"), ONE) == ["S1x2 Px2"] * 2
    by_stage = texts(gelu="[0,1 | 2,3,4 | 5] <S2x2 | S1x3 | R> hetero=0")
    assert layouts(by_stage, STAGES) == ["S2x2", "S1x3", "R", "R"]


def test_gradients_are_split_as_their_values_and_else_as_they_come() -> None:
    assert layouts(texts(norm="[0,1,2,3] <S1(1,1,2,2)>"), ONE, COMM_BACKWARD) == ["S1(1,1,2,2)"] * 2
    assert layouts(texts(norm="[0,1,2,3] <Dx4>"), ONE, COMM_BACKWARD) == ["Px4"] * 2
    assert layouts(texts(up="[0,1,2,3] <S1x2 S2x2>"), ONE, COMM_BACKWARD) == ["S1x2 S2x2"] * 2


REFUSED = {
    "no_subgroup": (texts(up="[0,1,2] <S2x3>"), ONE),
    "shares_of_samples": (texts(up="[0,1,2,3] <S0(0:1,1:2,2:3,3:4)>"), ONE),
    "no_pending_sum": (texts(up="[0,1,2,3] <Px4>"), ONE),
    "pending_of_two": (texts(up="[0,1,2,3] <S1x2 Px2>"), ONE),
    "no_such_dim": (texts(up="[0,1,2,3] <S3x4>"), ONE),
    "wrong_length": (texts(up="[0,1,2,3] <S2(0:1,1:3,3:6,6:10)>"), ONE),
    "hetero_of_a_weight": (texts(weight="[0,1 | 2,3,4] <S1x2 | S1x3> hetero=0"), TWO),
    "hetero_of_samples": (texts(up="[0,1 | 2,3,4] <S2x2 | S2x3> hetero=dup"), TWO),
    "hetero_shares": (texts(up="[0,1 | 2,3,4] <S2x2 | S3x3> hetero=0(3,1)"), TWO),
    "unreadable": (texts(up="[0,1,2,3] <S2*4>"), ONE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_users_line(name: str, expect: Callable[[str, str], None]) -> None:
    marks, strategy = REFUSED[name]
    with pytest.raises(AnnotationError) as caught:
        layouts(marks, strategy)
    expect(f"comm/{name}", str(caught.value))


def test_the_dump_says_the_plan_of_each_move(expect: Callable[[str, str], None]) -> None:
    marks = texts(norm="[0,1,2,3] <S1x2 S2x2>", down="[0,1,2,3] <Px2 Dx2>", out="[0,1,2,3] <S0x2 S2x2>")
    graph = case_of(marks).graph
    _, placements = annotate(graph, ONE)
    lines = annotated_text(graph, ONE, deduce_all(graph, ONE, placements)).splitlines()
    moved = (line.split("  #")[0].rstrip() for line in lines)
    expect("comm/plans", "\n".join(line for line in moved if "comm" in line))
