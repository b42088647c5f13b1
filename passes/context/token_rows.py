"""Rows of a model that a piece of a sample changes: positions of tokens, and labels shifted by the model.

Every other row does for some tokens of a sample what it does for all, or is refused: where tokens meet, a
piece alone gives other numbers. Attention is the one operator in which members meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import HspmdError, StrategyError
from ...ir.graph import OriginKind, Phase, Ref, Row, row_inputs
from ...ir.own_names import PACKED, PACKED_BACKWARD
from ...rules.call_rule import CallRule
from ...rules.lines.attention_lines import FLASH, FLASH_BACKWARD
from ...rules.op_rule import OP_RULES
from ...rules.rules import RULES
from ...rules.unknown_operators import Treatment, treatment
from ..deduction.placement import GraphFacts
from .lengths import TOKEN_DIM, LengthGraphs

COUNTER = "aten.arange.default"
COUNTERS = frozenset({COUNTER, "aten.arange.start", "aten.arange.start_step"})
PAD, SLICE = "aten.constant_pad_nd.default", "aten.slice.Tensor"
PACKING = {PACKED: 3, PACKED_BACKWARD: 6}
"""Where positions stand."""
ATTENTION = frozenset({FLASH, FLASH_BACKWARD})
LOSSES = frozenset({"aten.nll_loss_forward.default", "aten.nll_loss_backward.default"})
FORWARDED = frozenset({"getitem", "placeholder"})
SHAPED = frozenset(
    {
        "aten.view.default",
        "aten._unsafe_view.default",
        "aten.reshape.default",
        "aten.expand.default",
        "aten.slice_backward.default",
        "aten.select_backward.default",
        "aten.full.default",
        "aten.zeros.default",
        "aten.ones.default",
        "aten.empty.memory_format",
        "aten.new_zeros.default",
        "aten.new_ones.default",
        "aten.new_full.default",
        "aten.new_empty.default",
        "aten.new_empty_strided.default",
    }
)
"""Operators whose literals are shapes."""
MEET = "of a sample whose tokens are cut, tokens meet in attention alone"
FIX = "leave out the strategy's `context`, or change that line of the model"


@dataclass(frozen=True, slots=True)
class ShiftedInput:
    """An input that the model reads so many tokens later, and what it reads behind the last ones."""

    name: str
    by: int
    fill: int


@dataclass(frozen=True, slots=True)
class TokenRows:
    """positions: rows that number the tokens of a sample. shifts: rows that shift an input. tokens: names of
    inputs that have some for each token."""

    positions: frozenset[int]
    shifts: dict[int, ShiftedInput]
    tokens: frozenset[str]


def token_rows(graphs: LengthGraphs) -> TokenRows:
    """What a piece changes; one StrategyError lists every line at which tokens meet."""
    found = TokenMeetings(graphs)
    problems = list(found.problems())
    if problems:
        raise StrategyError(
            "tokens of a sample meet outside of attention",
            at=list(dict.fromkeys(where for where, _ in problems if where)),
            details=[("row", text) for _, text in problems[:10]],
            rule=MEET,
            fix=FIX,
        )
    return TokenRows(frozenset(found.positions), found.shifts, frozenset(found.inputs))


class TokenMeetings:
    """Rows of a model in which tokens of a sample meet outside of attention over members.

    draws_by_token: places of random numbers are those of tokens.
    """

    draws_by_token = False

    def __init__(self, graphs: LengthGraphs) -> None:
        self.graphs, self.rows = graphs, graphs.one.rows
        self.calls = GraphFacts.of(graphs.one).calls
        self.other_calls = GraphFacts.of(graphs.other).calls
        self.readers: dict[int, list[Row]] = {}
        for row in self.rows:
            for read in row_inputs(row):
                self.readers.setdefault(read, []).append(row)
        self.positions = {row.id for row in self.rows if self._is_position(row)}
        self.shifts = dict(self._shifts())
        self.inputs = {
            name for name, info in graphs.one.inputs.items() if graphs.token_dims(info.row) == (TOKEN_DIM,)
        }

    def problems(self) -> Iterator[tuple[str, str]]:
        """(line of the user, what is wrong) of rows in which tokens meet."""
        passed = self.passed()
        for row in self.rows:
            if row.id in passed:
                continue
            for text in self._of(row):
                yield row.where, f"{row.op}: {text}"

    def passed(self) -> set[int]:
        """Rows that are known to be right."""
        return self.positions | self.shifts.keys() | self.shifted()

    def shifted(self) -> set[int]:
        """What shifts of inputs read."""
        return {read for row in self.shifts for read in row_inputs(self.rows[row])}

    def _of(self, row: Row) -> Iterator[str]:
        if row.origin.kind is OriginKind.INPUT and self.graphs.token_dims(row.id) not in ((), (TOKEN_DIM,)):
            yield f"input {row.origin.name} has tokens in more dims than {TOKEN_DIM}"
        if row.origin.kind is OriginKind.RANDOM and row.id in self.readers and not self.draws_by_token:
            yield "random numbers are drawn for whole samples"
        if row.op in FORWARDED:
            return
        if self.graphs.literals(row.id) and row.op not in SHAPED and not self.counts_all(row):
            yield "an argument counts tokens"
        elif row.op in ATTENTION:
            yield from self.of_attention(row)
        elif row.op in PACKING:
            told = row.args[PACKING[row.op]]
            if not isinstance(told, Ref) or self.rows[told.id].origin.kind is not OriginKind.INPUT:
                yield "documents are told by positions that are no input"
        elif row.op not in LOSSES and any(self._has_tokens(read) for read in row_inputs(row)):
            yield from self._of_operator(row)

    def counts_all(self, row: Row) -> bool:
        """Whether the arguments that vary count the tokens of all samples of a step, and may."""
        return False

    def divides(self, call: CallRule) -> bool:
        """Whether a sum over tokens is divided by their number, and may not be."""
        return call.rule.scale is not None

    def of_attention(self, row: Row) -> Iterator[str]:
        """What is wrong with an attention row."""
        places = (3, 4) if row.op == FLASH else (6, 7)
        dropout = row.args[places[0]] if len(row.args) > places[0] else 0.0
        if isinstance(row.kwargs.get("attn_mask"), Ref):
            yield "attention has a mask that is not causal"
        if dropout:
            yield "attention drops out weights"

    def _has_tokens(self, row: int) -> bool:
        one, other = self.rows[row], self.graphs.other.rows[row]
        return (one.shape, one.outs) != (other.shape, other.outs)

    def _of_operator(self, row: Row) -> Iterator[str]:
        if row.op not in RULES:
            if treatment(row) is not Treatment.POINTWISE:
                yield "it has no rule that keeps tokens apart"
            return
        if row.op not in OP_RULES:
            if not self._is_lookup(row):
                yield "its rule doesn't say that it keeps tokens apart"
            return
        try:
            one, other = self.calls.of(row), self.other_calls.of(self.graphs.other.rows[row.id])
        except HspmdError:
            yield "its dims are not told"
            return
        yield from self._of_call(row, one, other)

    def _is_lookup(self, row: Row) -> bool:
        return row.op in ("aten.embedding.default", "aten.embedding_dense_backward.default")

    def _of_call(self, row: Row, one: CallRule, other: CallRule) -> Iterator[str]:
        named = {name for name in one.sizes if one.sizes[name] != other.sizes.get(name)}
        if one.sizes.keys() != other.sizes.keys():
            yield "its dims are told in another way at another length"
        elif named & (one.whole | one.pattern | one.inside | set(one.joins)):
            yield "it reads several tokens for each that it makes"
        elif named & one.summed:
            yield from self._of_sum(row, one, named)

    def _of_sum(self, row: Row, call: CallRule, named: set[str]) -> Iterator[str]:
        """A sum over tokens is one over the samples too, which all pipelines add to."""
        if self.divides(call):
            yield "it divides by a number of tokens"
        left = {name for dims in call.results for names in dims or () for name in names}
        samples = {dims[0][0] for dims in call.operands if dims and dims[0]}
        if row.phase is Phase.FORWARD and samples & left and not samples & call.summed:
            yield "it sums over the tokens of each sample"

    def _is_position(self, row: Row) -> bool:
        """Whether it is 0, 1, 2, ... for the tokens of a sample."""
        if row.op not in COUNTERS or not self.graphs.literals(row.id):
            return False
        start, step = (0, 1) if row.op == COUNTER else (row.args[0], (*row.args, 1)[2])
        end = row.args[0] if row.op == COUNTER else row.args[1]
        other = self.graphs.other.rows[row.id].args[0 if row.op == COUNTER else 1]
        low, high, _ = self.graphs.tokens
        return (start, step, end, other) == (0, 1, low, high)

    def _shifts(self) -> Iterator[tuple[int, ShiftedInput]]:
        """Slices of inputs that are padded behind by as many tokens as the slice leaves out before."""
        for row in self.rows:
            found = self._shift(row)
            if found is not None:
                yield row.id, found

    def _shift(self, row: Row) -> ShiftedInput | None:
        if (
            row.op != SLICE
            or len(row.args) < 3
            or row.args[1] != TOKEN_DIM
            or (*row.args, 1)[4:5] not in ((), (1,))
        ):
            return None
        padded = self.rows[row.args[0].id] if isinstance(row.args[0], Ref) else row
        by = row.args[2]
        if padded.op != PAD or not isinstance(padded.args[0], Ref) or padded.args[1] != (0, by):
            return None
        source, fill = self.rows[padded.args[0].id], (*padded.args, 0)[2]
        if source.origin.kind is not OriginKind.INPUT or row.shape != source.shape:
            return None
        if [len(self.readers[each.id]) for each in (source, padded)] != [1, 1]:
            return None
        if not isinstance(by, int) or not isinstance(fill, (int, float)) or fill != int(fill):
            return None
        return ShiftedInput(source.origin.name, by, int(fill))
