"""A step in parts, each under its own strategy, is the step of one device on the whole padded batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hspmd_compiler.artifact.proved_loss import LossKind, ProvedLabels, ProvedLoss
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.errors import RunError
from hspmd_compiler.options import OptimizerConfig, OptimizerName, Precision
from hspmd_compiler.passes.losses.prove import prove_loss
from hspmd_compiler.program.program import Program
from hspmd_compiler.runtime.batches.buckets import BucketFill, CountedLabels, LengthBucket
from hspmd_compiler.runtime.hot.parts import HotPart, StepPart, weighed
from hspmd_compiler.verify.widen import widen_program

from ..training.test_zero_training import CASES
from ..training.training_cases import (
    BATCH,
    HEADS,
    SEQ,
    STRATEGIES,
    SUBJECTS,
    VOCAB,
    WIDE,
    Mlp,
    Subject,
    graph_of,
    numbers,
    program_for,
    traced,
)
from .hot_cases import check_alike, start_of, train_eagerly, train_in_parts

ADAMW = OptimizerConfig(lr=1e-2, eps=1e-2, weight_decay=0.1, max_grad_norm=0.5)
"""An eps by which a gradient that is rounding alone moves nothing."""
SGD = OptimizerConfig(OptimizerName.SGD, lr=0.1, momentum=0.9, max_grad_norm=0.5)
STEPS = 3
EVERY = {**STRATEGIES, **CASES}
MLP_SUM = Subject(lambda: Mlp(lambda out, y: (out - y).square().sum()), numbers)
OWN = {**SUBJECTS, "mlp-sum": MLP_SUM}
TOKENS = ProvedLoss(LossKind.LABELS, ProvedLabels("labels", -100, 1))
LOSSES = {
    "mlp-ce": ProvedLoss(LossKind.LABELS, ProvedLabels("y", -100, 0)),
    "mlp-mse": ProvedLoss(LossKind.SAMPLES),
    "mlp-sum": ProvedLoss(LossKind.SUM),
}
"""Of all others it is `TOKENS`."""

Tensors = dict[str, Tensor]


@cache
def program(subject: str, strategy: str, zero: int) -> Program:
    own = OWN[subject]
    graph = graph_of(subject) if subject in SUBJECTS else traced(own.build(), own.batch(0), BATCH)
    return widen_program(program_for(graph, replace(EVERY[strategy], zero=zero)))


def wide(batch: Mapping[str, Tensor]) -> Tensors:
    return {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}


def joined(batches: Sequence[Mapping[str, Tensor]]) -> Tensors:
    return {key: torch.cat([each[key] for each in batches]) for key in batches[0]}


def check_parts(
    subject: str,
    programs: Mapping[str, Program],
    order: Sequence[str],
    config: OptimizerConfig,
) -> None:
    """Steps of as many batches as `order` names strategies, beside one device on all of them."""
    made = OWN[subject]
    start = start_of(made.build)
    steps = [[wide(made.batch(len(order) * step + at)) for at in range(len(order))] for step in range(STEPS)]
    parts = [[*map(HotPart, order, batches)] for batches in steps]
    found = train_in_parts(programs, "home", start, parts, config, LOSSES.get(subject, TOKENS))
    wholes = [joined(batches) for batches in steps]
    check_alike(found, train_eagerly(made.build, start, wholes, config), config.lr)


@pytest.mark.parametrize(
    ("subject", "home", "away", "config"),
    [
        ("mlp-ce", ("tp32", 1), ("empty", 2), ADAMW),
        ("mlp-ce", ("dp2", 3), ("micro", 0), SGD),  # a device that home doesn't use
        ("llama", ("mixed", 2), ("tp3", 3), ADAMW),
        pytest.param("gpt2-dropout", ("three", 3), ("dp2-pp2", 1), SGD, marks=pytest.mark.slow),
    ],
)
def test_two_strategies(
    subject: str, home: tuple[str, int], away: tuple[str, int], config: OptimizerConfig
) -> None:
    """Dropout too: masks are drawn by the place of a sample in the step."""
    programs = {"home": program(subject, *home), "away": program(subject, *away)}
    check_parts(subject, programs, ("away", "home"), config)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_drawn_strategies(data: st.DataObject) -> None:
    """Of any devices, also where home leaves some idle; parts in any order, strategies more than once."""
    names = ["home", *(f"s{at}" for at in range(data.draw(st.integers(1, 3))))]
    programs = {
        name: program("mlp-ce", data.draw(st.sampled_from(sorted(EVERY))), data.draw(st.integers(0, 3)))
        for name in names
    }
    order = data.draw(st.lists(st.sampled_from(sorted(programs)), min_size=1, max_size=4))
    check_parts("mlp-ce", programs, order, data.draw(st.sampled_from([ADAMW, SGD])))


@pytest.mark.parametrize("subject", ["mlp-mse", "mlp-sum"])
def test_other_losses(subject: str) -> None:
    """A mean over samples, whose number is part of the program, and a sum."""
    programs = {"home": program(subject, "mixed", 1), "away": program(subject, "tp3", 0)}
    check_parts(subject, programs, ("home", "away", "away"), SGD)


def test_sequences_by_length() -> None:
    """Short sequences under one strategy, long ones under another, filled up: nothing is lost by padding."""
    drawn = torch.Generator().manual_seed(7)
    lengths = [[6, 2, 3, 5, 1, 3, 2], [1, 3, 4, 3], [2, 2, 2]]
    tokens = [[torch.randint(1, VOCAB, (size,), generator=drawn) for size in step] for step in lengths]
    buckets = [LengthBucket("home", SEQ, 5), LengthBucket("short", 3, 2)]
    build = SUBJECTS["llama"].build
    programs = {"home": cut("home", SEQ, 5), "short": cut("short", 3, 2)}
    start, fill = start_of(build), BucketFill()
    parts: list[list[StepPart]] = [[*fill.divided(step, buckets)] for step in tokens]
    assert {len(step) for step in parts} == {4, 3, 2}, "several batches of a bucket, and a bucket without any"
    found = train_in_parts(programs, "home", start, parts, ADAMW, TOKENS)
    wholes = [fill.divided(step, [LengthBucket("whole", SEQ, len(step))])[0].batch for step in tokens]
    check_alike(found, train_eagerly(build, start, wholes, ADAMW), ADAMW.lr)


SHAPES = {"home": "mixed", "short": "tp3"}


@cache
def cut(name: str, length: int, rows: int) -> Program:
    """A strategy on sequences of another length, of so many samples: micro-batches of one."""
    strategy = EVERY[SHAPES[name]]
    first, *others = strategy.pipelines
    sizes = [(rows - len(others)), *(1 for _ in others)]
    pipelines = tuple(
        replace(each, micro_batches=(1,) * size) for each, size in zip((first, *others), sizes, strict=True)
    )
    ids = torch.zeros(2, length, dtype=torch.int64)
    graph = traced(SUBJECTS["llama"].build(), {"input_ids": ids, "labels": ids}, rows)
    return widen_program(program_for(graph, replace(strategy, pipelines=pipelines, zero=2)))


def test_labels_that_do_not_count_are_told_on_every_rank(expect: Callable[[str, str], None]) -> None:
    """The model shifts its labels; counted without the shift, parts would weigh wrong."""
    programs = {"home": program("llama", "mixed", 0), "away": program("llama", "dp32", 0)}
    batches = [SUBJECTS["llama"].batch(step) for step in range(2)]
    parts: list[StepPart] = [*map(HotPart, ("away", "home"), batches)]
    start = start_of(SUBJECTS["llama"].build)
    with pytest.raises(RunError) as caught:
        train_in_parts(programs, "home", start, [parts], SGD, TOKENS, counted=CountedLabels(first=0))
    expect("cli/hot_miscounted", str(caught.value))


def test_unknown_strategies_and_wrong_batches_are_told_before_anything_moves() -> None:
    programs = {"home": program("mlp-ce", "dp32", 0)}
    batch = wide(SUBJECTS["mlp-ce"].batch(0))
    start = start_of(SUBJECTS["mlp-ce"].build)
    for parts, what in (
        ([HotPart("home", batch, 1.0), HotPart("other", batch, 1.0)], "there is no strategy 'other'"),
        ([HotPart("home", {"x": batch["x"][1:], "y": batch["y"]}, 1.0)], "a batch doesn't fit the program"),
    ):
        with pytest.raises(RunError, match=what):
            train_in_parts(programs, "home", start, [parts], SGD)


def test_masks_of_one_micro_batch_are_those_of_the_first_part_only(
    expect: Callable[[str, str], None],
) -> None:
    """Nothing tells such a program which dim the samples lie along."""
    made = SUBJECTS["gpt2-dropout"]
    programs = {"home": program("gpt2-dropout", "dp32", 0), "away": program("gpt2-dropout", "tp3", 0)}
    batches = [made.batch(step) for step in range(2)]
    start = start_of(made.build)
    first: list[StepPart] = [*map(HotPart, ("away", "home"), batches)]
    found = train_in_parts(programs, "home", start, [first], SGD, TOKENS)
    check_alike(found, train_eagerly(made.build, start, [joined(batches)], SGD), SGD.lr)
    behind: list[StepPart] = [*map(HotPart, ("home", "away"), batches)]
    with pytest.raises(RunError) as caught:
        train_in_parts(programs, "home", start, [behind], SGD, TOKENS)
    expect("cli/hot_places", str(caught.value))


def test_ranks_with_other_parts_are_told_before_anything_moves(expect: Callable[[str, str], None]) -> None:
    """Fewer strategies, or in another order: ranks would wait for messages that nobody sends."""
    strategies = {"home": "dp32", "away": "tp3", "far": "dp2"}
    programs = {name: program("mlp-ce", strategy, 0) for name, strategy in strategies.items()}
    batch, start = wide(SUBJECTS["mlp-ce"].batch(0)), start_of(SUBJECTS["mlp-ce"].build)
    parts: list[StepPart] = [HotPart(name, batch, 0.5) for name in strategies]
    found = []
    for own in (lambda world, parts: parts[: 3 - world], lambda world, parts: parts[:: -1 if world else 1]):
        with pytest.raises(RunError) as caught:
            train_in_parts(programs, "home", start, [parts], SGD, given=own)
        found.append(str(caught.value))
    expect("cli/hot_other_parts", "\n\n".join(found))


class Weighted(nn.Module):
    """A mean over labels by the weights of their classes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDE, HEADS)
        self.register_buffer("weight", torch.arange(1.0, HEADS + 1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(x), y, weight=self.weight)


def test_a_mean_by_weights_is_no_mean_over_samples(expect: Callable[[str, str], None]) -> None:
    """Parts weigh by what they are told alone, and are exact then."""
    made, start = SUBJECTS["mlp-ce"], start_of(Weighted)
    home = program_for(traced(Weighted(), made.batch(0), BATCH), STRATEGIES["dp32"])
    programs = {"home": widen_program(home)}
    batches = [wide(made.batch(step)) for step in range(2)]
    shares = [float(start["weight"][batch["y"][batch["y"] >= 0]].sum()) for batch in batches]
    told: list[StepPart] = [
        HotPart("home", batch, share / sum(shares)) for batch, share in zip(batches, shares, strict=True)
    ]
    found = train_in_parts(programs, "home", start, [told], SGD)
    check_alike(found, train_eagerly(Weighted, start, [joined(batches)], SGD), SGD.lr)
    parts: list[StepPart] = [HotPart("home", batch) for batch in batches]
    with pytest.raises(RunError) as caught:
        train_in_parts(programs, "home", start, [parts], SGD, loss_of(Weighted, made))
    expect("cli/hot_kind_weighted", re.sub(r"py:\d+", "py:LINE", str(caught.value)))


def masked_llama() -> nn.Module:
    """It is told positions, and which tokens see which."""
    return SUBJECTS["llama"].build()


def packed_program(rows: int, strategy: str) -> Program:
    """With positions and a mask of pairs beside the tokens, micro-batches of one row."""
    ids = torch.zeros(2, SEQ, dtype=torch.int64)
    pairs = torch.ones(2, 1, SEQ, SEQ, dtype=torch.bool)
    batch = {"input_ids": ids, "labels": ids, "position_ids": ids, "attention_mask": pairs}
    graph = traced(masked_llama(), batch, rows)
    first, *others = EVERY[strategy].pipelines
    sizes = [rows - len(others), *(1 for _ in others)]
    pipelines = tuple(
        replace(each, micro_batches=(1,) * size) for each, size in zip((first, *others), sizes, strict=True)
    )
    return widen_program(program_for(graph, replace(EVERY[strategy], pipelines=pipelines)))


def test_packed_rows_are_sequences_of_their_own() -> None:
    """Several in a row, with positions and a mask of pairs, as each in a row of its own."""
    drawn = torch.Generator().manual_seed(3)
    lengths = [2, 3, 5, 1, 3, 2, 4]
    tokens = [torch.randint(1, VOCAB, (size,), generator=drawn) for size in lengths]
    fill = BucketFill()
    parts = fill.divided(tokens, [LengthBucket("home", SEQ, 2, packed=True)])
    assert sum(len(own) > 1 for part in parts for own in part.sequences) == 3
    programs, start = {"home": packed_program(2, "dp32")}, start_of(masked_llama)
    found = train_in_parts(programs, "home", start, [parts], ADAMW, TOKENS)
    (whole,) = fill.divided(tokens, [LengthBucket("whole", SEQ, len(tokens))])
    check_alike(found, train_eagerly(masked_llama, start, [whole.batch], ADAMW), ADAMW.lr)


def test_copies_in_bfloat16_flow_out_and_gradients_back_in_float32() -> None:
    """Two strategies compute in bfloat16 beside masters as home alone does, up to that type's rounding."""
    made = SUBJECTS["mlp-ce"]
    graph = trace_graph(made.build(), made.batch(0), BATCH, precision=Precision.BFLOAT16).graph
    programs = {
        "home": program_for(graph, replace(EVERY["mixed"], zero=2)),
        "away": program_for(graph, replace(EVERY["tp3"], zero=3)),
    }
    start = {name: value.float() for name, value in start_of(made.build).items()}
    batches = [[made.batch(2 * step), made.batch(2 * step + 1)] for step in range(STEPS)]
    both, alone = (
        train_in_parts(
            programs,
            "home",
            start,
            [[*map(HotPart, order, step)] for step in batches],
            SGD,
            LOSSES["mlp-ce"],
            dtype=torch.float32,
        )
        for order in (("away", "home"), ("home", "home"))
    )
    assert both.losses == pytest.approx(alone.losses, rel=2e-2)
    for name, value in both.params.items():
        assert value.dtype == torch.float32
        assert (value - alone.params[name]).abs().max() <= 2e-2 * value.abs().max().clamp(min=1e-2)


def loss_of(build: Callable[[], nn.Module], made: Subject) -> ProvedLoss:
    graphs = [traced(build(), made.batch(0), samples) for samples in (BATCH, 2 * BATCH)]
    return prove_loss(*graphs).loss


@pytest.mark.parametrize("subject", ["mlp-ce", "mlp-mse", "mlp-sum", "llama", "gpt2-dropout"])
def test_what_the_cases_are_is_proved(subject: str) -> None:
    made = OWN[subject]
    assert loss_of(made.build, made) == LOSSES.get(subject, TOKENS)


@pytest.mark.parametrize(
    ("subject", "kind"),
    [("mlp-ce", LossKind.SAMPLES), ("mlp-mse", LossKind.LABELS), ("mlp-ce", LossKind.SUM)],
)
def test_another_kind_of_loss_is_refused(
    subject: str, kind: LossKind, expect: Callable[[str, str], None]
) -> None:
    """Also where a program of one micro-batch shows no count as a value of the step."""
    with pytest.raises(RunError) as caught:
        weighed([("home", OWN[subject].batch(0))], LOSSES[subject], kind)
    expect(f"cli/hot_kind_{subject}_{kind.value}", str(caught.value))


def test_without_a_proof_parts_need_weights(expect: Callable[[str, str], None]) -> None:
    """Also for an engine that has no bundle with a home."""
    with pytest.raises(RunError) as caught:
        weighed([("home", OWN["mlp-ce"].batch(0))], None)
    expect("cli/hot_unproved", str(caught.value))
