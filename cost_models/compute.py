"""Seconds of local work on a device: by what was measured of it, else by a roofline over its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..base.devices import DeviceKind
from ..cluster.calibration import Calibration, Fit
from ..cluster.cluster import DeviceSpec
from ..options import OptimizerConfig, OptimizerName
from .operator_classes import OperatorClass, Work, is_heavy
from .steps.segment_walk import TypeBook, WalkedSegment

KERNEL_S = {DeviceKind.CUDA.value: 3e-6, DeviceKind.CPU.value: 8e-6}
"""Of a call beside its roofline: a kernel's start and end, or what PyTorch does around it on a CPU."""
LAUNCH_S = {DeviceKind.CUDA.value: 6e-6, DeviceKind.CPU.value: 0.0}
"""Of the host, for each call: a device that is quicker waits for it."""
VIEW_S = 1.5e-6
EACH_TENSOR_S = {DeviceKind.CUDA.value: 1e-7, DeviceKind.CPU.value: 1.5e-6}
"""Of a tensor in a call that takes many, as the update's do."""
INSTRUCTION_S = 3e-5
"""Of an instruction that does nothing, where none was measured."""
ADAM_ACCESSES, SGD_ACCESSES, MOMENTUM_ACCESSES = 7, 3, 2
"""How often an update reads or writes an element: one pass over parameter, gradient and moments."""
ACCUMULATE, PACK, UNPACK = "accumulate", "pack", "unpack"
"""What our runtime does to gradients and parameters, as a calibration names it."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRates:
    """One kind of device. measured: whether its operators were."""

    device: DeviceSpec
    family: str
    calibration: Calibration | None = None

    @classmethod
    def of(cls, device: DeviceSpec, family: str, calibration: Calibration | None) -> DeviceRates:
        """A calibration holds for devices of the kind that was measured."""
        if calibration is None or not calibration.operators or not calibration.is_of(device.kind or family):
            return cls(device, family)
        return cls(device, family, calibration)

    @property
    def measured(self) -> bool:
        """Whether seconds come from a calibration."""
        return self.calibration is not None

    def call_s(self, work: Work) -> float:
        """One call."""
        fit = self._fit(work)
        if fit is not None:
            seconds = fit.seconds(work.flops, work.bytes)
        elif work.of is OperatorClass.VIEW:
            seconds = VIEW_S if self.family == DeviceKind.CPU else 0.0
        else:
            seconds = self._roofline_s(work) + KERNEL_S[self.family]
        return seconds * self.device.pace

    def _fit(self, work: Work) -> Fit | None:
        """Of the operator itself, else of its class; in float32 where its type was not measured."""
        if self.calibration is None:
            return None
        held = self.calibration.operators
        other = () if work.of is OperatorClass.VIEW else (OperatorClass.OTHER.value,)
        names = (*((work.name,) if work.name else ()), work.of.value, *other)
        found = (held.get(f"{name}:{dtype}") for name in names for dtype in (work.dtype, "float32"))
        return next((fit for fit in found if fit is not None), None)

    def _roofline_s(self, work: Work) -> float:
        """As long as its flops take at what products reach of the peak, or its bytes, whichever is longer."""
        bandwidth = self.device.achieved_bandwidth
        peak = self.device.achieved(work.dtype if is_heavy(work.of) else "float32")
        moving = 0.0 if bandwidth is None else work.bytes / bandwidth
        counting = 0.0 if peak is None else work.flops / peak
        return max(moving, counting)

    def moved_s(self, size_bytes: float, calls: int = 1) -> float:
        """Plain copies and sums that read and write so many bytes."""
        work = Work(OperatorClass.COPY, "float32", 0.0, size_bytes / max(calls, 1))
        return self.call_s(work) * calls if size_bytes else 0.0

    def named_s(self, name: str, dtype: str, size_bytes: float, tensors: int, accesses: int) -> float:
        """Work of our runtime on tensors of so many bytes in all. accesses: how often it reads or writes."""
        fit = self.calibration.operators.get(f"{name}:{dtype}") if self.calibration else None
        if fit is None:
            return self.moved_s(accesses * size_bytes, tensors)
        return (fit.fixed_s * tensors + fit.per_byte_s * size_bytes) * self.device.pace

    @property
    def instruction_s(self) -> float:
        """Of an instruction that does nothing."""
        if self.calibration is None:
            return INSTRUCTION_S * self.device.pace
        return self.calibration.instruction_s * self.device.pace

    def update_s(self, sizes: Sequence[int], optimizer: OptimizerConfig) -> float:
        """The optimizer's update of tensors of so many bytes each."""
        total = sum(sizes)
        if self.calibration is not None:
            fit = self.calibration.update
            return (fit.fixed_s * len(sizes) + fit.per_byte_s * total) * self.device.pace
        is_adam = optimizer.name is OptimizerName.ADAMW
        momentum = MOMENTUM_ACCESSES if optimizer.momentum else 0
        accesses = ADAM_ACCESSES if is_adam else SGD_ACCESSES + momentum
        per_tensor = EACH_TENSOR_S[self.family] * self.device.pace
        return self.moved_s(accesses * total) + per_tensor * len(sizes)


class SegmentPrices:
    """Seconds of walked segments on kinds of devices, each found once."""

    def __init__(self, book: TypeBook) -> None:
        self._book = book
        self._calls: dict[int, list[float]] = {}
        self._pieces: dict[tuple[int, int], tuple[float, ...]] = {}
        self._held: list[object] = []
        self._flops: dict[int, tuple[float, float]] = {}

    def pieces(self, walked: WalkedSegment, rates: DeviceRates) -> tuple[float, ...]:
        """Before, between and behind its communication."""
        key = (id(walked), id(rates))
        if key not in self._pieces:
            self._held += [walked, rates]
            self._pieces[key] = tuple(self._piece_s(numbers, rates) for numbers in walked.pieces())
        return self._pieces[key]

    def _piece_s(self, numbers: Sequence[int], rates: DeviceRates) -> float:
        """The device's time, or the host's that starts its calls, whichever is longer."""
        known = self._calls.setdefault(id(rates), [])
        known += [rates.call_s(kind.work) for kind in self._book.kinds[len(known) :]]
        busy = sum([known[number] for number in numbers])
        launch = 0.0 if rates.measured else LAUNCH_S[rates.family]
        if not launch:
            return busy
        kinds = self._book.kinds
        return max(busy, launch * sum([kinds[n].work.of is not OperatorClass.VIEW for n in numbers]))

    def layer_share(self, walked: WalkedSegment, rates: DeviceRates, layers: int) -> float:
        """The part of a segment that one of its layers takes: calls that come once in each of them."""
        self.pieces(walked, rates)
        known = self._calls[id(rates)]
        counts = Counter(number for number in walked.rows if number >= 0)
        total = sum(known[number] * count for number, count in counts.items())
        of_layer = sum(known[number] * (count // layers) for number, count in counts.items())
        return of_layer / total if total else 0.0

    def flops(self, walked: WalkedSegment) -> tuple[float, float]:
        """Floating-point operations of products, and of attention: what a model is counted by."""
        if id(walked) not in self._flops:
            sums = dict.fromkeys((OperatorClass.MATMUL, OperatorClass.ATTENTION), 0.0)
            for number in walked.rows:
                work = None if number < 0 else self._book.kinds[number].work
                if work is not None and work.of in sums:
                    sums[work.of] += work.flops
            self._held.append(walked)
            self._flops[id(walked)] = (sums[OperatorClass.MATMUL], sums[OperatorClass.ATTENTION])
        return self._flops[id(walked)]
