"""Proofs of programs of any size on batches that are given, and of several such programs with switches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import hspmd_compiler as hspmd
from hspmd_compiler.api import CompiledProgram, verify
from hspmd_compiler.errors import RunError, VerifyError
from hspmd_compiler.program.arguments import map_leaves
from hspmd_compiler.program.sized.sizes import Size
from tests.passes.test_sized_compile import PACKED, Attending, by_positions, rows
from tests.passes.test_sized_dropout import batch

SMALL = {**PACKED, "sizes": {"tokens": [1, 40]}}
ONE = {"pipelines": [{"stages": [{"devices": [0, 1], "layers": 2}], "micro_batches": [1]}], "zero": 2}


@cache
def compiled() -> CompiledProgram:
    torch.manual_seed(0)
    return hspmd.compile(Attending(by_positions), rows(), strategy=SMALL)


def row(*documents: int) -> dict[str, Tensor]:
    return {name: value[0] for name, value in batch(*documents).items()}


def test_rows_that_are_given() -> None:
    """A step for each; they may be of any lengths, as an engine takes them."""
    steps = [[row(3, 4), row(9)], [row(1), row(2, 2), row(31)]]
    report = compiled().verify(values=True, batch=steps)
    assert report.values is not None and len(report.values.steps) == 2
    assert report.sizes is not None and report.sizes.longest == 31
    assert report.sizes.values == ("9 | 7", "31 | 1, 4") and len(report.sizes.shapes) > 2
    assert dict(report.inputs)["ids"].startswith("given")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([[row(3)], [row(3), row(41)]], r"rows of batch 2 are not(.*\n)+  row 1 41 tokens"),
        ([[row(3), {**row(2), "positions": torch.tensor([3, 4])}]], "documents of positions are cut"),
        ([[{**row(3), "more": torch.ones(3)}]], "the program has no such input"),
    ],
)
def test_what_no_engine_takes(given: list[list[dict[str, Tensor]]], told: str) -> None:
    with pytest.raises(RunError, match=told):
        compiled().verify(values=True, batch=given)


def test_a_wrong_size_is_found_on_what_is_given() -> None:
    made = compiled()
    program = made.artifact.program
    first = next(iter(program.classes.values()))

    def fixed(leaf: object) -> object:
        return leaf.factor * 9 if type(leaf) is Size else leaf

    wrong = replace(
        first,
        segments=[
            replace(each, rows=[replace(held, args=map_leaves(held.args, fixed)) for held in each.rows])
            for each in first.segments
        ],
    )
    artifact = replace(
        made.artifact, program=replace(program, classes={**program.classes, first.name: wrong})
    )
    with pytest.raises(VerifyError):
        verify(artifact, batch=[[row(3, 4), row(8)]])


def test_switches_between_programs_of_any_size() -> None:
    torch.manual_seed(0)
    strategies = {"packed": SMALL, "one": {**ONE, "sizes": SMALL["sizes"]}}
    bundle = hspmd.compile_bundle(Attending(by_positions), rows(), strategies=strategies)
    report = bundle.verify(values=True)
    assert report.curve is not None and {each.strategy for each in report.curve.steps} == strategies.keys()
    assert all(each.sizes is not None and each.sizes.values for each in report.strategies.values())
