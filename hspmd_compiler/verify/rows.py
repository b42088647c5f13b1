"""Every intermediate value of all ranks against the single-device graph; the first wrong one is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..artifact.store import Artifact
from ..artifact.value_layouts import PlacedValue, RoutedValue, ValueLayouts, from_json
from ..base.by_key import by_key
from ..base.log import task
from ..base.number_ranges import number_ranges
from ..errors import VerifyError
from ..ir.graph import LogicalGraph, Phase, Row
from ..ir.type_text import type_text
from ..layout.layout import Coordinate
from ..program.program import Program, RankProgram
from ..program.segments import Observation
from .assemble import (
    Assembled,
    LocalPiece,
    assemble,
    gap,
    index_of,
    is_addend,
    largest_of,
    local_view,
    whole_view,
)
from .equality import GRADIENT_FLOOR, Difference, difference_table
from .routed_pieces import addend_of
from .single_device import PLACEHOLDER, single_device_program
from .training import TOLERANCE, widened_batch
from .values import simulate
from .widen import widen_program

HUGE = 1e30
"""Larger numbers stand for infinity (masks): they are judged by their own size."""
FIX = "report it with the strategy: the compiler made a wrong program"

StageId = tuple[int, int]
"""(pipeline, stage)."""


@dataclass(frozen=True, slots=True)
class RowsReport:
    """Rows that were equal, worst first. rows: how many the graph has, leaves left out; an operator with
    several results counts through the rows that pick them.

    partly: how many of them were compared in the micro-batches of some pipelines only, since others
    convert the row's operand and need the row itself no more. left_out: operators of the rows that
    no rank computes as such, with how often each occurs.
    """

    rows: int
    compared: list[Difference]
    partly: int
    left_out: tuple[tuple[str, int], ...]

    def to_json(self) -> dict[str, object]:
        """For scripts."""
        worst = self.compared[0].error if self.compared else 0.0
        return {
            "equal": True,
            "tolerance": TOLERANCE,
            "rows": self.rows,
            "compared": len(self.compared),
            "partly": self.partly,
            "worst": worst,
            "left_out": dict(self.left_out),
        }

    def rendered(self) -> RenderableType:
        """For people."""
        parts: list[RenderableType] = [
            difference_table(self.compared, "largest differences of intermediate values"),
            Text(
                f"equal: {len(self.compared)} of {self.rows} rows of the graph, within {TOLERANCE:g}"
                + (f" ({self.partly} in the pipelines that compute them)" if self.partly else "")
            ),
        ]
        if self.left_out:
            parts.append(_left_out_table(self.left_out))
        return Group(*parts)


def compare_rows(
    artifact: Artifact, graph: LogicalGraph, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]
) -> RowsReport:
    """Run one step on both sides in float64; a VerifyError for the first row that differs."""
    wide = widened_batch(batch)
    with task("run the single-device graph"):
        reference = _Reference.run(graph, state, wide)
    with task("run all ranks row by row"):
        collector = Collector.of(artifact.program, from_json(artifact.layouts), reference.values)
        simulate(widen_program(artifact.program), state, [wide], observe=collector.observe)
    pieces, pipelines = collector.pieces, len(collector.first)
    whole = {number for number, by_place in pieces.items() if _pipelines(by_place) == pipelines}
    chosen = [number for number in sorted(pieces) if number in whole or not _is_sum(pieces[number])]
    compared = []
    with task("compare rows", len(chosen)) as progress:
        for number in chosen:
            compared.append(_compared(graph.rows[number], reference, pieces[number], number in whole))
            progress.advance()
    rows = [row for row in graph.rows if row.op != PLACEHOLDER and row.shape is not None]
    left_out = Counter(row.op for row in rows if row.id not in chosen)
    compared.sort(key=lambda difference: difference.error, reverse=True)
    partly = len(set(chosen) - whole)
    return RowsReport(len(rows), compared, partly, tuple(sorted(left_out.items())))


def _pipelines(by_place: Mapping[StageId, list[LocalPiece]]) -> int:
    """How many pipelines compute a row."""
    return len({pipeline for pipeline, _ in by_place})


def _is_sum(by_place: Mapping[StageId, list[LocalPiece]]) -> bool:
    """Whether a row's value is a sum over micro-batches, so that all pipelines are needed for it."""
    return any(is_addend(piece.layout, ranks=False) for pieces in by_place.values() for piece in pieces)


