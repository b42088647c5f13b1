"""ZeRO-1, -2 and -3 train like one eager call, and store every element's state exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import pytest
import torch

import hspmd_compiler as hspmd
from hspmd_compiler.base.comm_plan import Box, box_volume
from hspmd_compiler.cost_models.steps.stored_bytes import stored_bytes
from hspmd_compiler.errors import ArtifactError, VerifyError
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.pages.inspect import comm_page
from hspmd_compiler.pages.sections import Table
from hspmd_compiler.program import boxes
from hspmd_compiler.program.boxes import slices
from hspmd_compiler.program.check import check
from hspmd_compiler.program.program import InputKind, Op, Program, RankProgram
from hspmd_compiler.runtime.batches.sources import vocabulary_of
from hspmd_compiler.runtime.shards import fill_shard
from hspmd_compiler.strategy.strategy import PipelineSpec, Recompute, RecomputeKind, StageSpec, Strategy
from hspmd_compiler.verify.training import ShardUpdate
from hspmd_compiler.verify.values import simulate
from hspmd_compiler.verify.widen import widen_program

from ..fit import check_fit
from .test_end_to_end import ADAMW, EXACT, LocalOptimizers, batches, compare, reference, start
from .training_cases import ALL, FIRST, SECOND, STRATEGIES, SUBJECTS, VOCAB, graph_of, program_for, traced

MOMENTS = 2
ONE = [StageSpec((device,), ALL) for device in range(3)]
CASES = {
    "dp2": Strategy((PipelineSpec((ONE[0],), (3, 2)), PipelineSpec((ONE[1],), (4, 1)))),
    "dp3": Strategy(tuple(PipelineSpec((ONE[p],), (size,)) for p, size in enumerate((4, 3, 3)))),
    "dp2-pp2": Strategy(
        (
            PipelineSpec((StageSpec((0,), FIRST), StageSpec((1,), SECOND)), (3, 2)),
            PipelineSpec((StageSpec((2,), FIRST), StageSpec((3,), SECOND)), (4, 1)),
        )
    ),
    "sp": Strategy(
        (PipelineSpec((StageSpec((0, 1), ALL),), (3, 2)), PipelineSpec((StageSpec((2, 3, 4), ALL),), (4, 1))),
        sequence_parallel=True,
    ),
    "empty-unlike": Strategy(
        (
            PipelineSpec((StageSpec((0, 1), FIRST), StageSpec((2,), SECOND)), (5,)),
            PipelineSpec((StageSpec((3, 4, 5), ALL, (2, 0, 1)),), (5,)),
        )
    ),
    **{name: STRATEGIES[name] for name in ("tp32", "mixed", "empty", "accumulation")},
}
QUICK = [
    ("mlp-ce", "dp2", 1),
    ("mlp-ce", "dp2", 3),
    ("mlp-ce", "empty-unlike", 3),  # a rank without a piece of what is gathered at the step's start
    ("llama", "dp3", 3),
    ("gpt2", "dp2-pp2", 1),  # a tied embedding, held by both stages of both pipelines
    ("gpt2", "dp2-pp2", 3),
    ("llama", "mixed", 2),
    ("llama", "mixed", 3),
    ("llama-kv1", "tp32", 3),  # one key-value head on all ranks
    ("llama", "sp", 2),
    ("llama", "sp", 3),
]
PARAMETERS = [
    pytest.param(
        subject,
        case,
        zero,
        marks=() if (subject, case, zero) in QUICK else pytest.mark.slow,
        id=f"{subject} {case} {zero}",
    )
    for subject in ("mlp-ce", "llama", "llama-kv1", "gpt2")
    for case in CASES
    for zero in (1, 2, 3)
]


def made(subject: str, case: str, zero: int) -> Program:
    return program_for(graph_of(subject), replace(CASES[case], zero=zero))


@pytest.mark.parametrize(("subject", "case", "zero"), PARAMETERS)
def test_training_is_exact_and_state_is_stored_once(subject: str, case: str, zero: int) -> None:
    program = made(subject, case, zero)
    check(program)
    check_fit(program)
    optimizers = LocalOptimizers(ADAMW)
    found = simulate(widen_program(program), start(subject, True), batches(subject, True), optimizers)
    compare(found, reference(subject, True), EXACT, ADAMW.lr)
    state = sum(
        tensor.numel()
        for held in optimizers.held.values()
        for of in held.state.values()
        for tensor in of.values()
    )
    assert state == MOMENTS * trained_elements(subject)


def traced_mlp(samples: int) -> LogicalGraph:
    return traced(SUBJECTS["mlp-ce"].build(), SUBJECTS["mlp-ce"].batch(0), samples)


def trained_elements(subject: str) -> int:
    params = graph_of(subject).params.values()
    return sum(prod(info.shape) for info in params if info.grad is not None)


def test_clipping_counts_each_element_once() -> None:
    """Losses and parameters of clipped steps are those of zero 0, for a tied embedding in two stages."""
    config = OptimizerConfig(lr=1e-2, max_grad_norm=0.1)
    runs = [
        simulate(
            widen_program(made("gpt2", "dp2-pp2", zero)),
            start("gpt2", True),
            batches("gpt2", True)[:2],
            ShardUpdate(config),
        )
        for zero in (0, 1, 2)
    ]
    for run in runs[1:]:
        assert run.losses == pytest.approx(runs[0].losses, rel=1e-13)


@pytest.mark.parametrize("case", ["dp3", "dp2-pp2"])
def test_bytes_that_are_saved(case: str) -> None:
    """By what a rank stores between steps: each stage of ZeRO takes copies away from one more column."""
    adamw = OptimizerConfig()
    held = [[stored_bytes(rank, adamw) for rank in made("gpt2", case, zero).ranks] for zero in range(4)]
    whole = trained_elements("gpt2") * 4
    parameters, gradients, states = (
        [sum(getattr(rank, name) for rank in ranks) for ranks in held]
        for name in ("parameters", "gradients", "state")
    )
    buffers = parameters[3] - whole
    copies = gradients[0] // whole
    assert copies >= 2
    assert states == [MOMENTS * gradients[0], *[MOMENTS * whole] * 3]
    assert gradients == [gradients[0], gradients[0], whole, whole]
    assert parameters == [gradients[0] + buffers] * 3 + [whole + buffers]


def test_equal_pipelines_gather_layer_by_layer() -> None:
    """ZeRO-3 gathers in segments, in both passes, but for the tied embedding: two stages hold it."""
    program = made("gpt2", "dp2-pp2", 3)
    for own in program.ranks:
        for segment in program.classes[own.class_name].segments:
            read = {item.name for item in segment.inputs if item.kind is InputKind.PARAM}
            trained = {shard.name for shard in own.shards if shard.zero}
            assert read & trained <= {"transformer.wte.weight"}
    peaks = [max(check_fit(made("llama", "dp3", zero)).peak) for zero in (2, 3)]
    assert peaks[1] < peaks[0]


def test_parameters_are_gathered_in_the_model_s_order() -> None:
    """Also those that one operator reads: a set of names would have another order in each process."""
    program = made("gpt2", "dp2", 3)
    forward = program.classes[program.ranks[0].class_name].segments[0]
    stored = [item.name for item in forward.inputs if item.kind is InputKind.STORED]
    assert stored == [name for name, _ in SUBJECTS["gpt2"].build().named_parameters()]


@pytest.mark.parametrize("case", ["mixed", "tp32"])
def test_unequal_pipelines_gather_at_the_start(case: str) -> None:
    program = made("llama", case, 3)
    for own in program.ranks:
        operations = [step.op for step in own.instructions]
        assert operations[0] is Op.PARAM_GATHER
        assert operations.index(Op.PARAM_DROP) == operations.index(Op.GRAD_SYNC) - 1


UNLIKE = Strategy(
    (PipelineSpec((ONE[0],), (1, 1, 1, 1, 1)), PipelineSpec((ONE[1],), (3, 1)), PipelineSpec((ONE[2],), (1,)))
)


def scatters(program: Program) -> list[list[int]]:
    """Per rank, how many backward passes lie before each handing over of gradients, the last one too."""
    found = []
    for own in program.ranks:
        backwards, points = 0, []
        for step in own.instructions:
            backwards += step.op is Op.BACKWARD
            if step.op in (Op.GRAD_SCATTER, Op.GRAD_SYNC):
                points.append(backwards)
        found.append(points)
    return found


@pytest.mark.parametrize("zero", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_gradients_are_handed_over_micro_batch_by_micro_batch(zero: int) -> None:
    """By pipelines with as many of them, and as often as the shortest can by others; below ZeRO-2 once."""
    assert scatters(made("mlp-ce", "dp2", zero)) == [[1, 2]] * 2
    assert scatters(made("mlp-ce", "dp2", 1)) == [[2]] * 2
    two = replace(UNLIKE, pipelines=UNLIKE.pipelines[:2], zero=zero)
    unlike = program_for(traced_mlp(9), two)
    check_fit(unlike)
    assert scatters(unlike) == [[2, 5], [1, 2]]
    assert scatters(program_for(graph_of("mlp-ce"), replace(UNLIKE, zero=zero))) == [[5], [2], [1]]


def test_a_rank_never_holds_two_micro_batches_of_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """By peak memory: with ZeRO-1 the sum so far lies beside the gradients of the next micro-batch, with
    ZeRO-2 half of it does, and what is packed at once is small."""
    monkeypatch.setattr("hspmd_compiler.passes.zero.zero.UNIT_ELEMENTS", 1 << 10)
    whole = trained_elements("llama") * 4
    strategy = Strategy(tuple(PipelineSpec((ONE[p],), (1,) * 5) for p in range(2)))
    peaks = []
    for zero in (1, 2):
        program = program_for(graph_of("llama"), replace(strategy, zero=zero))
        peaks.append(max(check_fit(program).peak))
    assert peaks[0] - peaks[1] >= 0.3 * whole


@pytest.mark.slow
def test_small_units_train_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few parameters each, over pipelines of unlike depth."""
    monkeypatch.setattr("hspmd_compiler.passes.zero.zero.UNIT_ELEMENTS", 1 << 10)
    program = made("llama", "mixed", 2)
    assert len(program.ranks[0].grad_buckets) > len(graph_of("llama").params) / 4
    found = simulate(
        widen_program(program), start("llama", True), batches("llama", True), LocalOptimizers(ADAMW)
    )
    compare(found, reference("llama", True), EXACT, ADAMW.lr)


