"""Class programs and rank tables: what is shared, what differs, and that compiling twice gives the same."""

from __future__ import annotations

import pytest

from hspmd_compiler.base.codec import encode
from hspmd_compiler.base.pipeline_schedule import build_schedule
from hspmd_compiler.program.program import Op, Program
from hspmd_compiler.strategy.strategy import PipelineSpec, ScheduleKind, StageSpec, Strategy

from ..training.training_cases import ALL, BATCH, FIRST, SECOND, STRATEGIES, graph_of, program_for, program_of

S, P = StageSpec, PipelineSpec


def lowered(*pipelines: PipelineSpec, **options: object) -> Program:
    return program_for(graph_of("mlp-ce"), Strategy(pipelines, **options))  # type: ignore[arg-type]


def test_ranks_that_do_the_same_share_a_class() -> None:
    """Four pipelines alike are one class; the ranks of a stage are one even where their shares differ."""
    quarter = [P((S((n,), ALL),), (2,)) for n in range(5)]
    assert len(lowered(*quarter).classes) == 1
    uneven = lowered(P((S((0, 1, 2), ALL, (3, 1, 2)),), (BATCH,)))
    assert len(uneven.classes) == 1
    assert uneven.ranks[0].literals != uneven.ranks[1].literals
    two = lowered(P((S((0,), FIRST), S((1,), SECOND)), (5, 5)))
    assert len(two.classes) == 2


def test_micro_batches_of_one_size_share_their_segments() -> None:
    def segments(*sizes: int) -> int:
        (shared,) = lowered(P((S((0, 1), ALL),), sizes)).classes.values()
        return len(shared.segments)

    assert segments(5, 5) == segments(BATCH) == 3
    assert segments(4, 4, 2) == 6


def test_ranks_are_devices_in_order_and_take_consecutive_rows() -> None:
    strategy = Strategy((P((S((9, 4), ALL),), (3, 1)), P((S((7,), ALL),), (1,))), accumulation=2)
    program = program_for(graph_of("mlp-ce"), strategy)
    assert [(rank.rank, rank.device, rank.coordinate) for rank in program.ranks] == [
        (0, 4, 1),
        (1, 7, 0),
        (2, 9, 0),
    ]
    assert program.ranks[0].rows == program.ranks[2].rows == [(0, 3), (3, 4), (5, 8), (8, 9)]
    assert program.ranks[1].rows == [(4, 5), (9, 10)]
    assert program.ranks[0].pipeline == 0 and program.ranks[1].pipeline == 1


def test_every_transfer_has_its_own_tag() -> None:
    program = program_of("gpt2", "pp")
    for rank in program.ranks:
        for op in (Op.SEND, Op.RECV):
            tags = [i.tag for i in rank.instructions if i.op is op]
            assert len(tags) == len(set(tags))
    sent, received = (
        {i.tag for rank in program.ranks for i in rank.instructions if i.op is op}
        for op in (Op.SEND, Op.RECV)
    )
    assert sent == received


PASSES = (Op.FORWARD, Op.BACKWARD, Op.WEIGHTS)


@pytest.mark.parametrize("kind", list(ScheduleKind))
def test_instructions_follow_the_schedule(kind: ScheduleKind) -> None:
    program = lowered(P((S((0,), FIRST), S((1,), SECOND)), (4, 4, 2)), schedule=kind)
    order = [
        [f"{i.op.value[0].upper()}{i.mb}" for i in rank.instructions if i.op in PASSES]
        for rank in program.ranks
    ]
    rows = build_schedule(kind, 2, 3).stages
    assert order == [[action.text(stage)[1:] for action in row] for stage, row in enumerate(rows)]
    for rank in program.ranks:
        assert [i.op for i in rank.instructions[-3:]] == [Op.GRAD_SYNC, Op.LOSS, Op.OPTIMIZER]


def test_compiling_twice_gives_the_same() -> None:
    for subject, strategy in (("gpt2", "mixed"), ("mlp-mse", "empty")):
        again = program_for(graph_of(subject), STRATEGIES[strategy])
        assert encode(again) == encode(program_of(subject, strategy))


def test_a_tied_weight_is_one_parameter_on_both_stages() -> None:
    program = program_of("gpt2", "pp")
    tied = program.aliases["lm_head.weight"]
    assert tied == "transformer.wte.weight"
    holders = {rank.stage for rank in program.ranks for shard in rank.shards if shard.name == tied}
    assert holders == {0, 1}
    only = {
        rank.stage
        for rank in program.ranks
        for shard in rank.shards
        if shard.name == "transformer.wpe.weight"
    }
    assert only == {0}


def test_shards_follow_the_shares() -> None:
    program = program_of("gpt2", "empty")
    sizes = [
        {shard.name: shard.shape for shard in rank.shards}["transformer.h.0.attn.c_attn.weight"]
        for rank in program.ranks
    ]
    assert sizes == [(36, 72), (36, 0), (36, 36)]
