"""Files as whole documents in rows as long as they are, shared out in each step: what a step holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hspmd_compiler.base.pipeline_schedule import ScheduleKind
from hspmd_compiler.errors import RunError
from hspmd_compiler.program.sized.documents import cut_documents
from hspmd_compiler.program.sized.plan_check import check_plan, in_order
from hspmd_compiler.program.sized.size_range import SizeRange
from hspmd_compiler.program.sized.sizes import Count, MicroSizes
from hspmd_compiler.runtime.batches.data import BatchShape
from hspmd_compiler.runtime.batches.packed_text import PACKED_INPUTS, check_packing
from hspmd_compiler.runtime.batches.sized_text import SizedPackedText, rows_of_step

from ..test_packed_text import tokens_of

PROBE = in_order(
    [[MicroSizes(1, 8, ring=(8, 3))], [MicroSizes(1, 3, ring=(8, 3))], [MicroSizes(1, 11)]], Count.TOKENS
)
SIZES = SizeRange(
    Count.TOKENS,
    1,
    12,
    (PROBE,),
    (1, 1, 1),
    ScheduleKind.ONE_F_ONE_B,
    groups=((0, 1),),
    shares=(1.5, 0.5, 1.0),
)
LENGTHS = (5, 1, 0, 12, 7, 7, 3, 2, 9)
SHAPE = BatchShape(22, dict.fromkeys(PACKED_INPUTS, ((2, 11), "int64")), dim=1)


def test_steps_hold_every_file_once_and_nothing_else(tmp_path: Path) -> None:
    """Of three rows each, two of them those of the pair; rows end with their last document."""
    data = SizedPackedText(tokens_of(tmp_path, *LENGTHS), SIZES, PACKED_INPUTS, 12, seed=3)
    assert rows_of_step(SIZES) == 3 and not data.local
    ids = []
    for batch in data:
        assert data.plan is not None and set(batch) == set(PACKED_INPUTS)
        check_plan(data.plan, SIZES)
        total = data.plan.total(Count.TOKENS)
        assert all(value.shape == (1, total) for value in batch.values())
        rows = data.plan.rows(Count.TOKENS)
        assert len(rows) <= 3 and not cut_documents(
            [batch["position_ids"][0, low:high] for low, high in rows]
        )
        told = {micro.documents for own in data.plan.pipelines for micro in own}
        assert sum(map(sum, told)) <= total and all(sum(each) <= 12 for each in told)
        ids.append(batch["input_ids"].flatten())
    assert torch.bincount(torch.cat(ids), minlength=10)[1:].tolist() == list(LENGTHS)


def test_a_row_shorter_than_the_range_is_filled_up(tmp_path: Path) -> None:
    data = SizedPackedText(tokens_of(tmp_path, 2), replace(SIZES, low=9), PACKED_INPUTS, 12)
    (batch,) = list(data)
    assert data.plan is not None
    check_plan(data.plan, replace(SIZES, low=9))
    assert batch["position_ids"].tolist() == [[0, 1, *range(7)]]
    assert batch["shift_labels"].tolist() == [[1, *[-100] * 8]]


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    documents = tokens_of(tmp_path, *LENGTHS)
    data, again = (SizedPackedText(documents, SIZES, PACKED_INPUTS, 12, seed=3) for _ in range(2))
    first, second = next(iter(data)), list(data)
    again.load_state_dict({**data.state_dict(), "epoch": 0, "batches": 1})
    assert [batch["input_ids"].tolist() for batch in again] == [
        batch["input_ids"].tolist() for batch in second
    ]
    assert first["input_ids"].tolist() != second[0]["input_ids"].tolist()


def test_what_does_not_fit_the_range(tmp_path: Path) -> None:
    files = [tmp_path / "long.txt"]
    with pytest.raises(RunError) as caught:
        check_packing(SHAPE, files, [40], 30, SIZES)
    told = str(caught.value)
    assert "40 tokens, more than a row of 30" in told
    assert "30: the program's rows have 1 to 12 tokens" in told
    assert "sizes.tokens that end at 40 or later" in told
    with pytest.raises(RunError, match=r"compile with sizes\.tokens"):
        check_packing(SHAPE, files, [4], 12, replace(SIZES, unit=Count.SAMPLES))
    check_packing(SHAPE, files, [12], 12, SIZES)
