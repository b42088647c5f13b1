"""In which form unequal pieces are gathered: exact boxes to each, padded to the longest, or by broadcasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..base.by_key import by_key
from ..base.comm_plan import CommStep, CostModel, GatherForm
from ..base.dtypes import BYTES
from ..program.boxes import sent_volumes
from ..program.exchange_plan import gathered_sizes
from .resolve_annotations.text import micros

FORMS = tuple(GatherForm)
"""The first of those that cost the same is taken."""


def cheapest_forms(steps: Mapping[int, CommStep], cost: CostModel) -> dict[int, CommStep]:
    """The steps of all ranks, those that gather unequal pieces in the form that costs least.

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
    """Seconds of a step by its form; none where it gathers no unequal pieces. members: all parts of it."""
    step = next(iter(members.values()))
    sizes = {gathered_sizes(part) for part in members.values()}
    (known,) = sizes if len(sizes) == 1 else (None,)
    if known is None or len(set(known)) == 1 or set(members) != set(step.group):
        return {}
    sent = [sent_volumes(members[rank]).get(rank, 0) for rank in step.group]
    if list(known) != sent:
        return {}
    return cost.all_gather_forms_s(step.group, [size * BYTES[step.dtype] for size in known])
