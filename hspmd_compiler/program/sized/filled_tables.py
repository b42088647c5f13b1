"""A rank's steps of communication and the sizes in its code, in numbers, for the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...base.comm_plan import CommStep
from ...errors import InternalError
from ..boxes import received_volumes, sent_volumes
from ..program import RankProgram
from .comm_numbers import placed
from .recent import Recent
from .sizes import Count, MicroSizes, Overlay, Size

MOST_SIZES = 64
"""Distinct sizes of micro-batches of which a rank keeps the numbers."""


@dataclass(slots=True)
class SizedStep:
    """A step of communication and what of it varies; slots with equal ones share it.

    varying: the overlay with sizes by their numbers.
    """

    step: CommStep
    overlay: Overlay
    varying: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class _Numbers:
    """What was asked for of one size. values: by number of each distinct size."""

    micro: MicroSizes
    values: list[int]
    steps: dict[int, CommStep] = field(default_factory=dict)
    arguments: dict[int, tuple[int, ...]] = field(default_factory=dict)
    moves_all: bool | None = None


class FilledTables:
    """StepTables of a rank; `choose` says for which micro-batches.

    segments: the sizes that each segment of the rank's class takes.
    """

    def __init__(self, own: RankProgram, segments: Sequence[Sequence[Size]], most: int = MOST_SIZES) -> None:
        sized = own.sized
        if sized is None:
            raise InternalError(f"rank {own.rank} has no sizes that vary")
        shared: dict[tuple[CommStep, Overlay], SizedStep] = {}
        self._own = own
        self._comms = _shared(own.comms, sized.comms, shared)
        self._transfers = _shared(own.transfers, sized.transfers, shared)
        self._sizes: dict[Size, int] = {}
        self._segments = [tuple([self._number(size) for size in sizes]) for sizes in segments]
        for each in shared.values():
            each.varying = tuple([(place, self._number(size)) for place, size in each.overlay])
        self._between_cuts = [
            each for each in shared.values() if any(_is_between_cuts(size) for _, size in each.overlay)
        ]
        self._reads_total = any(_reads_total(size) for size in self._sizes)
        self._known: Recent[tuple[MicroSizes, int], _Numbers] = Recent(most)
        self._chosen: list[_Numbers] = []

    def choose(self, micros: Sequence[MicroSizes], total: int) -> None:
        """Of these micro-batches from now on. total: what `Count.ALL` counts.

        An OptionError where a step between unlike cuts can't take one of them: before anything moves.
        """
        asked = total if self._reads_total else 0
        self._chosen = [self._of(micro.shape, asked) for micro in micros]
        for sized in self._between_cuts:
            for mb in range(len(micros)):
                self._filled(sized, mb)

    def moves_all(self) -> bool:
        """Whether each message of each micro-batch has something for, and from, all ranks that it is between.

        Pieces without a token move nothing: nothing arrives then that would tell what has been received.
        """
        return all(self._moves_all(mb) for mb in range(len(self._chosen)))

    def _moves_all(self, mb: int) -> bool:
        numbers = self._chosen[mb]
        if numbers.moves_all is None:
            pairs = [(each.step, self._filled(each, mb)) for each in self._transfers]
            numbers.moves_all = all(_between(first) == _between(made) for first, made in pairs)
        return numbers.moves_all

    def comm(self, slot: int, mb: int) -> CommStep:
        """See StepTables."""
        return self._own.comms[slot] if mb < 0 else self._filled(self._comms[slot], mb)

    def transfer(self, slot: int, mb: int) -> CommStep:
        """See StepTables."""
        return self._filled(self._transfers[slot], mb)

    def arguments(self, segment: int, mb: int) -> tuple[int, ...]:
        """What a segment takes first."""
        numbers = self._chosen[mb]
        found = numbers.arguments.get(segment)
        if found is None:
            found = tuple([numbers.values[number] for number in self._segments[segment]])
            numbers.arguments[segment] = found
        return found

    def _of(self, micro: MicroSizes, total: int) -> _Numbers:
        def made() -> _Numbers:
            return _Numbers(micro, [size.at(micro, total) for size in self._sizes])

        return self._known.get((micro, total), made)

    def _number(self, size: Size) -> int:
        """Of a size among the distinct ones, of which a rank has few."""
        return self._sizes.setdefault(size, len(self._sizes))

    def _filled(self, sized: SizedStep, mb: int) -> CommStep:
        if not sized.varying:
            return sized.step
        numbers = self._chosen[mb]
        found = numbers.steps.get(id(sized))
        if found is None:
            varying = [(place, numbers.values[number]) for place, number in sized.varying]
            found = numbers.steps[id(sized)] = placed(sized.step, varying, numbers.micro)
        return found


def _shared(
    steps: Sequence[CommStep],
    overlays: Sequence[Overlay],
    known: dict[tuple[CommStep, Overlay], SizedStep],
) -> list[SizedStep]:
    """By slot; layers repeat each other's steps, but for their ids."""
    return [known.setdefault(key, SizedStep(*key)) for key in zip(steps, overlays, strict=True)]


def _between(step: CommStep) -> tuple[set[int], set[int]]:
    """The ranks that get something, and those that give something."""
    volumes = sent_volumes(step), received_volumes(step)
    sent, received = ({peer for peer, size in each.items() if size} for each in volumes)
    return sent, received


def _is_between_cuts(size: Size) -> bool:
    return size.minus is not None and size.minus.parts != size.parts


def _reads_total(size: Size) -> bool:
    return size.of is Count.ALL or (size.minus is not None and _reads_total(size.minus))
