"""What each rank of a profile does, in one order; rank 0 gets what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from ..base.comm_plan import CommKind
from ..cluster.calibration import GRADIENT, AtOnce, Fit, LayerProfile, LayerTime
from ..program.program import Op, Program
from ..runtime.timing.resident import held_bytes
from ..runtime.torch_transport import TorchDist
from .at_once import counts_at_once, slowed_by
from .exchanges import COLLECTIVES, LATE_S, Meetings, TimedMeeting
from .fits import SHORTEST_S, Sample, middle
from .layer_models import LayerModel
from .meeting import step_number
from .one_rank import OneRank
from .operators import OperatorTimes, fits_of
from .own_costs import gradient_fits, instruction_s, update_fit, warm_up
from .plan import GroupShape, ProfilePlan, pairs_of

LATE_TRIES = 3
LOCAL, NETWORK = "local", "network"
OnProgress = Callable[[str, int, int], None]
"""Told what is measured next, how much is done, and of how much."""


@dataclass(slots=True)
class Measurements:
    """What came out. messages, padded: seconds one way, by the link's class and what goes on at once.

    collectives: by kind, members and place, samples by bytes; busy: the parts of their seconds for which each
    member's processor works. at_once: how ranks that compute at once slow each other. buffer_bytes: of the
    longest message that is through before its receiver comes. waits: whether the call that sends waits for
    its receiver.
    """

    operators: dict[str, Fit] = field(default_factory=dict)
    layers: tuple[LayerProfile, ...] = ()
    update: Fit = field(default_factory=lambda: Fit(0.0))
    instruction_s: float = 0.0
    platform_bytes: int = 0
    messages: dict[str, list[Sample]] = field(default_factory=dict)
    padded: dict[str, list[Sample]] = field(default_factory=dict)
    collectives: dict[str, list[Sample]] = field(default_factory=dict)
    busy: dict[str, list[float]] = field(default_factory=dict)
    at_once: tuple[AtOnce, ...] = ()
    waits: bool = False
    buffer_bytes: int = 0


class Session:
    """One rank's part. hosts: the machine of each rank. cores: processors that the ranks of a host share."""

    def __init__(
        self,
        transport: TorchDist,
        plan: ProfilePlan,
        hosts: Sequence[int],
        shapes: Sequence[GroupShape],
        cores: int,
        told: OnProgress,
    ) -> None:
        self.measured = Measurements()
        self._transport = transport
        self._device = transport.device
        self._plan = plan
        self._hosts = hosts
        self._shapes = shapes
        self._on_progress = told
        self._done = 0
        self._meetings = Meetings(transport, plan.repeats, len(set(hosts)) == 1)
        self._cores = cores
        self._computes = transport.rank < cores or self._device.type != "cpu"

    def run(self) -> Measurements:
        """All of it. Ranks of which each has a processor compute at once, as in a training.

        Layers are compiled only when the memory of a rank without them is known.
        """
        self._platform()
        if self._transport.world_size > 1:
            self._messages()
            self._late_receiver()
            self._collectives()
        self._told("layers are compiled")
        self._compute(self._plan.programs() if self._computes else {})
        self._own_costs()
        self._at_once()
        self._meetings.together()
        return self.measured

    def end(self) -> None:
        """Nobody leaves early."""
        self._meetings.together()

    def _told(self, text: str) -> None:
        self._done += 1
        self._on_progress(text, self._done, max(self._done, self._units()))

    def _units(self) -> int:
        """Lines of progress from start to end."""
        alone = 1 + 1 + self._plan.repeats + 1 + 1 + int(self._has_threads_alone)
        if self._transport.world_size == 1:
            return alone
        links = sum(bool(pairs_of(self._hosts, across)) for across in (False, True))
        meetings = len(self._shapes) * (len(COLLECTIVES) + 1)
        return alone + len(self._plan.message_bytes) * (links + 1) + meetings

    def _platform(self) -> None:
        """With all communicators up, and what operators load: one of each collective, a few products."""
        self._told("communicators")
        warm_up(self._device)
        for number, shape in enumerate(self._shapes):
            for kind in COLLECTIVES:
                self._meetings.collective_s(kind, step_number(number, kind), shape.ranks, 4096)
        held = held_bytes(self._device)
        if self._device.type != "cpu":
            free, total = torch.cuda.mem_get_info(self._device)
            held = total - free - torch.cuda.memory_reserved(self._device)
        self.measured.platform_bytes = max(cast(list[int], self._transport.gather_objects(held)))

    def _messages(self) -> None:
        for name, across in ((LOCAL, False), (NETWORK, True)):
            pairs = pairs_of(self._hosts, across)
            if not pairs:
                continue
            for size in self._plan.message_bytes:
                self._told(f"messages of {size:,} bytes, {name}")
                alone = self._slowest(self._meetings.one_way_s(pairs[:1], size))
                self._add(self.measured.messages, name, alone, size)
                if size <= self._plan.collective_bytes[-1]:
                    padded = self._slowest(self._meetings.one_way_s(pairs[:1], size, padded=True))
                    self._add(self.measured.padded, name, padded, size)
                    both = self._slowest(self._meetings.both_ways_s(pairs[0], size))
                    self._add(self.measured.messages, f"{name}:both_ways", both, size)
                    if len(pairs) > 1:
                        several = self._slowest(self._meetings.one_way_s(pairs, size))
                        self._add(self.measured.messages, f"{name}:{len(pairs)}_pairs", several, size)

    def _late_receiver(self) -> None:
        """Whether a send waits for its receiver, and up to which size it is through before."""
        pair = (pairs_of(self._hosts, False) or pairs_of(self._hosts, True))[0]
        for size in self._plan.message_bytes:
            self._told(f"a late receiver of {size:,} bytes")
            tries = [self._meetings.late_receiver(pair, size) for _ in range(LATE_TRIES)]
            posted = self._slowest(min(call for call, _ in tries))
            ended = self._slowest(min(call + rest for call, rest in tries))
            self.measured.waits |= posted > LATE_S / 2
            if ended < LATE_S / 2:
                self.measured.buffer_bytes = size

    def _collectives(self) -> None:
        for number, shape in enumerate(self._shapes):
            for kind in COLLECTIVES:
                self._told(f"{kind.value} of {len(shape.ranks)} ranks")
                name = f"{kind.value}:{len(shape.ranks)}:{shape.place}"
                for size in self._plan.collective_bytes:
                    step = step_number(number, kind)
                    met = self._meetings.collective_s(kind, step, shape.ranks, size)
                    count = len(shape.ranks)
                    moved = size if kind is CommKind.ALL_REDUCE else size * (count - 1) // count
                    self._add_met(name, met, moved)
            self._gradients(number, shape)

    def _gradients(self, number: int, shape: GroupShape) -> None:
        """Sums of gradient buckets, which a step packs before."""
        self._told(f"gradients of {len(shape.ranks)} ranks")
        step = step_number(number, CommKind.ALL_REDUCE)
        for size in self._plan.collective_bytes:
            met = self._meetings.gradient_s(step, shape.ranks, size)
            self._add_met(f"{GRADIENT}:{len(shape.ranks)}:{shape.place}", met, size)

    def _compute(self, programs: Mapping[LayerModel, Program]) -> None:
        """Layers and operators in turn, so that a slow while meets all of them alike."""
        ranks = {model: OneRank(program, self._device) for model, program in programs.items()}
        rows = {model: OperatorTimes(rank, self._device) for model, rank in ranks.items()}
        taken: dict[LayerModel, list[dict[int, float]]] = {model: [] for model in ranks}
        for turn in range(self._plan.repeats + 1):
            self._told(f"layers and operators, turn {turn + 1} of {self._plan.repeats + 1}")
            self._meetings.together()
            for model, rank in ranks.items() if self._computes else ():
                taken[model].append(by_position(rank))
                rows[model].measure()
        if self._computes:
            samples = [sample for times in rows.values() for sample in times.samples()]
            self.measured.operators = fits_of(samples)
            self.measured.layers = layer_profiles(ranks, taken)

    def _own_costs(self) -> None:
        self._told("instructions, updates and sums of gradients")
        self._meetings.together()
        if self._computes:
            repeats = self._plan.repeats
            self.measured.instruction_s = instruction_s(self._device, repeats)
            self.measured.update = update_fit(self._device, "float32", repeats)
            self.measured.operators |= gradient_fits(self._device, "float32", repeats)

    def _at_once(self) -> None:
        """The same work by one rank, by several, by all of a host."""
        if not self._has_threads_alone:
            return
        here = self._transport.rank - self._hosts.index(self._hosts[self._transport.rank])
        ranks = self._hosts.count(self._hosts[0])
        counts = counts_at_once(ranks, self._cores)
        self._told("ranks that compute at once")
        work = OneRank(self._plan.shared_work(), self._device)
        work.step()
        taken: list[dict[int, float]] = []
        for _ in range(self._plan.repeats):
            taken.append({})
            for count in counts:
                self._meetings.together()
                if here < count:
                    taken[-1][count] = sum(by_position(work).values())
        held = cast(list[list[dict[int, float]]], self._transport.gather_objects(taken))
        self.measured.at_once = slowed_by(held[:ranks], min(ranks, self._cores))

    @property
    def _has_threads_alone(self) -> bool:
        """Whether ranks are single threads of CPUs, of which each is timed by its own work."""
        return self._device.type == "cpu" and torch.get_num_threads() == 1

    def _add_met(self, name: str, met: TimedMeeting, size: int) -> None:
        seconds = self._slowest(met.seconds)
        self._add(self.measured.collectives, name, seconds, size)
        self.measured.busy.setdefault(name, []).append(met.busy_s / max(seconds, SHORTEST_S))

    def _slowest(self, seconds: float) -> float:
        """Of all ranks."""
        return max(cast(list[float], self._transport.gather_objects(seconds)))

    def _add(self, where: dict[str, list[Sample]], name: str, seconds: float, size: int) -> None:
        where.setdefault(name, []).append(Sample(seconds, 0.0, size))


