"""The key `sizes` from a strategy to an artifact and back; what is not the same at every size is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.artifact.store import load
from hspmd_compiler.errors import HspmdError, StrategyError
from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.strategy.formats.read import read_strategy, read_text
from hspmd_compiler.strategy.strategy import SizesSpec
from hspmd_compiler.strategy.write import TextForm, strategy_text

FORM = {
    "pipelines": [
        {"stages": [{"devices": [0, 1], "layers": 2}], "micro_batches": [1]},
        {"stages": [{"devices": [2], "layers": 2}], "micro_batches": [1]},
    ],
    "sizes": {"samples": [1, 64]},
}
PACKED = {**FORM, "sizes": {"tokens": [1, 200]}}


class Blocks(nn.Module):
    """Two blocks on [rows, tokens, features]. inside: something that a test adds."""

    def __init__(self, inside: Callable[[Tensor], Tensor] = torch.relu, tokens: int = 0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)) for _ in range(2)
        )
        self.inside = inside
        self.places = nn.Parameter(torch.zeros(tokens, 6)) if tokens else None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.places is not None:
            x = x + self.places
        for block in self.blocks:
            x = x + self.inside(block(x))
        return nn.functional.mse_loss(x, y)


def inputs(tokens: int = 5) -> dict[str, Tensor]:
    return {"x": torch.randn(2, tokens, 6), "y": torch.randn(2, tokens, 6)}


def test_the_key_is_read_and_written() -> None:
    found = read_strategy(FORM)
    assert found.sizes == SizesSpec(samples=(1, 64))
    for form in TextForm:
        assert read_text(strategy_text(found, form)) == found
    assert "sizes" not in strategy_text(read_strategy({"pipelines": FORM["pipelines"]}))


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ({}, "neither: give one of tokens, samples"),
        ({"tokens": [1, 2], "samples": [1, 2]}, "both: give one of tokens, samples"),
        ({"tokens": [0, 2]}, "begins at 1 or above"),
        ({"tokens": [5, 2]}, "ends no lower"),
        ({"samples": [1, 1 << 40]}, "at most 2,147,483,647"),
        ({"samples": [1]}, "a range has two ends"),
        ({"words": [1, 2]}, "known are tokens, samples"),
    ],
)
def test_bad_ranges(sizes: object, wanted: str) -> None:
    with pytest.raises(StrategyError, match=wanted):
        read_strategy({**FORM, "sizes": sizes})


@pytest.mark.parametrize("form", [FORM, PACKED])
def test_an_artifact_is_read_as_it_was_written(form: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(0)
    compiled = hspmd.compile(Blocks(), inputs(), strategy=form)
    compiled.save(tmp_path / "a")
    read = load(tmp_path / "a")
    assert read.program == compiled.artifact.program
    assert read.program.sizes is not None
    assert read.program.sizes.unit is (Count.TOKENS if form is PACKED else Count.SAMPLES)


def refused(model: nn.Module, form: dict[str, object] = PACKED) -> str:
    with pytest.raises(HspmdError) as caught:
        hspmd.compile(model, inputs(), strategy=form)
    return str(caught.value)


def branch(x: Tensor) -> Tensor:
    return torch.relu(x) if x.shape[1] > 64 else torch.tanh(x)


def clipped(x: Tensor) -> Tensor:
    return torch.cat([x[:, : min(x.shape[1], 64)] * 2, x[:, min(x.shape[1], 64) :]], 1)


def halves(x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    return torch.cat([x[:, half:], x[:, :half]], 1)


@pytest.mark.parametrize(
    ("inside", "wanted"),
    [
        (branch, "compile without `sizes`"),
        (clipped, "compile without `sizes`"),
        (halves, "aten.slice.Tensor: an argument counts tokens"),
    ],
)
def test_code_that_looks_at_the_length_is_refused_at_its_line(
    inside: Callable[[Tensor], Tensor], wanted: str
) -> None:
    text = refused(Blocks(inside))
    assert "test_sized_compile.py" in text and wanted in text


def test_parameters_that_depend_on_the_length_are_refused() -> None:
    text = refused(Blocks(tokens=5))
    assert "places" in text or "test_sized_compile.py" in text


VOCAB, HEADS = 16, 4


class Attending(nn.Module):
    """Attention over tokens. look: what it does to them, at one line."""

    def __init__(self, look: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.embed, self.look = nn.Embedding(VOCAB, 8), look
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, VOCAB)

    def forward(self, ids: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + self.look(block(x), positions)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def attended(x: Tensor, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
    q = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    done = nn.functional.scaled_dot_product_attention(
        q, q, q, attn_mask=mask, dropout_p=dropout, is_causal=mask is None
    )
    return done.transpose(1, 2).flatten(2)


def starts(positions: Tensor) -> Tensor:
    return (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)


def apart(positions: Tensor) -> Tensor:
    numbers = starts(positions)
    earlier = positions[:, None, :] <= positions[:, :, None]
    return ((numbers[:, :, None] == numbers[:, None, :]) & earlier)[:, None]


def plain_causal(x: Tensor, positions: Tensor) -> Tensor:
    return attended(x, None)


def by_positions(x: Tensor, positions: Tensor) -> Tensor:
    return attended(x, apart(positions))


def every_other(x: Tensor, positions: Tensor) -> Tensor:
    """No kind of mask, and keeps documents apart."""
    even = (positions[:, None, :] + positions[:, :, None]) % 2 == 0
    return attended(x, apart(positions) & even[:, None])


def earlier_positions(x: Tensor, positions: Tensor) -> Tensor:
    return attended(x, (positions[:, None, :] <= positions[:, :, None])[:, None])


def convolved(x: Tensor, positions: Tensor) -> Tensor:
    kernel = x.new_ones(8, 1, 3)
    return nn.functional.conv1d(x.transpose(1, 2), kernel, padding=1, groups=8).transpose(1, 2)


def added_up(x: Tensor, positions: Tensor) -> Tensor:
    return x.cumsum(1)


def over_tokens(x: Tensor, positions: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)


def counted_places(x: Tensor, positions: Tensor) -> Tensor:
    return x * torch.arange(x.shape[1])[None, :, None]


def document_numbers(x: Tensor, positions: Tensor) -> Tensor:
    """Read by the mask, and by something else: of a row, not of all rows."""
    return attended(x, apart(positions)) * starts(positions)[:, :, None]


def rows(tokens: int = 5) -> dict[str, Tensor]:
    ids = torch.zeros(2, tokens, dtype=torch.int64)
    return {"ids": ids, "labels": ids, "positions": torch.arange(tokens).expand(2, tokens).contiguous()}


def refusal_of_rows(model: nn.Module) -> str:
    with pytest.raises(HspmdError) as caught:
        hspmd.compile(model, rows(), strategy=PACKED)
    return str(caught.value)


@pytest.mark.parametrize("look", [by_positions, every_other])
def test_attention_that_keeps_documents_apart(look: Callable[[Tensor, Tensor], Tensor]) -> None:
    hspmd.compile(Attending(look), rows(), strategy=PACKED).verify(values=True)


@pytest.mark.parametrize(
    ("look", "row"),
    [
        (plain_causal, "attention sees other documents: positions make no mask of it"),
        (earlier_positions, "attention sees other documents, or its mask is not made of one input"),
        (convolved, "aten.convolution.default: "),
        (added_up, "aten.cumsum.default: it reads several tokens for each that it makes"),
        (over_tokens, "it sums over the tokens of each sample"),
        (counted_places, "aten.arange"),
        (document_numbers, "aten.cumsum.default: it reads several tokens for each that it makes"),
    ],
)
def test_tokens_of_documents_that_meet(look: Callable[[Tensor, Tensor], Tensor], row: str) -> None:
    text = refusal_of_rows(Attending(look))
    assert "tokens of packed documents meet" in text and row in text
    assert "test_sized_compile.py" in text
    assert "position_ids that restart with each document" in text


def test_dropout_by_samples_is_that_of_one_device() -> None:
    """Of micro-batches of unlike sizes too: a sample's numbers are those of its place in the step."""

    def drop(x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, training=True)

    torch.manual_seed(0)
    compiled = hspmd.compile(Blocks(drop), inputs(), strategy=FORM)
    report = compiled.verify(values=True)
    assert report.sizes is not None and any("," in shape for shape in report.sizes.values)


