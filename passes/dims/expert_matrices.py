"""Which parameters hold a matrix for each expert, and whether a strategy can share these experts out."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import StrategyError
from ...ir.graph import LogicalGraph, OriginKind, Ref, Row
from ...ir.own_names import EXPERT_MM
from ...strategy.strategy import StageSpec, Strategy

SAME = frozenset(
    f"aten.{name}" for name in ("_to_copy.default", "alias.default", "detach.default", "clone.default")
)
TURN = "aten.transpose.int"


def expert_matrices(graph: LogicalGraph) -> frozenset[str]:
    """Names of the parameters whose first dim are the experts that rows are routed to."""
    names = {info.row: info.name for info in graph.params.values() if not info.is_buffer}
    sources = (_source(graph, row) for row in graph.rows if row.op == EXPERT_MM)
    return frozenset(names[source.id] for source in sources if source.id in names)


def _source(graph: LogicalGraph, product: Row) -> Row:
    """What the matrices of a product are made of, as long as the experts stay in front."""
    row = _first(graph, product, 1)
    while row.origin.kind is not OriginKind.PARAM:
        turns = row.op == TURN and 0 not in (place % 3 for place in row.args[1:] if isinstance(place, int))
        if not turns and row.op not in SAME:
            break
        row = _first(graph, row, 0)
    return row


def _first(graph: LogicalGraph, row: Row, place: int) -> Row:
    ref = row.args[place]
    assert isinstance(ref, Ref), "products and views read tensors"
    return graph.rows[ref.id]


def check_experts(graph: LogicalGraph, strategy: Strategy, experts: frozenset[str]) -> None:
    """Stages that share out experts have some, and enough for each device with a weight above 0."""
    bad = [
        (f"{path}.experts", text)
        for path, stage in _sharing(strategy)
        for text in _problems(graph, stage, experts)
    ]
    if bad:
        raise StrategyError(
            "the experts of the model can't be shared out like this",
            details=bad,
            rule="a device has whole experts of each layer: matrices stacked along their first dim, of which"
            " each token takes those that it is routed to",
            fix="give at most as many devices a weight above 0 as there are experts, and `experts` only where"
            " `hspmd compile --dump` shows hspmd.expert_mm",
        )


def _sharing(strategy: Strategy) -> Iterator[tuple[str, StageSpec]]:
    for number, pipeline in enumerate(strategy.pipelines):
        for place, stage in enumerate(pipeline.stages):
            if stage.experts is not None:
                yield f"pipelines[{number}].stages[{place}]", stage


def _problems(graph: LogicalGraph, stage: StageSpec, experts: frozenset[str]) -> Iterator[str]:
    """Of one stage with weights for experts."""
    assert stage.experts is not None
    if not experts:
        yield f"{list(stage.experts)}: no layer of the model has experts that tokens are routed to"
        return
    low, high = stage.layers
    rows = [graph.rows[graph.params[name].row] for name in experts]
    own = [row for row in rows if row.layer is None or low <= row.layer < high]
    fewest = min(((row.shape or (0,))[0] for row in own), default=None)
    sharing = sum(share > 0 for share in stage.experts)
    if fewest is not None and sharing > fewest:
        yield f"{list(stage.experts)}: {sharing} devices share {fewest} experts"
