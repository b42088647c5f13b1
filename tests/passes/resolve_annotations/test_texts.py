"""Worked pairs: the plan, its steps, its price, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hspmd_compiler.annotations import parse_annotation
from hspmd_compiler.passes.resolve_annotations import resolve, text_of

WIDE = (6656, 6656)
FOUR, EIGHT = "[0,1,2,3]", "[0,1,2,3,4,5,6,7]"
PAIRS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "nothing": (f"{FOUR}  <S0x4>", "[0,1 | 2,3]  <S0x2 | S0x2>  hetero=0", WIDE),
    "local_slice": (f"{EIGHT}  <Dx2 S0x4>", f"{EIGHT}  <S1x2 S0x4>", WIDE),
    "all_reduce": (f"{FOUR}  <Px4>", f"{FOUR}  <Dx4>", WIDE),
    "all_gather": (f"{EIGHT}  <Dx2 S0x4>", f"{EIGHT}  <Dx8>", WIDE),
    "reduce_scatter": (f"{EIGHT}  <Px2 S0x4>", f"{EIGHT}  <S1x2 S0x4>", WIDE),
    "all_to_all": (f"{FOUR}  <S0x4>", f"{FOUR}  <S1x4>", WIDE),
    "order": (f"{FOUR}  <S0x2 S1x2>", f"{FOUR}  <S1x2 S0x2>", WIDE),
    "broadcast_of_little": ("[0]  <R>", "[0,1,2]  <Dx3>", (1, 6656)),
    "broadcast_of_much": ("[0]  <R>", "[1,2,3,4]  <Dx4>", WIDE),
    "reduce": ("[0,1,2]  <Px3>", "[0]  <R>", (6656,)),
    "unequal_gradient": (
        "[0,1,2,3 | 4,5 | 6]  <S0x4 | S0x2 | R>  hetero=partial",
        "[0,1,2,3 | 4,5 | 6]  <S0x4 | S0x2 | R>  hetero=dup",
        WIDE,
    ),
    "two_tiers": (
        "[0,1,2,3 | 4,5,6,7]  <Px4 | Px4>  hetero=partial",
        "[0,1,2,3 | 4,5,6,7]  <S0x4 | S0x4>  hetero=dup",
        WIDE,
    ),
    "stages": (
        "[4,5,6,7 | 20,21,22,23]  <S0x4 | S0x4>  hetero=0",
        "[8,9,10,11 | 28,29]  <S0x4 | S0x2>  hetero=0",
        (8192, 6656),
    ),
    "shares": ("[0,1,2]  <S0(3,2,2)>", "[0,1,2,3]  <S0(1,0,4,2)>", (7, 5)),
    "fused": ("[0,1]  <S0x2{48,24,24}>", "[0,1,2]  <S0x3{48,24,24}>", (96, 32)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_text(name: str, expect: Callable[[str, str], None]) -> None:
    source, target, shape = PAIRS[name]
    found = resolve(parse_annotation(source), parse_annotation(target), shape, "bfloat16")
    expect(f"resolve/{name}", text_of(found))


def test_page_shows_the_text() -> None:
    source, target, shape = PAIRS["unequal_gradient"]
    found = text_of(resolve(parse_annotation(source), parse_annotation(target), shape, "bfloat16"))
    assert found in (Path(__file__).parents[3] / "docs" / "layouts.md").read_text(encoding="utf-8")
