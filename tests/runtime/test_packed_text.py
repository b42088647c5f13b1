"""Files as whole documents in rows: what a row holds, how documents come into rows, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hspmd_compiler.base.pipeline_schedule import ScheduleKind
from hspmd_compiler.errors import RunError
from hspmd_compiler.models.models import load_model
from hspmd_compiler.program.sized.documents import cut_documents, refuse_cut_documents
from hspmd_compiler.program.sized.size_range import SizeRange
from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.runtime.batches.data import BatchShape
from hspmd_compiler.runtime.batches.packed_text import (
    FILLING,
    IGNORED,
    PACKED_INPUTS,
    PackedText,
    check_packing,
    check_shifted,
    first_fit,
    packed_row,
)
from hspmd_compiler.runtime.batches.tokens import ByteTokens

LENGTH = 12
SHAPE = BatchShape(3, dict.fromkeys(PACKED_INPUTS, ((3, LENGTH), "int64")))
KEYS = frozenset(PACKED_INPUTS)


def tokens_of(tmp_path: Path, *lengths: int) -> list[ByteTokens]:
    documents = []
    for number, length in enumerate(lengths):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(bytes([number + 1]) * length)
        documents.append(ByteTokens([path]))
    return documents


@given(st.lists(st.integers(1, 20), max_size=30), st.randoms())
def test_every_document_is_in_one_row_that_has_room(lengths: list[int], random: object) -> None:
    order = [*range(len(lengths))]
    random.shuffle(order)  # type: ignore[attr-defined]
    rows = first_fit(order, lengths, 20)
    assert sorted(each for row in rows for each in row) == [*range(len(lengths))]
    filled = [sum(lengths[each] for each in row) for row in rows]
    assert all(0 < each <= 20 for each in filled)
    assert sum(each <= 10 for each in filled) <= 1, "two half empty rows would be one"


def test_a_row() -> None:
    row = packed_row([torch.tensor([5, 6, 7]), torch.tensor([8])], 6)
    assert row["input_ids"].tolist() == [5, 6, 7, 8, 0, 0]
    assert row["position_ids"].tolist() == [0, 1, 2, 0, 0, 1]
    assert row["shift_labels"].tolist() == [6, 7, *[IGNORED] * 4]
    assert row["labels"].tolist() == [5, 6, 7, 8, IGNORED, IGNORED]


def test_what_fills_a_row_up_is_short() -> None:
    positions = packed_row([torch.arange(3)], 3 + 2 * FILLING + 1)["position_ids"]
    assert positions[3:].tolist() == [*range(FILLING)] * 2 + [0]


def test_ranks_take_their_rows_of_the_same_batches(tmp_path: Path) -> None:
    documents = tokens_of(tmp_path, 5, 1, 0, 12, 7, 7, 3, 2, 9)
    whole = PackedText(documents, SHAPE, [(0, 3)], KEYS, seed=3)
    own = PackedText(documents, SHAPE, [(2, 3), (0, 1)], KEYS, seed=3)
    seen: list[Tensor] = []
    for batch, part in zip(whole, own, strict=True):
        assert part.keys() == KEYS
        for key in KEYS:
            assert torch.equal(part[key], batch[key][[2, 0]])
        seen.append(batch["input_ids"])
    counts = torch.bincount(torch.cat(seen).flatten(), minlength=10)[1:].tolist()
    assert counts == [5, 1, 0, 12, 7, 7, 3, 2, 9], "each file once an epoch, also in the last batch"
    assert whole.epoch == 1 and whole.at_start


def test_going_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    documents = tokens_of(tmp_path, *[7] * 8)
    every = [*PackedText(documents, SHAPE, [(0, 3)], KEYS)]
    later = PackedText(documents, SHAPE, [(0, 3)], KEYS)
    later.load_state_dict({"epoch": 0, "batches": 1, "seed": 0})
    rest = [*later]
    assert len(rest) == len(every) - 1
    assert torch.equal(rest[0]["input_ids"], every[1]["input_ids"])


def test_what_can_not_be_packed() -> None:
    shape = BatchShape(3, {"input_ids": ((3, 12), "int64"), "pixels": ((3, 4), "float32")})
    with pytest.raises(RunError) as caught:
        check_packing(shape, [Path("a.txt"), Path("b.txt")], [13, 2], 12)
    assert str(caught.value).splitlines() == [
        "RunError: the text can't be packed for this program",
        "  pixels       packed text can't give this input",
        "  position_ids missing: documents would run into each other",
        "  shift_labels missing: documents would run into each other",
        "  a.txt        13 tokens, more than a row of 12",
        "  rule         rows of --pack tokens hold whole files; the model takes "
        "input_ids, position_ids, labels, shift_labels",
        "  fix          compile the model with packed=1; "
        "leave longer files out, or compile with seq=13 and give --pack 13",
    ]


FIXES: dict[str, tuple[list[int], int, int | None, str, str]] = {
    "empty": ([0], 12, None, "no file holds a token", "give --text files that hold text"),
    "fixed, another room": (
        [3],
        13,
        None,
        "have no 13 tokens",
        "give --pack 12, or compile the model with seq=13",
    ),
    "fixed, too long": (
        [15],
        12,
        None,
        "15 tokens, more than a row of 12",
        "leave longer files out, or compile with seq=15 and give --pack 15",
    ),
    "a larger room does": ([15], 12, 20, "15 tokens, more than a row of 12", "give --pack 15 to 20"),
    "beyond the range": (
        [25],
        12,
        20,
        "25 tokens, more than a row of 12",
        "leave longer files out, or compile with sizes.tokens that end at 25 or later and give --pack 25",
    ),
    "a room beyond the range": ([3], 21, 20, "rows have 1 to 20 tokens", "give --pack 1 to 20"),
}


@pytest.mark.parametrize("name", FIXES)
def test_each_cause_has_its_own_fix(name: str) -> None:
    lengths, room, high, what, fix = FIXES[name]
    sizes = None if high is None else SizeRange(Count.TOKENS, 1, high, (), (1,), ScheduleKind.GPIPE)
    with pytest.raises(RunError) as caught:
        check_packing(SHAPE, [Path("a.txt")], lengths, room, sizes)
    assert what in str(caught.value)
    assert caught.value.fix == fix


def test_a_document_that_is_cut_between_rows() -> None:
    rows = [torch.tensor([0, 1, 0, 1]), torch.tensor([2, 3, 0, 0]), torch.tensor([0, 1, 2, 3])]
    assert cut_documents(rows) == [(1, 2)]
    assert cut_documents([torch.arange(4), torch.arange(4), torch.empty(0), torch.tensor([4])]) == []
    with pytest.raises(RunError) as caught:
        refuse_cut_documents("position_ids", rows)
    assert str(caught.value).splitlines() == [
        "RunError: documents of position_ids are cut between rows",
        "  row 1 goes on at position 2",
        "  rule  rows don't see each other, so that what is left of a document would be another one",
        "  fix   pack whole documents into each row, and begin their positions at 0",
    ]


def test_the_loss_of_a_pack_is_the_sum_of_the_losses_alone() -> None:
    """Each weighed by its labels; a document of one token has none, and one without tokens isn't there."""
    model, _ = load_model("llama-tiny", {"packed": "1", "layers": "1"}).factory()
    model = model.double()
    documents = [torch.arange(n) * 7 % 256 for n in (5, 1, 0, 9)]
    total = torch.zeros(())
    for document in documents:
        if len(document) > 1:
            alone = {key: value[None] for key, value in packed_row([document], len(document)).items()}
            total += model(**alone).loss * (len(document) - 1)
    together = {key: value[None] for key, value in packed_row(documents, 20).items()}
    torch.testing.assert_close(model(**together).loss * 12, total, rtol=1e-6, atol=0)  # the loss is a float32


def test_labels_that_the_model_shifts_are_refused() -> None:
    check_shifted(frozenset({"input_ids", "position_ids"}))
    check_shifted(frozenset({"labels", "shift_labels"}))
    with pytest.raises(RunError, match="the last token of a document is trained on the first of the next"):
        check_shifted(frozenset({"input_ids", "labels"}))
