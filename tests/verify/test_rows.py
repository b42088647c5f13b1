"""A wrong literal, box or reduction in a program is found, at the row and the user's line where it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import Artifact
from hspmd_compiler.base.comm_plan import CommKind, CommStep, Piece
from hspmd_compiler.errors import VerifyError
from hspmd_compiler.layout.layout import Axis, Coordinate, Factor, Layout, make_layout, whole
from hspmd_compiler.program.program import LocalRow, Segment
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.verify.artifact import verify_artifact
from hspmd_compiler.verify.assemble import LocalPiece as Held
from hspmd_compiler.verify.assemble import assemble, gap

WIDE_IN, HIDDEN, CLASSES = 5, 7, 6
THREE_RANKS = Strategy(
    (PipelineSpec((StageSpec((0, 1), (0, 2)),), (2, 1)), PipelineSpec((StageSpec((2,), (0, 2)),), (2,)))
)
STAGES = Strategy((PipelineSpec((StageSpec((0, 1), (0, 1)), StageSpec((2,), (1, 2))), (2, 1)),))


class Block(nn.Module):
    """Two linear layers with biases; the second is split by its inputs under tensor parallelism."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, HIDDEN)
        self.down = nn.Linear(HIDDEN, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(WIDE_IN), Block(WIDE_IN)])
        self.head = nn.Linear(WIDE_IN, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x), y)


def example() -> dict[str, Tensor]:
    return {"x": torch.zeros(2, WIDE_IN), "y": torch.zeros(2, dtype=torch.int64)}


def compiled(strategy: Strategy) -> tuple[Artifact, nn.Module]:
    torch.manual_seed(3)
    model = Classifier()
    return hspmd.compile(model, example(), strategy=strategy).artifact, model


