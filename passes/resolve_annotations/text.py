"""The text of a resolved pair: what moves in each step, what it costs, and why it is done so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from ...base.dtypes import BYTES
from ...base.number_ranges import number_ranges
from .moves import ExchangeMove, StepMove
from .patterns import Pattern, named
from .price import Load, loads_of
from .resolve import Component, Resolution
from .ways import Method, Way

SHOWN_GROUPS = 8
ALONE: Mapping[Method, str] = {
    Method.NOTHING: "each rank has what it needs",
    Method.LOCAL: "each rank has what it needs",
    Method.ALL_REDUCE: "no other way: all ranks have an addend of the same rows and need their sum",
    Method.DIRECT: "no other way: a second step would save nothing",
}
"""Why a way is the only one that is looked at."""


def text_of(resolution: Resolution) -> str:
    """Stable, for dumps.

    First the pair and the total; then for devices that come there in one way: its steps, with the ranks
    that meet, its price, and that of the other ways, or why there is none. A collective is split where a
    rank meets other ranks for one part of its tensor than for another.
    """
    shape = ",".join(map(str, resolution.shape))
    lines = [f"   {resolution.source}", f"-> {resolution.target}"]
    lines += [f"   {resolution.dtype}[{shape}]  {_total(resolution)}"]
    alike: dict[object, list[Component]] = {}
    for part in resolution.parts:
        alike.setdefault((part.method, micros(part.seconds)), []).append(part)
    for parts in alike.values():
        lines += _parts(parts, BYTES[resolution.dtype])
    return "\n".join(lines)


def _total(resolution: Resolution) -> str:
    loads = resolution.loads()
    if not loads:
        return "nothing moves between ranks"
    return f"{_loads(loads)}  {micros(resolution.seconds)}"


def _loads(loads: dict[int, Load]) -> str:
    busiest = max(loads.values(), key=lambda load: load.busiest).busiest
    return f"busiest rank {size_text(busiest)}, all {size_text(sum(load.sent for load in loads.values()))}"


def _parts(parts: Sequence[Component], element: int) -> Iterator[str]:
    first = parts[0]
    ranks = [rank for part in parts for rank in part.devices]
    yield f"ranks {number_ranges(sorted(ranks))}: {first.method.value}"
    rounds = [_rounds(part.moves()) for part in parts]
    for number, together in enumerate(zip_longest(*rounds, fillvalue=()), 1):
        moves = [move for moves in together for move in moves]
        loads = loads_of(moves, element)
        cost = f"  {_loads(loads)}" if loads else ""
        yield f"  {number}  {_moves(moves)}{cost}"
    yield f"  {'; '.join(_reasons(first))}"


def _reasons(part: Component) -> Iterator[str]:
    """The price of the chosen way, and why it is no other."""
    if part.way.seconds:
        yield micros(part.seconds)
    yield from (_way(way) for way in part.ways if way.method is not part.method)
    if len(part.ways) == 1:
        yield ALONE[part.method]


def _rounds(moves: Sequence[StepMove]) -> list[list[StepMove]]:
    """Moves of different ranks go on at once."""
    found: list[list[StepMove]] = []
    busy: set[int] = set()
    for move in moves:
        ranks = {rank for _, group in _named(move) for rank in group}
        if not found or busy & ranks:
            found.append([])
            busy = set()
        found[-1].append(move)
        busy |= ranks
    return found


def choice_text(part: Component) -> str:
    """`relay by needers 51.2 us; direct exchange 60.4 us`: the way taken, then the others that fit."""
    others = [_way(way) for way in part.ways if way.method is not part.method and way.seconds is not None]
    return "; ".join([_way(part.way) if part.way.seconds else part.method.value, *others])


def _way(way: Way) -> str:
    if way.seconds is None:
        return f"no {way.name}: {way.reason}"
    return f"{way.name} {micros(way.seconds)}"


def _moves(moves: Sequence[StepMove]) -> str:
    by_name: dict[str, list[tuple[int, ...]]] = {}
    for move in moves:
        for name, ranks in _named(move):
            by_name.setdefault(name, []).append(ranks)
    return ", ".join(f"{name} {_groups(sorted(groups))}" for name, groups in by_name.items())


def _named(move: StepMove) -> list[tuple[str, tuple[int, ...]]]:
    if isinstance(move, ExchangeMove):
        return named(move)
    return [(Pattern.ALL_REDUCE.value, group) for group in move.groups]


def _groups(groups: Sequence[tuple[int, ...]]) -> str:
    if all(len(group) == 1 for group in groups):
        return f"on {number_ranges(sorted(rank for group in groups for rank in group))}"
    if len(groups) > SHOWN_GROUPS:
        return f"in {len(groups)} groups"
    return " ".join(f"[{number_ranges(sorted(group))}]" for group in groups)


def size_text(size: int) -> str:
    """Bytes, in a unit that leaves one to four digits before the point."""
    value, units = float(size), ["B", "KB", "MB", "GB", "TB"]
    while value >= 10_000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value == int(value) else f"{value:.1f} {units[0]}"


def micros(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} us"
