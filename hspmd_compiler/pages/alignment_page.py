"""What `hspmd estimate --against` shows: how far an estimate and a run are apart, and where they part."""

from __future__ import annotations

from collections.abc import Iterator

from ..base.timeline import SpanKind
from ..cost_models.align import (
    PARTED,
    Alignment,
    InstructionKey,
    InstructionPair,
    KindSeconds,
    OwnDifference,
)
from .sections import Cell, Listing, Section, Table
from .units import seconds_text

COLUMNS = ("estimated ms", "measured ms", "measured / estimated", "difference ms")
COMPUTING = (SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.STEP_VALUE, SpanKind.UPDATE, SpanKind.OTHER)
PEERS_SHOWN = 4


def alignment_page(alignment: Alignment) -> list[Section]:
    """The step, where its timelines part, and the seconds of each kind and rank."""
    step = _compared(alignment.estimated_s, alignment.measured_s)
    kinds = tuple((each.kind.value, *_of_kind(each)) for each in alignment.kinds)
    ranks = tuple((each.rank, each.kind.value, *_of_kind(each)) for each in alignment.by_rank)
    return [
        Table("step", "one step", ("of", *COLUMNS), (("step", *step),)),
        Listing("parts", "where they part", tuple(parting_lines(alignment))),
        Table("kinds", "by kind, all ranks together", ("kind", *COLUMNS), kinds),
        Table("ranks", "by rank and kind", ("rank", "kind", *COLUMNS), ranks),
    ]


def parting_lines(alignment: Alignment) -> Iterator[str]:
    """The first place where they part, the largest ones, and what only one of them has."""
    if not alignment.pairs:
        yield "no instruction is in both: they are not of one program"
    elif alignment.first is None:
        yield f"no instruction ends more than {PARTED:.0%} of a step apart from its estimate"
    else:
        yield f"first: {lag_text(alignment.first)}"
    for number, each in enumerate(alignment.largest):
        yield f"{'then' if number else 'largest'}: {own_text(each)}"
    for name, keys in (("estimated", alignment.only_estimated), ("measured", alignment.only_measured)):
        if keys:
            yield f"only {name}: {len(keys)} instructions, such as {_key_text(keys[0])}"


def lag_text(pair: InstructionPair) -> str:
    """How much later or earlier an instruction ends."""
    when = "later" if pair.lag_s > 0 else "earlier"
    ends = f"at {seconds_text(pair.measured.end_s)}, estimated at {seconds_text(pair.estimated.end_s)}"
    return f"{_pair_text(pair, pair.kind)} ends {seconds_text(abs(pair.lag_s))} {when}: {ends}"


def own_text(each: OwnDifference) -> str:
    """How much longer or shorter an instruction takes, waits apart."""
    took = f"{seconds_text(each.measured_s)}, estimated {seconds_text(each.estimated_s)}"
    times = f" ({each.measured_s / each.estimated_s:.2f} times)" if each.estimated_s > 0 else ""
    return f"{_pair_text(each.pair, each.kind)} takes {took}{times}"


def _pair_text(pair: InstructionPair, kind: SpanKind) -> str:
    """`rank 2, backward of micro-batch 3 (instruction 17)`."""
    mb = f" of micro-batch {pair.mb}" if pair.mb >= 0 else ""
    peers = pair.estimated.peers or pair.measured.peers
    shown = ", ".join(map(str, peers[:PEERS_SHOWN])) + (", ..." if len(peers) > PEERS_SHOWN else "")
    exchange = f" with rank {shown}" if peers and kind not in COMPUTING else ""
    return f"rank {pair.rank}, {kind.value}{mb}{exchange} (instruction {pair.position})"


def _key_text(key: InstructionKey) -> str:
    rank, position, mb = key
    return f"instruction {position} of rank {rank}" + (f", micro-batch {mb}" if mb >= 0 else "")


def _of_kind(each: KindSeconds) -> tuple[Cell, ...]:
    return _compared(each.estimated_s, each.measured_s)


def _compared(estimated_s: float, measured_s: float) -> tuple[Cell, ...]:
    ratio = measured_s / estimated_s if estimated_s > 0 else ""
    difference = round((measured_s - estimated_s) * 1e3, 6) + 0.0  # no minus before a zero
    return estimated_s * 1e3, measured_s * 1e3, ratio, difference
