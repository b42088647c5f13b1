"""Dropout of packed tokens: numbered by token, so that rows of any lengths draw what one call draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import DeduceError, VerifyError
from hspmd_compiler.program.kernels import counter_random
from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import Recompute, RecomputeKind, SizesSpec, Strategy
from hspmd_compiler.strategy.strategy import StageSpec as S

from ..training.training_cases import gpt2
from .sized_cases import SizedCase, planned
from .test_sized import PIECES
from .test_sized_compile import PACKED, VOCAB, Attending, apart, attended, rows

SIZES = SizesSpec(tokens=(1, 200))
MIXED = replace(PIECES, sizes=SIZES)
RECOMPUTED = Strategy(
    (P((S((0, 1), (0, 2)),), (1,), recompute=(Recompute((0, 2), RecomputeKind.FULL),)),), sizes=SIZES
)
TOGETHER = {"cuts": ((0, 12), (0, 12, 0))}
functional = nn.functional


def everywhere(x: Tensor, positions: Tensor) -> Tensor:
    """Of tokens, of tokens and rows in one dim, and of features alone; and attention."""
    x = attended(functional.dropout(x, 0.2, training=True), apart(positions))
    flat = functional.dropout(x.flatten(0, 1), 0.3, training=True).view(x.shape)
    return flat * functional.dropout(x.new_ones(8), 0.4, training=True)


def batch(*documents: int) -> dict[str, Tensor]:
    positions = torch.cat([torch.arange(each) for each in documents])[None]
    ids = torch.randint(VOCAB, positions.shape)
    labels = torch.randint(VOCAB, positions.shape).masked_fill(positions % 5 == 0, -100)
    return {"ids": ids, "labels": labels, "positions": positions}


def case_of(strategy: Strategy) -> SizedCase:
    torch.manual_seed(0)
    return SizedCase.of(lambda: Attending(everywhere), rows, strategy, Count.TOKENS, 200)


def test_any_cut_draws_the_same() -> None:
    """Of stages of unlike degree, of pieces uneven and empty; of a pipeline with nothing to do."""
    case = case_of(MIXED)
    for pipelines, sizes in ((([6, 7, 3], [5]), {}), (([2, 9], []), {}), (([12], [4]), TOGETHER)):
        plan, _ = planned(Count.TOKENS, *pipelines, **sizes)
        case.check(plan, batch(*pipelines[0], *pipelines[1]))


def test_what_is_computed_again_draws_the_same() -> None:
    plan, _ = planned(Count.TOKENS, [6, 7, 3])
    case_of(RECOMPUTED).check(plan, batch(6, 7, 3))


def test_numbers_of_a_row_alone_are_found_to_be_others(monkeypatch: pytest.MonkeyPatch) -> None:
    case, (plan, _) = case_of(RECOMPUTED), planned(Count.TOKENS, [6, 7, 3])
    own = counter_random._indexes
    monkeypatch.setattr(counter_random, "_indexes", lambda part, first, device: own(part, 0, device))
    with pytest.raises(VerifyError):
        case.check(plan, batch(6, 7, 3))


@pytest.mark.slow
def test_values_and_rows_of_gpt2_are_proved() -> None:
    """GPT-2's dropout of embeddings and residuals, the rows at the first compile."""
    model = gpt2(dropout=0.1)
    for module in model.modules():
        if hasattr(module, "attn_dropout"):
            module.attn_dropout.p = 0.0
    given = rows()
    inputs = {"input_ids": given["ids"], "labels": given["ids"], "shift_labels": given["ids"]}
    inputs["position_ids"] = given["positions"]
    form = {**PACKED, "sizes": {"tokens": [1, 40]}, "sequence_parallel": True}
    hspmd.compile(model, inputs, strategy=form).verify(values=True, rows=True)


def test_rows_are_proved() -> None:
    """At the first compile, where the key has a row."""
    form = {**PACKED, "sizes": {"tokens": [1, 40]}, "sequence_parallel": True}
    hspmd.compile(Attending(everywhere), rows(), strategy=form).verify(rows=True)


def weights(x: Tensor, positions: Tensor) -> Tensor:
    return attended(x, apart(positions), dropout=0.5)


def whole_rows(x: Tensor, positions: Tensor) -> Tensor:
    return x * functional.dropout(x.new_ones(len(x), 1, 1), 0.5, training=True)


def features(x: Tensor, positions: Tensor) -> Tensor:
    return functional.dropout(x.transpose(1, 2), 0.5, training=True).transpose(1, 2)


@pytest.mark.parametrize("look", [weights, whole_rows, features])
def test_what_has_no_place_by_token_is_refused(look: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(DeduceError) as caught:
        hspmd.compile(Attending(look), rows(), strategy=PACKED)
    told = str(caught.value)
    assert "the model draws random numbers that are not those of single tokens" in told
    assert "test_sized_dropout.py" in told or "test_sized_compile.py" in told
    assert "hspmd.random_mask.default of [" in told and "attention_dropout, attn_pdrop" in told
