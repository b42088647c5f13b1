"""One rank's switch in stages: tensors that begin, what is copied, sent and received, tensors that end.

Stages hold memory down: a tensor of the next strategy begins where its first elements come, one of the last
ends where its last elements are copied or sent. Tensors whose place is the same under both are handed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from ...base.name_groups import shortened
from ...errors import InternalError
from ...program.boxes import volume
from ...program.program import Shard
from ...program.state.state_elements import source_kind
from ...program.switch_plan import COPY, GRAD, VALUE, StatePart, SwitchPlan
from .held import StateLayout, TensorKey
from .streams import MovedPart, Parcel, RankStreams, cut_parcels, streams_of

ROUND_BYTES = 64 << 20
"""Messages that a rank sends and gets in one round, if nothing else is said."""


@dataclass(slots=True)
class CarryStage:
    """makes, frees: tensors that begin, and end behind it. relays: what is sent came in an earlier stage."""

    copies: Parcel = ()
    sends: dict[int, Parcel] = field(default_factory=dict)
    receives: dict[int, Parcel] = field(default_factory=dict)
    relays: bool = False
    makes: list[TensorKey] = field(default_factory=list)
    frees: list[TensorKey] = field(default_factory=list)

    @property
    def message_bytes(self) -> int:
        """Memory that its messages take."""
        parcels = (*self.sends.values(), *self.receives.values())
        return sum(each.size * each.element_bytes for parcel in parcels for each in parcel)


@dataclass(frozen=True, slots=True)
class CarryStages:
    """A rank's whole switch. held: its tensors before. kept: those that are handed over as they are.

    filled: tensors every element of which comes.
    """

    before: StateLayout
    after: StateLayout
    held: tuple[TensorKey, ...]
    kept: tuple[TensorKey, ...]
    filled: frozenset[TensorKey]
    stages: tuple[CarryStage, ...]

    @property
    def bytes_before(self) -> int:
        """Memory of the state before."""
        return sum(self.before.size_bytes(key) for key in self.held)

    def peak_bytes(self, keep_source: bool = False) -> int:
        """The most memory that state, messages and copies on their way take at a time."""
        live = peak = self.bytes_before
        for stage in self.stages:
            live += sum(self.after.size_bytes(key) for key in stage.makes)
            peak = max(peak, live + max(stage.message_bytes, self._copied_bytes(stage)))
            if not keep_source:
                live -= sum(self.before.size_bytes(key) for key in stage.frees)
        casts = (self.after.size_bytes(key) for stage in self.stages for key in stage.makes if key[1] == COPY)
        return max(peak, live + max(casts, default=0))

    def _copied_bytes(self, stage: CarryStage) -> int:
        """Elements of one kind are gathered, and cast, on their way to where they stay."""
        return max((self._on_its_way(each, kind) for each in stage.copies for kind in each.kinds), default=0)

    def _on_its_way(self, each: MovedPart, kind: str) -> int:
        name = each.part.name
        origin = self.before.dtype((name, source_kind(self.before.shards[name], kind)))
        return each.size * (origin.itemsize + self.after.dtype((name, kind)).itemsize)


def stages_of(
    plan: SwitchPlan,
    rank: int,
    before: StateLayout,
    after: StateLayout,
    held: Sequence[TensorKey],
    round_bytes: int = ROUND_BYTES,
) -> CarryStages:
    """The switch of a world rank. held: its tensors before."""
    streams = streams_of(plan, rank, round_bytes)
    _check_known(plan, rank, streams, before, after)
    needs = dict(after.needs(plan.scope, moments_in(plan)))
    kept = tuple(key for key in needs if _stays(key, before, after) and key in held)
    local = tuple(
        each for each in streams.local if any((each.part.name, kind) not in kept for kind in each.kinds)
    )
    stages = list(_in_order(local, streams.rounds, round_bytes))
    _check_complete(plan, rank, stages, needs, kept)
    _begin(stages, needs, kept)
    _end(stages, before, held, kept)
    lost = {part.name for each in plan.orphans() for part in each.parts}
    filled = frozenset(key for key in needs if after.is_covered(key) and key[0] not in lost)
    return CarryStages(before, after, tuple(held), kept, filled, tuple(stages))


def moments_in(plan: SwitchPlan) -> tuple[str, ...]:
    """The moments that a plan moves."""
    kinds = dict.fromkeys(kind for each in plan.classes for kind in each.kinds)
    return tuple(kind for kind in kinds if kind not in (VALUE, COPY, GRAD))


def without_moments(plan: SwitchPlan) -> SwitchPlan:
    """The plan of a switch before the first step, when there are no moments."""
    moments = moments_in(plan)
    classes = [
        replace(each, kinds=tuple(kind for kind in each.kinds if kind not in moments))
        for each in plan.classes
    ]
    return replace(plan, classes=tuple(each for each in classes if each.kinds))


def _stays(key: TensorKey, before: StateLayout, after: StateLayout) -> bool:
    """Whether the very tensor serves under both strategies."""
    name, _ = key
    first, second = before.shards.get(name), after.shards.get(name)
    return first is not None and second is not None and _same_places(first, second)


def _same_places(first: Shard, second: Shard) -> bool:
    """Whose elements a rank owns matters only where it keeps nothing else."""
    return first == (second if first.zero else replace(second, owned=first.owned))


def _in_order(
    local: Parcel, phases: Sequence[Sequence[tuple[dict[int, Parcel], dict[int, Parcel]]]], round_bytes: int
) -> Iterator[CarryStage]:
    """Rounds, and before each the local copies of the parameters that it has come to, one at a time."""
    copies = list(local)
    yield CarryStage()
    for number, rounds in enumerate(phases):
        for sends, receives in rounds:
            reached = max(each.order for parcel in (*sends.values(), *receives.values()) for each in parcel)
            due = [each for each in copies if number or each.order <= reached]
            copies = copies[len(due) :]
            yield from _copied(due, round_bytes)
            yield CarryStage(sends=sends, receives=receives, relays=number > 0)
    yield from _copied(copies, round_bytes)


def _copied(copies: Sequence[MovedPart], round_bytes: int) -> Iterator[CarryStage]:
    for parcel in cut_parcels(copies, round_bytes):
        for order in dict.fromkeys(each.order for each in parcel):
            yield CarryStage(copies=tuple(each for each in parcel if each.order == order))


def _begin(stages: Sequence[CarryStage], needs: dict[TensorKey, int], kept: Sequence[TensorKey]) -> None:
    """Each tensor that is needed begins where its first elements come; one that has none, at the end."""
    left = dict.fromkeys(key for key in needs if key not in kept)
    for stage in stages:
        for parcel in (stage.copies, *stage.receives.values()):
            for key in _keys(parcel):
                if key in left:
                    stage.makes.append(key)
                    del left[key]
    stages[-1].makes += left


def _end(
    stages: Sequence[CarryStage], before: StateLayout, held: Sequence[TensorKey], kept: Sequence[TensorKey]
) -> None:
    """Each tensor that was held, and isn't kept, ends where it was last read; an unread one at once."""
    last = dict.fromkeys((key for key in held if key not in kept), 0)
    for number, stage in enumerate(stages):
        parcels = [stage.copies, *(() if stage.relays else stage.sends.values())]
        for name, kind in (key for parcel in parcels for key in _keys(parcel)):
            key = (name, source_kind(before.shards[name], kind))
            if key in last:
                last[key] = number
    for key, number in last.items():
        stages[number].frees.append(key)


