"""Whether a step on rows of packed tokens is one eager call on all of them side by side, [1, N].

There rows would see each other where tokens meet. So attention keeps documents apart, and tokens meet in
nothing else but sums over all of them. Three steps are compared: two lengths at one number of rows, and
another number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from ...ir.graph import LogicalGraph, OriginKind, Ref, Row, row_inputs
from ...rules.call_rule import CallRule
from ...rules.lines.attention_lines import FLASH
from ..causal_mask import MASK, needed_rows
from ..context.lengths import LengthGraphs
from ..context.token_rows import ATTENTION, TokenMeetings
from ..packed.packed_mask import MaskFinder, keeps_apart
from .refusals import random_tokens, shifted_in_rows, tokens_meet

SCALES = frozenset({f"aten.{name}.{form}" for name in ("div", "mul") for form in ("Tensor", "Scalar")})
"""Operators that may take the number of tokens of a step."""
DROPOUT = {FLASH: 3}
"""Where an attention row has the share of weights that it drops; all others: at 6."""


def check_packed(graphs: Sequence[LogicalGraph], rows: Sequence[int], tokens: Sequence[int]) -> None:
    """A DeduceError where a step on packed rows is not one on [1, N].

    graphs: of rows and tokens as these say; the first two differ in tokens alone.
    """
    found = PackedMeetings(graphs, rows, tokens)
    placeless = [row for row in found.drawn() if not found.is_by_token(row)]
    if placeless:
        raise random_tokens(_lines(placeless), [f"{row.op} of {list(row.shape or ())}" for row in placeless])
    if found.shifts:
        raise shifted_in_rows(_lines(found.rows[each] for each in found.shifts))
    problems = list(found.problems())
    if problems:
        lines = list(dict.fromkeys(where for where, _ in problems if where))
        raise tokens_meet(lines, list(dict.fromkeys(text for _, text in problems)))


def _lines(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row.where for row in rows if row.where))


class PackedMeetings(TokenMeetings):
    """Rows of a model in which packed rows would see each other if they were one."""

    draws_by_token = True

    def __init__(self, graphs: Sequence[LogicalGraph], rows: Sequence[int], tokens: Sequence[int]) -> None:
        one, other, whole = graphs
        super().__init__(LengthGraphs(one, other, whole, (tokens[0], tokens[1], tokens[2])))
        self.counts = list(zip(rows, tokens, strict=True))
        self.steps = [count * length for count, length in self.counts]
        self.finder = MaskFinder(one)
        self.apart: dict[int, bool] = {}

    def drawn(self) -> list[Row]:
        """Rows that draw random numbers."""
        keys = [row.id for row in self.rows if row.origin.kind is OriginKind.RANDOM]
        return [row for key in keys for row in self.readers.get(key, [])]

    def is_by_token(self, row: Row) -> bool:
        """Whether its places are those of tokens, [rows, tokens, ...] or these two in one, or of neither."""
        graphs = (self.graphs.one, self.graphs.other, self.graphs.whole)
        shapes = [graph.rows[row.id].shape or () for graph in graphs]
        spelled = [_by_token(shape, *sizes) for shape, sizes in zip(shapes, self.counts, strict=True)]
        return len(set(shapes)) == 1 or (None not in spelled and len(set(spelled)) == 1)

    def passed(self) -> set[int]:
        """Rows that draw by token; and that make masks which keep documents apart, and nothing else."""
        held = [row.kwargs.get(MASK) for row in self.rows if row.op in ATTENTION]
        masks = [each.id for each in held if isinstance(each, Ref) and self._keeps_apart(each.id)]
        makers = {each for mask in masks for each in needed_rows(self.graphs.one, mask)}
        passed: set[int] = set()
        for each in sorted(makers, reverse=True):
            readers = self.readers.get(each, [])
            if all(row.id in passed or self._masks(row, each) for row in readers):
                passed.add(each)
        return passed | {row.id for row in self.drawn()}

    def _masks(self, row: Row, mask: int) -> bool:
        """Whether a row reads another as the mask of its attention alone."""
        return row.op in ATTENTION and row.kwargs.get(MASK) == Ref(mask) and Ref(mask) not in row.args

    def _keeps_apart(self, mask: int) -> bool:
        if mask not in self.apart:
            rows = self.finder.rows(mask)
            self.apart[mask] = rows is not None and keeps_apart(rows)
        return self.apart[mask]

    def of_attention(self, row: Row) -> Iterator[str]:
        """Attention along dims that have no tokens is none of rows."""
        if not any(dim for read in row_inputs(row) for dim in self.graphs.token_dims(read)):
            return
        mask, place = row.kwargs.get(MASK), DROPOUT.get(row.op, 6)
        if not isinstance(mask, Ref):
            yield "attention sees other documents: positions make no mask of it"
        elif not self._keeps_apart(mask.id):
            yield "attention sees other documents, or its mask is not made of one input of positions"
        if len(row.args) > place and row.args[place]:
            yield "attention drops out weights"

    def counts_all(self, row: Row) -> bool:
        """Whether it scales by the number of all tokens of the step, or by one over it."""
        if row.op not in SCALES:
            return False
        at = [graph.rows[row.id].args for graph in (self.graphs.one, self.graphs.other, self.graphs.whole)]
        return all(self._is_share([args[place] for args in at]) for place in self.graphs.literals(row.id))

    def _is_share(self, given: Sequence[object]) -> bool:
        numbers = [Fraction(each) for each in given if isinstance(each, (int, float))]
        if len(numbers) != len(self.steps) or 0 in numbers:
            return False
        pairs = list(zip(numbers, self.steps, strict=True))
        return any(
            _alike(shares) for shares in ([n / step for n, step in pairs], [n * step for n, step in pairs])
        )

    def divides(self, call: CallRule) -> bool:
        """A sum over the tokens of all rows is divided by their number in the step."""
        return False


def _by_token(shape: tuple[int, ...], rows: int, tokens: int) -> tuple[int, ...] | None:
    """In how many dims a shape has rows and tokens, and its other dims; None: not first, or not so."""
    if shape[:2] == (rows, tokens):
        return (2, *shape[2:])
    return (1, *shape[1:]) if shape[:1] == (rows * tokens,) else None


def _alike(shares: Sequence[Fraction]) -> bool:
    return all(abs(each / shares[0] - 1) < 1e-9 for each in shares)
