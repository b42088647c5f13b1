"""Prices of forms: bytes by hand, the time of a ring that overlaps, and which form is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from hspmd_compiler.base.comm_plan import CommKind, GatherForm, Traffic
from hspmd_compiler.base.context import ContextCut, ContextForm
from hspmd_compiler.program.context.forms import AttentionKind, ContextGroup
from hspmd_compiler.program.context.prices import FormPrice, cheapest_form, form_prices

from .together import group_of

WIDTH, TOKENS = 8, 64
KV_BYTES = 2 * WIDTH * 4
"""Of a token and a head."""


@dataclass(frozen=True)
class ByBytes:
    """A byte takes a second, of the rank that sends or receives most; a step takes some more."""

    step_s: float = 0.0

    def comm_s(self, traffic: Sequence[Traffic]) -> float:
        ends: dict[tuple[str, int], float] = {}
        for each in traffic:
            for (sender, receiver), size in each.volumes.items():
                for end in (("from", sender), ("to", receiver)):
                    ends[end] = ends.get(end, 0.0) + size
        return self.step_s + max(ends.values(), default=0.0)

    def unequal_forms_s(
        self, kind: CommKind, group: Sequence[int], sizes: Sequence[float]
    ) -> Mapping[GatherForm, float]:
        return {}

    def near(self, rank: int) -> frozenset[int] | None:
        return None


def group(kv_heads: int = 4, cut: ContextCut = ContextCut.CONTIGUOUS, members: int = 4) -> ContextGroup:
    kind = AttentionKind(8 // kv_heads, WIDTH, WIDTH)
    return group_of([1] * members, [TOKENS] * members, 8, kv_heads, kind, cut)


def test_bytes_of_a_causal_row() -> None:
    """Each block goes to the members behind its own, twice, and a gradient back: 6 pairs of members of 16."""
    prices = form_prices(group(), ByBytes())
    once = 6 * TOKENS * 4 * KV_BYTES
    assert prices[ContextForm.RING].moved_bytes == prices[ContextForm.GATHER].moved_bytes == 3 * once
    all_around = form_prices(group(cut=ContextCut.BALANCED), ByBytes())
    assert all_around[ContextForm.RING].moved_bytes == 3 * 2 * once


def test_heads_move_three_quarters_of_what_they_read_and_write() -> None:
    """Of 4 ranks each keeps a quarter. Forward q, out, k and v, log-sum-exp; backward also gradients."""
    moved = form_prices(group(), ByBytes())[ContextForm.HEADS].moved_bytes
    query, kv, lse = 8 * WIDTH * 4, 4 * KV_BYTES, 8 * 4
    assert moved == 3 * TOKENS * ((2 * query + kv + lse) + (4 * query + 2 * kv + lse))


def test_a_ring_hides_the_shorter_of_both() -> None:
    """Two members, balanced: a hop forward, one backward, and the gradient's last one in the open."""
    pair = group(members=2, cut=ContextCut.BALANCED)
    hop = TOKENS * 4 * KV_BYTES
    free, slow = (form_prices(pair, ByBytes(), rate)[ContextForm.RING].seconds for rate in (0.0, 1e6))
    assert free == 3 * hop
    computed = [pairs * 8 * 2 * WIDTH * 1e6 for pairs in (2 * 32 * 33 // 2 + 32 * 32, 2 * 32 * 32)]
    assert slow == pytest.approx(sum(computed) * (2 + 5) + hop)


def test_what_is_chosen() -> None:
    """A ring where it hides transfers; a gather where steps cost; heads where all keys are many bytes."""
    assert cheapest_form(form_prices(group(cut=ContextCut.BALANCED), ByBytes(), 1.0)) is ContextForm.RING
    assert cheapest_form(form_prices(group(1), ByBytes(1e9))) is ContextForm.GATHER
    assert cheapest_form(form_prices(group(8, members=8), ByBytes())) is ContextForm.HEADS


def test_of_those_alike_the_one_that_holds_least() -> None:
    forms = {form: FormPrice(1.0, 0, held) for form, held in zip(ContextForm, (3, 2, 4), strict=True)}
    assert cheapest_form(forms) is ContextForm.GATHER


def test_slow_ranks_are_waited_for() -> None:
    rates = dict.fromkeys(range(4), 1.0)
    even = form_prices(group(), ByBytes(), rates)
    late = form_prices(group(), ByBytes(), rates | {3: 2.0})
    assert all(late[form].seconds > even[form].seconds for form in ContextForm)
