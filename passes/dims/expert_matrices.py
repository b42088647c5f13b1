"""Which parameters hold a matrix for each expert, and whether a strategy can share these experts out."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...errors import StrategyError
from ...ir.graph import LogicalGraph, OriginKind, Phase, Ref, Row, refs_of
from ...ir.own_names import EXPERT_MM
from ...strategy.strategy import StageSpec, Strategy

SAME = frozenset(
    f"aten.{name}" for name in ("_to_copy.default", "alias.default", "detach.default", "clone.default")
)
TURN = "aten.transpose.int"
PRODUCTS = frozenset({"aten.mm.default", "aten.addmm.default", "aten.bmm.default"})
LOOKUPS = frozenset({"aten.embedding.default"})


def expert_matrices(graph: LogicalGraph) -> frozenset[str]:
    """Names of the parameters whose first dim are the experts that rows are routed to."""
    names = {info.row: info.name for info in graph.params.values() if not info.is_buffer}
    sources = (_source(graph, row) for row in graph.rows if row.op == EXPERT_MM)
    return frozenset(names[source.id] for source in sources if source.id in names)


def router_parameters(graph: LogicalGraph) -> frozenset[str]:
    """Names of parameters that choose experts: those of the last product before the choice, and behind it.

    What is wider than a number per row and expert is no choice.
    """
    names = {info.row: info.name for info in graph.params.values() if not info.is_buffer}
    found: set[str] = set()
    seen: set[int] = set()
    for product in graph.rows:
        if product.op != EXPERT_MM or product.phase is not Phase.FORWARD:
            continue
        ids, matrices = _first(graph, product, 2), _first(graph, product, 1)
        most = prod(ids.shape or ()) * (matrices.shape or (1,))[0]
        waiting = [ids.id]
        while waiting:
            row = graph.rows[waiting.pop()]
            if row.id in seen or row.op in LOOKUPS or row.phase is not Phase.FORWARD:
                continue
            seen.add(row.id)
            if row.id in names:
                found.add(names[row.id])
            refs = [graph.rows[ref.id] for ref in refs_of((row.args, row.kwargs))]
            small = [each for each in refs if row.op not in PRODUCTS and prod(each.shape or ()) <= most]
            waiting += [each.id for each in (*small, *(each for each in refs if _is_parameter(graph, each)))]
    return frozenset(found)


def _is_parameter(graph: LogicalGraph, row: Row) -> bool:
    """Whether it is one, perhaps turned, or of another type."""
    while row.op in (*SAME, TURN, "aten.t.default", "aten.permute.default"):
        row = _first(graph, row, 0)
    return row.origin.kind is OriginKind.PARAM


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