@dataclass(slots=True)
class Collector:
    """Keeps what ranks compute for the values that a layout is known of.

    homes: programs of ranks. pieces: by logical row, then by the stage that computed it. known: rows of the
    single-device graph.
    """

    homes: dict[int, RankProgram]
    first: list[int]
    placed: dict[tuple[StageId, int], list[PlacedValue | RoutedValue]]
    known: Mapping[int, Tensor]
    pieces: dict[int, dict[StageId, list[LocalPiece]]] = field(default_factory=dict)
    seen: set[tuple[int, int, int]] = field(default_factory=set)

    @classmethod
    def of(cls, program: Program, layouts: ValueLayouts, known: Mapping[int, Tensor]) -> Collector:
        """For the ranks of a program."""
        homes = {own.rank: own for own in program.ranks}
        pairs: list[tuple[StageId, PlacedValue | RoutedValue]] = [
            *((place, value) for place, values in layouts.stages.items() for value in values),
            *((place, value) for place, values in layouts.routed.items() for value in values),
        ]
        placed = by_key(((place, value.value), value) for place, value in pairs)
        return cls(homes, layouts.first, placed, known)

    def observe(self, seen: Observation) -> None:
        """Keep a copy: executors may add to a gradient in place. Counts may be computed twice."""
        own = self.homes[seen.rank]
        place = own.pipeline, own.stage_of(seen.segment)
        values = self.placed.get((place, seen.row.out.id), ())
        key = (seen.rank, seen.mb, seen.row.out.id)
        if not values or key in self.seen:
            return
        self.seen.add(key)
        at = Coordinate(own.coordinate, self.first[place[0]] + seen.mb)
        tensor = seen.result.clone()
        for value in values:
            by_place = self.pieces.setdefault(value.logical, {})
            piece = tensor
            if isinstance(value, RoutedValue):
                piece = addend_of(value, at, tensor, self.known[value.owners.experts])
            by_place.setdefault(place, []).append(LocalPiece(seen.rank, at, value.layout, piece))


