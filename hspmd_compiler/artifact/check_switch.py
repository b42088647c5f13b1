"""Whether a decoded plan of a switch hangs together: each needer gets each element once, from a holder."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations, pairwise

from ..base.by_key import by_key
from ..base.codec import AGAIN
from ..base.comm_plan import Box, Interval, box_volume
from ..errors import ArtifactError
from ..program.check import MOST_ELEMENTS, SHOWN_PROBLEMS, ReferenceProblem
from ..program.switch_plan import Move, StatePart, SwitchClass, SwitchPlan


def check_switch_plan(
    plan: SwitchPlan,
    file: str,
    before: Collection[int],
    after: Collection[int],
    *,
    orphans: bool = False,
) -> None:
    """Raises one error that lists every problem of the plan.

    before, after: world ranks of the two strategies. orphans: elements that nobody holds may be left out.
    """
    problems = list(_problems(plan, frozenset(before), frozenset(after), orphans))
    if not problems:
        return
    shown = problems[:SHOWN_PROBLEMS]
    left = len(problems) - len(shown)
    raise ArtifactError(
        f"the plan of a switch does not hang together ({len(problems)} places)",
        at=file,
        details=[*shown, *([("...", f"{left} more")] if left else [])],
        rule="every rank that needs an element gets it exactly once, from a rank that has it",
        fix=AGAIN,
    )


def _problems(
    plan: SwitchPlan, before: frozenset[int], after: frozenset[int], orphans: bool
) -> Iterator[ReferenceProblem]:
    for index, each in enumerate(plan.classes):
        found = [*_problems_of_ranks(each, before, after, orphans), *_problems_of_parts(each.parts)]
        if not each.kinds or len(set(each.kinds)) != len(each.kinds) or each.element_bytes < 1:
            found.append(
                f"{list(each.kinds)} of {each.element_bytes} bytes are not what an element consists of"
            )
        yield from ((f"class {index}", text) for text in found or _problems_of_moves(each))
    yield from _problems_between(plan.classes)


def _problems_of_ranks(
    of: SwitchClass, before: frozenset[int], after: frozenset[int], orphans: bool
) -> Iterator[str]:
    for name, ranks, known in (("holders", of.holders, before), ("needers", of.needers, after)):
        if list(ranks) != sorted(set(ranks)) or not known.issuperset(ranks):
            yield f"{name} {list(ranks)}: not ascending ranks of {sorted(known)}"
    if of.needers and not of.holders and not orphans:
        yield f"{list(of.needers)} need what nobody holds"


def _problems_of_parts(parts: Sequence[StatePart]) -> Iterator[str]:
    if not parts:
        yield "no elements"
    for part in parts:
        if min(part.view, default=1) < 1 or math.prod(part.view) > MOST_ELEMENTS:
            yield f"{part.name}: {list(part.view)} are not the sizes of a tensor"
        if not part.boxes:
            yield f"{part.name}: no elements"
        for box in part.boxes:
            sides = zip(box, part.view, strict=False)
            if len(box) != len(part.view) or not all(0 <= low < high <= size for (low, high), size in sides):
                yield f"{part.name}: {_text(box)} is no box of {list(part.view)}"


def _problems_of_moves(of: SwitchClass) -> Iterator[str]:
    """Of a class whose ranks and elements are right."""
    size = sum(box_volume(box) for part in of.parts for box in part.boxes)
    getting = frozenset(of.needers) - frozenset(of.holders)
    wrong = [move for move in of.moves if not _is_possible(move, size, frozenset(of.holders), getting)]
    yield from (f"{_told(move)} of {size} elements: no such move can be" for move in wrong)
    if wrong:
        return
    came = by_key((move.target, move) for move in of.moves)
    direct = {
        rank: _joined((move.low, move.high) for move in came.get(rank, ()) if not move.is_relay)
        for rank in came
    }
    for move in of.moves:
        if move.is_relay and not any(
            low <= move.low and move.high <= high for low, high in direct.get(move.source, ())
        ):
            yield f"{_told(move)}: the relay never gets that"
    for rank in sorted(getting) if of.holders else ():
        ends = sorted((move.low, move.high) for move in came.get(rank, ()))
        if [(low, high) for low, high in pairwise([0, *(high for _, high in ends)])] != ends or (
            ends or [(0, 0)]
        )[-1][1] != size:
            yield f"rank {rank} gets {[list(each) for each in ends]} of {size} elements: not each once"


def _is_possible(move: Move, size: int, holders: frozenset[int], getting: frozenset[int]) -> bool:
    """Whether it goes to one that lacks the elements, from one that has or gets them."""
    sources = getting if move.is_relay else holders
    is_inside = 0 <= move.low < move.high <= size
    return is_inside and move.target in getting and move.source in sources and move.source != move.target


def _problems_between(classes: Sequence[SwitchClass]) -> Iterator[ReferenceProblem]:
    """An element is in one class of a kind only, whatever it is viewed in."""
    parts = [(part, kind) for each in classes for part in each.parts for kind in each.kinds]
    for name, of in by_key((part.name, (part, kind)) for part, kind in parts).items():
        views = {part.view for part, _ in of}
        if len(views) > 1:
            yield name, f"views {sorted(map(list, views))}: one for each name"
            continue
        for kind, boxes in by_key((kind, box) for part, kind in of for box in part.boxes).items():
            if all(len(box) == len(part.view) for part, _ in of for box in part.boxes):
                found = first_overlap(boxes)
                if found is not None:
                    yield name, f"{_text(found[0])} and {_text(found[1])} of {kind} overlap"


def first_overlap(boxes: Sequence[Box], dim: int = 0) -> tuple[Box, Box] | None:
    """Two boxes that share an element; they are the same in all dims before `dim`."""
    if len(boxes) < 2:
        return None
    if dim == len(boxes[0]):
        return boxes[0], boxes[1]
    groups = by_key((box[dim], box) for box in boxes)
    if all(one[1] <= other[0] for one, other in pairwise(sorted(groups))):
        found = (first_overlap(group, dim + 1) for group in groups.values())
        return next((pair for pair in found if pair is not None), None)
    return next((pair for pair in combinations(boxes, 2) if _share(*pair)), None)


def _share(one: Box, other: Box) -> bool:
    return all(low < end and start < high for (low, high), (start, end) in zip(one, other, strict=True))


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals in order, those that touch as one."""
    joined: list[Interval] = []
    for low, high in sorted(intervals):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined


def _told(move: Move) -> str:
    kind = "relay" if move.is_relay else "move"
    return f"{kind} [{move.low}, {move.high}) from {move.source} to {move.target}"


def _text(box: Box) -> str:
    return "[" + ", ".join(f"{low}:{high}" for low, high in box) + "]"