def by_position(rank: OneRank) -> dict[int, float]:
    """Seconds of each instruction in one step."""
    found: dict[int, float] = {}
    for part in rank.step():
        found[part.position] = found.get(part.position, 0.0) + part.end_s - part.start_s
    return found


def layer_profiles(
    ranks: Mapping[LayerModel, OneRank], taken: Mapping[LayerModel, Sequence[Mapping[int, float]]]
) -> tuple[LayerProfile, ...]:
    """One layer is half of what four take beyond two, for each kind of layer."""
    found = []
    for many, rank in ranks.items():
        few = next((one for one in ranks if one.name == many.name and one.dtype == many.dtype), many)
        if few.layers >= many.layers:
            continue
        more, less = (_by_size(ranks[one], taken[one][1:]) for one in (many, few))
        times = []
        for size in rank.sizes:
            passes = [
                (more[size, op] - less[size, op]) / (many.layers - few.layers)
                for op in (Op.FORWARD, Op.BACKWARD)
            ]
            if min(passes) > 0:  # else what disturbed it was longer than the layer
                times.append(LayerTime(size, *passes))
        if times:
            found.append(LayerProfile(many.name, 1, many.dtype, tuple(times)))
    return tuple(found)


def _by_size(rank: OneRank, taken: Sequence[Mapping[int, float]]) -> dict[tuple[int, Op], float]:
    """Seconds of each pass by the size of its micro-batch."""
    sizes, instructions = rank.sizes, rank.plan.program.instructions
    return {
        (sizes[each.mb], each.op): middle([step[position] for step in taken])
        for position, each in enumerate(instructions)
        if each.op in (Op.FORWARD, Op.BACKWARD)
    }
