"""Data sources: checks, order, resuming, own rows only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hspmd_compiler.errors import RunError
from hspmd_compiler.runtime.batches.data import BatchShape, FactoryData, load_factory
from hspmd_compiler.runtime.batches.text_data import TextData, open_text

SHAPE = BatchShape(3, {"x": ((3, 2), "float32")})
TEXT_SHAPE = BatchShape(4, {"input_ids": ((4, 8), "int64"), "labels": ((4, 8), "int64")})
KEYS = frozenset(TEXT_SHAPE.inputs)
ALL_ROWS = [(0, 4)]


def counted(sizes: list[int], calls: list[dict[str, int]] | None = None) -> object:
    def factory(seed: int, epoch: int) -> Iterator[dict[str, Tensor]]:
        if calls is not None:
            calls.append({"seed": seed, "epoch": epoch})
        for number, size in enumerate(sizes):
            yield {"x": torch.full((size, 2), float(100 * seed + 10 * epoch + number))}

    return factory


def values(data: FactoryData) -> list[float]:
    return [float(batch["x"][0, 0]) for batch in data]


def test_epochs_and_last_short_batch() -> None:
    calls: list[dict[str, int]] = []
    data = FactoryData(counted([3, 3, 2], calls), SHAPE, seed=1)  # type: ignore[arg-type]
    assert values(data) == [100, 101] and data.epoch == 1
    assert values(data) == [110, 111] and data.epoch == 2
    assert calls == [{"seed": 1, "epoch": 0}, {"seed": 1, "epoch": 1}]
    assert data.left_out == 4 and data.at_start


def test_short_batch_in_the_middle_is_an_error() -> None:
    with pytest.raises(RunError, match="2 samples"):
        values(FactoryData(counted([3, 2, 3]), SHAPE))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ({}, "missing"),
        ({"x": torch.zeros(3, 2), "y": torch.zeros(3)}, "no such input"),
        ({"x": torch.zeros(3, 2, dtype=torch.int64)}, "int64[3, 2], wanted float32[3, 2]"),
        ({"x": torch.zeros(2, 5)}, "float32[2, 5]"),
        ({"x": [[0, 0]]}, "list"),
    ],
)
def test_a_batch_that_does_not_fit(batch: dict[str, Tensor], text: str) -> None:
    with pytest.raises(RunError) as caught:
        list(FactoryData(lambda: iter([batch]), SHAPE))
    assert text in caught.value.text()


def test_resume_by_skipping() -> None:
    data = FactoryData(counted([3] * 4), SHAPE)  # type: ignore[arg-type]
    iterator = iter(data)
    next(iterator), next(iterator)
    again = FactoryData(counted([3] * 4), SHAPE)  # type: ignore[arg-type]
    again.load_state_dict(data.state_dict())
    assert values(again) == [2, 3]
    assert values(again) == [10, 11, 12, 13]


class Numbers:
    """An iterator with a state of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Numbers:
        return self

    def __next__(self) -> dict[str, Tensor]:
        if self.at == 4:
            raise StopIteration
        self.at += 1
        return {"x": torch.full((3, 2), float(self.at))}

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_resume_by_the_iterators_own_state() -> None:
    data = FactoryData(Numbers, SHAPE)
    iterator = iter(data)
    next(iterator), next(iterator), next(iterator)
    again = FactoryData(Numbers, SHAPE)
    again.load_state_dict(data.state_dict())
    assert values(again) == [4]


@pytest.mark.parametrize("name", ["math", ":x", "math:", "no_such_module_here:f", "math:nothing", "math:pi"])
def test_bad_factories(name: str) -> None:
    with pytest.raises(RunError):
        load_factory(name)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files, one empty, of 25 sequences of 8 bytes and 3 bytes more."""
    text = bytes(range(203))
    (tmp_path / "a").write_bytes(text[:91])
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "c").write_bytes(text[91:])
    return [tmp_path / name for name in "abc"]


def text(files: list[Path], rows: list[tuple[int, int]] = ALL_ROWS, seed: int = 5) -> TextData:
    return TextData(open_text(files, 256), TEXT_SHAPE, rows, KEYS, seed)


def test_text_gives_each_sequence_once(files: list[Path]) -> None:
    data = text(files)
    batches = list(data)
    assert len(batches) == data.batches_per_epoch == 6
    assert data.left_out == data.sequences - 4 * 6 > 0
    rows = torch.cat([batch["input_ids"] for batch in batches])
    starts = rows[:, 0].tolist()
    assert len(set(starts)) == 24 and all(start % 8 == 0 for start in starts)
    assert torch.equal(rows, rows[:, :1] + torch.arange(8))
    assert all(torch.equal(batch["labels"], batch["input_ids"]) for batch in batches)
    assert starts != sorted(starts)
    assert torch.cat([batch["input_ids"] for batch in data])[:, 0].tolist() != starts  # the next epoch


def test_text_order_is_that_of_the_seed(files: list[Path]) -> None:
    first, same, other = (
        torch.cat([batch["input_ids"] for batch in text(files, seed=seed)]) for seed in (5, 5, 6)
    )
    assert torch.equal(first, same) and not torch.equal(first, other)


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63)])
def test_text_takes_any_seed(files: list[Path], seed: int) -> None:
    assert len(list(text(files, seed=seed))) == 6


def test_ranks_read_their_rows_of_one_order(files: list[Path]) -> None:
    for whole, one, two in zip(
        text(files), text(files, [(0, 1), (3, 4)]), text(files, [(1, 3)]), strict=True
    ):
        ids = whole["input_ids"]
        assert torch.equal(one["input_ids"], ids[[0, 3]]) and torch.equal(two["input_ids"], ids[1:3])


def test_ranks_without_inputs_read_nothing(files: list[Path]) -> None:
    data = TextData(open_text(files, None), TEXT_SHAPE, ALL_ROWS, frozenset())
    assert list(data) == [{}] * 6


def test_text_resumes(files: list[Path]) -> None:
    data = text(files)
    iterator = iter(data)
    next(iterator), next(iterator)
    again = text(files, seed=0)
    again.load_state_dict(data.state_dict())
    for one, two in zip(iterator, again, strict=True):
        assert torch.equal(one["input_ids"], two["input_ids"])
    with pytest.raises(RunError):
        again.load_state_dict({"epoch": 1})


def test_text_errors(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="vocabulary"):
        open_text(files, 255)
    with pytest.raises(RunError, match="missing"):
        open_text([tmp_path / "nothing"], 256)
    with pytest.raises(RunError, match="shorter"):
        text([files[1]])
    with pytest.raises(RunError, match="inputs"):
        TextData(open_text(files, 256), SHAPE, ALL_ROWS, KEYS)
    with pytest.raises(RunError, match="tokenizer"):
        open_text(files, 256, tmp_path / "no_tokenizer")


def test_tokenizer_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = {f"w{number}": number for number in range(50)} | {"?": 50}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(tmp_path / "folder")
    file = tmp_path / "text"
    file.write_text(" ".join(f"w{number % 50}" for number in range(100)) + "\nunknown\n")
    for _ in range(2):
        tokens = open_text([file], 51, tmp_path / "folder")
        assert len(tokens) == 101
        assert tokens.read(48, 52).tolist() == [48, 49, 0, 1] and tokens.read(100, 101).tolist() == [50]
    with pytest.raises(RunError, match="vocabulary"):
        open_text([file], 50, tmp_path / "folder")
