"""Pipelines that share samples of one length, of which some have no tokens.

Deduction takes a dim of size 0 for one that nothing cuts. So the strategy is compiled at lengths at which all
members have tokens, and the program is what its numbers are at those that are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from ...base.comm_plan import CostModel
from ...base.context import row_pieces
from ...base.devices import DeviceKind
from ...errors import InternalError
from ...ir.graph import LogicalGraph
from ...program.program import Program
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Count, MicroSizes
from ...program.sized.step_plan import StepPlan
from ...strategy.strategy import Strategy
from ..context.lengths import LengthGraphs
from ..context.share import Runs, Sharing
from ..context.token_rows import TokenRows, token_rows
from ..lower.lower import Lowered
from ..pass_chain import Dump
from .explain import AmbiguousSize
from .lower_shared import lower_shared
from .probes import TRIES, Probe, cuts_of, degrees_of, groups_of, least_size, shared_micros
from .program_at import program_at
from .same_choices import ToldCosts


def has_empty_members(strategy: Strategy) -> bool:
    """Whether some pipeline has none of the tokens of the samples that it shares."""
    return any(0 in spec.lengths for spec in strategy.context)


def lower_empty_members(
    graphs: LengthGraphs,
    whole: LogicalGraph,
    strategy: Strategy,
    device: DeviceKind = DeviceKind.CPU,
    cost: CostModel | None = None,
    dump: Dump | None = None,
) -> Lowered:
    """The programs of all ranks; see `share_sequences`."""
    rows = token_rows(graphs)
    sharing = Sharing(graphs, whole, strategy, device, cost, dump or Dump(None))
    runs, told = sharing.runs(), None if cost is None else ToldCosts(cost)
    for attempt in range(TRIES):
        probes = _probes(strategy, attempt)
        if len(probes) < 3:
            continue
        made: list[Lowered] = []
        for probe in reversed(probes):
            costs = told if told is None or not (made or attempt) else told.again()
            to = dump if probe is probes[0] else None
            made.append(lower_shared(probe, graphs.at, device, costs, to, rows))
        made.reverse()
        try:
            programs = [lowered.program for lowered in made]
            program = program_at(programs, _range(strategy, probes), _asked(strategy, graphs.tokens[2]))
        except AmbiguousSize:
            continue
        program = _keeping(program, replace(sharing, strategy=_nearest(strategy)), rows, runs)
        return replace(made[0], program=sharing.whole_program(program, rows, runs))
    raise InternalError("no lengths tell apart what members have")


def _nearest(strategy: Strategy) -> Strategy:
    """The strategy in which members without tokens have one."""
    context = [
        replace(spec, lengths=tuple(max(each, 1) for each in spec.lengths)) for spec in strategy.context
    ]
    return replace(strategy, context=tuple(context))


def _keeping(program: Program, near: Sharing, rows: TokenRows, runs: Sequence[Runs]) -> Program:
    """The program with the bytes that ranks keep: those where the others have the same tokens, or none."""
    kept = {own.rank: own.saved for own in near.lowered(rows, near.runs()).program.ranks}
    empty = [not any(low < high for low, high in own) for own in runs]
    ranks = [
        replace(own, saved=[0] * len(own.saved) if empty[own.pipeline] else kept[own.rank])
        for own in program.ranks
    ]
    return replace(program, ranks=ranks)


def _asked(strategy: Strategy, tokens: int) -> list[MicroSizes]:
    """What each pipeline has, in the samples of the strategy."""
    found = []
    for number in range(len(strategy.pipelines)):
        spec = strategy.context_of(number)
        if spec is None:
            found.append(MicroSizes(1, tokens))
            continue
        own = spec.runs(tokens)[spec.pipelines.index(number)]
        ring = row_pieces(spec.lengths_of(tokens), spec.cut)
        found.append(MicroSizes(1, sum(high - low for low, high in own), ring=ring))
    return found


def _probes(strategy: Strategy, attempt: int) -> list[Probe]:
    """Compiles at three lengths, or fewer where chance finds no unlike pieces. All keep its micro-batches."""
    degrees, drawn = degrees_of(strategy, Count.TOKENS), Random(attempt)
    least = least_size(strategy, degrees) + 7 * attempt
    found = []
    for number, size in enumerate((least, 2 * least + 3, 5 * least + 7)):
        cuts, shared = cuts_of(size, degrees, number), shared_micros(strategy, size, degrees, number, drawn)
        if cuts is None or shared is None:
            break
        alone = MicroSizes(1, size, tuple(cuts.values()))
        micros = [(shared.get(each, alone),) for each in range(len(strategy.pipelines))]
        found.append(Probe(StepPlan(tuple(micros)), strategy, size, cuts))
    return found


def _range(strategy: Strategy, probes: list[Probe]) -> SizeRange:
    return SizeRange(
        Count.TOKENS,
        probes[0].tokens,
        probes[-1].tokens,
        tuple(probe.plan for probe in probes),
        tuple(len(pipeline.stages) for pipeline in strategy.pipelines),
        strategy.schedule,
        degrees_of(strategy, Count.TOKENS),
        groups_of(strategy),
    )
