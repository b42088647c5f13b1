"""Small trainings whose ranks show what they hold beyond their tensors."""

from __future__ import annotations

from dataclasses import dataclass

from ..strategy.strategy import PipelineSpec, StageSpec, Strategy
from .layer_models import LayerKind, LayerModel
from .trial_data import LENGTH

Stages = tuple[tuple[int, int], ...]
"""(first, past the last) layer of each stage, of one rank each."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A training of a few steps. pipelines: stages of each. sizes: of each pipeline's micro-batches."""

    model: LayerModel
    pipelines: tuple[Stages, ...]
    sizes: tuple[int, ...]

    def strategy(self) -> Strategy:
        """Ranks in the order of pipelines and their stages."""
        made, first = [], 0
        for stages in self.pipelines:
            devices = range(first, first + len(stages))
            specs = [StageSpec((device,), layers) for device, layers in zip(devices, stages, strict=True)]
            made.append(PipelineSpec(tuple(specs), self.sizes))
            first += len(stages)
        return Strategy(tuple(made))


TRIALS = (
    Trial(LayerModel(LayerKind.DECODER, 384, LENGTH, 4), (((0, 4),),), (8, 8)),
    Trial(LayerModel(LayerKind.ENCODER, 320, LENGTH, 5), (((0, 3), (3, 5)),), (4, 4, 4)),
    Trial(LayerModel(LayerKind.DECODER, 256, LENGTH, 3), (((0, 3),), ((0, 3),)), (8,)),
    Trial(LayerModel(LayerKind.ENCODER, 448, LENGTH, 4), (((0, 4),),), (6, 6)),
)