def llama() -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=24,
        intermediate_size=20,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=3,
        vocab_size=31,
        max_position_embeddings=8,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    ids = torch.zeros(2, 6, dtype=torch.int64)
    return LlamaForCausalLM(config).train(), {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("strategy", [THREE_RANKS, STAGES], ids=["pipelines", "stages"])
def test_every_row_of_a_right_program_is_equal(strategy: Strategy) -> None:
    artifact, model = compiled(strategy)
    rows = verify_artifact(artifact, rows=True, model=model).rows
    assert rows is not None
    assert rows.rows - len(rows.compared) == sum(count for _, count in rows.left_out)
    assert len(rows.compared) >= 0.9 * rows.rows
    assert 0 < rows.to_json()["worst"] < 1e-14  # type: ignore[operator]


def test_attention_is_compared_with_its_log_sum() -> None:
    sequence = replace(THREE_RANKS, sequence_parallel=True)
    strategy = replace(
        sequence,
        pipelines=tuple(
            replace(pipeline, stages=(replace(pipeline.stages[0], layers=(0, 1)),))
            for pipeline in sequence.pipelines
        ),
    )
    rows = verify_artifact(
        hspmd.compile(llama, strategy=strategy).artifact, rows=True, model=built(llama)
    ).rows
    assert rows is not None
    assert sum(item.name.endswith("getitem") for item in rows.compared) >= 5
    assert len(rows.compared) >= 0.9 * rows.rows


def built(factory: Callable[[], tuple[nn.Module, dict[str, Tensor]]]) -> nn.Module:
    torch.manual_seed(0)
    return factory()[0]


Change = Callable[[LocalRow], LocalRow]


def edited(artifact: Artifact, change: Change, phase: str = "") -> Artifact:
    """The artifact with `change` made to the rows of every segment of a phase."""

    def segment(old: Segment) -> Segment:
        return replace(old, rows=[change(row) for row in old.rows]) if old.name.startswith(phase) else old

    classes = {
        name: replace(shared, segments=[segment(old) for old in shared.segments])
        for name, shared in artifact.program.classes.items()
    }
    return replace(artifact, program=replace(artifact.program, classes=classes))


def with_steps(artifact: Artifact, change: Callable[[CommStep], CommStep]) -> Artifact:
    """The artifact with `change` made to the first exchange or reduction of every rank."""
    program = artifact.program
    ranks = [replace(own, comms=[change(step) for step in own.comms]) for own in program.ranks]
    return replace(artifact, program=replace(program, ranks=ranks))


def wrong(artifact: Artifact, model: nn.Module | None) -> str:
    with pytest.raises(VerifyError) as error:
        verify_artifact(artifact, rows=True, model=model)
    return str(error.value)


def test_a_dropped_all_reduce_is_named_at_its_first_reader() -> None:
    artifact, model = compiled(THREE_RANKS)

    def drop(row: LocalRow) -> LocalRow:
        return replace(row, op="aten.alias.default", args=row.args[:1]) if row.op == "comm" else row

    text = wrong(edited(artifact, drop, "forward"), model)
    assert "is the first wrong value" in text and "aten.add" in text
    assert "test_rows.py" in text and "self.down(torch.tanh(self.up(x)))" in text
    assert "held by    ranks 0-2" in text and "wrong on   ranks 0-1" in text


def test_a_bias_that_every_rank_adds_is_named_at_its_operator() -> None:
    artifact, model = compiled(THREE_RANKS)
    ranks = [
        replace(own, literals=[True if value is False else value for value in own.literals])
        for own in artifact.program.ranks
    ]
    text = wrong(replace(artifact, program=replace(artifact.program, ranks=ranks)), model)
    assert "aten.addmm.default is the first wrong value" in text and "test_rows.py" in text


def test_a_wrong_literal_on_one_rank_is_named_with_the_rank() -> None:
    artifact, model = compiled(STAGES)

    def scaled(row: LocalRow) -> LocalRow:
        return replace(row, op="aten.mul.Tensor", args=(row.args[0], 1.001)) if "tanh.d" in row.op else row

    shared = artifact.program.classes[artifact.program.ranks[2].class_name]
    segments = [replace(old, rows=[scaled(row) for row in old.rows]) for old in shared.segments]
    classes = artifact.program.classes | {shared.name: replace(shared, segments=segments)}
    text = wrong(replace(artifact, program=replace(artifact.program, classes=classes)), model)
    assert "aten.tanh.default is the first wrong value" in text
    assert "wrong on   ranks 2" in text and "layers.1" in text


def test_boxes_that_change_places_are_named() -> None:
    """An all-gather of tokens whose receivers put equal pieces into each other's place."""
    strategy = Strategy((PipelineSpec((StageSpec((0, 1), (0, 1)),), (2, 1)),), sequence_parallel=True)
    artifact = hspmd.compile(llama, strategy=strategy).artifact

    def swap(step: CommStep) -> CommStep:
        if step.kind is not CommKind.ALL_GATHER or len(step.recvs) != 2:
            return step
        first, second = step.recvs
        return replace(step, recvs=(Piece(first.peer, second.boxes), Piece(second.peer, first.boxes)))

    changed = with_steps(artifact, swap)
    assert changed.program != artifact.program
    text = wrong(changed, built(llama))
    assert "is the first wrong value" in text and "modeling_llama.py" in text


def pieces_of(layout: Layout, tensors: list[list[Tensor]]) -> list[Held]:
    return [
        Held(rank, Coordinate(rank, batch), layout, tensor)
        for batch, row in enumerate(tensors)
        for rank, tensor in enumerate(row)
    ]


def test_interval_sets_factors_and_micro_batches_are_assembled() -> None:
    value = torch.arange(3 * 12.0).reshape(3, 12)
    batch = Factor(3, Axis.BATCH, (((0, 2),), ((2, 3),)))
    heads = Factor(3, Axis.TENSOR, (((0, 1), (2, 3)), ((1, 2),)))
    layout = make_layout(((batch,), (Factor(2), heads, Factor(2))))
    picks = [[0, 2], [1]]
    parts = [
        [rows.reshape(-1, 2, 3, 2)[:, :, pick].reshape(len(rows), -1) for pick in picks]
        for rows in (value[:2], value[2:])
    ]
    found = assemble(pieces_of(layout, parts))
    assert torch.equal(found.value, value) and found.missing == 0 and found.copies == 0


def test_sums_over_ranks_and_micro_batches_are_assembled() -> None:
    layout = whole((2,), frozenset({Axis.TENSOR, Axis.BATCH}))
    parts = [[torch.full((2,), 10.0 * batch + rank) for rank in range(2)] for batch in range(3)]
    assert torch.equal(assemble(pieces_of(layout, parts)).value, torch.full((2,), 63.0))


def test_copies_that_differ_and_elements_that_nobody_holds_are_noted() -> None:
    copies = assemble(pieces_of(whole((2,)), [[torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])]]))
    assert copies.copies == 0.5
    half = make_layout(((Factor(4, Axis.TENSOR, (((0, 2),), ((1, 3),))),),))
    found = assemble(pieces_of(half, [[torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])]]))
    assert found.missing == 1 and found.copies == 0


def test_infinities_and_truth_values_are_compared_exactly() -> None:
    one = torch.tensor([torch.inf, torch.nan, 1.0])
    assert gap(one, one).tolist() == [0, 0, 0]
    assert gap(one, torch.tensor([1.0, 1.0, 2.0])).isfinite().tolist() == [False, False, True]
    assert gap(torch.tensor([True, False]), torch.tensor([True, True])).tolist() == [0, 1]
