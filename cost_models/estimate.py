"""The price of a program on a cluster: how long a step is, where time goes, what bounds it, if it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

from ..artifact.store import Artifact
from ..base.collection import without_collection
from ..base.devices import family_of
from ..base.log import task
from ..base.pace import Stretches
from ..base.timeline import MemoryPoint, SpanKind, Timeline
from ..cluster.calibration import HeldMemory
from ..cluster.cluster import ClusterSpec, NodeSlot
from ..cluster.completed import completed_cluster
from ..cluster.launch_plan import bind_ranks
from ..errors import EstimateError
from ..options import OptimizerConfig
from ..program.lifetimes import COMPUTE_OPS
from ..program.program import Op, Program, RankProgram
from ..program.sized.instantiate import instantiate
from ..program.sized.plan_check import check_plan
from ..program.sized.sizes import Count
from ..program.sized.spread import uniform_plan
from ..program.sized.step_plan import StepPlan, planned_sizes
from ..strategy.form import strategy_from
from .compute import DeviceRates, SegmentPrices
from .links import ClusterCost
from .operator_classes import ATTENTION_GRADIENTS, is_heavy
from .semantics import Hosts, SendMode, SendSemantics
from .simulate import simulate
from .steps.advice import Advice, Layers, find_advice
from .steps.bound import StagedRank, bound_text
from .steps.critical_path import PathShare, critical_path
from .steps.figures import check_figures, notes_on
from .steps.memory import RankMemory, rank_memory
from .steps.priced_actions import StepPricer
from .steps.rank_shapes import RankShape, ShapeTable
from .steps.shared_hosts import hosts_of
from .steps.traffic import LinkBytes, link_bytes, rank_volumes

FITS = 0.95
"""Of a device's memory: beyond it a step may not fit, since allocators do not use all of it."""


@dataclass(frozen=True, slots=True)
class RankEstimate:
    """One rank. phases_s: seconds by kind of span, waiting too. capacity_bytes: of its device."""

    rank: int
    node: str
    device: str
    pipeline: int
    stage: int
    phases_s: Mapping[SpanKind, float]
    end_s: float
    memory: RankMemory
    capacity_bytes: int

    @property
    def busy_s(self) -> float:
        """Seconds in which it does not wait."""
        return sum(seconds for kind, seconds in self.phases_s.items() if kind is not SpanKind.WAIT)

    @property
    def usable_bytes(self) -> float:
        """What a step may hold: 95 % of what its device has."""
        return FITS * self.capacity_bytes

    @property
    def fits(self) -> bool:
        """Whether its most is at most that."""
        return self.memory.peak.total <= self.usable_bytes


@dataclass(frozen=True, slots=True)
class Estimate:
    """One step.

    bubble: share of all ranks' time that is waiting. mfu: model flops per second over the sum of all
    peaks; None where a peak is not told. bound: what bounds the step, in words. path: what its
    critical path consists of. least_s: see Pace, of what each rank computes. traffic:
    bytes by (sender, receiver). notes: what to know of the figures.
    """

    step_s: float
    samples: int
    ranks: tuple[RankEstimate, ...]
    bubble: float
    model_flops: float
    mfu: float | None
    links: tuple[LinkBytes, ...]
    path: tuple[PathShare, ...]
    bound: str
    advice: tuple[Advice, ...]
    timeline: Timeline
    semantics: SendSemantics
    least_s: Mapping[int, Mapping[int, Stretches]]
    traffic: Mapping[tuple[int, int], int]
    notes: tuple[str, ...] = ()

    @property
    def samples_per_s(self) -> float:
        """Samples of the global batch in a second."""
        return self.samples / self.step_s if self.step_s else 0.0

    @property
    def misfits(self) -> tuple[RankEstimate, ...]:
        """Ranks whose memory is too small."""
        return tuple(one for one in self.ranks if not one.fits)


