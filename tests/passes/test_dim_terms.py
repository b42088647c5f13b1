"""Terms of dims: joining, views and cuts, checked on sizes that are ambiguous on purpose."""

from __future__ import annotations

import pytest

from hspmd_compiler.errors import InternalError
from hspmd_compiler.passes.dims.dim_terms import DimTerms
from hspmd_compiler.passes.dims.term_store import Form


@pytest.fixture
def terms() -> DimTerms:
    return DimTerms()


def test_views_refine_an_atom_and_find_it_again(terms: DimTerms) -> None:
    width = terms.atom(64)
    found = terms.regroup((terms.free(5), width), (5, 8, 8))
    assert found is not None
    batch, heads, inner = found
    assert batch == terms.free(5)
    assert terms.factors(width) == [heads, inner]
    assert heads != inner
    assert terms.regroup((batch, heads, inner), (5, 64)) == (batch, terms.product((heads, inner)))


def test_free_dims_merge_and_split_anywhere(terms: DimTerms) -> None:
    merged = terms.regroup((terms.free(5), terms.free(8), terms.atom(48)), (40, 48))
    assert merged is not None
    assert merged[0] == terms.free(40)
    assert terms.regroup((merged[0],), (2, 20)) == (terms.free(2), terms.free(20))


def test_a_view_across_factors_has_no_term(terms: DimTerms) -> None:
    assert terms.regroup((terms.atom(3), terms.atom(2)), (2, 3)) is None
    assert terms.regroup((terms.concat((terms.atom(2), terms.atom(4))), terms.atom(2)), (3, 4)) is None


def test_repeated_heads_refine_the_query_heads(terms: DimTerms) -> None:
    query, key = terms.atom(6), terms.atom(3)
    joined = terms.unify(query, terms.product((key, terms.free(2))))
    assert terms.factors(joined) == terms.factors(query)
    outer, inner = terms.factors(query)
    assert outer == key
    assert terms.facts(inner).repeat
    assert not terms.facts(outer).repeat


def test_repeated_heads_under_a_merged_batch(terms: DimTerms) -> None:
    query, key = terms.atom(6), terms.atom(3)
    joined = terms.unify(
        terms.product((terms.free(5), query)), terms.product((terms.free(5), key, terms.free(2)))
    )
    assert terms.factors(query)[0] == key
    assert terms.factors(joined) == [terms.free(5), *terms.factors(query)]


def test_atoms_that_are_joined_share_what_was_seen(terms: DimTerms) -> None:
    a, b = terms.atom(8), terms.atom(8)
    terms.mark_made(a, 3)
    terms.mark_used(b, 7)
    terms.unify(a, b)
    assert (terms.facts(a).made, terms.facts(b).used) == ([3], [7])
    terms.row = 8
    terms.mark_whole(b, "reason")
    terms.row = 9
    terms.mark_whole(a, "another")
    terms.mark_made(a, 9)
    facts = terms.facts(a)
    assert (facts.whole, facts.whole_at, facts.made, facts.used) == ("reason", 8, [3, 9], [7])


def test_marks_reach_later_parts(terms: DimTerms) -> None:
    width = terms.atom(12)
    terms.mark_whole(width, "reason")
    part = terms.cut(width, 0, 4)
    outer, inner = terms.regroup((part,), (2, 2)) or ()
    assert terms.facts(outer).whole == terms.facts(inner).whole == "reason"


def test_cuts_at_different_places_meet(terms: DimTerms) -> None:
    width = terms.atom(96)
    q, k, v = terms.cut(width, 0, 48), terms.cut(width, 48, 72), terms.cut(width, 72, 96)
    assert terms.segments(width) == [q, k, v]
    assert terms.segments(terms.cut(width, 48, 96)) == [k, v]
    other = terms.atom(48)
    terms.unify(other, terms.cut(width, 48, 96))
    assert terms.segments(other) == [k, v]


def test_cut_of_a_product_cuts_its_outer_factor(terms: DimTerms) -> None:
    heads, inner = terms.atom(6), terms.atom(8)
    part = terms.cut(terms.product((heads, inner)), 16, 48)
    assert terms.factors(part) == [terms.segments(heads)[1], inner]
    assert terms.sizes[terms.segments(heads)[0]] == 2


def test_cut_across_factors_makes_them_whole(terms: DimTerms) -> None:
    heads, inner = terms.atom(6), terms.atom(8)
    assert terms.form(terms.cut(terms.product((heads, inner)), 4, 20)) is Form.FREE
    assert terms.facts(heads).whole
    assert terms.facts(inner).whole


def test_fused_blocks_as_segments_and_as_a_factor(terms: DimTerms) -> None:
    """x.chunk(3) in one place and x.view(3, 6, 8) in another."""
    fused, blocks = terms.atom(144), terms.atom(144)
    parts = [terms.cut(fused, 48 * i, 48 * (i + 1)) for i in range(3)]
    _, heads, inner = terms.regroup((blocks,), (3, 6, 8)) or ()
    terms.unify(fused, blocks)
    assert all(terms.factors(part) == [heads, inner] for part in parts)


def test_a_dim_that_meets_itself_shifted_becomes_whole(terms: DimTerms) -> None:
    """x[1:] + x[:-1] must neither split nor be cut into single elements."""
    length = terms.atom(4096)
    terms.unify(terms.cut(length, 1, 4096), terms.cut(length, 0, 4095))
    assert all(terms.facts(atom).whole for atom in terms.atoms(length))
    assert len(list(terms.atoms(length))) < 4


def test_dims_of_other_sizes_are_never_joined(terms: DimTerms) -> None:
    with pytest.raises(InternalError, match="size 6 and 8"):
        terms.unify(terms.atom(6), terms.atom(8))