def test_recomputation_beside_zero_3() -> None:
    """Copied rows read gathered parameters; a pipeline with another choice gathers at the start."""
    ranges = (Recompute(ALL, RecomputeKind.FULL),)
    first, second = CASES["dp2"].pipelines
    for pipelines in (
        (replace(first, recompute=ranges), replace(second, recompute=ranges)),
        (first, replace(second, recompute=ranges)),
    ):
        program = program_for(graph_of("llama"), Strategy(pipelines, zero=3))
        check_fit(program)
        wide = widen_program(program)
        found = simulate(wide, start("llama", True), batches("llama", True), LocalOptimizers(ADAMW))
        compare(found, reference("llama", True), EXACT, ADAMW.lr)


def test_a_rank_starts_with_what_it_stores() -> None:
    """With ZeRO-3 it reads and keeps its own elements only, in the order of its row."""
    read = stored = 0
    for own in made("llama", "dp3", 3).ranks:
        for shard in own.shards:
            if not shard.zero:
                continue
            whole = torch.arange(float(prod(shard.whole_shape))).view(shard.whole_view)

            def box(at: Box, whole: torch.Tensor = whole) -> torch.Tensor:
                nonlocal read
                read += box_volume(at)
                return whole[slices(at)]

            given = fill_shard(shard, box, torch.device("cpu"))
            assert given.equal(boxes.pack(whole, shard.whole_view, [at for at, _ in shard.owned]))
            stored += given.numel()
    assert read == stored == trained_elements("llama")


