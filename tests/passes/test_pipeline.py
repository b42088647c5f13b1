"""The passes of a compile: one ordered list, each with a file, a text and a check that can fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hspmd_compiler.base.devices import DeviceKind
from hspmd_compiler.base.log import listening
from hspmd_compiler.base.pipeline_schedule import PipelineSchedule
from hspmd_compiler.errors import InternalError
from hspmd_compiler.ir.annotated import AnnotatedRow
from hspmd_compiler.ir.graph import Ref
from hspmd_compiler.passes.compile_state import Example, Traced
from hspmd_compiler.passes.liveness import LivePipeline
from hspmd_compiler.passes.pass_chain import Dump, Pass, refuse
from hspmd_compiler.passes.pipeline import planning, tracing
from hspmd_compiler.strategy.strategy import PipelineSpec, Recompute, RecomputeKind, StageSpec, Strategy

from ..training.training_cases import ALL, BATCH, FIRST, SECOND, SUBJECTS, graph_of

AGAIN = (Recompute(ALL, RecomputeKind.FULL),)
STAGES = [(StageSpec((p, p + 2), FIRST), StageSpec((p + 4,), SECOND)) for p in (0, 1)]
ALIKE = Strategy(
    tuple(PipelineSpec(stages, sizes, AGAIN) for stages, sizes in zip(STAGES, ((3, 2), (4, 1)), strict=True)),
    zero=3,
)
"""Two pipelines alike but for their samples: ZeRO-3 gathers inside, and gradients are handed over early."""
ORDER = [
    "trace",
    "causal_mask",
    "packed_mask",
    "annotate",
    "deduce",
    "liveness",
    "recompute",
    "step_counts",
    "param_gather",
    "batch_levels",
    "zero",
    "grad_sync",
    "segments",
    "resolve_comm",
    "schedule",
    "saved_memory",
    "lower",
]
LONG = {"trace", "causal_mask", "packed_mask", "deduce", "lower"}
"""Texts that other tests pin."""


@dataclass(frozen=True)
class Ran:
    """A pass, and the states before and behind it."""

    step: Pass[Any, Any]
    before: Any
    after: Any


@cache
def ran(subject: str = "mlp-ce") -> Mapping[str, Ran]:
    """Every pass of a small compile, by name."""
    made = SUBJECTS[subject]
    example = Example(made.build(), made.batch(0), BATCH)
    traced = list(tracing().states(example))
    return {each[0].name: Ran(*each) for each in (*traced, *planning(ALIKE).states(traced[-1][2]))}


def test_the_list_of_passes_is_that_of_their_files() -> None:
    assert list(ran()) == ORDER
    for name, each in ran().items():
        assert type(each.step).__module__.endswith(f".{name}")


@pytest.mark.parametrize("name", [name for name in ORDER if name not in LONG])
def test_every_pass_says_what_it_decided(name: str, expect: Callable[[str, str], None]) -> None:
    found = ran()[name]
    expect(f"passes/{name}", found.step.text(found.before, found.after))


def test_a_compile_is_timed_and_dumped_pass_by_pass(tmp_path: Path) -> None:
    titles: list[str] = []

    class Listening:
        def started(self, title: str, total: int | None) -> None:
            titles.append(title)

        def advanced(self, title: str, done: int) -> None:
            pass

        def ended(self, title: str, seconds: float) -> None:
            pass

    with listening(Listening()):
        planning(ALIKE, DeviceKind.CPU).run(Traced(graph_of("mlp-ce")), Dump(tmp_path, count=3))
    assert titles == [name.replace("_", " ") for name in ORDER[3:]]
    dumped = sorted(path.name for path in tmp_path.iterdir())
    assert dumped == [f"{number:02d}-{name}.txt" for number, name in enumerate(ORDER)][3:]
    found = ran()["segments"]
    assert (tmp_path / f"{ORDER.index('segments'):02d}-segments.txt").read_text() == found.step.text(
        found.before, found.after
    )


def dropped(live: LivePipeline) -> LivePipeline:
    """Without the first backward row that others read."""
    stage = live.stages[0]
    return replace(live, stages=[replace(stage, backward=stage.backward[1:]), *live.stages[1:]])


def first_live(state: Any, spoiled: Callable[[LivePipeline], LivePipeline]) -> Any:
    return replace(state, live=[spoiled(state.live[0]), *state.live[1:]])


def without_reader(rows: list[AnnotatedRow]) -> list[AnnotatedRow]:
    """Rows in which a value is read before it is made."""
    made = [row.out.id for row in rows]
    reader = next(row for row in rows if row.reads and row.reads[0].id in made)
    return [reader, *(row for row in rows if row is not reader)]


def uncounted(live: LivePipeline) -> LivePipeline:
    """With counts that no stage makes."""
    stages = [replace(s, steps=[replace(step, counts=False) for step in s.steps]) for s in live.stages]
    return replace(live, stages=stages)


def self_reading(graph: Any) -> Any:
    rows = list(graph.rows)
    rows[-1] = replace(rows[-1], args=(Ref(rows[-1].id),))
    return replace(graph, rows=rows)


def shorter(cuts: Any) -> Any:
    """Ownership without what one rank owns of the first part."""
    key = next(key for key, own in cuts.items() if len(own) > 1)
    return {**cuts, key: dict(list(cuts[key].items())[1:])}


def other_level(state: Any) -> Any:
    """Levels in which a stage's first row runs after the others."""
    rows = state.live[0].stages[0]
    of_stage = {id(rows): {rows.forward[0].out.id: 1}}
    return replace(state, levels=replace(state.levels, last=1, of_stage=of_stage))


