"""Steps of communication that depend on the micro-batch: a program's own numbers, filled with sizes."""

from __future__ import annotations

from typing import Protocol

from ...base.comm_plan import CommStep


class StepTables(Protocol):
    """What the slots of comm rows and of transfers stand for, by micro-batch; -1: of the step."""

    def comm(self, slot: int, mb: int) -> CommStep:
        """Of a `comm` row or a STEP_REDUCE."""

    def transfer(self, slot: int, mb: int) -> CommStep:
        """Of a SEND or RECV."""