def test_a_table_in_shares_is_still_known() -> None:
    """By its whole number of rows, so that text with more tokens is refused."""
    program = made("llama", "dp3", 3)
    own = program.ranks[0]
    assert vocabulary_of(program.classes[own.class_name], own.shards) == VOCAB


def changed(program: Program, change: Callable[[RankProgram], RankProgram]) -> Program:
    return replace(program, ranks=[change(rank) for rank in program.ranks])


def test_a_forgotten_gathering_shows() -> None:
    """Holders that keep old values train differently in the next step."""
    program = widen_program(made("mlp-ce", "dp2", 1))

    def forget(rank: RankProgram) -> RankProgram:
        return replace(rank, instructions=[i for i in rank.instructions if i.op is not Op.PARAM_GATHER])

    with pytest.raises(VerifyError):
        found = simulate(
            changed(program, forget), start("mlp-ce", True), batches("mlp-ce", True), LocalOptimizers(ADAMW)
        )
        compare(found, reference("mlp-ce", True), EXACT, ADAMW.lr)


def test_a_sum_that_nobody_keeps_shows() -> None:
    """An element without an owner is no gradient of the whole."""
    program = made("mlp-ce", "dp2", 2)

    def lose(rank: RankProgram) -> RankProgram:
        shards = [replace(s, owned=s.owned[1:]) if s.name == "head.weight" else s for s in rank.shards]
        return replace(rank, shards=shards)

    with pytest.raises(VerifyError):
        check_fit(changed(program, lose))


def test_a_slot_that_is_not_there_is_refused() -> None:
    program = made("mlp-ce", "dp2", 2)

    def break_slots(rank: RankProgram) -> RankProgram:
        buckets = [replace(bucket, slot=99) for bucket in rank.param_buckets]
        return replace(rank, param_buckets=buckets, shards=[replace(s, zero=4) for s in rank.shards])

    with pytest.raises(ArtifactError) as caught:
        check(changed(program, break_slots))
    assert "parameter bucket 0: no comm 99" in str(caught.value)
    assert "zero 4 is none of 0 to 3" in str(caught.value)


def test_inspect_counts_what_moves() -> None:
    """A reduce-scatter of gradients for each of two micro-batches and one gathering of parameters, each rank
    half of the elements."""
    optimizer = OptimizerConfig()
    subject = SUBJECTS["mlp-ce"]
    program = hspmd.compile(
        subject.build(), subject.batch(0), strategy=replace(CASES["dp2"], zero=2), optimizer=optimizer
    )
    kinds = comm_page(program.artifact)[0]
    assert isinstance(kinds, Table)
    counts = {row[0]: (row[1], row[2]) for row in kinds.rows}
    half = trained_elements("mlp-ce") * 4
    assert counts["reduce_scatter"] == (2, 2 * half)
    assert counts["all_gather"] == (1, half + 4), "an odd number of elements is padded by one"
    assert "gradient" not in counts