def estimate(
    program: Program,
    cluster: ClusterSpec,
    optimizer: OptimizerConfig,
    *,
    devices: Sequence[int] | None = None,
    layers: Layers | None = None,
    semantics: SendSemantics | None = None,
    at: str = "",
    advise: bool = True,
) -> Estimate:
    """Price a program of all its ranks.

    devices: of the strategy, by rank; None: as the ranks name them. layers: of each (pipeline, stage), for
    advice that moves some. semantics: of sends; None: the calibration's, or those of our runtime. at: where
    the cluster comes from, for errors. advise: whether changes are tried that would help.
    """
    with task("price the step"), without_collection():
        return StepEstimator(program, cluster, optimizer, devices, layers or {}, semantics, at).run(advise)


def estimate_artifact(
    artifact: Artifact, cluster: ClusterSpec, at: str = "", plan: StepPlan | None = None
) -> Estimate:
    """Price the step of an artifact that holds all ranks.

    at: where the cluster comes from, for errors. plan: of a program for any size, what the step runs; None:
    as many micro-batches as the strategy has, each of the range's end.
    """
    if artifact.manifest.rank is not None:
        raise EstimateError(
            f"the artifact holds only rank {artifact.manifest.rank}",
            rule="a step is priced from the programs of all ranks",
            fix="compile without --rank",
        )
    strategy = strategy_from(artifact.strategy)
    layers = {
        (number, place): stage.num_layers
        for number, pipeline in enumerate(strategy.pipelines)
        for place, stage in enumerate(pipeline.stages)
    }
    program, sizes = artifact.program, artifact.program.sizes
    if sizes is not None:
        plan = plan_of_size(artifact, sizes.high) if plan is None else plan
        check_plan(plan, sizes)
        program = instantiate(program, plan)
    made = estimate(
        program, cluster, artifact.manifest.optimizer, devices=strategy.devices, layers=layers, at=at
    )
    if sizes is None or plan is None:
        return made
    rows = len(plan.rows(sizes.unit)) if sizes.unit is Count.TOKENS else made.samples
    note = f"micro-batches by pipeline: {planned_sizes(plan, sizes.unit)}"
    return replace(made, samples=rows, notes=(*made.notes, note))


def plan_of_size(artifact: Artifact, size: int) -> StepPlan:
    """As many micro-batches as the strategy has, all of one size."""
    sizes, strategy = artifact.program.sizes, strategy_from(artifact.strategy)
    assert sizes is not None, "a program for micro-batches of any size"
    counts = [len(each.micro_batches) * strategy.accumulation for each in strategy.pipelines]
    return uniform_plan(sizes, size, counts)


