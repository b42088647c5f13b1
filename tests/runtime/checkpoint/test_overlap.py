"""What of a box of one view lies in a box of another, beside numbering all elements."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hspmd_compiler.base.comm_plan import Box
from hspmd_compiler.program.boxes import slices
from hspmd_compiler.runtime.saved.checkpoint import overlap
from hspmd_compiler.runtime.saved.checkpoint.overlap import shared_runs

SIZES = (1, 2, 3, 4, 6)
WHOLE = 24


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Box]:
    """A view of WHOLE elements, and a box of it, which may be empty."""
    view, left = [], WHOLE
    while left > 1 and len(view) < 4:
        view.append(draw(st.sampled_from([size for size in SIZES if left % size == 0])))
        left //= view[-1]
    view.append(left)
    ends = [sorted((draw(st.integers(0, size)), draw(st.integers(0, size)))) for size in view]
    return tuple(view), tuple((low, high) for low, high in ends)


@given(boxes(), boxes(), st.booleans())
def test_shared_elements_are_copied_and_no_others(
    one: tuple[tuple[int, ...], Box], two: tuple[tuple[int, ...], Box], few: bool
) -> None:
    (view, box), (other_view, other) = one, two
    numbers = torch.arange(WHOLE)
    source = numbers.view(view)[slices(box)].flatten()
    wanted = numbers.view(other_view)[slices(other)].flatten()
    found = torch.full_like(wanted, -1)
    shared = shared_runs(view, box, other_view, other)
    low, high = shared.needed
    limit, overlap.FEW = overlap.FEW, 64 if few else 0
    try:
        shared.copy(source[low:high], found)
    finally:
        overlap.FEW = limit
    assert torch.equal(found, torch.where(torch.isin(wanted, source), wanted, -1))
