"""What a model's loss is over the samples of a batch, as it was proved when it was compiled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ..base.typed import AtLeast


class LossKind(Enum):
    """What the loss of a batch is, so that losses of its parts add up to it.

    LABELS: a mean over labels that count. SAMPLES: a mean over samples. SUM: a sum over either.
    """

    LABELS = "labels"
    SAMPLES = "samples"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class ProvedLabels:
    """Labels that a loss is the mean over: those of an input that aren't `ignored`, from place `first`."""

    key: str
    ignored: int
    first: Annotated[int, AtLeast(0)]

    def __str__(self) -> str:
        return f"{self.key} that are not {self.ignored}, from place {self.first} of a row"


@dataclass(frozen=True, slots=True)
class ProvedLoss:
    """kind: None where the loss was proved to be none of them, and `why` says what it is.

    labels: of LABELS.
    """

    kind: LossKind | None = None
    labels: ProvedLabels | None = None
    why: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it says all that its kind needs."""
        return (self.kind is LossKind.LABELS) == (self.labels is not None) and (self.kind is None) == bool(
            self.why
        )

    def __str__(self) -> str:
        if self.kind is None:
            return f"no sum over parts that could be proved: {self.why}"
        if self.kind is LossKind.LABELS:
            return f"a mean over {self.labels}"
        return "a mean over samples" if self.kind is LossKind.SAMPLES else "a sum over samples"