class StepEstimator:
    """All that is worked out once for a program on a cluster."""

    def __init__(
        self,
        program: Program,
        cluster: ClusterSpec,
        optimizer: OptimizerConfig,
        devices: Sequence[int] | None,
        layers: Layers,
        semantics: SendSemantics | None,
        at: str,
    ) -> None:
        self.program, self.optimizer, self.layers = program, optimizer, layers
        owns = program.ranks
        wanted = [own.device for own in owns] if devices is None else devices
        slots = bind_ranks(wanted, [_named_kind(own) for own in owns], cluster, at)
        self.slots: dict[int, NodeSlot] = {own.rank: slot for own, slot in zip(owns, slots, strict=True)}
        self.table = ShapeTable(program)
        self.shapes = [self.table.of(own) for own in owns]
        completed = completed_cluster(cluster, slots, self._dtypes())
        self.cluster, self.notes = completed.cluster, completed.notes
        self.semantics = semantics or semantics_of(cluster)
        self.rates = self._rates()
        by_rank = dict(zip(self.slots, self.rates, strict=True))
        check_figures(program, self.cluster, self.slots, by_rank, self._dtypes())
        self.prices = SegmentPrices(self.table.book)

    def _rates(self) -> list[DeviceRates]:
        """One object for ranks whose devices are alike."""
        made: dict[object, DeviceRates] = {}
        found = []
        for own in self.program.ranks:
            spec = self.cluster.device_of(self.slots[own.rank])
            alike = replace(spec, id=None)
            family = family_of(spec.kind or own.device_kind)
            key = (repr(alike), family)
            if key not in made:
                made[key] = DeviceRates.of(alike, family, self.cluster.calibration)
            found.append(made[key])
        return found

    def _dtypes(self) -> list[str]:
        """Types that products are computed in."""
        return sorted({kind.work.dtype for kind in self.table.book.kinds if is_heavy(kind.work.of)})

    def pricer(self, cluster: ClusterSpec | None = None, kept: frozenset[int] | None = None) -> StepPricer:
        """Prices on this cluster or on one with other links."""
        cost = ClusterCost(cluster or self.cluster, self.slots)
        return StepPricer(
            self.program,
            self.shapes,
            self.rates,
            self.prices,
            cost,
            self.optimizer,
            kept,
            bool(self.hosts.of),
        )

    @property
    def hosts(self) -> Hosts:
        """Nodes whose ranks share processors."""
        return hosts_of(self.cluster, self.slots, dict(zip(self.slots, self.rates, strict=True)))

    def run(self, advise: bool = True) -> Estimate:
        """The step and all that is told of it."""
        pricer = self.pricer()
        actions = pricer.actions()
        timeline = pricer.split(simulate(actions, self.semantics, self.hosts))
        memories = self._memories()
        timeline = replace(timeline, memory=self._points(timeline, memories), labels=self._labels())
        ranks = self._ranks(timeline, memories)
        path = critical_path(timeline, pricer.cost.link_name)
        flops = self._model_flops()
        step_s = timeline.end_s
        total = step_s * len(ranks)
        volumes = rank_volumes(pricer)
        links = link_bytes(pricer, volumes, step_s)
        return Estimate(
            step_s=step_s,
            samples=self.program.batch,
            ranks=tuple(ranks),
            bubble=1 - sum(one.busy_s for one in ranks) / total if total else 0.0,
            model_flops=flops,
            mfu=self._mfu(flops, step_s),
            links=tuple(links),
            path=tuple(path),
            bound=bound_text(path, [_stage_of(one) for one in ranks]),
            advice=tuple(find_advice(self, timeline, path)) if advise else (),
            timeline=timeline,
            semantics=self.semantics,
            least_s=pricer.least_s(),
            traffic={pair: int(size) for pair, size in volumes.items()},
            notes=(*self.notes, *notes_on(self.program, self.cluster, self.rates, version("torch"))),
        )

    def _memories(self) -> list[RankMemory]:
        """Ranks that are alike, on devices that are, share one."""
        tensors: dict[int, RankMemory] = {}
        known: dict[tuple[int, int], RankMemory] = {}
        found = []
        for rate, shape in zip(self.rates, self.shapes, strict=True):
            if id(shape) not in tensors:
                tensors[id(shape)] = rank_memory(self.program, shape, self.optimizer)
            key = (id(shape), id(rate))
            if key not in known:
                known[key] = tensors[id(shape)].beside(*self._beyond(rate))
            found.append(known[key])
        return found

    def _beyond(self, rate: DeviceRates) -> tuple[int, HeldMemory]:
        """The platform's bytes, and what is held beyond tensors on devices of the kind that was measured."""
        calibration = self.cluster.calibration
        if calibration is None:
            return 0, HeldMemory()
        return calibration.platform_bytes, calibration.held if rate.measured else HeldMemory()

    def _points(self, timeline: Timeline, memories: Sequence[RankMemory]) -> tuple[MemoryPoint, ...]:
        """What each rank holds: the most within an instruction from its start, the rest from its end."""
        bounds: dict[tuple[int, int], list[float]] = {}
        for span in timeline.spans:
            if span.position >= 0 and span.kind is not SpanKind.WAIT:
                held = bounds.setdefault((span.rank, span.position), [span.start_s, span.end_s])
                held[0], held[1] = min(held[0], span.start_s), max(held[1], span.end_s)
        points = []
        for own, memory in zip(self.program.ranks, memories, strict=True):
            points.append(MemoryPoint(own.rank, 0.0, memory.start))
            for position, (peak, after) in enumerate(zip(memory.peaks, memory.held, strict=True)):
                if (own.rank, position) in bounds:
                    start, end = bounds[own.rank, position]
                    points += [MemoryPoint(own.rank, start, peak), MemoryPoint(own.rank, end, after)]
        return tuple(points)

    def _labels(self) -> dict[int, str]:
        return {
            own.rank: f"rank {own.rank}: {_device_name(rate)}, pipeline {own.pipeline} stage {own.stage_text}"
            for own, rate in zip(self.program.ranks, self.rates, strict=True)
        }

    def _ranks(self, timeline: Timeline, memories: Sequence[RankMemory]) -> list[RankEstimate]:
        phases: dict[int, dict[SpanKind, float]] = {own.rank: {} for own in self.program.ranks}
        ends = dict.fromkeys(phases, 0.0)
        for span in timeline.spans:
            held = phases[span.rank]
            held[span.kind] = held.get(span.kind, 0.0) + span.end_s - span.start_s
            ends[span.rank] = max(ends[span.rank], span.end_s)
        end_s = max(ends.values(), default=0.0)
        for rank, held in phases.items():
            held[SpanKind.WAIT] = held.get(SpanKind.WAIT, 0.0) + end_s - ends[rank]
        return [
            RankEstimate(
                own.rank,
                self.cluster.nodes[self.slots[own.rank].node].address,
                _device_name(rate),
                own.pipeline,
                own.stage,
                phases[own.rank],
                ends[own.rank],
                memory,
                rate.device.memory or 0,
            )
            for own, rate, memory in zip(self.program.ranks, self.rates, memories, strict=True)
        ]

    def _model_flops(self) -> float:
        """Products and attention of all segments, without what the backward pass computes again."""
        known: dict[int, float] = {}
        for shape in self.shapes:
            if id(shape) not in known:
                known[id(shape)] = self._flops_of(shape)
        return sum(known[id(shape)] for shape in self.shapes)

    def _flops_of(self, shape: RankShape) -> float:
        """As many as are done, but in backward at most what the gradients of the forward pass take."""
        forward = backward = wanted = 0.0
        for instruction, step in zip(shape.own.instructions, shape.steps, strict=True):
            if instruction.op not in COMPUTE_OPS or step is None or step.walked is None:
                continue
            products, attention = self.prices.flops(step.walked)
            if instruction.op in (Op.BACKWARD, Op.WEIGHTS):
                backward += products + attention
            else:
                forward += products + attention
                wanted += 2 * products + ATTENTION_GRADIENTS * attention
        return forward + min(backward, wanted)

    def _mfu(self, flops: float, step_s: float) -> float | None:
        """Over the peaks in the type that most products are computed in."""
        by_type: dict[str, float] = {}
        for kind in self.table.book.kinds:
            if is_heavy(kind.work.of):
                by_type[kind.work.dtype] = by_type.get(kind.work.dtype, 0.0) + kind.work.flops
        if not by_type or not step_s:
            return None
        dtype = max(by_type, key=lambda name: by_type[name])
        peaks = [rate.device.peak(dtype) for rate in self.rates]
        known = [peak for peak in peaks if peak is not None]
        return flops / (step_s * sum(known)) if len(known) == len(peaks) else None


def semantics_of(cluster: ClusterSpec) -> SendSemantics:
    """As measured; else our runtime's: sends don't wait, and a receive is posted when its value is needed."""
    calibration = cluster.calibration
    if calibration is None:
        return SendSemantics()
    return SendSemantics(SendMode(calibration.sends), calibration.buffer_bytes, calibration.posted_ahead)


def _named_kind(own: RankProgram) -> str | None:
    """The kind that a program is compiled for if it names a device; any other is priced as the cluster's."""
    return own.device_kind if own.device_kind != own.device_family else None


def _device_name(rate: DeviceRates) -> str:
    kind = rate.device.kind or rate.family
    pace = f" at pace {rate.device.pace:g}" if rate.device.pace != 1 else ""
    return (kind.partition(" ")[2] or kind) + pace


def _stage_of(one: RankEstimate) -> StagedRank:
    share = one.memory.peak.total / one.capacity_bytes if one.capacity_bytes else 0.0
    return StagedRank(one.rank, one.device, one.pipeline, one.stage, share, one.fits)
