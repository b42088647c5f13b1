"""Masks of packed rows become an operator of their own: attention inside each document, which positions tell.

A mask that is made of positions alone is computed for rows of documents, and for any other positions, and
compared number by number with what each kind of mask passes. Long rows are compared at a short length, with
each literal that is the length replaced, and once more as they are where that takes little memory. A mask
that is of no kind, or that is made of anything else, stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from ...ir import own_operators  # noqa: F401  (operators register on import)
from ...ir.graph import LogicalGraph, OriginKind, Ref, Row, map_refs, row_inputs
from ...ir.own_names import PACKED, PACKED_BACKWARD
from ...ir.printer import format_graph
from ...ir.prune import prune
from ...program.kernels.packed_kernels import DocumentMask, document_starts
from ...program.operator_names import known_operator
from ...rules.lines.attention_lines import FLASH, FLASH_BACKWARD
from ..causal_mask import (
    CAUSAL_POSITION,
    MASK,
    MOST_ELEMENTS,
    far_numbers,
    needed_rows,
    numbers_in,
    passing,
)
from ..compile_state import Traced
from ..deduction.stages import classify
from ..pass_chain import Pass
from ..row_checks import graph_problems
from .repeated_heads import repeat_of

SHORT = 9
"""Rows of up to so many tokens are compared for all ways to cut them into documents."""
LONGEST = 48
"""Longer rows are compared at SHORT."""
ARBITRARY = 24
"""Rows of positions that are no documents."""
POSITION_TYPES = (torch.int64, torch.int32)
RENAMED = {FLASH: PACKED, FLASH_BACKWARD: PACKED_BACKWARD}


@dataclass(frozen=True, slots=True)
class MaskRows:
    """Rows that make a mask of one input, positions [count, length]."""

    graph: LogicalGraph
    order: tuple[int, ...]
    positions: int
    mask: int

    @property
    def count(self) -> int:
        return self._shape[0]

    @property
    def length(self) -> int:
        return self._shape[1]

    @property
    def _shape(self) -> tuple[int, ...]:
        shape = self.graph.rows[self.positions].shape
        assert shape is not None, "an input is a tensor"
        return shape

    def literals(self) -> set[int]:
        """Whole numbers among the arguments."""
        return {int(found) for found in self._numbers() if type(found) is int}

    def _numbers(self) -> set[int | float]:
        return {found for each in self.order for found in numbers_in(self.graph.rows[each].args)}

    def far(self) -> set[int | float]:
        """Numbers that rows of SHORT tokens may never reach: windows, or parts of one."""
        near = {self.count, self.count * self.length, *(self.length + more for more in (-1, 0, 1))}
        return far_numbers([self.graph.rows[each] for each in self.order], near)

    def passes(self, positions: Tensor, other: Mapping[int, int]) -> Tensor | None:
        """[count, heads, query, key] for these positions, with other literals; None where it is no mask."""
        made: dict[int, Tensor] = {self.positions: positions}
        for each in self.order:
            if each not in made:
                made[each] = _computed(self.graph.rows[each], made, other)
        mask = made[self.mask]
        if mask.dim() != 4:
            return None
        if mask.dtype is torch.bool:
            return mask
        passes = mask == 0
        return passes if bool(((mask == float("-inf")) | passes).all()) else None


Kinds = Mapping[int, tuple[DocumentMask, int]]
"""By attention row, what its mask passes, and the input that tells where documents begin."""


def retarget_packed(graph: LogicalGraph, kinds: Kinds | None = None) -> LogicalGraph:
    """The graph with attention under masks of packed rows as an operator that takes positions.

    kinds: of its masks, where they are known.
    """
    kinds = packed_kinds(graph) if kinds is None else kinds
    rows = list(graph.rows)
    for number, found in kinds.items():
        rows[number] = _retargeted(graph, rows[number], *found)
    return prune(replace(graph, rows=rows)) if kinds else graph


def packed_kinds(graph: LogicalGraph, longer: LogicalGraph | None = None) -> Kinds:
    """The masks of packed rows. longer: the same step on longer rows, whose masks do the same, see
    `packed_kind`."""
    finder = MaskFinder(graph, longer)
    found = {}
    for row in graph.rows:
        mask = row.kwargs.get(MASK)
        if row.op in CAUSAL_POSITION and isinstance(mask, Ref) and not _drops(row):
            found[row.id] = finder.kind(passing(graph, mask.id))
    return {number: kind for number, kind in found.items() if kind is not None}


def _drops(row: Row) -> bool:
    """Whether the kernel drops weights, or adds the causal mask to the one given."""
    place = CAUSAL_POSITION[row.op]
    return any(bool(argument) for argument in row.args[place - 1 : place + 1])


def _retargeted(graph: LogicalGraph, row: Row, kind: DocumentMask, positions: int) -> Row:
    tensors = row.args[: CAUSAL_POSITION[row.op] - 1]
    key, value = tensors[1:3] if row.op == FLASH else tensors[2:4]
    repeat = repeat_of(graph, key, value)
    literals = (kind.causal, kind.window, row.kwargs.get("scale"), repeat)
    return replace(row, op=RENAMED[row.op], args=(*tensors, Ref(positions), *literals), kwargs={})


@dataclass(slots=True)
class MaskFinder:
    """Kinds of masks, each found once. longer: see `packed_kind`."""

    graph: LogicalGraph
    longer: LogicalGraph | None = None
    known: dict[int, tuple[DocumentMask, int] | None] = field(default_factory=dict)
    pure: Sequence[bool] = ()

    def kind(self, mask: int) -> tuple[DocumentMask, int] | None:
        """What a mask passes, and the input that tells where documents begin; None for any other."""
        if mask not in self.known:
            self.known[mask] = self._kind(mask)
        return self.known[mask]

    def _kind(self, mask: int) -> tuple[DocumentMask, int] | None:
        rows = self.rows(mask)
        if rows is None:
            return None
        longer = None if self.longer is None else replace(rows, graph=self.longer)
        found = packed_kind(rows, longer)
        return None if found is None else (found, rows.positions)

    def rows(self, mask: int, dtypes: Collection[torch.dtype] = POSITION_TYPES) -> MaskRows | None:
        """The rows of a mask that one input tells, of one of these types; None for any other."""
        self.pure = self.pure or classify(self.graph).pure
        graph = self.graph
        if not self.pure[mask]:
            return None
        needed = needed_rows(graph, mask)
        leaves = [graph.rows[each] for each in needed if not row_inputs(graph.rows[each])]
        given = [row for row in leaves if row.origin.kind is not OriginKind.ACTIVATION]
        if len(given) != 1 or given[0].origin.kind is not OriginKind.INPUT:
            return None
        shape, dtype = given[0].shape or (), given[0].dtype
        square = (graph.rows[mask].shape or ())[-2:] == (*shape[1:], *shape[1:])
        if len(shape) != 2 or not square or (dtypes and dtype not in dtypes):
            return None
        return MaskRows(graph, tuple(sorted(needed)), given[0].id, mask)


def packed_kind(rows: MaskRows, longer: MaskRows | None = None) -> DocumentMask | None:
    """The kind of mask that the rows make of any positions.

    longer: the same for longer rows, of which the kind is to be true, too. Their mask is computed only where
    a number in it is one that short rows may not reach.
    """
    length, other = rows.length, dict[int, int]()
    if length > LONGEST:
        length, other = SHORT, {rows.length: SHORT}
    for kind, instead in candidates(rows, length):
        if _same(rows, kind, length, {**other, **instead}):
            full = named(kind, instead)
            found = _at_own_size(rows, full, bool(rows.far() - instead.keys()))
            if found is None or longer is None:
                return found
            if any(_follows(rows, longer, literal) for literal in instead):
                return None  # a window that follows the length
            is_far = bool(longer.far() - instead.keys())
            return _at_own_size(longer, full, True) if is_far else found
    return None


def _follows(rows: MaskRows, longer: MaskRows, literal: int) -> bool:
    """Whether what is this number in short rows is another in longer ones."""
    pairs = [
        pair
        for each in rows.order
        for pair in zip(
            numbers_in(rows.graph.rows[each].args), numbers_in(longer.graph.rows[each].args), strict=True
        )
    ]
    return any(one == literal != two for one, two in pairs)


def named(kind: DocumentMask, instead: Mapping[int, int]) -> DocumentMask:
    """The window as the rows have it: they were computed with another number in its place."""
    given = next(iter(instead.items()), (0, 0))
    return replace(kind, window=kind.window + given[0] - given[1]) if kind.window else kind


def candidates(rows: MaskRows, length: int) -> Iterator[tuple[DocumentMask, Mapping[int, int]]]:
    """Windows first, each a literal that is made short: one as long as the rows would pass all."""
    short = min(3, length - 1)
    for literal in sorted(rows.literals() - {0, 1, -1, rows.length, rows.count}):
        for more in (0, 1, -1) if literal > 0 and short > 1 else ():
            yield DocumentMask(True, short + more), {literal: short}
    yield DocumentMask(True), {}
    yield DocumentMask(False), {}


def _at_own_size(rows: MaskRows, kind: DocumentMask, is_far: bool) -> DocumentMask | None:
    """The kind, unless the mask of rows as long as they are is another, or may be one. is_far: short rows
    do not tell, by a number that was not replaced."""
    if rows.count * rows.length**2 > MOST_ELEMENTS:
        return None if is_far else kind
    drawn = torch.Generator().manual_seed(0)
    every = [_document_row(rows.length, _drawn_starts(rows.length, drawn)) for _ in range(rows.count)]
    return kind if _passes_as(rows, kind, torch.stack(every), {}) else None


def _same(rows: MaskRows, kind: DocumentMask, length: int, other: Mapping[int, int]) -> bool:
    return all(_passes_as(rows, kind, positions, other) for positions in _trials(rows.count, length))


def keeps_apart(rows: MaskRows) -> bool:
    """Whether no token sees one of another document, however a row of that length is packed."""
    every = DocumentMask(False)
    for positions in _trials(rows.count, rows.length, any_numbers=False):
        passes = rows.passes(positions, {})
        if passes is None or bool((passes & ~expected(positions, every)[:, None]).any()):
            return False
    return True


def _passes_as(rows: MaskRows, kind: DocumentMask, positions: Tensor, other: Mapping[int, int]) -> bool:
    try:
        passes = rows.passes(positions, other)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False  # a number that was replaced is no length or window
    wanted = expected(positions, kind)[:, None]
    return passes is not None and passes.shape[-2:] == wanted.shape[-2:] and bool((passes == wanted).all())


def expected(positions: Tensor, kind: DocumentMask) -> Tensor:
    """[row, query, key]: what a kind of mask passes."""
    starts = document_starts(positions)
    every = range(positions.shape[1])
    return (starts[:, :, None] == starts[:, None, :]) & kind.passes(every, every)


def _trials(count: int, length: int, any_numbers: bool = True) -> Iterator[Tensor]:
    """Positions of packed rows, all of them where they are short, then any numbers."""
    drawn = torch.Generator().manual_seed(0)
    if length <= SHORT:
        ways = range(2 ** (length - 1))
        starts = [[at + 1 for at in range(length - 1) if way >> at & 1] for way in ways]
    else:
        starts = [[], *([at] for at in range(1, length)), list(range(1, length))]
        starts += [_drawn_starts(length, drawn) for _ in range(64)]
    rows = [_document_row(length, each) for each in starts]
    if any_numbers:
        rows += [torch.randint(0, 4, (length,), generator=drawn) for _ in range(ARBITRARY)]
    rows += rows[: -len(rows) % count]
    for at in range(0, len(rows), count):
        part = rows[at : at + count]
        yield torch.stack([part[number % len(part)] for number in range(count)])


def _drawn_starts(length: int, drawn: torch.Generator) -> list[int]:
    every: list[int] = (torch.nonzero(torch.rand(length - 1, generator=drawn) < 0.3).flatten() + 1).tolist()
    return every


def _document_row(length: int, starts: Sequence[int]) -> Tensor:
    return torch.cat([torch.arange(high - low) for low, high in pairwise((0, *starts, length))])


def _computed(row: Row, made: Mapping[int, Tensor], other: Mapping[int, int]) -> Tensor:
    args = [_swapped(map_refs(argument, lambda ref: made[ref.id]), other) for argument in row.args]
    kwargs = {key: map_refs(value, lambda ref: made[ref.id]) for key, value in row.kwargs.items()}
    result: Tensor = known_operator(row.op)(*args, **kwargs)
    return result


def _swapped(value: object, other: Mapping[int, int]) -> object:
    if type(value) is int:
        return other.get(value, value)
    return tuple(_swapped(item, other) for item in value) if isinstance(value, (tuple, list)) else value


@dataclass(frozen=True, slots=True)
class PackedMask(Pass[Traced, Traced]):
    """A mask that is no kind of packed one stays, and is exact. kinds: of masks, where they are known."""

    kinds: Kinds | None = None

    def run(self, state: Traced) -> Traced:
        return replace(state, graph=retarget_packed(state.graph, self.kinds))

    def text(self, before: Traced, after: Traced) -> str:
        return format_graph(after.graph)

    def problems(self, before: Traced, after: Traced) -> Iterator[str]:
        return iter(()) if after.graph is before.graph else graph_problems(after.graph)
