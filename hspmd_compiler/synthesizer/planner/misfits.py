"""What is said where no plan fits: which ranks lack how much, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...base.number_ranges import number_ranges
from ...cost_models.estimate import FITS, RankEstimate
from ...errors import EstimateError
from ...passes.deduction.computed_whole import size
from .candidates import PricedCandidate


def no_plan_fits(tried: Sequence[PricedCandidate]) -> EstimateError:
    """By how much the closest of all that were tried does not fit; or why none could be compiled."""
    closest = min(tried, key=lambda one: one.excess_bytes)
    if closest.estimate is None:
        return EstimateError(
            "no strategy for this model and these machines can be compiled",
            details=[(one.name, one.refused) for one in tried],
            rule="each candidate is compiled before it is priced",
            fix="compile one by hand with `hspmd compile --strategy`: its error says the line of your model",
        )
    if not any(one.holds_samples for one in tried):
        batch = max(one.memory.peak.batch for one in closest.estimate.ranks)
        return EstimateError(
            "no plan fits the devices' memory",
            details=[("samples", f"{size(batch)} of them on one rank"), *_lacking(closest.estimate.ranks)],
            rule="a rank holds its samples of a step, which no saving of memory makes fewer",
            fix="fewer samples (--global-batch), more devices or larger ones",
        )
    return EstimateError(
        "no plan fits the devices' memory",
        details=[("closest", closest.name), *_lacking(closest.estimate.ranks)],
        rule=f"a step holds at most {FITS:.0%} of a device's memory; {len(tried)} strategies were priced,"
        " with ZeRO, smaller micro-batches and recomputation",
        fix="more devices or larger ones, fewer samples (--global-batch), or --precision bfloat16",
    )


def _lacking(ranks: Sequence[RankEstimate]) -> Iterator[tuple[str, str]]:
    """Ranks that lack as much, together."""
    alike: dict[tuple[str, str], list[int]] = {}
    for one in ranks:
        if not one.fits:
            needs, has = one.memory.peak.total, int(one.usable_bytes)
            text = f"needs {size(needs)}, may hold {size(has)}: {size(needs - has)} too much"
            alike.setdefault((one.device, text), []).append(one.rank)
    for (device, text), held in alike.items():
        yield f"rank{'s' * (len(held) > 1)} {number_ranges(held)} ({device})", text
