"""The memory of a rank over its instructions is what the walk by shape holds, plus what that leaves out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hspmd_compiler.base.dtypes import BYTES
from hspmd_compiler.cost_models import operator_classes
from hspmd_compiler.cost_models.steps.memory import RankMemory, rank_memory
from hspmd_compiler.cost_models.steps.rank_shapes import ShapeTable
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.boxes import received_volumes
from hspmd_compiler.program.execute import plan_rank
from hspmd_compiler.program.program import Op, Program, RankProgram
from hspmd_compiler.program.sized.instantiate import instantiate
from hspmd_compiler.verify.shape.shape_segments import ShapeBook
from hspmd_compiler.verify.shape.solo import solo
from tests.cost_models.priced import DP, MIXED, PP, TP, TP3, compiled
from tests.passes.test_shared_rows import CASES as SHARED
from tests.passes.test_shared_rows import case, plan_of

LOSS_BYTES = 16
"""The running loss, and its sum over ranks, which are told in no part."""

WEIGHTED = [
    {"stages": [{"devices": [at], "layers": 4, "zero_shares": [weight]}], "micro_batches": [2, 2][: 2 - at]}
    for at, weight in enumerate((1, 3))
]
TP_BESIDE_ONE = [
    {"stages": [{"devices": [0, 1], "layers": 4}], "micro_batches": [2, 2]},
    {"stages": [{"devices": [2], "layers": 4}], "micro_batches": [1]},
]
"""Gradients of whole parameters are put together of two buckets' pieces."""
CASES: list[tuple[str, str, list[Any], dict[str, Any]]] = [
    ("three ranks", "model", TP3, {}),
    ("sequence parallel", "bfloat16", TP, {"sequence_parallel": True}),
    ("zero 1", "bfloat16", DP, {"zero": 1}),
    ("zero 2", "model", DP, {"zero": 2}),
    ("zero 3", "bfloat16", DP, {"zero": 3}),
    ("zero 1 by weights", "model", WEIGHTED, {"zero": 1}),
    ("zero 3 by weights", "model", WEIGHTED, {"zero": 3}),
    ("pieces", "model", TP_BESIDE_ONE, {}),
    ("pieces, zero 1", "model", TP_BESIDE_ONE, {"zero": 1}),
    ("pieces, zero 2", "bfloat16", TP_BESIDE_ONE, {"zero": 2}),
    ("pieces, zero 3", "model", TP_BESIDE_ONE, {"zero": 3}),
]


