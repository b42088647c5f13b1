"""Two sides that don't hear each other never both go on; one that is all that lives does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.runtime.elastic.several.majority import may_go_on

MEMBERS = st.integers(1, 7).map(lambda count: set(range(count)))


@given(st.data(), MEMBERS)
def test_never_both(data: st.DataObject, members: set[int]) -> None:
    """gone is a fact, so it holds nobody of either side; the sides may know different facts."""
    one = data.draw(st.sets(st.sampled_from(sorted(members)), min_size=1))
    rest = sorted(members - one)
    other = data.draw(st.sets(st.sampled_from(rest), min_size=1)) if rest else set()
    dead = sorted(members - one - other)
    known = [data.draw(st.sets(st.sampled_from(dead))) if dead else set() for _ in range(2)]
    if other:
        assert not (may_go_on(members, one, known[0]) and may_go_on(members, other, known[1]))


@given(st.data(), MEMBERS)
def test_whoever_is_known_to_be_all_that_lives_goes_on(data: st.DataObject, members: set[int]) -> None:
    here = data.draw(st.sets(st.sampled_from(sorted(members)), min_size=1))
    assert may_go_on(members, here, members - here)


def test_two_that_do_not_hear_each_other() -> None:
    assert may_go_on({0, 1}, {0}, set()) and not may_go_on({0, 1}, {1}, set())
    assert may_go_on({0, 1, 2}, {1, 2}, set()) and not may_go_on({0, 1, 2}, {0}, set())
