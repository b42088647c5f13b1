"""Ranks that wait for each other for ever: the circle, named."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from ..errors import EstimateError
from .actions import AwaitSum, FinishSends, Meet, RecvFrom, SendTo, TimedAction

MOST_SHOWN = 12


def stuck(left: Mapping[int, TimedAction], meetings: Mapping[Hashable, Sequence[int]]) -> EstimateError:
    """The error for ranks that can't go on. left: what each stands at. meetings: who has come to which."""
    waits = {rank: _awaited(rank, action, left, meetings) for rank, action in left.items()}
    circle = _circle(waits)
    shown = circle or sorted(left)
    what = f"ranks {', '.join(map(str, circle))} wait for each other" if circle else _alone(shown)
    details = [(f"rank {rank}", _standing(left[rank], waits[rank])) for rank in shown[:MOST_SHOWN]]
    return EstimateError(
        f"the step never ends: {what}",
        details=details,
        rule="a message goes when both of its ends are there, and a collective when all of its ranks are",
        fix="order the instructions so that one end of each pair receives first, or let sends not wait: "
        "buffered or async",
    )


def _alone(ranks: Sequence[int]) -> str:
    names = ", ".join(str(rank) for rank in ranks[:MOST_SHOWN])
    return (
        f"nobody comes to what rank{'s' if len(ranks) > 1 else ''} {names} wait{'' if ranks[1:] else 's'} for"
    )


def _awaited(
    rank: int,
    action: TimedAction,
    left: Mapping[int, TimedAction],
    meetings: Mapping[Hashable, Sequence[int]],
) -> list[int]:
    """Ranks that have to come before the rank goes on."""
    if isinstance(action, SendTo | RecvFrom):
        return [action.peer]
    if isinstance(action, AwaitSum):
        return [one for one in action.group if one in left and one != rank]
    if isinstance(action, Meet):
        return [one for one in action.group if one not in meetings.get(action.key, ())]
    return [one for one in sorted(left) if one != rank] if isinstance(action, FinishSends) else []


def _circle(waits: Mapping[int, Sequence[int]]) -> list[int]:
    """Ranks of which each waits for the next, and the last for the first; none: empty.

    Who is not in `waits` is done and never comes.
    """
    for start in sorted(waits):
        path: list[int] = []
        rank = start
        while rank in waits and rank not in path:
            path.append(rank)
            rank = next((one for one in waits[rank] if one in waits), -1)
        if rank in path:
            return path[path.index(rank) :]
    return []


def _standing(action: TimedAction, awaited: Sequence[int]) -> str:
    """What a rank stands at."""
    name = (
        f" {action.label}"
        if isinstance(action, SendTo | RecvFrom | Meet | FinishSends) and action.label
        else ""
    )
    place = getattr(action, "position", -1)
    where = f" (instruction {place})" if place >= 0 else ""
    others = ", ".join(str(one) for one in awaited[:MOST_SHOWN])
    if isinstance(action, SendTo):
        return f"sends{name} to rank {action.peer}{where}"
    if isinstance(action, RecvFrom):
        return f"waits for{name} from rank {action.peer}{where}"
    if isinstance(action, AwaitSum):
        return f"waits for a sum with ranks {others}{where}"
    if isinstance(action, Meet):
        return f"waits in{name or ' a collective'} for ranks {others}{where}"
    return f"waits until what it sent is through{where}"
