"""Code that looks at how many there are is refused at its line, wherever it makes a difference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.cli.main import main
from hspmd_compiler.errors import HspmdError, OptionError, TraceError
from hspmd_compiler.trace.symbolic import SymbolRange, check_symbolic

from .test_sized import Packed, packed
from .test_sized_compile import FORM, PACKED, Attending, Blocks, by_positions, inputs, rows

TOKENS = SymbolRange(1, 2048, True)
Inside = Callable[[Tensor], Tensor]


def above(x: Tensor) -> Tensor:
    return torch.relu(x) if x.shape[1] > 64 else torch.tanh(x)


def middle(x: Tensor) -> Tensor:
    return torch.relu(x) if 300 < x.shape[1] < 400 else torch.tanh(x)


def just_one(x: Tensor) -> Tensor:
    return torch.relu(x) if x.shape[1] == 333 else torch.tanh(x)


def clipped(x: Tensor) -> Tensor:
    end = min(x.shape[1], 64)
    return torch.cat([x[:, :end] * 2, x[:, end:]], 1)


def halves(x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    return torch.cat([x[:, half:], x[:, :half]], 1)


def in_eights(x: Tensor) -> Tensor:
    more = -x.shape[1] % 8
    return nn.functional.pad(x, (0, 0, 0, more))[:, : x.shape[1]]


def all_of_it(x: Tensor) -> Tensor:
    return torch.relu(x) if x.shape[0] * x.shape[1] > 5000 else torch.tanh(x)


def many_rows(x: Tensor) -> Tensor:
    return torch.relu(x) if x.shape[0] > 100 else torch.tanh(x)


def plain_number(x: Tensor) -> Tensor:
    return torch.relu(x).reshape(len(x), -1).reshape(x.shape)


def reads_values(x: Tensor) -> Tensor:
    return torch.relu(x) if x.sum() > 0 else torch.tanh(x)


def beyond(x: Tensor) -> Tensor:
    return torch.relu(x) if x.shape[1] > 2048 else torch.tanh(x)


def looked(inside: Inside, sizes: SymbolRange = TOKENS) -> str:
    with pytest.raises(TraceError) as caught:
        check_symbolic(Blocks(inside), inputs(), sizes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("inside", "at"),
    [
        (above, "at 2 tokens as at 997"),
        (middle, "at 2 tokens as at 997"),
        (just_one, "at 333 tokens as at 997"),
        (clipped, "at 2 tokens as at 997"),
        (halves, "no multiple"),
        (in_eights, "at 8 tokens as at 997"),
        (all_of_it, "rows"),
        (many_rows, "at 101 rows as at 5 rows"),
        (plain_number, "a plain number, as by len(x)"),
    ],
)
def test_what_looks_at_the_length(inside: Inside, at: str) -> None:
    text = looked(inside)
    assert "the model's code looks at how many tokens there are" in text and at in text
    assert "test_symbolic.py" in text and f"in {inside.__name__}" in text
    for word in ("guard", "SymInt", "s44", "Dim(", "export", "GuardOnDataDependent"):
        assert word not in text


def test_samples_are_those_of_a_step() -> None:
    sizes = SymbolRange(1, 8, False)
    assert "how many samples" in looked(many_rows, sizes)
    check_symbolic(Blocks(above), inputs(), sizes)


def test_what_cant_be_run_on_symbols() -> None:
    text = looked(reads_values)
    assert "can't be run on any number of tokens at once" in text and "in reads_values" in text


def test_nothing_is_asked_that_is_the_same_everywhere() -> None:
    check_symbolic(Blocks(beyond), inputs(), TOKENS)
    check_symbolic(Packed(), packed(5, rows=2), SymbolRange(1, 32768, True))
    check_symbolic(Attending(by_positions), rows(), SymbolRange(1, 200, True))
    check_symbolic(Blocks(), inputs(), SymbolRange(1, 64, False))


def test_compile_and_verify_ask_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A branch in the middle of the range goes through a compile, and through verify without it."""
    torch.manual_seed(0)
    wide = {**PACKED, "sizes": {"tokens": [1, 2048]}}
    compiled = hspmd.compile(Blocks(middle), inputs(), strategy=wide)
    compiled.verify()
    with pytest.raises(HspmdError, match="in middle"):
        hspmd.compile(Blocks(middle), inputs(), strategy=wide, symbolic=True)
    with pytest.raises(HspmdError, match="in middle"):
        compiled.verify(symbolic=True)
    report = hspmd.compile(Blocks(), inputs(), strategy=FORM, symbolic=True).verify(symbolic=True)
    assert report.sizes is not None and report.sizes.symbolic
    assert report.to_json()["sizes"]["symbolic"] is True  # type: ignore[index]
    plain = {"pipelines": FORM["pipelines"]}
    with pytest.raises(OptionError, match="the strategy has no `sizes`"):
        hspmd.compile(Blocks(), inputs(), strategy=plain, symbolic=True)
    hspmd.compile(Blocks(), inputs(), strategy=plain).save(tmp_path / "a")
    assert main(["verify", str(tmp_path / "a"), "--symbolic"]) == 2
    assert "the program is of one size" in capsys.readouterr().err
