"""Which gradients are summed together, in waves, and behind which rows of a stage's backward each starts.

A wave is a run of parameters in the order of the graph's backward pass, all of one stage in each pipeline.
All ranks start waves in this one order. Nobody waits for ever, even if a start waited for its partners. A
stage waits for the gradients of the stage behind it, which come once that has started all of its own waves.
These are earlier ones: a wave ends where any pipeline goes to another stage. So of waves that are not started
by all, the first waits for nothing.

What has no such place in the backward passes of all pipelines is summed at the end: a parameter that two
stages hold, or that some pipeline makes no gradient of.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ...ir.annotated import AnnotatedRow, AnnotatedValue, PipelineGraph
from ..liveness import LivePipeline

StageKey = tuple[int, int]
"""A pipeline, and a stage of it."""
GETITEM = "getitem"
SEVERAL = "several stages of a pipeline hold it"
NONE = "a pipeline makes no gradient of it"
ORDER = "pipelines come to it in different orders"


@dataclass(frozen=True, slots=True)
class StageWaves:
    """Where waves stand in the backward pass of a stage.

    cuts: numbers of its rows behind which it is cut, ascending. starts: behind each piece, the waves that
    start there, in order.
    """

    cuts: tuple[int, ...] = ()
    starts: tuple[tuple[int, ...], ...] = ()

    def piece_of(self, row: int) -> int:
        """The piece that the row of this number is in."""
        return bisect_right(self.cuts, row)

    @property
    def every(self) -> tuple[int, ...]:
        """All waves, in order."""
        return tuple(wave for started in self.starts for wave in started)


NO_STAGE_WAVES = StageWaves()


@dataclass(frozen=True, slots=True)
class Waves:
    """of: the wave of each parameter that is in one. late: why the others aren't. note: of all of them."""

    of: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[StageKey, StageWaves] = field(default_factory=dict)
    late: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def at(self, pipeline: int, stage: int) -> StageWaves:
        """Where they stand in a stage."""
        return self.stages.get((pipeline, stage), NO_STAGE_WAVES)


@dataclass(slots=True)
class BackwardOrders:
    """Where pipelines make gradients. names: parameters whose gradients ranks sum, in the graph's order.

    live, graphs: by pipeline; those with the same rows are looked into once.
    """

    names: Sequence[str]
    graphs: Sequence[PipelineGraph]
    live: Sequence[LivePipeline]
    places: dict[str, dict[int, int]] = field(init=False)
    late: dict[str, str] = field(init=False)
    _distinct: dict[int, int] = field(init=False)
    _values: dict[int, dict[str, AnnotatedValue]] = field(init=False)

    def __post_init__(self) -> None:
        self.places, self.late, self._values = {}, {}, {}
        self._distinct = {}
        for number, graph in enumerate(self.graphs):
            self._distinct.setdefault(id(graph.rows), number)
        for number in self._distinct.values():
            self._look_into(number, self.graphs[number])
        self._find_order()

    def _look_into(self, number: int, graph: PipelineGraph) -> None:
        made: dict[str, list[int]] = {}
        held: dict[str, set[int]] = {}
        for name, stage in graph.params:
            held.setdefault(name, set()).add(stage)
        for term in graph.grads:
            made.setdefault(term.param, []).append(term.stage)
        self._values[number] = {term.param: term.value for term in graph.grads}
        for name in self.names:
            stages = made.get(name, [])
            if len(stages) > 1 or len(held.get(name, ())) > 1:
                self.late[name] = SEVERAL
            elif not stages or held[name] != {*stages}:
                self.late.setdefault(name, NONE)
            else:
                self.places.setdefault(name, {})[number] = stages[0]

    def _find_order(self) -> None:
        """Stages are come to from the last to the first, by each pipeline."""
        reached: dict[int, int] = {}
        for name in self.names:
            if name in self.late:
                continue
            if any(stage > reached.get(number, stage) for number, stage in self.places[name].items()):
                self.late[name] = ORDER
            else:
                reached |= self.places[name]

    @property
    def in_order(self) -> list[str]:
        """Parameters that all pipelines come to in one order."""
        return [name for name in self.names if name not in self.late]

    def is_apart(self, one: str, other: str) -> bool:
        """Whether some pipeline has two parameters in different stages."""
        return self.places[one] != self.places[other]

    def stages(self, waves: Sequence[Sequence[str]]) -> dict[StageKey, StageWaves]:
        """Where waves stand in all stages."""
        found: dict[StageKey, StageWaves] = {}
        known: dict[tuple[int, int, int], StageWaves] = {}
        for number, graph in enumerate(self.graphs):
            first = self._distinct[id(graph.rows)]
            for stage, live in enumerate(self.live[number].stages):
                key = (first, stage, id(live))  # what is recomputed is a pipeline's own
                if key not in known:
                    known[key] = self._stage(first, stage, live.backward, waves)
                found[number, stage] = known[key]
        return found

    def _stage(
        self, number: int, stage: int, rows: Sequence[AnnotatedRow], waves: Sequence[Sequence[str]]
    ) -> StageWaves:
        at = {row.out.id: index for index, row in enumerate(rows)}
        picks = [(at.get(row.reads[0].id, end), end) for end, row in enumerate(rows) if row.op == GETITEM]
        ends: dict[int, int] = {}
        reached = 0
        for wave, names in enumerate(waves):
            if self.places[names[0]][number] == stage:
                made = [1 + at.get(self._values[number][name].id, -1) for name in names]
                ends[wave] = reached = _behind_picks(max(reached, *made), picks)
        cuts = tuple(sorted({*ends.values()} - {0, reached}))
        starts: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
        for wave, end in ends.items():
            starts[bisect_left(cuts, end)].append(wave)
        return StageWaves(cuts, tuple(map(tuple, starts)))


