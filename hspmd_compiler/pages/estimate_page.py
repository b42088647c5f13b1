"""An estimate as tables: the step, ranks by phase, memory, links, the critical path, what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..base.number_ranges import number_ranges
from ..base.timeline import SpanKind
from ..cost_models.estimate import FITS, Estimate, RankEstimate
from ..cost_models.steps.memory import PARTS
from .sections import Cell, Listing, Section, Table
from .units import bytes_text, seconds_text

PHASES: tuple[tuple[str, tuple[SpanKind, ...]], ...] = (
    ("forward", (SpanKind.FORWARD, SpanKind.STEP_VALUE)),
    ("backward", (SpanKind.BACKWARD,)),
    ("collectives", (SpanKind.COLLECTIVE,)),
    ("send, receive", (SpanKind.SEND, SpanKind.RECV)),
    ("gradients", (SpanKind.GRADIENT, SpanKind.GATHER)),
    ("update", (SpanKind.UPDATE, SpanKind.LOSS, SpanKind.OTHER)),
    ("waits", (SpanKind.WAIT,)),
)
MOST_PATH, MOST_LINKS = 6, 12
Rows = list[tuple[int, tuple[Cell, ...]]]
"""Of each rank what is told of it."""


def estimate_sections(found: Estimate, for_scripts: bool = False) -> list[Section]:
    """Everything that is told of an estimate.

    for_scripts: seconds as numbers, and a line for each rank; else one for all that are alike.
    """
    sections: list[Section] = [
        Table("step", "step", ("fact", "value"), tuple(_facts(found, for_scripts))),
        _phases(found, for_scripts),
        *_memory(found, for_scripts),
        _links(found),
        _path(found, for_scripts),
        _advice(found, for_scripts),
    ]
    if found.notes:
        sections.append(Listing("notes", "what to know of the figures", found.notes))
    return sections


def facts_of(found: Estimate) -> list[tuple[str, Cell]]:
    """The head of a page, in words."""
    return [
        ("step", seconds_text(found.step_s)),
        ("samples per second", round(found.samples_per_s, 3)),
        ("bubble", f"{found.bubble:.1%}"),
        ("MFU", "unknown" if found.mfu is None else f"{found.mfu:.1%}"),
        ("bounded by", found.bound),
        *(
            (f"would help ({place})", f"{one.change}: {one.gain:.1%} less time for a sample")
            for place, one in enumerate(found.advice, 1)
        ),
    ]


def _facts(found: Estimate, for_scripts: bool) -> Iterator[tuple[Cell, ...]]:
    yield "seconds", _seconds(found.step_s, for_scripts)
    yield "samples per second", round(found.samples_per_s, 3)
    yield "bubble share", round(found.bubble, 4)
    yield "MFU", "unknown" if found.mfu is None else round(found.mfu, 4)
    if found.timeline.hidden is not None:
        yield "gradient sums behind computing", round(found.timeline.hidden, 4)
    yield "model flops", round(found.model_flops)
    yield "bounded by", found.bound
    yield "fits", "yes" if not found.misfits else f"no: {len(found.misfits)} of {len(found.ranks)} ranks"
    yield "sends", str(found.semantics)


def _phases(found: Estimate, for_scripts: bool) -> Table:
    rows: Rows = [(one.rank, _phase_row(one, for_scripts)) for one in found.ranks]
    columns = ("device", "pipeline", "stage", *(name for name, _ in PHASES))
    return _of_ranks("ranks", "seconds of each rank by phase", columns, rows, for_scripts)


def _phase_row(one: RankEstimate, for_scripts: bool) -> tuple[Cell, ...]:
    sums = [sum(one.phases_s.get(kind, 0.0) for kind in kinds) for _, kinds in PHASES]
    seconds = [_seconds(each, for_scripts) for each in sums]
    return (one.device, one.pipeline, one.stage, *seconds)


def _memory(found: Estimate, for_scripts: bool) -> Iterator[Table]:
    """The peak of each rank; for people what it is made of apart, without parts that nobody has."""
    columns = ("peak", "capacity", "share", "fits", "at instruction")
    title = f"bytes of each rank at its peak; it fits up to {FITS:.0%} of the device's memory"
    if for_scripts:
        rows: Rows = [(one.rank, (*_peak_row(one, True), *_parts_row(one, PARTS))) for one in found.ranks]
        yield _of_ranks("memory", title, (*columns, *PARTS), rows, True)
        return
    rows = [(one.rank, _peak_row(one, False)) for one in found.ranks]
    yield _of_ranks("memory", title, columns, rows, False)
    parts = [part for part in PARTS if any(getattr(one.memory.peak, part) for one in found.ranks)]
    rows = [(one.rank, tuple(map(bytes_text, _parts_row(one, parts)))) for one in found.ranks]
    none = ", ".join(part for part in PARTS if part not in parts)
    title = "what the peak is made of" + (f"; nothing of any rank: {none}" if none else "")
    yield _of_ranks("memory parts", title, parts, rows, False)


def _peak_row(one: RankEstimate, for_scripts: bool) -> tuple[Cell, ...]:
    sizes = (one.memory.peak.total, one.capacity_bytes)
    share, fits = round(sizes[0] / sizes[1], 3), "yes" if one.fits else "no"
    return (*(sizes if for_scripts else map(bytes_text, sizes)), share, fits, one.memory.position)


def _parts_row(one: RankEstimate, parts: Sequence[str]) -> tuple[int, ...]:
    return tuple(int(getattr(one.memory.peak, name)) for name in parts)


def _of_ranks(key: str, title: str, columns: Sequence[str], rows: Rows, for_scripts: bool) -> Table:
    """A line for each rank, or for all of which the same is told."""
    if for_scripts:
        return Table(key, title, ("rank", *columns), tuple((rank, *row) for rank, row in rows))
    alike: dict[tuple[Cell, ...], list[int]] = {}
    for rank, row in rows:
        alike.setdefault(row, []).append(rank)
    lines = tuple((number_ranges(ranks), *row) for row, ranks in alike.items())
    return Table(key, title, ("ranks", *columns), lines)


def _seconds(seconds: float, for_scripts: bool) -> Cell:
    return round(seconds, 9) if for_scripts else seconds_text(seconds)


def _share(share: float, for_scripts: bool) -> Cell:
    return round(share, 6) if for_scripts else f"{share:.1%}"


def _links(found: Estimate) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (link.name, link.bytes, link.busiest_bytes, round(link.share, 4)) for link in found.links[:MOST_LINKS]
    ]
    left = len(found.links) - len(rows)
    title = "bytes of a step by link; busiest: of one wire in one direction; share: of the step at full speed"
    more = f"; {left} more are less busy" if left else ""
    return Table("links", title + more, ("link", "bytes", "busiest", "share"), tuple(rows))


def _path(found: Estimate, for_scripts: bool) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            f"{one.kind} {'of ' * (one.kind == 'compute')}{one.name}",
            _seconds(one.seconds, for_scripts),
            _share(one.share, for_scripts),
        )
        for one in found.path[:MOST_PATH]
    ]
    title = "the critical path: what the end of the step waits for"
    return Table("path", title, ("work", "seconds", "share of the step"), tuple(rows))


def _advice(found: Estimate, for_scripts: bool) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (one.change, _seconds(one.step_s, for_scripts), _share(one.gain, for_scripts)) for one in found.advice
    ]
    title = "what would help most, each priced again" if rows else "nothing that was tried would help"
    return Table("advice", title, ("change", "step", "less time for a sample"), tuple(rows))
