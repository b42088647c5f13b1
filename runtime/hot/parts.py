"""Parts of a step, and how much of its loss and gradients each of them makes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ...artifact.proved_loss import LossKind, ProvedLoss
from ...errors import RunError
from ..batches.buckets import BucketBatch, CountedLabels
from ..batches.data import count_samples


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
    """A part that is run. first: samples of the step before it. labels: that count, for a weight of them."""

    strategy: str
    batch: Mapping[str, Tensor]
    weight: float
    first: int
    labels: int | None


def weighed(
    parts: Sequence[StepPart],
    loss: ProvedLoss | None,
    kind: LossKind | None = None,
    counted: CountedLabels | None = None,
) -> list[WeighedPart]:
    """The parts of a step with their weights; those that weigh nothing are left out.

    loss: what it was proved to be. kind, counted: what it is taken to be, if that is told. A loss without
    labels is not a number, so that a part without any is not run.
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
    proved = None if any(told) else _checked_kind(loss, kind)
    labels = None if proved is not LossKind.LABELS else _labels(given, loss, counted)
    weights = _weights(given, proved, labels)
    found, first = [], 0
    for number, (part, weight) in enumerate(zip(given, weights, strict=True)):
        if weight:
            by = None if labels is None else labels[number]
            found.append(WeighedPart(part.strategy, part.batch, weight, first, by))
        first += count_samples(part.batch)
    if not found:
        raise RunError(
            "nothing in the step counts",
            details=[(part.strategy, f"{count_samples(part.batch)} samples") for part in given],
            rule="a step has at least one part whose weight isn't 0: a label that counts, a sample",
        )
    return found


def _checked_kind(loss: ProvedLoss | None, kind: LossKind | None) -> LossKind:
    """What parts weigh by: as it was proved, whatever is told; RunError where that is another."""
    if loss is None or loss.kind is None:
        why = "no step in parts was compiled" if loss is None else f"not proved: {loss.why}"
        raise RunError(
            "it isn't known how much the parts of the step weigh",
            details=[("the loss", why)],
            rule="parts weigh by what the loss was proved to be over samples when it was compiled",
            fix="give each part its weight, its share of loss and gradients of the whole"
            + ("; or compile with --home NAME" if loss is None else ""),
        )
    if kind is not None and kind is not loss.kind:
        raise RunError(
            "the parts of the step would weigh by another loss than the model has",
            details=[("kind", kind.value), ("the loss", str(loss))],
            rule="parts weigh by what the loss was proved to be over samples when it was compiled",
            fix=f"leave the kind out, or kind=LossKind.{loss.kind.name}; or give each part its weight",
        )
    return loss.kind


def _part(part: StepPart) -> HotPart:
    if isinstance(part, HotPart):
        return part
    return HotPart(part.strategy, part.batch) if isinstance(part, BucketBatch) else HotPart(*part)


def _labels(parts: Sequence[HotPart], loss: ProvedLoss | None, told: CountedLabels | None) -> list[int]:
    """Of each part those that count; RunError where others are told that are more or fewer."""
    assert loss is not None and loss.labels is not None, "a mean over labels names them"
    proved = CountedLabels(loss.labels.key, loss.labels.ignored, loss.labels.first)
    counts = [proved.of(part.batch) for part in parts]
    others = counts if told is None else [told.of(part.batch) for part in parts]
    if counts != others:
        raise RunError(
            "parts of the step would weigh by other labels than the loss counts",
            details=[
                (part.strategy, f"{other} are told to count, its loss is the mean over {count}")
                for part, count, other in zip(parts, counts, others, strict=True)
                if count != other
            ],
            rule=f"the loss was proved to be {loss}",
            fix="leave counted out",
        )
    return counts


def _weights(parts: Sequence[HotPart], kind: LossKind | None, labels: Sequence[int] | None) -> list[float]:
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