def _behind_picks(end: int, picks: Sequence[tuple[int, int]]) -> int:
    """A place from `end` on where no row of several results is parted from the rows that pick them."""
    while parted := [pick + 1 for row, pick in picks if row < end <= pick]:
        end = max(parted)
    return end


def find_waves(orders: BackwardOrders, runs: Sequence[Sequence[str]]) -> Waves:
    """The waves of these runs of parameters; none where no stage would start one before its pass ends."""
    stages = orders.stages(runs)
    if not any(stage.cuts for stage in stages.values()):
        return Waves(late=orders.late)
    of = {name: wave for wave, names in enumerate(runs) for name in names}
    return Waves(of, stages, orders.late)


def cut_runs(orders: BackwardOrders, sizes: Mapping[str, int], first: int, most: int) -> list[list[str]]:
    """Runs of at most so many bytes, or of one parameter; the first one has its own limit.

    A run ends where a pipeline goes from one stage to the one before.
    """
    runs: list[list[str]] = []
    size = 0
    names = orders.in_order
    for before, name in pairwise(["", *names]):
        limit = first if len(runs) == 1 else most
        if not runs or orders.is_apart(before, name) or size + sizes[name] > limit:
            runs.append([])
            size = 0
        runs[-1].append(name)
        size += sizes[name]
    return runs


def same_runs(orders: BackwardOrders, given: Sequence[Collection[str]]) -> list[list[str]]:
    """The runs that another compile of the same model and strategy chose."""
    wave = {name: number for number, names in enumerate(given) for name in names}
    runs: dict[int, list[str]] = {}
    for name in orders.in_order:
        if name in wave:
            runs.setdefault(wave[name], []).append(name)
    return [names for _, names in sorted(runs.items())]


def waves_lines(waves: Waves) -> Iterator[tuple[str, ...]]:
    """Per wave and stage where it starts; what starts in none, and why."""
    for (pipeline, stage), held in sorted(waves.stages.items()):
        for piece, started in enumerate(held.starts):
            if started:
                behind = f"behind row {held.cuts[piece]}" if piece < len(held.cuts) else "behind all rows"
                text = ", ".join(map(str, started))
                yield f"pipeline {pipeline}, stage {stage}", f"starts waves {text}", behind
    for name, why in sorted(waves.late.items()) if waves.of else ():
        yield name, "is summed at the end", why
    if waves.note:
        yield "no sum starts before the end", waves.note
