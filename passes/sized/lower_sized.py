"""A strategy with `sizes`: compiled at three of them, and made one program of any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from ..lower.lower import Lowered
from ..pass_chain import Dump
from ..pipeline import planning
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
    made: list[tuple[Traced, Lowered]] = []
    for probe in reversed(probes):
        is_first = probe is probes[0]
        with task(f"compile at {_size_text(probe, unit)}"):
            traced = trace(resized(inputs, probe.tokens), probe.strategy.global_batch, is_first)
            costs = told if told is None or not made else told.again()
            chain = planning(probe.strategy, device, costs, probe.cuts)
            made.append((traced, chain.run(traced, dump if is_first else None)))
    made.reverse()
    check_graphs([traced.graph for traced, _ in made], probes, unit)
    if unit is Count.TOKENS:
        with task("look for tokens that meet"):
            check_rows([traced.graph for traced, _ in made], inputs, probes, trace)
    with task("make one program of them"):
        graph = made[0][0].graph
        for _, lowered in made:
            check_variants(lowered.program, graph)
        programs = [lowered.program for _, lowered in made]
        sizes = range_of(strategy, unit, low, high, probes)
        program = unify(programs, sizes, [row.where for row in graph.rows])
    return made[0][0], replace(made[0][1], program=program)


def check_rows(
    graphs: Sequence[LogicalGraph], inputs: Inputs, probes: Sequence[Probe], trace: TraceOf
) -> None:
    """Rows of packed tokens are one call on [1, N]; a fourth trace tells lengths from numbers of rows."""
    first, second = probes[:2]
    counts = [each.strategy.global_batch for each in (first, first, second)]
    lengths = [first.tokens, second.tokens, second.tokens]
    between = trace(resized(inputs, second.tokens), counts[1], False).graph
    check_packed([graphs[0], between, graphs[1]], counts, lengths)


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


def check_graphs(graphs: Sequence[LogicalGraph], probes: Sequence[Probe], unit: Count) -> None:
    """The traced steps are the same but for numbers, and no parameter depends on a size."""
    first = graphs[0]
    for graph, probe in zip(graphs[1:], probes[1:], strict=True):
        at = (_size_text(probes[0], unit), _size_text(probe, unit))
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
