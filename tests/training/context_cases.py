"""Strategies of members of a context group, of all kinds, for a small Llama of two layers and 20 tokens."""

from __future__ import annotations

from torch import nn

from hspmd_compiler.base.context import ContextCut
from hspmd_compiler.models.builtin_models import GptSize, LlamaSize
from hspmd_compiler.strategy.context_spec import ContextChoice, ContextSpec
from hspmd_compiler.strategy.strategy import (
    PipelineSpec,
    Recompute,
    RecomputeKind,
    ScheduleKind,
    StageSpec,
    Strategy,
)

TOKENS = 20
LLAMA = LlamaSize(2, 16, 4, 24, kv_heads=2, vocab=32, seq=TOKENS)
GPT2 = GptSize(2, 16, 4, vocab=32, seq=TOKENS)
BALANCED = ContextCut.BALANCED


def pipeline(
    *stages: tuple[int, ...], sizes: tuple[int, ...] = (1, 2), recompute: RecomputeKind | None = None
) -> PipelineSpec:
    """The devices of one stage of two layers, or of two of one each."""
    each = 2 // len(stages)
    specs = [StageSpec(devices, (at * each, at * each + each)) for at, devices in enumerate(stages)]
    layers = () if recompute is None else (Recompute((0, 2), recompute),)
    return PipelineSpec(tuple(specs), sizes, layers)


TWO = pipeline((0, 1)), pipeline((2,))
THREE = (*TWO, pipeline((3, 4, 5)))
FULL = tuple(pipeline(devices, recompute=RecomputeKind.FULL) for devices in ((0, 1), (2,)))
PAIR = ContextSpec((0, 1), (13, 7))

CASES: dict[str, Strategy] = {
    "one device beside": Strategy((*TWO, pipeline((3,), sizes=(3,))), context=(PAIR,)),
    "balanced, tokens split": Strategy(
        TWO, context=(ContextSpec((1, 0), (7, 13), cut=BALANCED),), sequence_parallel=True
    ),
    "two stages": Strategy(
        (pipeline((0, 1), (2,)), pipeline((3,), (4, 5)), pipeline((6,))), context=(ContextSpec((0, 1)),)
    ),
    "weights apart": Strategy(
        (pipeline((0, 1), (2,)), pipeline((3,), (4, 5)), pipeline((6,))),
        context=(ContextSpec((0, 1)),),
        schedule=ScheduleKind.ZB_H1,
        zero=2,
    ),
    "unlike stages": Strategy(
        (pipeline((0, 1), (2,)), pipeline((3,))), context=(PAIR,), schedule=ScheduleKind.GPIPE
    ),
    "zero 3": Strategy(TWO, context=(PAIR,), zero=3),
    "zero 2, slices": Strategy(TWO, context=(PAIR,), zero=2, accumulation=2),
    "recompute": Strategy(FULL, context=(PAIR,)),
    "one token": Strategy(THREE, context=(ContextSpec((0, 1, 2), (1, 18, 1)),)),
    "two groups": Strategy(
        (*TWO, pipeline((3,)), pipeline((4, 5))), context=(ContextSpec((0, 3)), ContextSpec((2, 1), (1, 19)))
    ),
    "none for one": Strategy(
        THREE, context=(ContextSpec((0, 1, 2), (0, 19, 1), form=ContextChoice.RING),), sequence_parallel=True
    ),
    "all for one, one beside": Strategy(
        (*TWO, pipeline((3,), sizes=(3,))), context=(ContextSpec((0, 1), (20, 0)),)
    ),
    "none of a balanced cut": Strategy(
        THREE,
        context=(ContextSpec((0, 1, 2), (7, 0, 8), padding=5, form=ContextChoice.HEADS, cut=BALANCED),),
        zero=3,
    ),
    "padding": Strategy(
        THREE, context=(ContextSpec((0, 1), (7, 8), padding=5), ContextSpec((2,), padding=2))
    ),
}
FORMS: dict[str, Strategy] = {
    f"{form.value}, {cut.value}": Strategy(
        THREE, context=(ContextSpec((0, 1, 2), (3, 9, 8), form=form, cut=cut),), sequence_parallel=True
    )
    for form in (ContextChoice.RING, ContextChoice.GATHER, ContextChoice.HEADS)
    for cut in ContextCut
}
QUICK = ("one device beside", "two stages", "none for one", "padding", "ring, balanced", "heads, contiguous")
"""What the quick suite compiles; the slow one takes all."""


def llama() -> tuple[nn.Module, dict[str, object]]:
    """Without an input of positions: the model counts tokens, and shifts the labels itself."""
    model, inputs = LLAMA.build()
    return model, dict(inputs)
