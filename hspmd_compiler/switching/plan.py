"""From the programs of two strategies to the plan of a switch."""

from __future__ import annotations

from collections.abc import Sequence

from ..base.collection import without_collection
from ..program.boxes import volume
from ..program.switch_plan import Move, SwitchClass, SwitchPlan, SwitchScope
from .element_classes import ElementClass, element_classes
from .kept_state import KeptState, Programs
from .least_load import least_load
from .links import SwitchLinks
from .sender_rules import SenderRule, SliceSenders
from .unplannable import check_same_parameters, refuse_orphans


def plan_switch(
    before: Programs,
    after: Programs,
    links: SwitchLinks,
    *,
    names: tuple[str, str] = ("", ""),
    scope: SwitchScope = SwitchScope.STATE,
    moments: tuple[str, ...] = (),
    rule: SenderRule = SenderRule.LEAST_LOAD,
    missing_ok: bool = False,
) -> SwitchPlan:
    """Who sends what to whom; equal programs give equal plans.

    before, after: by world rank; a lost rank is left out of `before`. moments: those that the optimizer
    keeps, by torch's names; none before its first step. missing_ok: classes that nobody holds stay in the
    plan without moves (`SwitchPlan.orphans`). SwitchError: such classes, and parameters that differ, all of
    them.
    """
    with without_collection():
        kept = KeptState.of(before, after)
        check_same_parameters(kept, names)
        classes = list(element_classes(kept, scope, moments))
        if not missing_ok:
            refuse_orphans(classes, names)
        moves = _moves(classes, kept.order, links, rule)
        made = (
            SwitchClass(each.kinds, each.element_bytes, each.holders, each.needers, tuple(each.parts), own)
            for each, own in zip(classes, moves, strict=True)
        )
        return SwitchPlan(names[0], names[1], scope, tuple(made))


def _moves(
    classes: Sequence[ElementClass], order: dict[str, int], links: SwitchLinks, rule: SenderRule
) -> list[tuple[Move, ...]]:
    if rule is SenderRule.LEAST_LOAD:
        return least_load([each.demand for each in classes], links)
    senders = SliceSenders(rule, links.nodes)
    found: list[list[Move]] = [[] for _ in classes]
    for _, number, low, high in sorted(_slices(classes, order)):
        each = classes[number]
        if each.holders:
            chosen = senders.choose(high - low, each.holders, each.needers)
            found[number] += [Move(source, target, low, high) for target, source in chosen.items()]
    return [_joined(moves) for moves in found]


def _slices(
    classes: Sequence[ElementClass], order: dict[str, int]
) -> list[tuple[tuple[object, ...], int, int, int]]:
    """Every box of a parameter: its place in the model, its class, and its elements there."""
    found: list[tuple[tuple[object, ...], int, int, int]] = []
    for number, each in enumerate(classes):
        start = 0
        for part in each.parts:
            for box in part.boxes:
                stop = start + volume((box,))
                found.append(((order[part.name], each.kinds, box), number, start, stop))
                start = stop
    return found


def _joined(moves: Sequence[Move]) -> tuple[Move, ...]:
    """Moves between the same two ranks of elements that follow each other, as one."""
    by_pair: dict[tuple[int, int], list[Move]] = {}
    for move in sorted(moves, key=lambda each: (each.target, each.source, each.low)):
        alike = by_pair.setdefault((move.target, move.source), [])
        if alike and alike[-1].high == move.low:
            alike[-1] = Move(move.source, move.target, alike[-1].low, move.high)
        else:
            alike.append(move)
    return tuple(move for alike in by_pair.values() for move in alike)
