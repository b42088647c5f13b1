"""The last meeting of a step: who has passed it knows that every rank has its gradients."""

from __future__ import annotations


class StepVote:
    """What rides along in the sum of the loss; this one wants nothing. paused: some rank wanted to stop."""

    def __init__(self) -> None:
        self.paused = False

    def enter(self) -> bool:
        """All gradients are there; whether to stop behind this step. May raise PeerLost."""
        return False

    def passed(self, paused: bool) -> None:
        """Every rank has entered, and the update may begin. May raise PeerLost."""
        self.paused = paused
