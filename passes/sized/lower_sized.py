"""A strategy with `sizes`: compiled at three of them, and made one program of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...base.comm_plan import CostModel
from ...base.devices import DeviceKind
from ...base.log import task
from ...ir.graph import LogicalGraph
from ...program.program import Program
from ...program.sized.sizes import Count
from ...strategy.strategy import Strategy
from ..compile_state import Traced
from ..lower.lower import Lowered
from ..pass_chain import Dump
from ..pipeline import planning
from .lower_shared import lower_shared
from .packed_rows import check_packed
from .probe_graphs import ProbeGraphs, StepSource, rows_of_probe, size_text
from .probes import Probe, probes_of, range_of
from .refusals import told_apart
from .same_choices import ToldCosts
from .unify import unify


def lower_sized(
    step: StepSource,
    strategy: Strategy,
    device: DeviceKind,
    cost: CostModel | None = None,
    dump: Dump | None = None,
) -> tuple[Traced, Lowered]:
    """The graph and the layouts of the first probe, and the program of all sizes.

    The end of the range comes first: there ways of communication are compared. dump: of the first probe.
    """
    unit, (low, high) = unit_of(strategy), _range(strategy)
    probes = probes_of(strategy, unit, low, high)
    dump = Dump(None) if dump is None else dump
    with task("trace at both ends"):
        graphs = ProbeGraphs.of(step, probes, unit, dump)
    told = None if cost is None else ToldCosts(cost)
    made: list[Lowered] = []
    for probe in reversed(probes):
        with task(f"compile at {size_text(probe, unit)}"):
            costs = told if told is None or not made else told.again()
            made.append(_lowered(probe, graphs, device, costs, dump if probe is probes[0] else None))
    made.reverse()
    if unit is Count.TOKENS:
        with task("look for tokens that meet"):
            check_rows(graphs, probes)
    first = graphs.of_probe(probes[0])
    with task("make one program of them"):
        for lowered in made:
            check_variants(lowered.program, first)
        programs = [lowered.program for lowered in made]
        sizes = range_of(strategy, unit, low, high, probes)
        kept = [lowered.kept for lowered in made]
        program = unify(programs, sizes, [row.where for row in first.rows], kept)
    return Traced(first, graphs.how), replace(made[0], program=program)


def _lowered(
    probe: Probe, graphs: ProbeGraphs, device: DeviceKind, cost: CostModel | None, dump: Dump | None
) -> Lowered:
    """The program of one probe."""
    if not probe.strategy.context:
        return planning(probe.strategy, device, cost, probe.cuts).run(Traced(graphs.of_probe(probe)), dump)
    rows = rows_of_probe(probe)
    return lower_shared(probe, lambda tokens: graphs.at(tokens, rows), device, cost, dump)


def check_rows(graphs: ProbeGraphs, probes: Sequence[Probe]) -> None:
    """Rows of packed tokens are one call on [1, N]; a step between both ends tells lengths from numbers of
    rows."""
    first, last = probes[0], probes[-1]
    counts = [rows_of_probe(each) for each in (first, first, last)]
    lengths = [first.tokens, last.tokens, last.tokens]
    check_packed([graphs.at(*each) for each in zip(lengths, counts, strict=True)], counts, lengths)


def unit_of(strategy: Strategy) -> Count:
    """What of a micro-batch varies."""
    assert strategy.sizes is not None, "a strategy with sizes"
    return Count.SAMPLES if strategy.sizes.tokens is None else Count.TOKENS


def _range(strategy: Strategy) -> tuple[int, int]:
    assert strategy.sizes is not None, "a strategy with sizes"
    return strategy.sizes.range


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
