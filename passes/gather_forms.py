"""In which form unequal pieces are gathered, or summed for who keeps them: exact, padded, by broadcasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..base.by_key import by_key
from ..base.comm_plan import CommKind, CommStep, CostModel, GatherForm
from ..base.dtypes import BYTES
from ..program.boxes import received_volumes, sent_volumes
from ..program.exchange_plan import gathered_sizes, scattered_sizes
from .resolve_annotations.text import micros

FORMS = tuple(GatherForm)
"""The first of those that cost the same is taken."""


def cheapest_forms(steps: Mapping[int, CommStep], cost: CostModel) -> dict[int, CommStep]:
    """The steps of all ranks, those that gather or scatter unequal pieces in the form that costs least.

    Their notes tell the price of each form, that of the one taken first.
    """
    found = dict(steps)
    for ranks in by_key((step.id, rank) for rank, step in steps.items()).values():
        members = {rank: steps[rank] for rank in ranks}
        prices = form_prices(members, cost)
        if prices:
            best = sorted(prices, key=lambda form: (prices[form], FORMS.index(form)))
            told = [f"{form.value} {micros(prices[form])}" for form in best]
            found |= {
                rank: replace(step, form=best[0], note="; ".join([step.note, *told] if step.note else told))
                for rank, step in members.items()
            }
    return found


def form_prices(members: Mapping[int, CommStep], cost: CostModel) -> Mapping[GatherForm, float]:
    """Seconds of a step by its form; none where it moves no unequal pieces. members: all parts of it."""
    step = next(iter(members.values()))
    sizes = {gathered_sizes(part) or scattered_sizes(part) for part in members.values()}
    (known,) = sizes if len(sizes) == 1 else (None,)
    if known is None or len(set(known)) == 1 or set(members) != set(step.group):
        return {}
    if list(known) != [_own(rank, members[rank]) for rank in step.group]:
        return {}
    return cost.unequal_forms_s(step.kind, step.group, [size * BYTES[step.dtype] for size in known])


def _own(rank: int, step: CommStep) -> int:
    """Elements of a member's piece, which it has itself: of what it gathers, or of the sums that it keeps."""
    volumes = sent_volumes(step) if step.kind is CommKind.ALL_GATHER else received_volumes(step)
    return volumes.get(rank, 0)
