"""Every published strategy compiles, and its ranks fit together by shape; skipped without the reference data.

The normal suite does so on small twins, in which the same stages, degrees and pipelines meet; the slow one
also on the published models, with all layers and micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.compiler import lower_graph
from hspmd_compiler.models.builtin_models import BUILTIN, LlamaSize
from hspmd_compiler.program.check import check as check_program
from hspmd_compiler.strategy.check import check as check_strategy
from hspmd_compiler.strategy.formats.expanded import Expanded
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from tests.fit import check_fit
from tests.strategy.published import Published, Size, published, traced, twin

LEAST = {"hetero_cluster": 10, "hotspa": 80, "mixed_length": 7, "hexiscale": 2}
"""How many strategies of these sources are compiled at least, in the slow suite at full size too."""
QUICK = {"hetero_cluster": ("case5",), "hexiscale": ("",)}
"""Ends of names that the quick suite compiles; pipelines of others are equal, or as unequal as this."""
OTHERS = ("hetu_misc", "elastic_inferred", "hotspa_quick_8xA100", "hydraulis", "flagscale")


@cache
def known(reference: Path) -> tuple[Published, ...]:
    return tuple(published(reference))


def compiled(reference: Path, source: str) -> list[Published]:
    """The strategies of a source that `compile` takes."""
    held = [one for one in known(reference) if one.name.startswith(f"{source}/")]
    return [one for one in held if not one.expanded.strategy.context]


def each_once(models: Iterable[tuple[Published, tuple[Size, Strategy]]]) -> list[tuple[str, Size, Strategy]]:
    """Models with strategies that differ in more than a name; those of one traced graph follow each other."""
    found: dict[tuple[Size, Strategy], str] = {}
    for one, (size, strategy) in models:
        found.setdefault((size, replace(strategy, name="")), one.name)
    cases = [(name, size, strategy) for (size, strategy), name in found.items()]
    return sorted(cases, key=lambda case: (repr(case[1]), case[2].global_batch))


def check_fits(name: str, size: Size, strategy: Strategy) -> None:
    """Compile, check the program's own rules, and step all ranks by shape."""
    try:
        check_strategy(strategy)
        program = lower_graph(traced(size, strategy.global_batch), strategy, DeviceKind.CPU).program
        check_program(program)
        report = check_fit(program)
    except Exception as error:
        error.add_note(f"strategy {name}")
        raise
    assert report.world_size == strategy.world_size, name
    assert "grad_reduce" in report.counts() or len(strategy.pipelines) == 1, name


@pytest.mark.parametrize("source", QUICK)
def test_some_twins_compile_and_fit(reference: Path, source: str) -> None:
    chosen = [one for one in compiled(reference, source) if one.name.endswith(QUICK[source])]
    assert len(chosen) >= len(QUICK[source])
    for case in each_once((one, twin(one)) for one in chosen):
        check_fits(*case)


@pytest.mark.slow
@pytest.mark.parametrize("source", [*LEAST, *OTHERS])
def test_twins_compile_and_fit(reference: Path, source: str) -> None:
    chosen = compiled(reference, source)
    assert len(chosen) >= LEAST.get(source, 1)
    for case in each_once((one, twin(one)) for one in chosen):
        check_fits(*case)


@pytest.mark.slow
@pytest.mark.parametrize("source", LEAST)
def test_published_sizes_compile_and_fit(reference: Path, source: str) -> None:
    for case in each_once((one, (one.size, one.expanded.strategy)) for one in compiled(reference, source)):
        check_fits(*case)


def test_twins_keep_what_meets() -> None:
    """Stages still begin where those of other pipelines do or don't, and each keeps its devices."""
    stages = ((7, 23, 60), (11, 60))
    pipelines = [
        PipelineSpec(
            tuple(
                StageSpec((10 * index + number,), layers)
                for number, layers in enumerate(pairwise((0, *ends)))
            ),
            (1,) * 30,
        )
        for index, ends in enumerate(stages)
    ]
    size = BUILTIN["llama-32b"]
    assert isinstance(size, LlamaSize)
    small, strategy = twin(Published("", Expanded(Strategy(tuple(pipelines))), size))
    assert [[stage.layers for stage in one.stages] for one in strategy.pipelines] == [
        [(0, 2), (2, 6), (6, 8)],
        [(0, 4), (4, 8)],
    ]
    assert [one.micro_batches for one in strategy.pipelines] == [(10, 1, 1, 1), (1, 1, 1)]
    assert (small.layers, small.heads, strategy.global_batch) == (8, 64, 16)
    assert isinstance(small, LlamaSize)
    for length, cut in ((size.ffn, small.ffn), (size.vocab, small.vocab)):
        assert all((length - cut) % degree == 0 for degree in (*range(1, 9), 16))
