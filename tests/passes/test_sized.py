"""One program for micro-batches of any size: steps of sizes that no compile saw equal one eager call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.base.pipeline_schedule import ScheduleKind
from hspmd_compiler.passes.sized.refusals import Unlike, unlike_programs
from hspmd_compiler.passes.sized.unify import unify
from hspmd_compiler.program.check import problems_of_program
from hspmd_compiler.program.program import InputKind, SegmentInput, Value
from hspmd_compiler.program.sized.instantiate import instantiate
from hspmd_compiler.program.sized.size_range import SizeRange
from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.strategy.strategy import PipelineSpec as P
from hspmd_compiler.strategy.strategy import StageSpec as S
from hspmd_compiler.strategy.strategy import Strategy

from ..training.training_cases import HEADS, VOCAB, WIDE, Mlp, llama
from .sized_cases import Batch, SizedCase, planned

UNEQUAL = Strategy((P((S((0, 1), (0, 1)), S((2,), (1, 2))), (1,)), P((S((3,), (0, 2)),), (1,))))
PIECES = Strategy(
    (P((S((0, 1), (0, 1)), S((2, 3, 4), (1, 2))), (1,)), P((S((5,), (0, 2)),), (1,))), sequence_parallel=True
)
ALIKE = Strategy((P((S((0,), (0, 2)),), (1,)), P((S((1,), (0, 2)),), (1,))), zero=3)
Loss = Callable[[Tensor, Tensor], Tensor]


class Packed(nn.Module):
    """Llama on rows of packed documents, whose labels are those of the next token already."""

    def __init__(self) -> None:
        super().__init__()
        self.llama = llama(2)

    def forward(self, input_ids: Tensor, labels: Tensor, position_ids: Tensor) -> Tensor:
        logits = self.llama(input_ids=input_ids, position_ids=position_ids).logits
        return nn.functional.cross_entropy(logits.view(-1, VOCAB), labels.view(-1))


def packed(*documents: int, rows: int = 1) -> Batch:
    """Rows of these documents."""
    count = sum(documents)
    ids = torch.randint(0, VOCAB, (rows, count))
    labels = torch.randint(0, VOCAB, (rows, count))
    labels[:, ::5] = -100
    positions = torch.cat([torch.arange(each) for each in documents])
    return {"input_ids": ids, "labels": labels, "position_ids": positions.expand(rows, count)}


def numbers(count: int, loss: Loss) -> Batch:
    classes = loss is nn.functional.cross_entropy
    targets = torch.randint(0, HEADS, (count,)) if classes else torch.randn(count, HEADS)
    return {"x": torch.randn(count, WIDE), "y": targets}


@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, nn.functional.mse_loss])
def test_any_number_of_samples(loss: Loss) -> None:
    torch.manual_seed(0)
    case = SizedCase.of(lambda: Mlp(loss), lambda _: numbers(2, loss), UNEQUAL, Count.SAMPLES, 64)
    for pipelines in (([1, 7, 7], [3]), ([64], [1, 2, 3]), ([], [4]), ([2], [])):
        plan, total = planned(Count.SAMPLES, *pipelines)
        case.check(plan, numbers(total, loss))


def test_shared_parameters_of_pipelines_that_are_alike() -> None:
    """A step has any number of micro-batches, so that no gather of parameters meets another inside it."""
    torch.manual_seed(0)
    loss = nn.functional.mse_loss
    for unit, model, inputs, high in (
        (Count.SAMPLES, lambda: Mlp(loss), lambda _: numbers(2, loss), 64),
        (Count.TOKENS, Packed, lambda tokens: packed(5, tokens - 5, rows=2), 200),
    ):
        case = SizedCase.of(model, inputs, ALIKE, unit, high)
        plan, total = planned(unit, [7, 3], [4])
        case.check(plan, numbers(total, loss) if unit is Count.SAMPLES else packed(7, 3, 4))


def test_classes_are_those_of_the_same_ranks_whatever_their_names() -> None:
    torch.manual_seed(0)
    loss = nn.functional.mse_loss
    case = SizedCase.of(lambda: Mlp(loss), lambda _: numbers(2, loss), UNEQUAL, Count.SAMPLES, 64)
    first, middle, last = case.probed
    names = dict(zip(middle.classes, reversed(middle.classes), strict=True))
    swapped = replace(
        middle,
        classes={names[name]: replace(held, name=names[name]) for name, held in middle.classes.items()},
        ranks=[replace(own, class_name=names[own.class_name]) for own in middle.ranks],
    )
    assert len(names) > 1 and case.program.sizes is not None
    assert unify([first, swapped, last], case.program.sizes) == case.program


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_packed_rows_of_any_number_of_tokens(zero: int) -> None:
    """Also one token, and a pipeline with nothing to do; cuts of tokens even or not, or empty."""
    torch.manual_seed(0)
    strategy = Strategy(PIECES.pipelines, sequence_parallel=True, zero=zero)
    case = SizedCase.of(Packed, lambda tokens: packed(5, tokens - 5, rows=2), strategy, Count.TOKENS, 200)
    given: Sequence[tuple[tuple[list[int], list[int]], dict[str, object]]] = [
        (([1, 7, 7], [3]), {}),
        (([40, 2], [1, 2, 3]), {}),
        (([], [9]), {}),
        (([12], []), {"cuts": ((0, 12), (0, 12, 0))}),
    ]
    for pipelines, sizes in given if zero == 0 else given[1:2]:
        plan, _ = planned(Count.TOKENS, *pipelines, **sizes)
        case.check(plan, packed(*pipelines[0], *pipelines[1]))


def test_a_plan_of_a_probe_gives_its_program() -> None:
    """But for numbers of steps, all that was compiled at that size."""
    torch.manual_seed(0)
    case = SizedCase.of(Packed, lambda tokens: packed(tokens, rows=2), PIECES, Count.TOKENS, 200)
    assert case.program.sizes is not None
    for probe, compiled in zip(case.program.sizes.probes, case.probed, strict=True):
        made = instantiate(case.program, probe)
        assert not list(problems_of_program(made))
        for own, theirs in zip(made.ranks, compiled.ranks, strict=True):
            for name in ("literals", "comms", "transfers", "instructions", "shards", "grad_buckets"):
                assert getattr(own, name) == getattr(theirs, name), (own.rank, name)
            segments = made.classes[own.class_name].segments
            assert segments == compiled.classes[theirs.class_name].segments


def test_a_refusal_shows_names_and_no_objects() -> None:
    """What a user reads of two compiles is where they differ first."""
    plans = tuple(planned(Count.TOKENS, [tokens])[0] for tokens in (3, 5, 9))
    sizes = SizeRange(Count.TOKENS, 1, 9, plans, (1,), ScheduleKind.ONE_F_ONE_B)
    one, two = (
        [SegmentInput(InputKind.DATA, Value(0), "ids"), SegmentInput(kind, Value(1), "weight")]
        for kind in (InputKind.PARAM, InputKind.STORED)
    )
    error = str(unlike_programs(sizes, Unlike("segment forward.0", "its inputs"), [one, two, two]))
    assert "param weight" in error and "stored weight" in error
    assert "SegmentInput" not in error and "Value(" not in error
    assert "give `sizes` another end, or compile without `sizes`" in error
