"""What deduction starts from: layouts that the strategy fixes, and facts about the graph's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...errors import InternalError
from ...ir.graph import LogicalGraph
from ...layout.intervals import Sets
from ...layout.layout import Layout
from ...rules.call_rule import GraphCalls
from ...strategy.strategy import Strategy
from .deduce_memo import signatures
from .stages import RowKinds, classify, operand_rows


def _not_stored_otherwise(name: str, stage: int) -> Layout:
    raise InternalError(f"{name} is not stored in several cuts in stage {stage}")


@dataclass(frozen=True, slots=True)
class StartLayouts:
    """What deduction starts from: the batch cut, the parameters' layouts, and how tokens are cut.

    batch: rows of the global batch per coordinate of the BATCH axis. layouts: (parameter, stage) ->
    layout. tokens: per stage the token intervals per rank for sequence parallelism, by length. used:
    what operators take a parameter in that is stored in several cuts. own: the coordinates of the
    pipeline's micro-batches; None: all. factors: rows whose operands are gathered, and the parameters whose
    gradients they make. by_token: random numbers have places by the tokens of a step, not by its samples.
    exchanges_rows: whether rows go to their experts' owners, where a stage has such.
    """

    batch: Sets
    layouts: Callable[[str, int], Layout]
    tokens: Callable[[int, int], Sets | None]
    sequence_parallel: bool
    used: Callable[[str, int], Layout] = _not_stored_otherwise
    own: range | None = None
    factors: Mapping[int, str] = field(default_factory=dict)
    by_token: bool = False
    exchanges_rows: bool = False


def first_coordinate(strategy: Strategy, pipeline: int) -> int:
    """The BATCH coordinate of a pipeline's first micro-batch."""
    return strategy.accumulation * sum(len(spec.micro_batches) for spec in strategy.pipelines[:pipeline])


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What all pipelines share: ids of the rows that each row reads, what each depends on, what is alike.

    calls: rules read against calls.
    """

    operands: list[list[int]]
    kinds: RowKinds
    signatures: list[int]
    calls: GraphCalls

    @staticmethod
    def of(graph: LogicalGraph) -> GraphFacts:
        """Look at every row once."""
        operands, alike = operand_rows(graph), signatures(graph)
        return GraphFacts(operands, classify(graph, operands), alike, GraphCalls(graph.rows, alike))
