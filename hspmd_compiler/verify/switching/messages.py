"""A switch of all ranks without numbers: what each sends is what the other awaits, and the memory of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...errors import VerifyError
from ...program.switch_plan import GRAD, SwitchPlan, SwitchScope
from ...runtime.switching.held import StateLayout, TensorKey
from ...runtime.switching.stages import CarryStage, CarryStages, stages_of
from ...runtime.switching.streams import Parcel
from .mail import FIX, deliver


@dataclass(frozen=True, slots=True)
class SwitchMemory:
    """Of the rank that needs most during a switch: its state before, and the most that it takes at a time."""

    world_rank: int
    before_bytes: int
    peak_bytes: int


@dataclass(slots=True)
class _RankStages:
    """One rank's switch by its elements."""

    stages: Iterator[CarryStage]
    arriving: Mapping[int, Parcel] | None = field(default=None)

    def go_on(self) -> Mapping[int, Parcel]:
        for stage in self.stages:
            if stage.sends or stage.receives:
                self.arriving = stage.receives
                return stage.sends
        self.arriving = None
        return {}


def check_messages(
    plan: SwitchPlan,
    before: Mapping[int, StateLayout],
    after: Mapping[int, StateLayout],
    moments: tuple[str, ...],
) -> SwitchMemory:
    """A VerifyError where ranks mean other elements by a message, or wait for each other.

    before, after: of all world ranks. moments: that the optimizer keeps.
    """
    stages = {
        rank: stages_of(plan, rank, before[rank], after[rank], _held(before[rank], plan.scope, moments))
        for rank in before
    }
    title = f"the switch {plan.source}:{plan.target} ({plan.scope.value})"

    def hand(sender: int, receiver: int, sent: Parcel, awaited: Parcel) -> None:
        if sent != awaited:
            raise VerifyError(
                f"ranks of {title} mean other elements by the same message",
                details=[
                    (f"world rank {sender} sends", _told(sent)),
                    (f"world rank {receiver} awaits", _told(awaited)),
                ],
                fix=FIX,
            )

    deliver(title, {rank: _RankStages(iter(own.stages)) for rank, own in stages.items()}, hand)
    return _largest(stages, keeps=plan.scope is not SwitchScope.STATE)


def _held(layout: StateLayout, scope: SwitchScope, moments: tuple[str, ...]) -> list[TensorKey]:
    """What a rank holds when the switch begins, after some step."""
    if scope is SwitchScope.GRADS:
        return [(name, GRAD) for name in layout.gradients if layout.size_bytes((name, GRAD))]
    return [key for key, _ in layout.needs(SwitchScope.STATE, moments)]


def _largest(stages: Mapping[int, CarryStages], keeps: bool) -> SwitchMemory:
    peaks = {rank: own.peak_bytes(keeps) for rank, own in stages.items()}
    rank = max(peaks, key=lambda each: peaks[each])
    return SwitchMemory(rank, stages[rank].bytes_before, peaks[rank])


def _told(parcel: Parcel) -> str:
    return ", ".join(f"{each.part.name} [{each.low}, {each.high})" for each in parcel[:3])
