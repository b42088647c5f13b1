"""Sequences of any length in batches by length: none lost or doubled, and what is packed is told apart."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.errors import RunError
from hspmd_compiler.runtime.batches.buckets import (
    BucketBatch,
    BucketFill,
    CountedLabels,
    LengthBucket,
    bucket_rows,
    pairs_of,
)

IGNORED = -100


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[LengthBucket]]:
    bounds = draw(st.lists(st.integers(1, 24), min_size=1, max_size=4, unique=True))
    buckets = [
        LengthBucket(f"s{bound}", bound, draw(st.integers(1, 4)), draw(st.booleans())) for bound in bounds
    ]
    return draw(st.lists(st.integers(1, max(bounds)), max_size=12)), buckets


def sequences(lengths: list[int]) -> list[torch.Tensor]:
    """Every token is unique over all sequences, from 1."""
    return list(torch.arange(1, sum(lengths) + 1).split(lengths)) if lengths else []


def row_pieces(made: BucketBatch, row: int, lengths: list[int]) -> list[torch.Tensor]:
    sizes = [lengths[index] for index in made.sequences[row]]
    ids = made.batch["input_ids"][row]
    return list(ids[: sum(sizes)].split(sizes)) if sizes else []


@given(cases())
def test_no_sequence_is_lost_or_doubled(case: tuple[list[int], list[LengthBucket]]) -> None:
    lengths, buckets = case
    tokens = sequences(lengths)
    by_name = {bucket.strategy: bucket for bucket in buckets}
    seen = []
    for made in BucketFill().divided(tokens, buckets):
        bucket = by_name[made.strategy]
        assert made.batch["input_ids"].shape == (bucket.rows, bucket.longest)
        assert any(made.sequences), "a batch of padding alone is not run"
        for row, own in enumerate(made.sequences):
            pieces = row_pieces(made, row, lengths)
            assert all(piece.equal(tokens[index]) for piece, index in zip(pieces, own, strict=True))
            filled = sum(map(len, pieces))
            assert not made.batch["input_ids"][row, filled:].any()
            assert (made.batch["labels"][row, filled:] == IGNORED).all()
            seen += own
            shorter = [each.longest for each in buckets if each.longest < bucket.longest]
            assert all(lengths[index] > max(shorter, default=0) for index in own)
    assert sorted(seen) == list(range(len(lengths)))


@given(cases())
def test_as_many_labels_count_as_in_one_padded_batch(case: tuple[list[int], list[LengthBucket]]) -> None:
    """Also where sequences share a row: what stands before its first token is no reason to predict it."""
    lengths, buckets = case
    made = BucketFill().divided(sequences(lengths), buckets)
    assert sum(each.labels for each in made) == sum(length - 1 for length in lengths)
    assert all(each.labels == CountedLabels().of(each.batch) for each in made)


@given(cases())
def test_packed_tokens_see_their_own_sequence_only(case: tuple[list[int], list[LengthBucket]]) -> None:
    lengths, buckets = case
    packed = {bucket.strategy for bucket in buckets if bucket.packed}
    for made in BucketFill().divided(sequences(lengths), buckets):
        assert ("attention_mask" in made.batch) == ("position_ids" in made.batch) == (made.strategy in packed)
        if made.strategy not in packed:
            assert all(len(own) <= 1 for own in made.sequences)
            continue
        for row, own in enumerate(made.sequences):
            start = 0
            for index in own:
                end = start + lengths[index]
                assert made.batch["position_ids"][row, start:end].tolist() == list(range(end - start))
                pairs = made.batch["attention_mask"][row, 0, start:end]
                assert pairs[:, start:end].equal(torch.ones(end - start, end - start).tril().bool())
                assert pairs.sum() == pairs[:, start:end].sum()
                start = end


def test_every_token_attends_to_something() -> None:
    """Padding too: a softmax over nothing is not a number, and would spoil gradients."""
    assert pairs_of(torch.tensor([[0, 0, -1, -1]]))[0, 0].any(-1).all()


def test_rows_are_packed_first_fit_from_the_longest() -> None:
    packed = [LengthBucket("a", 8, 2, packed=True)]
    assert bucket_rows([3, 5, 6, 2, 2], packed) == [[(2, 3), (1, 0), (4,)]]


def test_sequences_that_fit_nowhere_are_all_told() -> None:
    with pytest.raises(RunError) as caught:
        bucket_rows([5, 0, 9, 4], [LengthBucket("a", 4, 1), LengthBucket("b", 8, 1)])
    assert list(caught.value.details) == [("sequence 1", "0 tokens"), ("sequence 2", "9 tokens")]
    assert "1 to 8 tokens" in str(caught.value)


def test_labels_that_count() -> None:
    labels = torch.tensor([[5, IGNORED, 7], [IGNORED, 8, 9]])
    assert CountedLabels().of({"labels": labels}) == 3
    assert CountedLabels(first=0).of({"labels": labels}) == 4
    assert CountedLabels(key="y", ignored=7, first=0).of({"y": labels[0]}) == 2
    with pytest.raises(RunError, match="the batch has no labels"):
        CountedLabels().of({"x": labels})
