"""The pairs of `trainers.py`: a strategy, and the trainer of torch that does the same work on its ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

import trainer_models as models
import trainer_sides as sides

SAMPLES, FEW = 256, 15
SEQUENCES = 16
MICRO_BATCHES = 8

Strategy = dict[str, object]


class Loss(Enum):
    """What the ranks of a trainer have of the loss: all the same, parts of a mean, or one has all."""

    SAME = "same"
    MEAN = "mean"
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Case:
    """beside: torch's trainer, for people. make: it, from the model's name and whole weights."""

    beside: str
    make: Callable[[str, sides.State], sides.Step]
    strategy: Strategy
    ranks: int = 1
    model: str = "mlp"
    batch: int = SAMPLES
    loss: Loss = Loss.SAME

    def trainer(self, state: sides.State) -> sides.Step:
        """Torch's side."""
        return self.make(self.model, state)


def one(batch: int) -> Strategy:
    """All on one device."""
    return {"pipelines": [{"stages": [_stage([0], models.LAYERS)], "micro_batches": [batch]}]}


def data_parallel(batch: int, zero: int = 0, ranks: int = 2) -> Strategy:
    """A copy on each device."""
    pipelines = [
        {"stages": [_stage([rank], models.LAYERS)], "micro_batches": [batch // ranks]}
        for rank in range(ranks)
    ]
    return {"pipelines": pipelines, "zero": zero}


def tensor_parallel(batch: int, ranks: int = 2) -> Strategy:
    """Each layer on all devices."""
    return {"pipelines": [{"stages": [_stage([*range(ranks)], models.LAYERS)], "micro_batches": [batch]}]}


def stages(batch: int, ranks: int = 2) -> Strategy:
    """As many layers on each device, by 1F1B."""
    of = [_stage([rank], models.LAYERS // ranks) for rank in range(ranks)]
    micro_batches = [batch // MICRO_BATCHES] * MICRO_BATCHES
    return {"pipelines": [{"stages": of, "micro_batches": micro_batches}], "schedule": "1f1b"}


def _stage(devices: list[int], layers: int) -> Strategy:
    return {"devices": devices, "layers": layers}


_1F1B = partial(sides.pipelining, micro_batches=MICRO_BATCHES)

CASES = {
    "one": Case("eager, its default optimizer", sides.eager, one(SAMPLES)),
    "one-fused": Case("eager, fused optimizer", sides.eager_fused, one(SAMPLES)),
    "one-few": Case(f"eager fused, batch {FEW}", sides.eager_fused, one(FEW), batch=FEW),
    "one-decoder": Case(
        "eager, fused optimizer", sides.eager_fused, one(SEQUENCES), model="decoder", batch=SEQUENCES
    ),
    "ddp": Case("DDP", sides.ddp, data_parallel(SAMPLES), 2, loss=Loss.MEAN),
    "fsdp2": Case("FSDP2", sides.fsdp2, data_parallel(SAMPLES, zero=3), 2, loss=Loss.MEAN),
    "tp": Case("DTensor TP", sides.tensor_parallel, tensor_parallel(SAMPLES), 2),
    "tp-decoder": Case(
        "DTensor TP", sides.tensor_parallel, tensor_parallel(SEQUENCES), 2, "decoder", SEQUENCES
    ),
    "pp": Case("pipelining 1F1B", _1F1B, stages(SAMPLES), 2, loss=Loss.ONE),
    "pp-decoder": Case("pipelining 1F1B", _1F1B, stages(SEQUENCES), 2, "decoder", SEQUENCES, loss=Loss.ONE),
}
