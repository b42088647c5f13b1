"""Whether what a rank lets go of has been received, as far as the rank can know."""

from __future__ import annotations

from ...errors import VerifyError
from ...program.requests import Recv
from .blocked import RankRun, V
from .matching import OURS

RULE = "a rank lets go of what it sent when each receiver has received it and has been heard of since"


class Receipts:
    """What each rank has sent and received so far, and how much of it others have heard of."""

    def __init__(self) -> None:
        self._sent: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self._received: dict[int, dict[int, int]] = {}
        self._heard: dict[tuple[int, int], int] = {}
        self._over: dict[int, int] = {}

    def sent(self, rank: int, tag: int, receivers: tuple[int, ...]) -> int:
        """A message leaves; how many the rank has received before, which travels with it."""
        self._sent.setdefault(rank, []).append((tag, receivers))
        return len(self._received.get(rank, ()))

    def received(self, run: RankRun[V], request: Recv, known: dict[int, int]) -> None:
        """Messages arrive. known: by sender, what travelled along. VerifyError for a wrong `over`."""
        mine = self._received.setdefault(run.rank, {})
        mine[request.tag] = len(mine)
        for sender, count in known.items():
            self._heard[run.rank, sender] = max(count, self._heard.get((run.rank, sender), 0))
        listed, done = self._sent.get(run.rank, []), self._over.get(run.rank, 0)
        if request.over > len(listed):
            raise _wrong(run, f"{request.over} sends are over of {len(listed)}")
        for tag, receivers in listed[done : max(done, request.over)]:
            for receiver in receivers:
                place = self._received.get(receiver, {}).get(tag)
                if place is None or place >= self._heard.get((run.rank, receiver), 0):
                    raise _wrong(run, f"rank {receiver} may not have received tag {tag} yet")
        self._over[run.rank] = max(done, request.over)


def _wrong(run: RankRun[V], what: str) -> VerifyError:
    return VerifyError(
        f"rank {run.rank} lets go of a message too early: {what}",
        details=[("tensor", run.tensor()), (f"rank {run.rank}", run.doing())],
        rule=RULE,
        fix=OURS,
    )
