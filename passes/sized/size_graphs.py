"""The training step at any number of rows and tokens, from what it is at two.

Every number of a graph is a factor times rows, tokens, or both, plus a small constant. Two traces that
are unlike in both say which: just one such reading gives both numbers. Where there is none, or more than
one, nothing is derived, and the step has to be traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ...ir.alike_graphs import NoLine, joined_rows
from ...ir.graph import LogicalGraph

SMALL = range(-2, 3)
"""What may be added to a multiple."""
Counts = tuple[int, int]
"""Tokens of each row of a step, 0 where these do not vary, and rows."""
CountReading = tuple[int, int, int, int]
"""How often rows * tokens, tokens and rows count in a number, and what is added."""


@dataclass(frozen=True, slots=True)
class SizeGraphs:
    """Of one model. at_one, at_other: what the two were traced at."""

    one: LogicalGraph
    other: LogicalGraph
    at_one: Counts
    at_other: Counts
    known: dict[tuple[int, ...], CountReading] = field(default_factory=dict)

    def at(self, tokens: int, rows: int) -> LogicalGraph:
        """The graph of a step; UnlikeRow where a number has not one reading."""
        made = joined_rows((self.one, self.other), lambda given: self._number(given, tokens, rows))
        inputs = {
            name: replace(info, shape=made[info.row].shape or ()) for name, info in self.one.inputs.items()
        }
        return replace(self.one, rows=made, inputs=inputs, batch=rows)

    def _number(self, given: tuple[int, ...], tokens: int, rows: int) -> int:
        if given not in self.known:
            found = set(self._readings(*given))
            if len(found) != 1:
                raise NoLine(f"{given[0]} and {given[1]}")
            self.known[given] = found.pop()
        return _value(self.known[given], tokens, rows)

    def _readings(self, one: int, other: int) -> Iterator[CountReading]:
        """All that give both numbers."""
        for form in _forms(bool(self.at_one[0])):
            for plus in SMALL:
                unit = _value(form, *self.at_one)
                factor, rest = divmod(one - plus, unit) if unit else (0, 0)
                found = (factor * form[0], factor * form[1], factor * form[2], factor * form[3] + plus)
                if factor and not rest and _value(found, *self.at_other) == other:
                    yield found


def _forms(with_tokens: bool) -> Iterator[CountReading]:
    """What is multiplied."""
    yield (0, 0, 1, 0)
    for more in SMALL if with_tokens else ():
        yield (0, 1, 0, more)
        yield (1, 0, more, 0)


def _value(reading: CountReading, tokens: int, rows: int) -> int:
    both, of_tokens, of_rows, plus = reading
    return both * rows * tokens + of_tokens * tokens + of_rows * rows + plus