def _keys(parcel: Parcel) -> Iterator[TensorKey]:
    return ((each.part.name, kind) for each in parcel for kind in each.kinds)


def _check_complete(
    plan: SwitchPlan,
    rank: int,
    stages: Sequence[CarryStage],
    needs: dict[TensorKey, int],
    kept: Sequence[TensorKey],
) -> None:
    """Each element that a rank needs comes, and no other; those that nobody holds come from elsewhere."""
    coming: Counter[TensorKey] = Counter()
    for stage in stages:
        for parcel in (stage.copies, *stage.receives.values()):
            for each in parcel:
                coming.update({(each.part.name, kind): each.size for kind in each.kinds})
    for orphans in plan.orphans():
        for part in orphans.parts if rank in orphans.needers else ():
            coming.update({(part.name, kind): volume(part.boxes) for kind in orphans.kinds})
    wanted = {key: size for key, size in needs.items() if size and key not in kept}
    found = {key: size for key, size in coming.items() if size and key not in kept}
    if wanted != found:
        wrong = [
            (f"{key[1]} of {key[0]}", f"{found.get(key, 0)} elements come, {wanted.get(key, 0)} are needed")
            for key in {**wanted, **found}
            if wanted.get(key) != found.get(key)
        ]
        raise _misfit(plan, rank, wrong, "a plan brings each element that a rank needs once")


def _check_known(
    plan: SwitchPlan, rank: int, streams: RankStreams, before: StateLayout, after: StateLayout
) -> None:
    """What is read is of parameters that the rank has before, what is written of those that it has after."""
    wrong: dict[str, str] = {}
    for part, layout, when in _places(streams, before, after):
        shard = layout.shards.get(part.name)
        if shard is None:
            wrong.setdefault(part.name, f"the rank has no such parameter or buffer {when} the switch")
        elif prod(part.view) != prod(shard.whole_shape):
            text = f"{list(part.view)} is no view of {list(shard.whole_shape)}, as it is {when} it"
            wrong.setdefault(part.name, text)
    if wrong:
        rule = "a plan moves elements of parameters and buffers that the strategies have"
        raise _misfit(plan, rank, list(wrong.items()), rule)


def _places(
    streams: RankStreams, before: StateLayout, after: StateLayout
) -> Iterator[tuple[StatePart, StateLayout, str]]:
    """What is read and written, and when the rank has that. What is relayed has come already."""
    read, written = [streams.local], [streams.local]
    for number, rounds in enumerate(streams.rounds):
        for sends, receives in rounds:
            (written if number else read).extend(sends.values())
            written += receives.values()
    for parcels, layout, when in ((read, before, "before"), (written, after, "after")):
        yield from ((each.part, layout, when) for parcel in parcels for each in parcel)


def _misfit(plan: SwitchPlan, rank: int, wrong: Sequence[tuple[str, str]], rule: str) -> InternalError:
    return InternalError(
        f"the plan of the switch {plan.source}:{plan.target} doesn't fit world rank {rank}",
        details=shortened(wrong),
        rule=rule,
        fix="compile again",
    )
