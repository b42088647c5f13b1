"""The training step at any number of tokens, from what it is at two of them.

Every number of a graph is linear in the tokens of a sample: two traces say how, and that of the whole
sample, which is a third length, is held to it. What isn't is refused: a model that looks at its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import StrategyError
from ...ir.alike_graphs import NoLine, Number, UnlikeRow, joined_rows
from ...ir.graph import LogicalGraph, Row

TOKEN_DIM = 1
PROBES = (5, 8)
"""Tokens of the two traces: in none of them a dim is empty, or broadcast."""
RULE = (
    "members of a context group run some tokens of a sample each, so that a model does the same at any length"
)
FIX = "leave out the strategy's `context`, or change that line of the model"


@dataclass(frozen=True, slots=True)
class LengthGraphs:
    """Of one batch, at unlike numbers of tokens. tokens: of each."""

    one: LogicalGraph
    other: LogicalGraph
    whole: LogicalGraph
    tokens: tuple[int, int, int]

    def at(self, tokens: int) -> LogicalGraph:
        """The graph at a number of tokens; StrategyError where no line goes there."""
        low = self.tokens[0]

        def number(given: tuple[int, ...]) -> int:
            return given[0] + self._slope(*given) * (tokens - low)

        rows = self._rows(number)
        inputs = {
            name: replace(info, shape=rows[info.row].shape or ()) for name, info in self.one.inputs.items()
        }
        return replace(self.one, rows=rows, inputs=inputs)

    def token_dims(self, row: int) -> tuple[int, ...]:
        """Dims of a row's value whose size follows the tokens, alone or beside the samples."""
        first, second = self.one.rows[row].shape or (), self.other.rows[row].shape or ()
        return tuple(dim for dim, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)

    def literals(self, row: int) -> tuple[int, ...]:
        """Places of a row's arguments that hold a number of tokens."""
        pairs = zip(self.one.rows[row].args, self.other.rows[row].args, strict=True)
        return tuple(place for place, (one, other) in enumerate(pairs) if one != other)

    def _rows(self, number: Number) -> list[Row]:
        graphs = self.one, self.other, self.whole
        self._check_parameters()
        counts = [len(graph.rows) for graph in graphs]
        if len(set(counts)) > 1:
            shown = ", ".join(
                f"{count} rows at {at} tokens" for count, at in zip(counts, self.tokens, strict=True)
            )
            raise _refused("it is not the same code", details=[("rows", shown)])
        try:
            return joined_rows(graphs, number)
        except UnlikeRow as unlike:
            one = unlike.row
            details = [("row", f"{one.op}: {unlike.text}"), ("tokens", ", ".join(map(str, self.tokens)))]
            raise _refused("a row is not the same at every length", one.where, details) from None

    def _slope(self, one: int, other: int, whole: int) -> int:
        """By how much a number grows with a token."""
        low, high, most = self.tokens
        slope, rest = divmod(other - one, high - low)
        if rest or one + slope * (most - low) != whole:
            raise NoLine(f"{one}, {other} and {whole}")
        return slope

    def _check_parameters(self) -> None:
        wrong = [
            (name, f"{list(info.shape)} at {self.tokens[0]} tokens, {list(there.shape)} at {self.tokens[2]}")
            for name, info in self.one.params.items()
            if (there := self.whole.params.get(name, info)).shape != info.shape
        ]
        if wrong or self.one.params.keys() != self.whole.params.keys():
            raise _refused("its parameters do", details=wrong)


def _refused(what: str, at: str = "", details: Sequence[tuple[str, str]] = ()) -> StrategyError:
    return StrategyError(
        f"the model depends on how many tokens a sample has: {what}",
        at=at,
        details=list(details),
        rule=RULE,
        fix=FIX,
    )


def at_tokens(inputs: Mapping[str, Tensor], whole: int, tokens: int) -> dict[str, Tensor]:
    """Example inputs with another number of tokens: cut, or from the first again."""
    places = torch.arange(tokens) % whole
    return {
        name: value.index_select(TOKEN_DIM, places.to(value.device)) if has_tokens(value, whole) else value
        for name, value in inputs.items()
    }


def has_tokens(value: Tensor, tokens: int) -> bool:
    """Whether an input has the tokens of its samples as dim 1."""
    return value.dim() > TOKEN_DIM and value.shape[TOKEN_DIM] == tokens


def tokens_of(inputs: Mapping[str, Tensor]) -> int | None:
    """Tokens of a sample: of the first input of whole numbers with two dims."""
    for value in inputs.values():
        if value.dim() == TOKEN_DIM + 1 and not (value.is_floating_point() or value.dtype == torch.bool):
            return value.shape[TOKEN_DIM]
    return None


def probes_below(whole: int) -> tuple[int, int]:
    """Two lengths to trace at, neither of them the whole, and none above it where it has room for both."""
    low, high = PROBES
    if whole > high:
        return PROBES
    return (low, high) if whole < 4 else (whole - 2, whole - 1) if whole > 4 else (2, 3)
