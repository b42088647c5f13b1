"""A rank's side of an elastic run: hears orders and beats in a thread, enters and leaves generations."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Condition, Thread

from ..transport import PeerLost
from .meeting import MakeBackend, Making, MeetingPlace, Ranks, make_gloo, show
from .messages import Abort, Beat, Downward, Finish, Lines, NextGeneration, Pause, Upward
from .wake import Backend, Wake

BEAT_S = 0.5
READ_SIZE = 1 << 16
NONE_YET = -1

Tell = Callable[[Upward], None]


class Agent:
    """Knows the generation that this process is in. control: read end of the launcher's pipe; at its end, the
    process ends. report: tells the launcher; any thread may. pausing: whether to stop after this step."""

    def __init__(
        self, id: int, control: int, report: Tell, wake: Wake, make: MakeBackend = make_gloo
    ) -> None:
        self.id = id
        self.report = report
        self.pausing = False
        self._wake = wake
        self._make = make
        self._control = control
        self._generation = self._aborted = NONE_YET
        self._backends: list[Backend] = []
        self._orders: deque[NextGeneration | Finish] = deque()
        self._changed = Condition()
        wake.prepare()
        Thread(target=self._watch, name="hspmd-agent", daemon=True).start()

    def next_order(self) -> NextGeneration | Finish:
        """The launcher's next order; it may be about a generation that is over by now."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders)
            return self._orders.popleft()

    def join(self, order: NextGeneration, groups: Sequence[Ranks], timeout: timedelta) -> None:
        """Enter the generation of an order: torch.distributed has its groups then. PeerLost if it is over."""
        place = MeetingPlace(
            order.generation,
            order.rank_of(self.id),
            len(order.world),
            order.address,
            order.port,
            timeout,
        )
        making = Making(place, groups, self._changed, self._make)
        with self._changed:
            self._generation = order.generation
            self.pausing = False
            self._wake.joined()
        making.start()
        with self._changed:
            self._changed.wait_for(lambda: making.is_over or self._aborted >= order.generation)
            self._check_joined(making, order.generation)
            self._backends = list(making.made.values())
            show(making.made, place)

    def _check_joined(self, making: Making, generation: int) -> None:
        if self._aborted >= generation:
            raise PeerLost(f"generation {generation} ended before all had come")
        if making.error is not None:
            reason = str(making.error).strip().splitlines() or [type(making.error).__name__]
            raise PeerLost(
                f"the groups of generation {generation} can't be made", details=[("reason", reason[0])]
            ) from making.error

    def leave(self) -> None:
        """Let go of the generation's groups; what still waits in them raises."""
        with self._changed:
            self._backends = []
            self._wake.leave()

    def is_over(self, generation: int) -> bool:
        """Whether the launcher has ended a generation."""
        return self._aborted >= generation

    def check(self) -> None:
        """PeerLost where the generation is over, whatever its collectives have given."""
        self._wake.check()

    # In the thread of the agent

    def _watch(self) -> None:
        lines = Lines()
        while True:
            ready, _, _ = select.select([self._control], [], [], BEAT_S)
            data = os.read(self._control, READ_SIZE) if ready else b""
            if ready and not data:
                os._exit(1)  # the launcher is gone
            for message in lines.take(data):
                self._hear(message)
            self._beat()

    def _beat(self) -> None:
        try:
            self.report(Beat())
        except BrokenPipeError:
            os._exit(1)  # the launcher is gone

    def _hear(self, message: Upward | Downward) -> None:
        with self._changed:
            if isinstance(message, Abort):
                self._aborted = max(self._aborted, message.generation)
                if self._generation <= message.generation:
                    self._wake.wake(self._backends)
            elif isinstance(message, Pause):
                self.pausing = True
            elif isinstance(message, NextGeneration | Finish):
                self._orders.append(message)
            self._changed.notify_all()
