"""When ranks are done, by repeating the rules until nothing changes: nothing of the simulation is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from hspmd_compiler.cost_models.actions import Compute, Meet, RecvFrom, SendTo, TimedAction
from hspmd_compiler.cost_models.semantics import SendSemantics


def reference_ends(
    actions: Mapping[int, Sequence[TimedAction]], semantics: SendSemantics
) -> dict[int, float]:
    """The end of every rank's list; for lists that do not block each other, and one tag per pair of ranks."""
    done = {rank: [0.0] * len(listed) for rank, listed in actions.items()}
    sends, receives, meets = _places(actions)
    while True:
        before = {rank: list(times) for rank, times in done.items()}
        for key, here in sends.items():
            line = 0.0
            for (sender, at), (receiver, got) in zip(here, receives[key], strict=True):
                action = actions[sender][at]
                assert isinstance(action, SendTo)
                came = _before(done, sender, at)
                posted = 0.0 if semantics.posted_ahead else _before(done, receiver, got)
                start = max(came, posted, line)
                line = start + action.wire_s
                part = semantics.sender_waits(action.size_bytes)
                done[sender][at] = start + part * action.wire_s if part else came
                done[receiver][got] = max(_before(done, receiver, got), line)
        for members in meets.values():
            begin = max(_before(done, rank, at) for rank, at, _ in members)
            for rank, at, _ in members:
                done[rank][at] = begin + max(seconds for _, _, seconds in members)
        for rank, listed in actions.items():
            for at, action in enumerate(listed):
                if isinstance(action, Compute):
                    done[rank][at] = _before(done, rank, at) + action.seconds
        if done == before:
            return {rank: times[-1] if times else 0.0 for rank, times in done.items()}


def _before(done: Mapping[int, Sequence[float]], rank: int, at: int) -> float:
    return done[rank][at - 1] if at else 0.0


_At = list[tuple[int, int]]


def _places(
    actions: Mapping[int, Sequence[TimedAction]],
) -> tuple[dict[Hashable, _At], dict[Hashable, _At], dict[Hashable, list[tuple[int, int, float]]]]:
    sends: dict[Hashable, _At] = defaultdict(list)
    receives: dict[Hashable, _At] = defaultdict(list)
    meets: dict[Hashable, list[tuple[int, int, float]]] = defaultdict(list)
    for rank, listed in actions.items():
        for at, action in enumerate(listed):
            if isinstance(action, SendTo):
                sends[rank, action.peer].append((rank, at))
            elif isinstance(action, RecvFrom):
                receives[action.peer, rank].append((rank, at))
            elif isinstance(action, Meet):
                meets[action.key].append((rank, at, action.seconds))
    return sends, receives, meets