@dataclass(slots=True)
class _Reference:
    """Values of the single-device graph by row. floor: by phase, the scale below which none counts."""

    values: dict[int, Tensor]
    floor: dict[Phase, float]

    @classmethod
    def run(cls, graph: LogicalGraph, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> _Reference:
        values: dict[int, Tensor] = {}

        def keep(seen: Observation) -> None:
            if isinstance(seen.result, Tensor):
                values[seen.row.out.id] = seen.result.clone()

        done = simulate(widen_program(single_device_program(graph)), state, [batch], observe=keep)
        largest = max((float(grad.abs().max()) for grad in done.grads[0].values() if grad.numel()), default=0)
        floor = {
            Phase.FORWARD: GRADIENT_FLOOR * abs(done.losses[0]),
            Phase.BACKWARD: GRADIENT_FLOOR * largest,
        }
        return cls(values, floor)


def _compared(
    row: Row, reference: _Reference, by_place: Mapping[StageId, list[LocalPiece]], is_whole: bool
) -> Difference:
    """The worst of a row's copies in different stages; a VerifyError where one is wrong."""
    found = [_difference(row, reference, pieces, is_whole) for pieces in _copies(by_place)]
    return max(found, key=lambda difference: difference.error)


def _copies(by_place: Mapping[StageId, list[LocalPiece]]) -> list[list[LocalPiece]]:
    """The pieces of one value of the whole batch: of one stage of each pipeline.

    Several where stages compute the same row for themselves.
    """
    stages = by_key((place[0], by_place[place]) for place in sorted(by_place))
    count = max(len(of) for of in stages.values())
    return [
        [piece for of in stages.values() for piece in of[min(number, len(of) - 1)]] for number in range(count)
    ]


def _difference(row: Row, reference: _Reference, pieces: list[LocalPiece], is_whole: bool) -> Difference:
    """is_whole: pieces must cover the value; otherwise what they cover is compared."""
    wanted = reference.values[row.id]
    assembled = assemble(pieces)
    if (is_whole and assembled.missing) or assembled.value.dtype != wanted.dtype:
        raise _misplaced(row, assembled, wanted, pieces)
    wanted = torch.where(assembled.covered, wanted, assembled.value)
    gaps = gap(assembled.value, wanted)
    scale = 0.0
    if wanted.dtype.is_floating_point or wanted.dtype.is_complex:
        size = wanted.abs()
        stands_in = (size > HUGE) & size.isfinite()
        scale = max(largest_of(size[size <= HUGE]), reference.floor[row.phase])
        gaps = torch.where(stands_in, gaps / size * scale, gaps)
    difference = Difference(_name(row), max(largest_of(gaps), assembled.copies), scale)
    if not difference.within(TOLERANCE):
        raise _wrong(row, difference, assembled, wanted, pieces)
    return difference


def _wrong(
    row: Row, difference: Difference, assembled: Assembled, wanted: Tensor, pieces: Sequence[LocalPiece]
) -> VerifyError:
    ranks = sorted({piece.rank for piece in pieces})
    allowed = TOLERANCE * difference.scale
    own = [piece.rank for piece in pieces if not _holds_right(piece, wanted, allowed)]
    position = tuple(int(i) for i in _worst_index(gap(assembled.value, wanted)))
    return VerifyError(
        f"{_name(row)} is the first wrong value",
        at=row.where,
        details=[
            ("value", f"{type_text(row.shape or (), wanted.dtype)}, {row.phase.name.lower()} {row.module}"),
            ("held by", f"ranks {number_ranges(sorted(ranks))}"),
            *([("wrong on", f"ranks {number_ranges(sorted(set(own)))}")] if own else []),
            ("difference", f"{difference.largest:.3g} at scale {difference.scale:.3g}"),
            ("at element", f"{list(position)}: {assembled.value[position]} instead of {wanted[position]}"),
            *([("copies", f"differ by {assembled.copies:.3g}")] if assembled.copies > allowed else []),
        ],
        rule="each value, put together by its layout, is that of the single-device graph",
        fix=FIX,
    )


def _holds_right(piece: LocalPiece, wanted: Tensor, allowed: float) -> bool:
    """Whether a rank's own piece is the reference's; addends can't be told alone."""
    layout = piece.layout
    if is_addend(layout, ranks=True) or is_addend(layout, ranks=False):
        return True
    expected = wanted.reshape(whole_view(layout))[index_of(layout, piece.at)]
    local = piece.tensor.reshape(local_view(layout, piece.at))
    return largest_of(gap(local, expected)) <= allowed


def _misplaced(row: Row, assembled: Assembled, wanted: Tensor, pieces: Sequence[LocalPiece]) -> VerifyError:
    return VerifyError(
        f"{_name(row)} can't be put together",
        at=row.where,
        details=[
            ("held by", f"ranks {number_ranges(sorted({piece.rank for piece in pieces}))}"),
            ("missing", f"{assembled.missing} of {wanted.numel()} elements"),
            ("types", f"{assembled.value.dtype} for {wanted.dtype}"),
        ],
        rule="ranks and micro-batches together hold every element of a value",
        fix=FIX,
    )


def _worst_index(gaps: Tensor) -> Iterable[Tensor]:
    return torch.unravel_index(gaps.nan_to_num(nan=torch.inf).argmax(), gaps.shape) if gaps.dim() else ()


def _name(row: Row) -> str:
    return f"%{row.id} {row.op}"


def _left_out_table(left_out: Sequence[tuple[str, int]]) -> Table:
    table = Table(title="rows that no rank computes as such: fused, kept as they are, or not needed")
    table.add_column("operator")
    table.add_column("rows", justify="right")
    for op, count in left_out:
        table.add_row(op, str(count))
    return table
