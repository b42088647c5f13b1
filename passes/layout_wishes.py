"""Binds the layouts of a strategy to the anchors of a graph; anchors that nothing is asked of vanish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from ..annotations.states import DistributedStates
from ..errors import StrategyError
from ..ir.anchor_rows import AnchorPlace, anchors_of, keep_anchors
from ..ir.graph import LogicalGraph, Row
from ..ir.own_names import anchor_name
from ..ir.printer import aligned
from ..strategy.strategy import StageSpec, Strategy
from ..strategy.wish_states import wish_states

MOST_SHOWN = 12


def bind_layouts(graph: LogicalGraph, strategy: Strategy) -> LogicalGraph:
    """The graph with the strategy's wishes in its anchors; what is bound already stays as it is.

    StrategyError: a wish names no anchor, or doesn't fit what it names.
    """
    places = anchors_of(graph)
    if not places and not strategy.layouts:
        return graph
    refuse_unmatched(strategy, places)
    counting = _counting(strategy, places)
    graph = keep_anchors(graph, counting.__contains__)
    _refuse_unfit(graph, strategy, counting)
    return replace(graph, rows=[_bound(row, strategy, counting) for row in graph.rows])


def _counting(strategy: Strategy, places: Sequence[AnchorPlace]) -> dict[str, int]:
    """The number of the wish that counts at each anchor: the last that names it."""
    return {
        place.name: number
        for number, wish in enumerate(strategy.layouts)
        for place in places
        if wish.names(place.name)
    }


def _bound(row: Row, strategy: Strategy, counting: Mapping[str, int]) -> Row:
    name = anchor_name(row)
    if name is None:
        return row
    number = counting[name]
    return replace(row, args=(row.args[0], name, strategy.layouts[number].to, f"layouts[{number}]"))


def unmatched(strategy: Strategy, places: Sequence[AnchorPlace]) -> list[int]:
    """Numbers of the wishes that name no anchor."""
    return [
        number
        for number, wish in enumerate(strategy.layouts)
        if not any(wish.names(place.name) for place in places)
    ]


def refuse_unmatched(strategy: Strategy, places: Sequence[AnchorPlace]) -> None:
    """A StrategyError that lists, for each wish that names nothing, the anchors that are called nearly so."""
    missing = unmatched(strategy, places)
    if missing:
        details = [row for number in missing for row in _near(number, strategy.layouts[number].at, places)]
        raise StrategyError(
            f"layouts of the strategy name no place of the model: {len(missing)}",
            details=details,
            rule="`at` is a glob over whole names of anchors, which stand behind calls that make new values",
            fix="see all names with `hspmd trace MODEL --anchors`",
        )


def _near(number: int, at: str, places: Sequence[AnchorPlace]) -> Iterator[tuple[str, str]]:
    yield f"layouts[{number}].at", f"{at!r}"
    first = {_last_part(place.name): place for place in reversed(places)}
    for part in get_close_matches(_last_part(at), first, n=3, cutoff=0.5):
        place = first[part]
        yield "near", f"{place.name}  {list(place.shape)}  {place.where}".rstrip()


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def _refuse_unfit(graph: LogicalGraph, strategy: Strategy, counting: Mapping[str, int]) -> None:
    found = list(_misfits(anchors_of(graph), strategy, counting))
    if found:
        shown = [
            *found[:MOST_SHOWN],
            *([("...", f"{len(found) - MOST_SHOWN} more")][: len(found) > MOST_SHOWN]),
        ]
        raise StrategyError(
            f"layouts of the strategy don't fit the values that they name: {len(found)}",
            details=shown,
            rule="a split names a dim of the value, and states are for as many ranks as each stage has that "
            "computes it",
            fix="narrow the glob to what fits, or write S2, D or P alone, which fit any number of ranks",
        )


def _misfits(
    places: Iterable[AnchorPlace], strategy: Strategy, counting: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    for place in places:
        number = counting[place.name]
        wish, key = strategy.layouts[number], f"layouts[{number}]"
        at = f"at {place.name} {list(place.shape)}  {place.where}".rstrip()
        for stage in _stages_of(place, strategy):
            states = wish_states(wish.to, stage.tp, stage.shares)
            if states is None:
                devices = ",".join(map(str, stage.devices))
                yield key, f"{wish.to!r} is not for the {stage.tp} ranks of the stage [{devices}], {at}"
                continue
            high = _dims_beyond(states, len(place.shape))
            if high:
                yield key, f"{wish.to!r} splits dim {high[0]} of a value with {len(place.shape)} dims, {at}"
                break


def _dims_beyond(states: DistributedStates, dims: int) -> list[int]:
    return [split.dim for split in states.splits if split.dim >= dims]


def _stages_of(place: AnchorPlace, strategy: Strategy) -> Iterator[StageSpec]:
    """The stages that surely compute it; outside the layers deduction finds them."""
    for pipeline in strategy.pipelines:
        for stage in pipeline.stages:
            inside = place.layer is not None and stage.layers[0] <= place.layer < stage.layers[1]
            if inside or len(pipeline.stages) == 1:
                yield stage


def wish_lines(graph: LogicalGraph) -> list[str]:
    """For people: each anchor with what is asked for there."""
    rows = {place.row: place for place in anchors_of(graph)}
    return list(
        aligned(
            [
                (
                    place.name,
                    f"[{','.join(map(str, place.shape))}]",
                    f"<{graph.rows[row].args[2]}>",
                    place.where,
                )
                for row, place in rows.items()
            ]
        )
    )
