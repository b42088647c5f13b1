"""What is kept of a micro-batch of any size is what a compile for that size says, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import load
from hspmd_compiler.base.pipeline_schedule import ScheduleKind
from hspmd_compiler.cli.main import main
from hspmd_compiler.passes.compile_state import Example, Traced
from hspmd_compiler.passes.pipeline import planning, tracing
from hspmd_compiler.program.sized.instantiate import instantiate
from hspmd_compiler.program.sized.saved_bytes import saved_bytes, saved_text, stage_bytes
from hspmd_compiler.program.sized.sizes import MicroSizes
from hspmd_compiler.strategy.strategy import SizesSpec, Strategy

from ..training.training_cases import Mlp
from .test_size_graphs import resized_to
from .test_sized import PIECES, UNEQUAL, Packed, numbers, packed
from .test_sized_compile import Attending, Blocks, every_other, inputs, rows

Case = tuple[Callable[[], nn.Module], dict[str, Tensor], Strategy, SizesSpec]
CASES: dict[str, Case] = {
    "packed": (Packed, packed(5, rows=2), PIECES, SizesSpec(tokens=(1, 300))),
    "masks": (lambda: Attending(every_other), rows(), UNEQUAL, SizesSpec(tokens=(1, 300))),
    "samples": (
        lambda: Mlp(nn.functional.mse_loss),
        numbers(2, nn.functional.mse_loss),
        UNEQUAL,
        SizesSpec(samples=(1, 64)),
    ),
    "tokens": (Blocks, inputs(), UNEQUAL, SizesSpec(tokens=(1, 300))),
    "weights apart": (
        Blocks,
        inputs(),
        replace(UNEQUAL, schedule=ScheduleKind.ZB_H1),
        SizesSpec(samples=(1, 99)),
    ),
}


def compiled_at(case: Case, micro: MicroSizes) -> list[int]:
    """What each rank keeps, by a compile of one micro-batch of these sizes in each pipeline."""
    build, batch, strategy, _ = case
    made = replace(
        strategy,
        pipelines=tuple(replace(each, micro_batches=(micro.samples,)) for each in strategy.pipelines),
    )
    given = resized_to(batch, micro.tokens)
    graph = tracing().run(Example(build(), given, made.global_batch)).graph
    counted = replace(made, sizes=None)
    cuts = {len(cut): cut for cut in micro.cuts}
    return [own.saved[0] for own in planning(counted, cuts=cuts).run(Traced(graph)).program.ranks]


@pytest.mark.parametrize("name", CASES)
def test_kept_bytes_are_those_of_a_compile_for_the_size(name: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]
    build, batch, strategy, sizes = case
    program = hspmd.compile(build(), batch, strategy=replace(strategy, sizes=sizes)).artifact.program
    asked = [MicroSizes(7), MicroSizes(61)]
    if sizes.tokens is not None:
        asked = [MicroSizes(1, 24), MicroSizes(1, 257)]
    if name == "packed":
        asked = [MicroSizes(1, 24, ((5, 19), (3, 14, 7))), MicroSizes(1, 251, ((200, 51), (83, 85, 83)))]
    for micro in asked:
        wanted = compiled_at(case, micro)
        assert [saved_bytes(own, micro) for own in program.ranks] == wanted
        assert [size for stage in stage_bytes(program, micro).values() for size in stage] == wanted
    assert program.sizes is not None
    for probe in program.sizes.probes:
        for own in instantiate(program, probe).ranks:
            micros = probe.pipelines[own.pipeline]
            assert own.saved == [saved_bytes(program.ranks[own.rank], micro) for micro in micros]


def test_a_mask_that_stays_is_kept_by_the_square() -> None:
    build, batch, strategy, sizes = CASES["masks"]
    program = hspmd.compile(build(), batch, strategy=replace(strategy, sizes=sizes)).artifact.program
    texts = [saved_text(own.sized.saved) for own in program.ranks if own.sized is not None]
    assert all("*T*T + " in text for text in texts), texts


def test_the_command_line_tells_kept_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build, batch, strategy, sizes = CASES["packed"]
    hspmd.compile(build(), batch, strategy=replace(strategy, sizes=sizes)).save(tmp_path / "a")
    program = load(tmp_path / "a").program
    assert main(["inspect", str(tmp_path / "a"), "--tokens", "30"]) == 0
    shown = capsys.readouterr().out
    text = saved_text(program.ranks[0].sized.saved)  # type: ignore[union-attr]
    assert text.partition(" + ")[0] in shown and "at 30 tokens" in shown and "at 300 tokens" in shown
    assert f"{saved_bytes(program.ranks[5], MicroSizes(1, 30)):,}" in shown
    assert main(["inspect", str(tmp_path / "a"), "--samples", "30"]) == 2
    assert "--samples is given, and tokens vary in this program" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "a"), "--tokens", "301"]) == 2
    assert "compiled for 1 to 300 tokens" in capsys.readouterr().err
