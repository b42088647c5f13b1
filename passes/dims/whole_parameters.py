"""Parameters that tensor parallelism leaves whole, and which operator of the model keeps them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...base.log import logger
from ...ir.graph import LogicalGraph, ParamInfo, Row
from ..deduction.computed_whole import size
from .dim_flow import DimFlow
from .split_candidates import AtomPlace, find_places, is_useful
from .split_units import SplitGroup
from .term_store import Facts

MOST_NAMES = 4
UNSHARED = "no two parameter products share it"
TAKEN = "a parameter that would be split with it is split along another dim"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a dim of a parameter stays whole. at: the row that asks for it, None where none does."""

    dim: int
    why: str
    at: Row | None


@dataclass(frozen=True, slots=True)
class WholeParameter:
    """A matrix or more that no group splits.

    kept: why a dim stays whole that a parameter product gives and no group's parameter has: but for that
    operator it could be split. None where there is no such dim.
    """

    name: str
    reasons: tuple[Reason, ...]
    kept: Reason | None


def whole_parameters(
    graph: LogicalGraph, flow: DimFlow, groups: Sequence[SplitGroup]
) -> tuple[WholeParameter, ...]:
    """All of them, in the order of the model."""
    split = {member.param for group in groups for member in group.members}
    places = find_places(graph, flow)
    by_param: dict[str, list[tuple[int, AtomPlace]]] = {}
    for atom, found in places.items():
        for place in found:
            by_param.setdefault(place.param, []).append((atom, place))
    matrices = {name for name, info in graph.params.items() if len(info.shape) > 1}
    shared = {atom: {place.param for place in found} & matrices for atom, found in places.items()}
    free = {atom for atom, params in shared.items() if params.isdisjoint(split)}

    def whole(name: str) -> WholeParameter:
        own = [(flow.terms.facts(atom), atom, place.dim) for atom, place in by_param.get(name, ())]
        reasons = tuple(_reason(graph, facts, dim) for facts, _, dim in own)
        kept = [item for item in own if item[1] in free and item[0].whole_at is not None and item[0].made]
        kept.sort(key=lambda item: (not item[0].used, len(shared[item[1]])))
        return WholeParameter(name, reasons, _reason(graph, kept[0][0], kept[0][2]) if kept else None)

    infos = graph.params.values()
    return tuple(whole(p.name) for p in infos if not p.is_buffer and len(p.shape) > 1 and p.name not in split)


def _reason(graph: LogicalGraph, facts: Facts, dim: int) -> Reason:
    at = None if facts.whole_at is None else graph.rows[facts.whole_at]
    return Reason(dim, facts.whole or (TAKEN if is_useful(facts) else UNSHARED), at)


def whole_lines(found: Sequence[WholeParameter]) -> tuple[str, ...]:
    """A line for each dim of each parameter: why it stays whole, and where the model asks for it."""
    lines = [f"{item.name}  dim {reason.dim}: {_text(reason)}" for item in found for reason in item.reasons]
    return tuple(dict.fromkeys(lines)) or ("none",)


def _text(reason: Reason) -> str:
    return reason.why if reason.at is None else f"{reason.why}  {reason.at.where}".rstrip()


def warn_of_kept(graph: LogicalGraph, found: Sequence[WholeParameter]) -> None:
    """A warning per operator that keeps parameters whole, with their names and what that costs."""
    kept: dict[str, list[tuple[Reason, ParamInfo]]] = {}
    for item in found:
        if item.kept is not None and item.kept.at is not None:
            kept.setdefault(item.kept.at.op, []).append((item.kept, graph.params[item.name]))
    for op, members in kept.items():
        logger.warning("%s", _warning(op, members))


def _warning(op: str, members: Sequence[tuple[Reason, ParamInfo]]) -> str:
    reason, names = members[0][0], [info.name for _, info in members]
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    cost = sum(prod(info.shape) * info.dtype.itemsize for _, info in members)
    return (
        f"{op} keeps whole what tensor parallelism could split: {', '.join(names[:MOST_NAMES] + more)};"
        f" every rank of their stage holds and computes all {size(cost)} of them; {_text(reason)}"
    )
