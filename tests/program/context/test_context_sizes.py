"""Numbers of a form are sums of pieces of the row: fitted at small lengths, they are right at any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.base.context import ContextCut, ContextForm, member_runs
from hspmd_compiler.program.context.forms import AttentionKind, ContextGroup

from .test_context_forms import WIDTH, check
from .together import RankPart, group_of, parts_of

DEGREES = [2, 1, 3]
Parts = dict[int, RankPart]


def group_of_pieces(pieces: Sequence[int]) -> ContextGroup:
    """Three members that hold the pieces of a row: one each, or two."""
    runs = member_runs(pieces, len(DEGREES))
    group = group_of(DEGREES, [0, 0, 0], 6, 2, AttentionKind(3, WIDTH, WIDTH, dtype="float64"))
    members = zip(group.members, runs, strict=True)
    return replace(group, members=tuple(replace(member, runs=own) for member, own in members))


def numbers(value: Any) -> Iterator[int]:
    """All plain numbers in what ranks run."""
    if type(value) is int:
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from numbers(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from numbers(getattr(value, field.name))


def with_numbers(value: Any, given: Iterator[int]) -> Any:
    """The same with other numbers."""
    if type(value) is int:
        return next(given)
    if isinstance(value, dict):
        return {key: with_numbers(item, given) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(with_numbers(item, given) for item in value)
    if is_dataclass(value) and not isinstance(value, (type, Enum)):
        return type(value)(*(with_numbers(getattr(value, field.name), given) for field in fields(value)))
    return value


def fitted(form: ContextForm, backward: bool, pieces: Sequence[int]) -> Parts:
    """What ranks run of these pieces, by numbers at small lengths alone."""
    base = [3 + place for place in range(len(pieces))]
    made = parts_of(form, group_of_pieces(base), backward)
    at_base = list(numbers(made))
    found = list(at_base)
    for place, size in enumerate(pieces):
        longer = [length + (at == place) for at, length in enumerate(base)]
        other = parts_of(form, group_of_pieces(longer), backward)
        slopes = [more - less for more, less in zip(numbers(other), at_base, strict=True)]
        assert set(slopes) <= {0, 1}, "a number is a sum of pieces, each once"
        found = [number + slope * (size - base[place]) for number, slope in zip(found, slopes, strict=True)]
    result: Parts = with_numbers(made, iter(found))
    return result


@pytest.mark.parametrize("form", ContextForm)
@pytest.mark.parametrize("cut", ContextCut)
@pytest.mark.parametrize("backward", [False, True])
def test_numbers_are_sums_of_pieces(form: ContextForm, cut: ContextCut, backward: bool) -> None:
    """At lengths that were not fitted the numbers are those of a program of that length."""
    pieces = [7, 11, 4, 9, 2, 20][: 3 if cut is ContextCut.CONTIGUOUS else 6]
    assert list(numbers(fitted(form, backward, pieces))) == list(
        numbers(parts_of(form, group_of_pieces(pieces), backward))
    )


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ContextForm), st.sampled_from([3, 6]), st.data())
def test_fitted_programs_are_exact_at_any_length(form: ContextForm, count: int, data: st.DataObject) -> None:
    """Members, and pieces of a balanced cut, that have no tokens too."""
    pieces = data.draw(st.lists(st.integers(0, 8), min_size=count, max_size=count))
    ends = sorted(data.draw(st.lists(st.integers(0, sum(pieces)), max_size=3)))
    documents = [high - low for low, high in zip([0, *ends], [*ends, sum(pieces)], strict=True)]
    check(form, group_of_pieces(pieces), documents, lambda backward: fitted(form, backward, pieces))


def test_pieces_of_a_group() -> None:
    assert [member.runs for member in group_of_pieces([2, 3, 4]).members] == [
        ((end - size, end),) for size, end in zip([2, 3, 4], accumulate([2, 3, 4]), strict=True)
    ]
