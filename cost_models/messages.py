"""Messages of a simulated step: who has posted which end of them, and when they are on the wire."""

from __future__ import annotations


class TimedMessage:
    """One message: when its ends posted it, and when it is on the wire once both have."""

    __slots__ = ("end", "posted", "receiver_waits", "sender_waits", "sent", "size", "start", "wire")

    def __init__(self) -> None:
        self.sent = self.posted = self.start = self.end = -1.0
        self.wire = 0.0
        self.size = 0
        self.sender_waits = self.receiver_waits = False


class TimedChannel:
    """The messages of one (sender, receiver, tag), and how many were sent, posted and waited for."""

    __slots__ = ("messages", "posted", "received", "sent")

    def __init__(self) -> None:
        self.messages: list[TimedMessage] = []
        self.sent = self.posted = self.received = 0

    def at(self, index: int) -> TimedMessage:
        if index == len(self.messages):
            self.messages.append(TimedMessage())
        return self.messages[index]
