"""What varies in a program of any size is told of things that it has; nothing does in one of one size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import ArtifactError
from hspmd_compiler.program.check import check
from hspmd_compiler.program.context.row_piece import RowPiece
from hspmd_compiler.program.program import Op, Program, SizedRank
from hspmd_compiler.program.sized.instantiate import instantiate
from hspmd_compiler.program.sized.sizes import RING, Count, Size

FORM = {
    "pipelines": [
        {"stages": [{"devices": [0, 1], "layers": 1}, {"devices": [2], "layers": 1}], "micro_batches": [1]}
    ],
    "sizes": {"samples": [1, 64]},
}
T = Size(1, Count.SAMPLES)
Change = Callable[[Program], Program]


class Linears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return nn.functional.mse_loss(x, y)


@pytest.fixture(scope="module")
def sized() -> Program:
    batch = {"x": torch.randn(2, 4), "y": torch.randn(2, 4)}
    return hspmd.compile(Linears(), batch, strategy=FORM).artifact.program


def of_rank(change: Callable[[SizedRank], SizedRank]) -> Change:
    def changed(program: Program) -> Program:
        own = program.ranks[0]
        assert own.sized is not None
        return replace(program, ranks=[replace(own, sized=change(own.sized)), *program.ranks[1:]])

    return changed


def literal(size: Size) -> Change:
    def changed(program: Program) -> Program:
        own = program.ranks[0]
        return replace(program, ranks=[replace(own, literals=[*own.literals, size]), *program.ranks[1:]])

    return changed


def of_range(**fields: object) -> Change:
    def changed(program: Program) -> Program:
        assert program.sizes is not None
        return replace(program, sizes=replace(program.sizes, **fields))  # type: ignore[arg-type]

    return changed


def of_piece(piece: RowPiece) -> Change:
    def changed(program: Program) -> Program:
        own = program.ranks[0]
        return replace(program, ranks=[replace(own, pieces=[piece]), *program.ranks[1:]])

    return changed


def plain(program: Program) -> Program:
    assert program.sizes is not None
    return instantiate(program, program.sizes.probes[0])


def test_a_compiled_program_is_whole(sized: Program) -> None:
    check(sized)
    check(plain(sized))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda program: replace(program, sizes=None), "varies, in a program of one size"),
        (lambda program: literal(T)(plain(program)), "a literal n varies, in a program of one size"),
        (literal(Size(1, Count.TOKENS, 7, 0, 1)), r"T\[0:1 of 7\]: no stage cuts tokens in 7"),
        (literal(Size(1, Count.TOKENS, RING, 0, 1)), "no pipelines share a row"),
        (
            lambda program: replace(program, ranks=[replace(program.ranks[0], sized=None)]),
            "nothing says what varies",
        ),
        (of_rank(lambda own: replace(own, comms=[*own.comms, ((0, T),)])), "what varies is told of"),
        (
            of_rank(lambda own: replace(own, transfers=[((99, T),)] * len(own.transfers))),
            "are not ascending places",
        ),
        (
            of_rank(lambda own: replace(own, transfers=[((-1, T),)] * len(own.transfers))),
            "are not ascending places",
        ),
        (
            of_rank(lambda own: replace(own, forward=[replace(each, slot=99) for each in own.forward])),
            "not what the template of a micro-batch makes",
        ),
        (of_rank(lambda own: replace(own, backward=[])), "not what the template of a micro-batch makes"),
        (
            of_rank(lambda own: replace(own, forward=[replace(own.forward[0], op=Op.OPTIMIZER)])),
            "not what the template of a micro-batch makes",
        ),
        (
            of_rank(lambda own: replace(own, forward=[replace(each, tag=-1) for each in own.forward])),
            "a template moves a value without a tag",
        ),
        (of_range(low=0), "is no range of sizes"),
        (of_range(unit=Count.ALL), "tokens or samples vary"),
        (of_range(stages=(2, 1)), "are not of 2 pipelines"),
        (of_range(stages=(1,), probes=()), "are not of 1 pipelines"),
        (of_range(groups=((0, 5),)), "is not of the 1 pipelines"),
        (of_range(groups=((0, 0),)), "rows are not cut among the pipelines that share them"),
        (of_range(shares=(1.0, 2.0)), r"shares \[1.0, 2.0\] are not of 1 pipelines"),
        (of_range(shares=(float("nan"),)), "are not of 1 pipelines"),
        (of_piece(RowPiece((), ("x",))), "pieces of rows, or pieces of nothing, in"),
    ],
)
def test_what_is_not_there_is_refused(sized: Program, change: Change, problem: str) -> None:
    with pytest.raises(ArtifactError, match=problem):
        check(change(sized))
