"""What a tensor of a rank program is called: its operator, module and line in the model, for errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...ir.graph import LogicalGraph
from ...program.lifetimes import row_reads
from ...program.program import Op, Program

Stage = tuple[int, int]
"""(pipeline, stage)."""


@dataclass(slots=True)
class TensorNames:
    """Names of values. graph, logical: read when the first name is asked for; None where there are none.

    logical: per stage, the row of the graph that a value realises.
    """

    program: Program
    graph: Callable[[], LogicalGraph] | None = None
    logical: Callable[[], Mapping[Stage, Mapping[int, int]]] | None = None
    _graph: LogicalGraph | None = field(default=None)
    _logical: Mapping[Stage, Mapping[int, int]] | None = field(default=None)

    def of_value(self, stage: Stage, value: int) -> str:
        """A value of a rank of this stage."""
        if self.graph is None:
            return f"value {value}"
        row = self._row(stage, value)
        if row is not None:
            found = self._read_graph().rows[row]
            return ", ".join(part for part in (f"%{row} {found.op}", found.module, found.where) if part)
        source = self._source(stage, value)
        return (
            f"value {value}" if source is None else f"value {value}, made of {self.of_value(stage, source)}"
        )

    def of_tag(self, tag: int) -> str:
        """What is sent under a tag; nothing if nobody sends it."""
        for own in self.program.ranks:
            for item in own.instructions:
                if item.op is Op.SEND and item.tag == tag:
                    return self.of_value((own.pipeline, own.stage), item.value)
        return ""

    def _source(self, stage: Stage, value: int) -> int | None:
        """The first value that a value without a name is computed of; None where it arrives."""
        classes = {own.class_name for own in self.program.ranks if (own.pipeline, own.stage) == stage}
        for name in classes:
            for segment in self.program.classes[name].segments:
                made = next((row for row in segment.rows if row.out.id == value), None)
                if made is not None:
                    return next(iter(row_reads(made)), None)
        return None

    def _row(self, stage: Stage, value: int) -> int | None:
        if self._logical is None:
            self._logical = {} if self.logical is None else self.logical()
        for other in self._of_ranks(stage):
            found = self._logical.get((stage[0], other), {}).get(value)
            if found is not None:
                return found
        return value if value < len(self._read_graph().rows) else None

    def _of_ranks(self, stage: Stage) -> tuple[int, ...]:
        """All stages that its ranks run; each value is of one of them."""
        ranks = (own for own in self.program.ranks if (own.pipeline, own.stage) == stage)
        return next((own.stages for own in ranks), stage[1:])

    def _read_graph(self) -> LogicalGraph:
        assert self.graph is not None, "asked only where there is one"
        if self._graph is None:
            self._graph = self.graph()
        return self._graph
