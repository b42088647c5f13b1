"""Each form of context parallelism against dense attention of the whole row, all ranks in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hspmd_compiler.base.comm_plan import Interval
from hspmd_compiler.base.context import ContextCut, ContextForm
from hspmd_compiler.errors import InternalError
from hspmd_compiler.program.boxes import full_box
from hspmd_compiler.program.check_segment import problems_of_segment
from hspmd_compiler.program.context.forms import AttentionKind, ContextGroup
from hspmd_compiler.program.context.heads_form import spread_of
from hspmd_compiler.program.program import COMM, COMM_START

from .dense_attention import dense, drawn, starts_of, visible
from .together import FIRST_SLOT, RankPart, added_up, group_of, local, parts_of, run_together

WIDTH = 4
FORMS = pytest.mark.parametrize("form", ContextForm)


def check(
    form: ContextForm,
    group: ContextGroup,
    documents: list[int] | None = None,
    made: Callable[[bool], Mapping[int, RankPart]] | None = None,
) -> None:
    """Output, log-sum-exp and all gradients of a group equal those of the whole row.

    made: what ranks run, forward or backward, where it isn't written for this group.
    """
    made = partial(parts_of, form, group) if made is None else made
    kind = group.kind
    heads = max(high for member in group.members for _, high in member.heads)
    total = sum(member.tokens for member in group.members)
    q, grad = (drawn(kind.samples, heads, total, WIDTH) for _ in range(2))
    k, v = (drawn(kind.samples, heads // kind.repeat, total, WIDTH) for _ in range(2))
    whole = dense(q, k, v, grad, visible(total, documents, kind.causal, kind.window), kind.scale)
    given: dict[int, list[Any]] = {}
    for member in group.members:
        for rank, own, kv in zip(member.ranks, member.heads, member.kv_heads, strict=True):
            places = (own, kv, kv)
            parts = [local(x, at, member.runs) for x, at in zip((q, k, v), places, strict=True)]
            if kind.repeated:
                parts[1:] = [repeated(x, own, kv, kind.repeat) for x in parts[1:]]
            given[rank] = [*parts, starts_of(documents)]
    forward = run_together(made(False), given)
    for place, wanted in enumerate((whole.out, whole.lse)):
        found = {rank: both[place] for rank, both in forward.items()}
        torch.testing.assert_close(added_up(group, found, wanted, False), wanted, rtol=0, atol=1e-11)
    for member in group.members:
        for rank, own in zip(member.ranks, member.heads, strict=True):
            given[rank] += [local(grad, own, member.runs), *forward[rank]]
    backward = run_together(made(True), given)
    if kind.repeated:
        backward = {
            rank: (each[0], *(once(x, own, kv, kind.repeat) for x in each[1:]))
            for member in group.members
            for rank, own, kv in zip(member.ranks, member.heads, member.kv_heads, strict=True)
            for each in [backward[rank]]
        }
    for place, (wanted, kv) in enumerate(((whole.dq, False), (whole.dk, True), (whole.dv, True))):
        found = {rank: each[place] for rank, each in backward.items()}
        torch.testing.assert_close(added_up(group, found, wanted, kv), wanted, rtol=0, atol=1e-11)


def repeated(x: Tensor, own: Interval, kv: Interval, repeat: int) -> Tensor:
    """A rank's keys as a model hands them over that repeats them: a head for each query head."""
    return x[:, [head // repeat - kv[0] for head in range(*own)]]


def once(x: Tensor, own: Interval, kv: Interval, repeat: int) -> Tensor:
    """The gradient of what was repeated: the sum over heads that are alike."""
    total = x.new_zeros((x.shape[0], kv[1] - kv[0], *x.shape[2:]))
    return total.index_add(1, torch.tensor([head // repeat - kv[0] for head in range(*own)]), x)


def kind(repeat: int = 1, causal: bool = True, window: int = 0, samples: int = 1) -> AttentionKind:
    return AttentionKind(repeat, WIDTH, WIDTH, causal, window, None, samples, "float64")


@FORMS
@pytest.mark.parametrize("cut", ContextCut)
@pytest.mark.parametrize("causal", [True, False])
def test_members_of_1_127_900_and_no_tokens(form: ContextForm, cut: ContextCut, causal: bool) -> None:
    """TP degrees 2, 1, 3 and 1, of 6 query heads with 2 key-value heads, packed."""
    group = group_of([2, 1, 3, 1], [1, 127, 900, 0], 6, 2, kind(3, causal), cut)
    check(form, group, [100, 0, 1, 500, 427])


@FORMS
@pytest.mark.parametrize("lengths", [[128, 4, 100, 14], [0, 0, 5, 0], [3, 0, 0, 4], [0, 0, 0, 0]])
def test_unequal_lengths(form: ContextForm, lengths: list[int]) -> None:
    check(form, group_of([1, 4, 2, 1], lengths, 4, 4, kind()))


@FORMS
@pytest.mark.parametrize("degrees", [[4, 1], [4, 2], [8, 3], [1, 8]])
def test_more_ranks_than_key_value_heads(form: ContextForm, degrees: list[int]) -> None:
    """8 query heads read 2 key-value heads; several ranks of a member hold the same."""
    check(form, group_of(degrees, [5, 9], 8, 2, kind(4)), [6, 8])


@FORMS
@pytest.mark.parametrize("cut", ContextCut)
@pytest.mark.parametrize("window", [1, 3, 7])
def test_sliding_windows(form: ContextForm, cut: ContextCut, window: int) -> None:
    check(form, group_of([1, 2, 1], [9, 3, 8], 2, 1, kind(2, window=window), cut), [4, 11, 5])


@FORMS
@pytest.mark.parametrize("degrees", [[1, 2], [4, 3], [6, 1]])
def test_heads_that_were_repeated_before(form: ContextForm, degrees: list[int]) -> None:
    """One of those that are alike moves: the bytes are those of heads that were not repeated."""
    plain = group_of(degrees, [5, 9], 6, 2, kind(3))
    again = replace(plain, kind=replace(plain.kind, repeated=True))
    check(form, again, [6, 8])
    for backward in (False, True):
        moved = [
            [step for part in parts_of(form, group, backward).values() for step in part.comms]
            for group in (plain, again)
        ]
        assert moved[0] == moved[1]


@FORMS
def test_one_member(form: ContextForm) -> None:
    check(form, group_of([2], [7], 4, 2, kind(2)))


@FORMS
def test_several_samples(form: ContextForm) -> None:
    check(form, group_of([2, 1], [3, 4], 4, 2, kind(2, samples=3)))


@pytest.mark.parametrize("spread", [[0, 6, 6, 6], [1, 1, 5, 6], [2, 4, 6, 6]])
def test_any_number_of_heads_on_a_rank(spread: list[int]) -> None:
    """During attention: also none, and groups of a key-value head cut anywhere."""
    places = tuple(zip([0, *spread[:-1]], spread, strict=True))
    check(ContextForm.HEADS, group_of([1, 2, 1], [4, 2, 5], 6, 2, kind(3), spread=places), [7, 4])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_drawn_groups(data: st.DataObject) -> None:
    members = data.draw(st.integers(1, 4))
    degrees = data.draw(st.lists(st.integers(1, 3), min_size=members, max_size=members))
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=members, max_size=members))
    heads, kv_heads = data.draw(st.sampled_from([(4, 4), (4, 2), (6, 2), (3, 1)]))
    causal = data.draw(st.booleans())
    window = data.draw(st.integers(0, 4)) if causal else 0
    ends = sorted(data.draw(st.lists(st.integers(0, sum(lengths)), max_size=4)))
    documents = [high - low for low, high in zip([0, *ends], [*ends, sum(lengths)], strict=True)]
    cut, form = data.draw(st.sampled_from(ContextCut)), data.draw(st.sampled_from(ContextForm))
    group = group_of(degrees, lengths, heads, kv_heads, kind(heads // kv_heads, causal, window), cut)
    check(form, group, data.draw(st.sampled_from([None, documents])))


@FORMS
@pytest.mark.parametrize("backward", [False, True])
def test_rows_may_stand_in_an_artifact(form: ContextForm, backward: bool) -> None:
    """All operators, values and slots are there; what starts is ended."""
    parts = parts_of(form, group_of([2, 1, 1], [3, 4, 5], 4, 2, kind(2)), backward)
    for rank, part in parts.items():
        assert list(problems_of_segment("", part.segment, ())) == []
        for step in part.comms[FIRST_SLOT:]:
            assert step is not None and rank in step.group == tuple(sorted(step.group))
            for pieces, view in ((step.sends, step.src_view), (step.recvs, step.dst_view)):
                assert view is not None
                for box in (full_box(view), *(box for piece in pieces for box in piece.boxes)):
                    ends = zip(box, view, strict=True)
                    assert all(0 <= low <= high <= size for (low, high), size in ends)


def test_what_starts_is_ended_once_with_its_value() -> None:
    part = parts_of(ContextForm.RING, group_of([1, 1, 1], [3, 4, 5], 1, 1, kind()), True)[1]
    rows = part.segment.rows
    start = next(place for place, row in enumerate(rows) if row.op == COMM_START)
    end = next(place for place, row in enumerate(rows) if row.op == COMM)
    other = replace(rows[end], args=rows[start].args)
    cases = {
        "nothing ends it": [*rows[:end], *rows[end + 1 :]],
        "has started with another value": [*rows[:end], other, *rows[end + 1 :]],
    }
    for text, spoiled in cases.items():
        segment = replace(part.segment, rows=spoiled)
        assert any(text in problem for _, problem in problems_of_segment("", segment, ()))


@pytest.mark.parametrize(
    ("ranks", "heads", "repeat", "spread"),
    [
        (3, 8, 2, ((0, 2), (2, 4), (4, 8))),
        (3, 4, 2, ((0, 1), (1, 2), (2, 4))),
        (4, 2, 1, ((0, 0), (0, 1), (1, 1), (1, 2))),
    ],
)
def test_even_spread(ranks: int, heads: int, repeat: int, spread: tuple[Interval, ...]) -> None:
    """In whole groups of a key-value head where there are enough."""
    assert spread_of(group_of([ranks], [5], heads, heads // repeat, kind(repeat))) == spread


@pytest.mark.parametrize("text", ["not the tokens of a row", "query heads"])
def test_members_that_do_not_fit_are_refused(text: str) -> None:
    group = group_of([1, 2], [3, 4], 4, 2, kind(2))
    first, second = group.members
    wrong = {
        "not the tokens of a row": replace(second, runs=((4, 8),)),
        "query heads": replace(second, kv_heads=((0, 1), (0, 1))),
    }[text]
    with pytest.raises(InternalError, match=text):
        parts_of(ContextForm.RING, replace(group, members=(first, wrong)), False)


def test_ranks_that_hold_the_same_take_turns() -> None:
    """Two of four ranks have each key-value head; each sends its own to one rank of the other member."""
    parts = parts_of(ContextForm.GATHER, group_of([4, 4], [5, 9], 8, 2, kind(4, causal=False)), False)
    for rank in range(8):
        (step,) = (step for step in parts[rank].comms if step is not None)
        assert [piece.peer for piece in step.sends if piece.peer // 4 != rank // 4] == [(rank + 4) % 8]


@FORMS
def test_between_calls_nothing_is_rounded(form: ContextForm) -> None:
    """In bfloat16 only the last call of a pass gives the output, or the gradient of queries, in that type."""
    bfloat = replace(kind(2), dtype="bfloat16")
    for backward in (False, True):
        for part in parts_of(form, group_of([1, 2, 1], [3, 4, 5], 4, 2, bfloat), backward).values():
            ends = [row.args[-1] for row in part.segment.rows if row.op.startswith("hspmd.piece_attention")]
            assert ends == [*[False] * (len(ends) - 1), True]
            types = {step.dtype for step in part.comms if step is not None}
            assert types == {"bfloat16", *(["float32"] if form is ContextForm.HEADS else [])}
