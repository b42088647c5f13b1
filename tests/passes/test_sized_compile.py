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


@pytest.mark.parametrize("inside", [branch, clipped, halves])
def test_code_that_looks_at_the_length_is_refused_at_its_line(inside: Callable[[Tensor], Tensor]) -> None:
    text = refused(Blocks(inside))
    assert "test_sized_compile.py" in text and "compile without `sizes`" in text


def test_parameters_that_depend_on_the_length_are_refused() -> None:
    text = refused(Blocks(tokens=5))
    assert "places" in text or "test_sized_compile.py" in text


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        (lambda x: nn.functional.dropout(x, 0.5), "random numbers are drawn by row, not by token"),
        (lambda x: x.cumsum(1), "reads other tokens of a row"),
        (lambda x: x.roll(1, 1), "reads other tokens of a row"),
        (lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x, "has a number for each two tokens"),
        (lambda x: nn.functional.pad(x, (0, 0, 0, 1))[:, 1:], "shifts the tokens of a row"),
        (
            lambda x: nn.functional.scaled_dot_product_attention(
                x[:, None], x[:, None], x[:, None], is_causal=True
            )[:, 0],
            "attention that keeps no documents apart",
        ),
    ],
    ids=["dropout", "cumsum", "roll", "products", "shift", "attention"],
)
def test_tokens_of_packed_rows_stay_apart(inside: Callable[[Tensor], Tensor], told: str) -> None:
    with pytest.raises(HspmdError) as caught:
        hspmd.compile(Blocks(inside), inputs(), strategy=PACKED)
    assert told in str(caught.value), str(caught.value)
    assert "test_sized_compile.py" in str(caught.value)
