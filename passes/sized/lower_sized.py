"""A strategy with `sizes`: compiled at three of them, and made one program of any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from torch import Tensor

from ...base.comm_plan import CostModel
from ...base.devices import DeviceKind
from ...base.log import task
from ...errors import TraceError
from ...ir.graph import LogicalGraph
from ...program.program import Program
from ...program.sized.sizes import Count
from ...strategy.strategy import Strategy
from ..compile_state import Traced
from ..context.share import alone
from ..lower.lower import Lowered
from ..pass_chain import Dump
from ..pipeline import planning
from .lower_shared import lower_shared
from .packed_rows import check_packed
from .probes import Probe, probes_of, range_of
from .refusals import sized_parameters, told_apart, unlike_graphs
from .same_choices import ToldCosts
from .unify import unify

Inputs = Mapping[str, Tensor]
TraceOf = Callable[[Inputs, int, bool], Traced]
"""A traced step. inputs; samples of the step; whether it is the one that texts of passes are written of."""


def lower_sized(
    inputs: Inputs,
    strategy: Strategy,
    trace: TraceOf,
    device: DeviceKind,
    cost: CostModel | None = None,
    dump: Dump | None = None,
) -> tuple[Traced, Lowered]:
    """The graph and the layouts of the first probe, and the program of all sizes.

    The end of the range comes first: there ways of communication are compared. dump: of the first probe.
    """
    unit, (low, high) = unit_of(strategy), _range(strategy)
    probes = probes_of(strategy, unit, low, high)
    told = None if cost is None else ToldCosts(cost)
    steps = TracedSteps(inputs, trace, (probes[0].tokens, rows_of_probe(probes[0])))
    made: list[Lowered] = []
    for probe in reversed(probes):
        with task(f"compile at {_size_text(probe, unit)}"):
            costs = told if told is None or not made else told.again()
            made.append(_lowered(probe, steps, device, costs, dump if probe is probes[0] else None))
    made.reverse()
    first = steps.of(probes[0])
    check_graphs(first.graph, _size_text(probes[0], unit), steps.others(unit))
    if unit is Count.TOKENS:
        with task("look for tokens that meet"):
            check_rows(probes, steps)
    with task("make one program of them"):
        for lowered in made:
            check_variants(lowered.program, first.graph)
        programs = [lowered.program for lowered in made]
        sizes = range_of(strategy, unit, low, high, probes)
        program = unify(programs, sizes, [row.where for row in first.graph.rows])
    return first, replace(made[0], program=program)


def rows_of_probe(probe: Probe) -> int:
    """Samples of the traced step: one for each micro-batch of each pipeline, also where these share rows."""
    return alone(probe.strategy).global_batch


@dataclass(slots=True)
class TracedSteps:
    """The step at several sizes, each traced once. dumped: the one that texts of passes are written of."""

    inputs: Inputs
    trace: TraceOf
    dumped: tuple[int, int]
    known: dict[tuple[int, int], Traced] = field(default_factory=dict)

    def at(self, tokens: int, rows: int) -> Traced:
        """Of rows of so many tokens; 0: as they are."""
        key = tokens, rows
        if key not in self.known:
            self.known[key] = self.trace(resized(self.inputs, tokens), rows, key == self.dumped)
        return self.known[key]

    def of(self, probe: Probe) -> Traced:
        """At the probe's tokens, of rows that one pipeline has."""
        return self.at(probe.tokens, rows_of_probe(probe))

    def others(self, unit: Count) -> list[tuple[str, LogicalGraph]]:
        """All but the dumped one, each with its size."""
        return [
            (f"{tokens or rows} {unit.value}", traced.graph)
            for (tokens, rows), traced in self.known.items()
            if (tokens, rows) != self.dumped
        ]