@pytest.fixture(autouse=True)
def without_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What kernels hold inside a call is in no walk by shape."""
    monkeypatch.setattr(operator_classes, "TWICE_ITS_RESULT", frozenset())


def memory_of(program: Program, own: RankProgram, optimizer: OptimizerConfig) -> RankMemory:
    with torch.no_grad():
        return rank_memory(program, ShapeTable(program).of(own), optimizer)


def walked_peak(program: Program, rank: int) -> int:
    book = ShapeBook()
    with torch.no_grad():
        solo(program, plan_rank(program, rank), book)  # PyTorch's first calls keep values alive
        return solo(program, plan_rank(program, rank), book).peak


def last_answer(program: Program, own: RankProgram) -> int:
    """What a rank has received last stays until it asks again: a value that crosses its stage."""
    steps = ShapeTable(program).of(own).steps
    walked = [step.walked for step in steps if step is not None and step.walked is not None]
    return max((comm.size for walk in walked for comm in walk.comms), default=0)


def peak_without_optimizer(program: Program, own: RankProgram) -> int:
    """Of SGD without momentum, which has no state, and without what its update makes."""
    memory = memory_of(program, own, OptimizerConfig.from_json({"name": "sgd"}))
    steps = zip(own.instructions, memory.peaks, strict=True)
    return max(peak for instruction, peak in steps if instruction.op is not Op.OPTIMIZER)


@pytest.mark.parametrize(
    ("precision", "pipelines", "more"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_peak_is_that_of_the_walk_by_shape(
    precision: str, pipelines: list[Any], more: dict[str, Any]
) -> None:
    program = compiled(pipelines, precision, **more).program
    for own in program.ranks:
        found = peak_without_optimizer(program, own)
        assert 0 <= walked_peak(program, own.rank) - found <= LOSS_BYTES + last_answer(program, own)


def test_what_is_sent_does_not_grow_with_micro_batches() -> None:
    """A rank lets go of what it knows to be received."""
    peaks = []
    for count in (3, 8):
        program = compiled([{**PP[0], "micro_batches": [1] * count}]).program
        memories = [memory_of(program, own, OptimizerConfig()).peak for own in program.ranks]
        peaks.append([replace(one, batch=0) for one in memories])
        assert all(one.buffers > 0 for one in memories)
    assert peaks[0] == peaks[1]


def test_what_is_sent_lives_until_sends_are_over() -> None:
    """The walk lets go of a message at once; the transport keeps it until it is answered, or the update."""
    program = compiled(MIXED).program
    for own in program.ranks:
        sent = memory_of(program, own, OptimizerConfig()).peak.buffers
        walked = walked_peak(program, own.rank)
        assert walked - LOSS_BYTES <= peak_without_optimizer(program, own) <= walked + sent
    last = program.ranks[-1]
    memory = memory_of(program, last, OptimizerConfig())
    update = [instruction.op for instruction in last.instructions].index(Op.OPTIMIZER)
    assert memory.held[update] <= memory.held[update - 1]


def test_first_stage_keeps_more_micro_batches_than_the_last() -> None:
    """1F1B: as many as there are stages behind it, and one."""
    program = compiled(PP).program
    first, last = (memory_of(program, own, OptimizerConfig()).peak for own in program.ranks)
    assert first.kept + first.transient > 1.5 * (last.kept + last.transient)


def test_optimizer_state_follows_the_rule() -> None:
    program = compiled(PP).program
    own = program.ranks[0]
    sizes = {
        text: memory_of(program, own, OptimizerConfig.from_json({"name": name, **more})).peak.optimizer
        for text, name, more in (("adamw", "adamw", {}), ("sgd", "sgd", {}), ("m", "sgd", {"momentum": 0.9}))
    }
    assert sizes["sgd"] == 0
    assert (
        sizes["adamw"]
        == 2 * sizes["m"]
        == 2 * memory_of(program, own, OptimizerConfig()).peak.parameters
        - (2 * sum(4 * torch.Size(shard.shape).numel() for shard in own.shards if shard.is_buffer))
    )


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_receives_that_are_posted_early_hold_their_memory(ahead: int) -> None:
    """Beside what is there without them, as many messages as are posted ahead; the walk sees them, too."""
    program = compiled(PP, receives_ahead=ahead).program
    bare = compiled(PP, receives_ahead=0).program
    optimizer = OptimizerConfig.from_json({"name": "sgd"})
    for own, other in zip(program.ranks, bare.ranks, strict=True):
        (size,) = {sum(received_volumes(step).values()) for step in own.transfers if step.recvs}
        memory, before = memory_of(program, own, optimizer), memory_of(bare, other, optimizer)
        receives = [at for at, each in enumerate(own.instructions) if each.op is Op.RECV]
        for number, at in enumerate(receives):
            posted = min(ahead, len(receives) - number - 1)
            assert memory.held[at] - before.held[at] == posted * size * BYTES["float32"]
        sent = memory.peak.buffers
        assert walked_peak(program, own.rank) - LOSS_BYTES <= peak_without_optimizer(program, own)
        assert peak_without_optimizer(program, own) <= walked_peak(program, own.rank) + sent
    if ahead:
        assert walked_peak(program, 1) > walked_peak(bare, 1)


def test_rows_that_members_share_unlike() -> None:
    """Of a step that plans rows of any length: a member may have none of one, and all of another."""
    program = case("ring").program
    plan = plan_of(SHARED["ring"], [(0, 0, 40), (20, 13, 7)])
    made = instantiate(program, plan)
    wanted = sum(80 * BYTES[dtype] for _, dtype in made.inputs.values())
    for own in made.ranks:
        found = memory_of(made, own, OptimizerConfig()).peak
        assert found.batch == wanted < found.total