class Shifting(Attending):
    """The next token is the label, as transformers makes it."""

    def forward(self, ids: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        shifted = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        return super().forward(ids, shifted, positions)


def test_labels_that_the_model_shifts_are_refused() -> None:
    text = refusal_of_rows(Shifting(by_positions))
    assert "the model shifts labels along packed tokens" in text and "pass shift_labels" in text
    assert "test_sized_compile.py" in text


@pytest.mark.parametrize(
    "inside",
    [
        lambda x: x.roll(1, 1),
        lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x,
        lambda x: nn.functional.pad(x, (0, 0, 0, 1))[:, 1:],
        lambda x: x.flip(1),
        lambda x: x * x.amax(1, keepdim=True),
        lambda x: x * torch.linspace(0, 1, x.shape[1])[None, :, None],
    ],
    ids=["roll", "products", "shift", "flip", "greatest", "places"],
)
def test_packed_rows_that_are_not_one_row_are_refused(inside: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(HspmdError) as caught:
        hspmd.compile(Blocks(inside), inputs(), strategy=PACKED)
    assert "test_sized_compile.py" in str(caught.value), str(caught.value)


def test_weights_apart_with_sizes() -> None:
    """A template has a part for gradients of weights; each step's schedule says where they go."""
    first = {"stages": [{"devices": [at], "layers": 1} for at in (0, 1)], "micro_batches": [1]}
    form = {**FORM, "pipelines": [first, FORM["pipelines"][1]], "schedule": "zb-h1", "zero": 2}
    program = hspmd.compile(lambda: (Blocks(), inputs()), strategy=form)
    sized = [own.sized for own in program.artifact.program.ranks]
    assert [each is not None and len(each.weights) for each in sized] == [0, 1, 0]
    assert program.verify(values=True).values is not None
