"""Tokens that sequence parallelism cuts are gathered before attention, in the dim that their letter says."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from hspmd_compiler.ir.annotated import AnnotatedValue
from hspmd_compiler.layout.layout import Axis, Factor, make_layout
from hspmd_compiler.rules.lines.attention_lines import _gathered


def _halves(size: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    return ((0, size // 2),), ((size // 2, size),)


@pytest.mark.parametrize(
    ("letters", "place"), [("b h s e", 2), ("b h t v", 2), ("b h s t", 2), ("h s t", 1), ("s t", 0)]
)
def test_tokens_are_gathered_where_the_letters_say(letters: str, place: int) -> None:
    sizes = [3, 4, 8, 8][4 - len(letters.split()) :]
    dims = [(Factor(size),) for size in sizes]
    dims[place] = (Factor(sizes[place], Axis.SEQUENCE, _halves(sizes[place])),)
    value = AnnotatedValue(1, make_layout(tuple(dims)), torch.float32, 0)
    ctx = SimpleNamespace(convert=lambda given, layout: replace(given, layout=layout))
    names = tuple((letter,) for letter in letters.split())
    found = _gathered(ctx, value, names)  # type: ignore[arg-type]
    assert found.layout == make_layout(tuple((Factor(size),) for size in sizes))
