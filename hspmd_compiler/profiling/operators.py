"""Operators timed where they stand in a step, fitted by their class and by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..cluster.calibration import Fit
from ..cost_models.operator_classes import Work, short_name, work_of
from ..program.interpret import RowCall
from ..program.operator_types import Typed, storage_of, typed_of
from .fits import Sample, fit, middle
from .one_rank import OneRank, RowKey, TimedSegments

ADDED_UP = 0.5
ENOUGH = 4
"""Samples of an operator that is fitted by itself."""


class OperatorTimes:
    """The rows of a program, timed once for each `measure`."""

    def __init__(self, rank: OneRank, device: torch.device) -> None:
        self._rank = rank
        self._work: dict[RowKey, tuple[str, Work]] = {}
        self._segments = TimedSegments(rank.plan, device, self._seen)

    def measure(self) -> None:
        """One step; the first is a warm-up."""
        self._rank.step(self._segments)

    def samples(self) -> list[tuple[str, Sample]]:
        """Each row twice: under its class and type, and under its operator and type."""
        found = []
        for key, seconds in self._segments.rows.items():
            if seconds:
                name, work = self._work[key]
                sample = Sample(middle(seconds), work.flops, work.bytes)
                found += [(f"{what}:{work.dtype}", sample) for what in (work.of.value, name)]
        return found

    def _seen(self, key: RowKey, call: RowCall, operands: list[Any], result: Any) -> None:
        given = [part for value in operands for part in _tensors(value)]
        made = _tensors(result)
        memory = {storage_of(tensor) for tensor in given}
        is_view = all(storage_of(tensor) in memory for tensor in made)
        work = work_of(call, _types(given), _types(made), is_view)
        self._work[key] = (short_name(call.row.op), work)


def fits_of(samples: Sequence[tuple[str, Sample]]) -> dict[str, Fit]:
    """A fit for each name that has enough samples."""
    by_name: dict[str, list[Sample]] = {}
    for name, sample in samples:
        by_name.setdefault(name, []).append(sample)
    return {name: fit(of, ADDED_UP) for name, of in sorted(by_name.items()) if len(of) >= ENOUGH}


def predicted(samples: Sequence[tuple[str, Sample]], fits: Mapping[str, Fit]) -> float:
    """Seconds that fits say of all samples that they have a name for."""
    return sum(fits[name].seconds(of.flops, of.size_bytes) for name, of in samples if name in fits)


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [part for part in value if isinstance(part, Tensor)] if isinstance(value, (tuple, list)) else []


def _types(tensors: Sequence[Tensor]) -> list[Typed]:
    return [typed_of(tensor) for tensor in tensors]
