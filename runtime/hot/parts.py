"""Parts of a step, and how much of its loss and gradients each of them makes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from ...errors import RunError
from ..batches.buckets import BucketBatch, CountedLabels
from ..batches.data import count_samples


class LossKind(Enum):
    """What the loss of a batch is, so that losses of its parts add up to it.

    LABELS: a mean over labels that count. SAMPLES: a mean over samples. SUM: a sum over either.
    """

    LABELS = "labels"
    SAMPLES = "samples"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class HotPart:
    """A global batch of one strategy. weight: of its loss and gradients; None: what the data say."""

    strategy: str
    batch: Mapping[str, Tensor]
    weight: float | None = None


StepPart = (
    HotPart | BucketBatch | tuple[str, Mapping[str, Tensor]] | tuple[str, Mapping[str, Tensor], float | None]
)
"""What a step is given: weights are left out where the data say them."""


@dataclass(frozen=True, slots=True)
class WeighedPart:
    """A part that is run. first: samples of the step before it.

    kind: what its weight is made by, None where it was told. labels: that count, for a weight made of them.
    """

    strategy: str
    batch: Mapping[str, Tensor]
    weight: float
    first: int
    kind: LossKind | None
    labels: int | None


def weighed(
    parts: Sequence[StepPart], kind: LossKind, counted: CountedLabels | None = None
) -> list[WeighedPart]:
    """The parts of a step with their weights; those that weigh nothing are left out.

    A loss without labels is not a number, so that a part without any is not run.
    """
    given = [_part(part) for part in parts]
    told = [part.weight is not None for part in given]
    if any(told) and not all(told):
        missing = [part.strategy for part, is_told in zip(given, told, strict=True) if not is_told]
        raise RunError(
            "some parts of the step have weights and some have none",
            details=[("without", ", ".join(missing))],
            rule="weights are told for all parts of a step or for none",
        )
    labels = None if any(told) or kind is not LossKind.LABELS else _labels(given, counted or CountedLabels())
    weights = _weights(given, kind, labels)
    found, first = [], 0
    for number, (part, weight) in enumerate(zip(given, weights, strict=True)):
        if weight:
            by = (None if any(told) else kind, None if labels is None else labels[number])
            found.append(WeighedPart(part.strategy, part.batch, weight, first, *by))
        first += count_samples(part.batch)
    if not found:
        raise RunError(
            "nothing in the step counts",
            details=[(part.strategy, f"{count_samples(part.batch)} samples") for part in given],
            rule="a step has at least one part whose weight isn't 0: a label that counts, a sample",
        )
    return found


def _part(part: StepPart) -> HotPart:
    if isinstance(part, HotPart):
        return part
    return HotPart(part.strategy, part.batch) if isinstance(part, BucketBatch) else HotPart(*part)


def _labels(parts: Sequence[HotPart], counted: CountedLabels) -> list[int]:
    return [counted.of(part.batch) for part in parts]


def _weights(parts: Sequence[HotPart], kind: LossKind, labels: Sequence[int] | None) -> list[float]:
    if labels is not None:
        return _shares(labels)
    own = [part.weight for part in parts if part.weight is not None]
    if not own:
        return (
            [1.0] * len(parts) if kind is LossKind.SUM else _shares([count_samples(p.batch) for p in parts])
        )
    bad = [(part.strategy, f"{part.weight}") for part in parts if not math.isfinite(part.weight or 0.0)]
    if bad:
        raise RunError("a weight is no number", details=bad, rule="loss and gradients are multiplied by it")
    return own


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]
