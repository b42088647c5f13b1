"""The text form, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from hspmd_compiler.annotations import Annotation, parse_annotation, parse_states
from hspmd_compiler.errors import AnnotationError
from tests.annotations.strategies import annotated


@given(annotated())
@settings(max_examples=150, deadline=None)
def test_round_trip(case: tuple[Annotation, tuple[int, ...]]) -> None:
    annotation, _ = case
    assert parse_annotation(str(annotation)) == annotation


@pytest.mark.parametrize(
    "text",
    [
        "[0]  <R>",
        "[0,1 | 2,3,4]  <S0x2 | S0x3>  hetero=dup",
        "[0,1 | 2]  <Px2 | R>  hetero=partial",
        "[4,0,2,6]  <S0(3,1,0,0)>",
        "[0,1,2,3,4,5]  <Dx2 S1x3{48,24(3,0,0),24/8}>",
        "[0,1,2]  <S0(0:2,1:2,2:3)/8>",
        "[0 | 1]  <R | R>  hetero=0(4,2)",
    ],
)
def test_written_as_read(text: str) -> None:
    assert str(parse_annotation(text)) == text


def test_blanks_are_free() -> None:
    assert str(parse_annotation(" [ 0 ,1|2 ]<S0x2|R>hetero = dup ")) == "[0,1 | 2]  <S0x2 | R>  hetero=dup"


def test_states_alone() -> None:
    assert str(parse_states("Dx2 S0(3,1)")) == "Dx2 S0(3,1)"


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("", "expected '[' at column 1, found the end", "list the devices first, as [0,1]"),
        ("[0,1", "expected ']' at column 5, found the end", "close the devices"),
        ("[0,]  <R>", "expected a device id at column 4, found ']'", "write a device id here"),
        ("[0,1]  <S-1x2>", "expected the dim that is split at column 10, found '-'", "write the dim"),
        ("[0,1]  <S0>", "expected 'x' at column 11, found '>'", "write x and the number of parts"),
        ("[0,1]  <>", "expected a placement at column 9, found '>'", "or R for a single device"),
        ("[0,1]  <S0x2{3,3>", "expected '}' at column 17, found '>'", "close the blocks"),
        ("[0,1]  <S0(3,1>", "expected ')' at column 15, found '>'", "close the shares"),
        ("[0,1]  <Dx2> dim=0", "expected the end at column 14, found 'd'", "nothing may follow"),
        ("[0 | 1]  <R | R>  hetero=all", "expected dup, partial or a dim at column 26, found 'a'", "write"),
    ],
)
def test_unreadable_text_is_refused_with_its_place(text: str, what: str, fix: str) -> None:
    with pytest.raises(AnnotationError) as refused:
        parse_annotation(text)
    assert refused.value.what == what
    assert fix in refused.value.fix


def test_the_error_points_at_the_place() -> None:
    with pytest.raises(AnnotationError) as refused:
        parse_annotation("[0,1 | 2]  <S0x2 , R>  hetero=dup")
    assert (
        str(refused.value)
        == """\
AnnotationError: expected '>' at column 18, found ','
  text [0,1 | 2]  <S0x2 , R>  hetero=dup
                        ^
  rule [devices | ...]  <placements | ...>  hetero=dup|partial|DIM
  fix  close the placements with >, separate groups by '|'"""
    )
