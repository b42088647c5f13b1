"""A small Llama and a small ViT, and strategies of up to four ranks, whose steps `price_here.py` predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from here_data import CLASSES, IMAGE, LENGTH, VOCAB
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, ViTConfig, ViTForImageClassification

Made = tuple[nn.Module, dict[str, Tensor]]
LAYERS = 6
HIDDEN, PATCH = 448, 8
Stages = tuple[tuple[tuple[int, ...], int], ...]
"""(devices, layers) of each stage."""


@dataclass(frozen=True, slots=True)
class HereCase:
    """A strategy. pipelines: stages and micro-batches of each. paces: of each device, none: 1."""

    name: str
    pipelines: tuple[tuple[Stages, tuple[int, ...]], ...]
    paces: tuple[float, ...] = ()

    @property
    def ranks(self) -> int:
        """How many it needs."""
        return len({device for stages, _ in self.pipelines for devices, _ in stages for device in devices})

    def form(self) -> dict[str, object]:
        """As a strategy file has it."""
        return {
            "pipelines": [
                {
                    "stages": [{"devices": list(devices), "layers": layers} for devices, layers in stages],
                    "micro_batches": list(micro_batches),
                }
                for stages, micro_batches in self.pipelines
            ]
        }


def _one(*stages: tuple[tuple[int, ...], int], sizes: tuple[int, ...]) -> tuple[Stages, tuple[int, ...]]:
    return stages, sizes


CASES = (
    HereCase("one device", (_one(((0,), 6), sizes=(8, 8)),)),
    HereCase("TP 2", (_one(((0, 1), 6), sizes=(8, 8)),)),
    HereCase("PP 2", (_one(((0,), 3), ((1,), 3), sizes=(4,) * 4),)),
    HereCase("PP 2, unequal", (_one(((0,), 4), ((1,), 2), sizes=(6, 6, 4)),)),
    HereCase("DP 2", (_one(((0,), 6), sizes=(8,)), _one(((1,), 6), sizes=(8,)))),
    HereCase("DP 10:6", (_one(((0,), 6), sizes=(5, 5)), _one(((1,), 6), sizes=(6,)))),
    HereCase("PP 3", (_one(((0,), 2), ((1,), 2), ((2,), 2), sizes=(4,) * 4),)),
    HereCase("TP 2 x PP 2", (_one(((0, 1), 3), ((2, 3), 3), sizes=(4,) * 4),)),
    HereCase(
        "DP 2 x PP 2",
        (_one(((0,), 3), ((1,), 3), sizes=(4, 4)), _one(((2,), 3), ((3,), 3), sizes=(4, 4))),
    ),
    HereCase(
        "PP 2 beside one device",
        (_one(((0,), 3), ((1,), 3), sizes=(4, 4, 2)), _one(((2,), 6), sizes=(6,))),
    ),
)
PACES = (4.0, 4.0, 16.0, 16.0)
PACED = (
    HereCase("PP 4, paced", (_one(((0,), 2), ((1,), 2), ((2,), 1), ((3,), 1), sizes=(4,) * 4),), PACES),
    HereCase(
        "two pipelines, paced",
        (_one(((0,), 3), ((1,), 3), sizes=(4, 4, 4)), _one(((2,), 3), ((3,), 3), sizes=(2, 2))),
        PACES,
    ),
    HereCase("TP 2 then TP 2, paced", (_one(((0, 1), 5), ((2, 3), 1), sizes=(4,) * 4),), PACES),
)


def llama() -> Made:
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=VOCAB,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    tokens = torch.zeros(2, LENGTH, dtype=torch.int64)
    return LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}


class Vit(nn.Module):
    """ViT as its authors write it, with labels by the name of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ViTForImageClassification(
            ViTConfig(
                hidden_size=HIDDEN,
                intermediate_size=4 * HIDDEN,
                num_hidden_layers=LAYERS,
                num_attention_heads=8,
                image_size=IMAGE,
                patch_size=PATCH,
                num_labels=CLASSES,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.model(pixel_values=pixel_values, labels=labels).loss
        return loss


def vit() -> Made:
    return Vit(), {
        "pixel_values": torch.zeros(2, 3, IMAGE, IMAGE),
        "labels": torch.zeros(2, dtype=torch.int64),
    }


@dataclass(frozen=True, slots=True)
class HereModel:
    """A model. data: the factory of its batches, as `hspmd run` takes it."""

    build: Callable[[], Made]
    data: str


MODELS: Mapping[str, HereModel] = {
    "Llama": HereModel(llama, "here_data:tokens"),
    "ViT": HereModel(vit, "here_data:images"),
}
