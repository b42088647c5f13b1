"""Which cuts a strategy can say: of a value one run of a dim for each rank, of a parameter what overrides do.

An override splits a dim that a split group has by the group's units, any other dim in runs.
"""

from __future__ import annotations

from ...ir.graph import LogicalGraph, ParamInfo
from ...passes.deduction.placement import GraphFacts
from ...passes.dims.infer_dims import infer_dims
from ...passes.dims.split_units import Member, SplitGroup, split_groups
from .cuts import ValueCut

Members = dict[tuple[str, int], tuple[SplitGroup, Member]]


def members_of(graph: LogicalGraph, facts: GraphFacts) -> Members:
    """The groups of parameter dims, by parameter and dim."""
    groups = split_groups(graph, infer_dims(graph, facts))
    return {(member.param, member.dim): (group, member) for group in groups for member in group.members}


def is_run(cut: ValueCut) -> bool:
    """Whether each rank has one run of the dim."""
    return cut.repeats == 1


def is_said(members: Members, info: ParamInfo, cut: ValueCut) -> bool:
    """Whether an override that splits the cut's dim gives this cut of a parameter."""
    found = members.get((info.name, cut.dim))
    if found is None:
        return is_run(cut)
    group, member = found
    units, rest = divmod(group.units, cut.units)
    return not rest and list(member.rows(0, units)) == _first_unit(cut)


def _first_unit(cut: ValueCut) -> list[tuple[int, int]]:
    step = cut.units * cut.inner
    return [(place * step, place * step + cut.inner) for place in range(cut.repeats)]
