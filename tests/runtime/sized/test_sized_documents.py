"""Files as whole documents in rows of any length: each is seen once an epoch; a plan tells them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hspmd_compiler.errors import RunError
from hspmd_compiler.program.sized.plan_check import check_plan
from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.runtime.batches.data import BatchShape
from hspmd_compiler.runtime.batches.packed_text import IGNORED, PACKED_INPUTS, check_packing
from hspmd_compiler.runtime.batches.sized_data import documents_of, planned_batch
from hspmd_compiler.runtime.batches.sized_text import SizedPackedText
from hspmd_compiler.runtime.batches.tokens import ByteTokens

from .test_sized_data import TOKENS

SHAPE = BatchShape(44, dict.fromkeys(PACKED_INPUTS, ((4, 11), "int64")), dim=1)
LENGTHS = (7, 3, 0, 12, 1, 5, 9, 2, 2, 11)


def documents(folder: Path) -> list[ByteTokens]:
    made = []
    for number, length in enumerate(LENGTHS, 1):
        path = folder / f"{number}.txt"
        path.write_bytes(bytes([number]) * length)
        made.append(ByteTokens([path]))
    return made


def seen(batch: dict[str, Tensor]) -> list[tuple[int, int]]:
    """(byte, tokens) of each document of a step."""
    lengths = documents_of({"position_ids": batch["position_ids"][0]})
    texts = torch.split(batch["input_ids"][0], lengths)
    assert all(len(text.unique()) == 1 for text in texts)
    return [(int(text[0]), len(text)) for text in texts]


def test_each_document_is_seen_once_an_epoch(tmp_path: Path) -> None:
    data = SizedPackedText(documents(tmp_path), TOKENS, PACKED_INPUTS, 12, seed=3)
    every = []
    for batch in data:
        assert data.plan is not None and not data.local
        check_plan(data.plan, TOKENS)
        found = seen(batch)
        told = {micro.first: micro.documents for own in data.plan.pipelines for micro in own}
        assert [length for first in sorted(told) for length in told[first]] == [n for _, n in found]
        assert max(micro.tokens for own in data.plan.pipelines for micro in own) <= 12
        labels = batch["shift_labels"][0]
        ends = torch.tensor([length for _, length in found]).cumsum(0) - 1
        assert bool((labels[ends] == IGNORED).all()) and int((labels == IGNORED).sum()) == len(ends)
        every += found
    assert sorted(every) == [(number, n) for number, n in enumerate(LENGTHS, 1) if n]
    assert data.epoch == 1


def test_it_goes_on_where_it_was_kept(tmp_path: Path) -> None:
    made = documents(tmp_path)
    data = SizedPackedText(made, TOKENS, PACKED_INPUTS, 12, seed=3)
    whole = [seen(batch) for batch in data]
    assert len(whole) > 1
    next(iter(first := SizedPackedText(made, TOKENS, PACKED_INPUTS, 12, seed=3)))
    again = SizedPackedText(made, TOKENS, PACKED_INPUTS, 12)
    again.load_state_dict(first.state_dict())
    assert [seen(batch) for batch in again] == whole[1:]


def test_rows_below_the_shortest_are_filled_up(tmp_path: Path) -> None:
    sizes = replace(TOKENS, low=80)
    data = SizedPackedText(documents(tmp_path), sizes, PACKED_INPUTS, 85)
    batch = next(iter(data))
    assert data.plan is not None
    check_plan(data.plan, sizes)
    assert batch["input_ids"].shape[1] >= 80
    assert int((batch["shift_labels"] != IGNORED).sum()) == sum(n - 1 for n in LENGTHS if n)


def test_what_can_not_be_packed(tmp_path: Path) -> None:
    files = [tmp_path / "1.txt"]
    check_packing(SHAPE, files, [7], 100, TOKENS)
    with pytest.raises(RunError) as caught:
        check_packing(SHAPE, files, [120], 101, TOKENS)
    told = str(caught.value)
    assert "--pack" in told and "101: the program's rows have 1 to 100 tokens" in told
    assert "120 tokens, more than a row of 101" in told and "sizes.tokens that end at 120 or later" in told


def test_documents_of_a_factory_s_rows() -> None:
    rows = [{"position_ids": torch.tensor([0, 1, 2, 0, 0, 1])}, {"position_ids": torch.tensor([4, 5])}]
    _, plan = planned_batch(rows, TOKENS)
    found = {micro.first: micro.documents for own in plan.pipelines for micro in own}
    assert found == {0: (3, 1, 2), 6: (2,)}
    check_plan(plan, TOKENS)
    _, plain = planned_batch([{"x": torch.ones(3)}], TOKENS)
    assert [micro.documents for own in plain.pipelines for micro in own] == [()]
    assert plain.total(Count.TOKENS) == 3