def backwards(schedule: PipelineSchedule) -> PipelineSchedule:
    """Backward before forward."""
    return PipelineSchedule(tuple(row[::-1] for row in schedule.stages))


SPOILED: dict[str, Callable[[Any], Any]] = {
    "trace": lambda s: replace(s, graph=self_reading(s.graph)),
    "causal_mask": lambda s: replace(s, graph=self_reading(s.graph)),
    "packed_mask": lambda s: replace(s, graph=self_reading(s.graph)),
    "annotate": lambda s: replace(s, placements=s.placements[1:]),
    "deduce": lambda s: replace(
        s, pipelines=[replace(graph, rows=without_reader(graph.rows)) for graph in s.pipelines]
    ),
    "liveness": lambda s: first_live(s, dropped),
    "recompute": lambda s: first_live(s, dropped),
    "step_counts": lambda s: first_live(s, uncounted),
    "param_gather": lambda s: replace(s, inside=frozenset([*s.inside, "another"])),
    "batch_levels": other_level,
    "zero": lambda s: replace(s, ownership=replace(s.ownership, cuts=shorter(s.ownership.cuts))),
    "grad_sync": lambda s: replace(
        s,
        reductions=replace(s.reductions, grads={0: s.reductions.grads[0][:1], 1: s.reductions.grads[0][1:]}),
    ),
    "segments": lambda s: replace(s, stages=[replace(plan, segments=plan.segments[1:]) for plan in s.stages]),
    "resolve_comm": lambda s: replace(s, comms=[replace(comm, steps=comm.steps[:-1]) for comm in s.comms]),
    "schedule": lambda s: replace(s, schedules=[backwards(each) for each in s.schedules]),
    "saved_memory": lambda s: replace(s, saved=[own[1:] for own in s.saved]),
    "lower": lambda s: replace(s, program=replace(s.program, ranks=s.program.ranks[1:])),
}


@pytest.mark.parametrize("name", ORDER)
def test_every_check_is_silent_and_can_fail(name: str) -> None:
    found = ran()[name]
    assert not list(found.step.problems(found.before, found.after))
    assert not list(found.step.slow_problems(found.after))
    with pytest.raises(InternalError, match=f"the pass {name} left") as caught:
        refuse(found.step, found.step.problems(found.before, SPOILED[name](found.after)))
    assert caught.value.details


def test_the_slow_check_of_a_program_can_fail() -> None:
    found = ran()["lower"]
    program = found.after.program
    ranks = [replace(own, comms=[]) for own in program.ranks]
    with pytest.raises(InternalError, match="the pass lower left"):
        refuse(
            found.step, found.step.slow_problems(replace(found.after, program=replace(program, ranks=ranks)))
        )