def _lowered(
    probe: Probe, steps: TracedSteps, device: DeviceKind, cost: CostModel | None, dump: Dump | None
) -> Lowered:
    """The program of one probe."""
    if not probe.strategy.context:
        return planning(probe.strategy, device, cost, probe.cuts).run(steps.of(probe), dump)
    rows = rows_of_probe(probe)
    return lower_shared(probe, lambda tokens: steps.at(tokens, rows).graph, device, cost, dump)


def check_rows(probes: Sequence[Probe], steps: TracedSteps) -> None:
    """Rows of packed tokens are one call on [1, N]; a fourth trace tells lengths from numbers of rows."""
    first, second = probes[:2]
    counts = [rows_of_probe(each) for each in (first, first, second)]
    lengths = [first.tokens, second.tokens, second.tokens]
    graphs = [steps.at(length, count).graph for length, count in zip(lengths, counts, strict=True)]
    check_packed(graphs, counts, lengths)


def unit_of(strategy: Strategy) -> Count:
    """What of a micro-batch varies."""
    assert strategy.sizes is not None, "a strategy with sizes"
    return Count.SAMPLES if strategy.sizes.tokens is None else Count.TOKENS


def _range(strategy: Strategy) -> tuple[int, int]:
    assert strategy.sizes is not None, "a strategy with sizes"
    return strategy.sizes.range


def _size_text(probe: Probe, unit: Count) -> str:
    micro = probe.plan.pipelines[0][0]
    return f"{micro.tokens} tokens" if unit is Count.TOKENS else f"{micro.samples} samples"


def resized(inputs: Inputs, tokens: int) -> Inputs:
    """Example inputs of rows of so many tokens; 0: as they are. Only their shapes and types are traced."""
    if not tokens:
        return inputs
    lengths = {name: value.shape[1] if value.dim() > 1 else None for name, value in inputs.items()}
    if None in lengths.values() or len(set(lengths.values())) != 1:
        raise TraceError(
            "inputs are not rows of tokens",
            details=[(name, str(list(value.shape))) for name, value in inputs.items()],
            rule="with sizes.tokens, dim 1 of every input is the tokens: [rows, tokens, ...]",
            fix="give example inputs of one length, or let the samples vary: sizes: {samples: [1, 64]}",
        )
    return {
        name: value.new_zeros(()).expand(len(value), tokens, *value.shape[2:])
        for name, value in inputs.items()
    }


def check_graphs(first: LogicalGraph, size: str, others: Sequence[tuple[str, LogicalGraph]]) -> None:
    """The traced steps are the same but for numbers, and no parameter depends on a size."""
    for other, graph in others:
        at = (size, other)
        for mine, theirs in zip_longest(first.rows, graph.rows):
            if mine is None or theirs is None or mine.op != theirs.op:
                found = tuple("nothing more" if row is None else row.op for row in (mine, theirs))
                places = [row.where for row in (mine, theirs) if row is not None and row.where]
                raise unlike_graphs(list(dict.fromkeys(places)), list(zip(at, found, strict=True)))
        held = {name: (info.shape, graph.params[name].shape) for name, info in first.params.items()}
        unlike = {name: shapes for name, shapes in held.items() if shapes[0] != shapes[1]}
        if unlike:
            raise sized_parameters(unlike, at)


def check_variants(program: Program, graph: LogicalGraph) -> None:
    """No micro-batch runs other rows than the first: a step has any number of them."""
    for shared in program.classes.values():
        by_name = {segment.name: segment for segment in shared.segments}
        for name, segment in by_name.items():
            part, _, rest = name.partition(".")
            if not rest.startswith("1"):
                continue
            first = by_name[f"{part}.0{rest[1:]}"]
            apart = [
                one.logical
                for one, two in zip(first.rows, segment.rows, strict=False)
                if (one.op, one.args, one.kwargs) != (two.op, two.args, two.kwargs)
            ]
            lines = [graph.rows[row].where for row in apart if row is not None and row < len(graph.rows)]
            raise told_apart(list(dict.fromkeys(line for line in lines if line)))
