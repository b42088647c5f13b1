"""Where the time of a step went: seconds of each share by rank, and what a newcomer should see in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ...base.timeline import Span, SpanKind, Timeline
from ...cost_models.align import begin_s
from ..units import percent_text, seconds_text
from .kinds import LOOKS, TimeShare
from .places import LabelledRank

Shares = Mapping[TimeShare, float]
COMPUTING = (TimeShare.FORWARD, TimeShare.BACKWARD, TimeShare.UPDATE, TimeShare.OTHER)
REASONS: Mapping[SpanKind, str] = {
    SpanKind.RECV: "to receive from other stages",
    SpanKind.SEND: "until other stages take what is sent",
    SpanKind.GRADIENT: "for the last rank to begin the gradient sum",
    SpanKind.GATHER: "for the ranks that store their parameters",
    SpanKind.COLLECTIVE: "for the other ranks of a collective",
    SpanKind.LOSS: "for the last rank to have its loss",
    SpanKind.STEP_VALUE: "for what the whole batch counts",
}
LEAST_TOLD = 0.01
ORDER = {share: number for number, share in enumerate(TimeShare)}


def length_s(timeline: Timeline) -> float:
    """From the first span's begin to the last one's end."""
    return timeline.end_s - begin_s(timeline)


def shares_by_rank(timeline: Timeline) -> dict[int, Shares]:
    """Seconds of each share, by rank; those of a rank add up to the step."""
    spans: dict[int, list[Span]] = {}
    for span in timeline.spans:
        spans.setdefault(span.rank, []).append(span)
    step_s = length_s(timeline)
    return {rank: _with_waiting(_busy(some), step_s) for rank, some in sorted(spans.items())}


def _with_waiting(busy: Counter[TimeShare], step_s: float) -> Shares:
    """A rank also waits while it has no span."""
    rest_s = step_s - sum(busy[share] for share in TimeShare if share is not TimeShare.WAITING)
    return {share: max(0.0, rest_s) if share is TimeShare.WAITING else busy[share] for share in TimeShare}


def _busy(spans: Sequence[Span]) -> Counter[TimeShare]:
    """Seconds of each share but waiting; each moment counts once."""
    found: Counter[TimeShare] = Counter()
    work = [span for span in spans if LOOKS[span.kind].share is not TimeShare.WAITING and span.length_s > 0]
    work.sort(key=lambda span: span.start_s)
    if all(before.end_s <= after.start_s for before, after in pairwise(work)):
        for span in work:
            found[LOOKS[span.kind].share] += span.length_s  # type: ignore[assignment]
        return found
    for low, high, active in _sweep(work):
        if active:
            found[min(active, key=ORDER.__getitem__)] += high - low  # type: ignore[assignment]
    return found


def _sweep(spans: Sequence[Span]) -> Iterator[tuple[float, float, Counter[TimeShare]]]:
    """(from, to, what is going on) of each stretch without a begin or end in it."""
    changes = [(span.start_s, 1, LOOKS[span.kind].share) for span in spans]
    changes += [(span.end_s, -1, LOOKS[span.kind].share) for span in spans]
    changes.sort(key=lambda change: (change[0], change[1]))
    active: Counter[TimeShare] = Counter()
    for (time_s, by, share), (until_s, *_) in pairwise([*changes, (changes[-1][0], 0, TimeShare.OTHER)]):
        active[share] += by
        active += Counter()  # those at 0 go
        if until_s > time_s:
            yield time_s, until_s, active


def together(shares: Sequence[Shares]) -> Shares:
    """The mean over ranks."""
    return {share: sum(each[share] for each in shares) / len(shares) for share in TimeShare}


def computing_s(shares: Shares) -> float:
    """Seconds of all kinds of computing."""
    return sum(shares[share] for share in COMPUTING)


def told(shares: Shares, step_s: float) -> str:
    """`computes 50 %, waits 43 %`."""
    waiting = percent_text(shares[TimeShare.WAITING], step_s)
    return f"computes {percent_text(computing_s(shares), step_s)}, waits {waiting}"


def explained(lines: Sequence[Timeline], places: Sequence[LabelledRank]) -> Iterator[str]:
    """What a newcomer should know of a step; of the measured one where there are two."""
    steps = [length_s(line) for line in lines]
    taken = " and ".join(f"{seconds_text(s)} as {x.source}" for x, s in zip(lines, steps, strict=True))
    times = f", {steps[1] / steps[0]:.2f} times the estimate" if len(steps) > 1 and steps[0] > 0 else ""
    yield f"One training step takes {taken}{times}."
    shares, step_s = shares_by_rank(lines[-1]), steps[-1]
    if not shares or step_s <= 0:
        return
    mean = together(list(shares.values()))
    rest = [(computing_s(mean), "compute"), (mean[TimeShare.COMMUNICATION], "communicate")]
    parts = [f"{what} for {percent_text(seconds, step_s)}" for seconds, what in rest]
    waiting = percent_text(mean[TimeShare.WAITING], step_s)
    step = f"the {lines[-1].source} step"
    yield f"On average the ranks {parts[0]} of {step}, {parts[1]} and wait for {waiting}."
    yield from _extremes(shares, step_s, {place.rank: place.text for place in places})
    if lines[-1].hidden is not None:
        sums_s = sum(span.length_s for span in lines[-1].beside) / len(shares)
        yield (
            f"Sums of gradients are under way for {seconds_text(sums_s)} on average; their ranks compute in"
            f" {percent_text(lines[-1].hidden, 1)} of it."
        )
    yield from _reasons(lines)


def _extremes(shares: Mapping[int, Shares], step_s: float, names: Mapping[int, str]) -> Iterator[str]:
    """Who computes most, and who waits most."""
    busiest = max(shares, key=lambda rank: (computing_s(shares[rank]), -rank))
    idlest = max(shares, key=lambda rank: (shares[rank][TimeShare.WAITING], -rank))
    computes = percent_text(computing_s(shares[busiest]), step_s)
    waits = percent_text(shares[idlest][TimeShare.WAITING], step_s)
    yield (
        f"{_capital(names[busiest])} computes most, {computes} of the step;"
        f" {names[idlest]} waits most, {waits}."
    )


def _reasons(lines: Sequence[Timeline]) -> Iterator[str]:
    """What the ranks wait for, the most first."""
    seconds = waited_for(lines)
    whole_s = sum(seconds.values())
    if whole_s > 0:
        parts = [
            f"{percent_text(part_s, whole_s)} {REASONS.get(kind, 'for other exchanges')}"
            for kind, part_s in sorted(seconds.items(), key=lambda item: -item[1])
            if part_s >= LEAST_TOLD * whole_s
        ]
        yield f"What they wait for: {', '.join(parts)}."


def waited_for(lines: Sequence[Timeline]) -> Counter[SpanKind]:
    """Seconds of waiting of the last timeline, by the exchange that the waiting instruction is."""
    kinds = {
        (span.rank, span.position): span.kind
        for line in lines
        for span in line.spans
        if span.kind is not SpanKind.WAIT and LOOKS[span.kind].share is TimeShare.COMMUNICATION
    }
    found: Counter[SpanKind] = Counter()
    for span in lines[-1].spans:
        if span.kind is SpanKind.WAIT:
            found[kinds.get((span.rank, span.position), SpanKind.OTHER)] += span.length_s  # type: ignore[assignment]
    return found


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
