"""Which stage of a pipeline computes each row, and which rows every stage computes for itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import or_

from ...errors import DeduceError
from ...ir.graph import LogicalGraph, OriginKind, Phase, row_inputs
from ...strategy.strategy import PipelineSpec


@dataclass(frozen=True, slots=True)
class RowKinds:
    """What a row depends on. pure: no parameter. static: no input (parameters alone). on_demand: either, so
    that every stage that uses the row computes it for itself.

    Random masks are pure, and not static: they differ between steps and samples.
    """

    pure: tuple[bool, ...]
    static: tuple[bool, ...]
    on_demand: tuple[bool, ...]


PURE = (OriginKind.BUFFER, OriginKind.TANGENT, OriginKind.INPUT, OriginKind.RANDOM)
STATIC = (OriginKind.BUFFER, OriginKind.TANGENT, OriginKind.PARAM)


def operand_rows(graph: LogicalGraph) -> list[list[int]]:
    """Ids of the rows that each row reads."""
    return [row_inputs(row) for row in graph.rows]


def classify(graph: LogicalGraph, operands: list[list[int]] | None = None) -> RowKinds:
    """Dependence of every row on parameters and inputs."""
    pure: list[bool] = []
    static: list[bool] = []
    for row, read in zip(graph.rows, operand_rows(graph) if operands is None else operands, strict=True):
        leaf = row.op == "placeholder"
        pure.append(row.origin.kind in PURE if leaf else all(map(pure.__getitem__, read)))
        static.append(row.origin.kind in STATIC if leaf else all(map(static.__getitem__, read)))
    return RowKinds(tuple(pure), tuple(static), tuple(map(or_, pure, static)))


def stage_of_layer(pipeline: PipelineSpec, layer: int) -> int:
    """The stage whose layer range holds `layer`."""
    for index, stage in enumerate(pipeline.stages):
        if stage.layers[0] <= layer < stage.layers[1]:
            return index
    raise DeduceError(
        f"layer {layer} belongs to no stage",
        details=[("stages", str([list(stage.layers) for stage in pipeline.stages]))],
        rule="the stages of a pipeline hold all layers of the model",
        fix="let the last stage end at the model's number of layers",
    )


def assign_stages(
    graph: LogicalGraph, kinds: RowKinds, pipeline: PipelineSpec, operands: list[list[int]]
) -> list[int]:
    """The stage of every row; -1 for rows that each stage computes on demand.

    Forward: the layer's stage, never before an operand's; rows outside the layers follow their
    operands, or, without one, come before their first user. Backward: where the differentiated forward
    ran, which is the layer's stage unless the layer was used behind a later one; never after a gradient's.
    """
    layers = {row.layer for row in graph.rows if row.layer is not None}
    home = {layer: stage_of_layer(pipeline, layer) for layer in sorted(layers)}
    last = len(pipeline.stages) - 1
    first_use = _first_use(graph, kinds, home, last, operands)
    stages = [-1] * len(graph.rows)
    forward = [row.phase is Phase.FORWARD for row in graph.rows]
    ran: dict[int, set[int]] = {layer: set() for layer in layers}
    for row in graph.rows:
        number, layer = row.id, row.layer
        if kinds.on_demand[number] or row.op == "placeholder":
            continue
        held = [i for i in operands[number] if stages[i] >= 0]
        if forward[number]:
            found = [stages[i] for i in held]
            if layer is not None:
                found.append(home[layer])
            stages[number] = max(found) if found else first_use[number]
            if layer is not None:
                ran[layer].add(stages[number])
        else:
            saved = [stages[i] for i in held if forward[i]]
            found = [stages[i] for i in held if not forward[i]]
            if layer is not None:
                found.append(_used_at(home[layer], ran[layer], saved, found))
            stages[number] = min(found) if found else max(saved, default=last)
    return stages


def _used_at(home: int, ran: Iterable[int], saved: list[int], gradients: list[int]) -> int:
    """Where the use of a layer ran that a backward row differentiates: where the values are that it kept,
    else the last one that the gradient comes from. ran: stages of all uses."""
    if saved:
        return max(home, *saved)
    return max((stage for stage in ran if stage <= min(gradients, default=stage)), default=home)


def _first_use(
    graph: LogicalGraph, kinds: RowKinds, home: Mapping[int, int], last: int, operands: list[list[int]]
) -> list[int]:
    """The earliest stage whose layers use a forward row, directly or through rows outside layers."""
    earliest = [last] * len(graph.rows)
    for row in reversed(graph.rows):
        if row.phase is not Phase.FORWARD or kinds.on_demand[row.id]:
            continue
        if row.layer is not None:
            earliest[row.id] = home[row.layer]
        own = earliest[row.id]
        for i in operands[row.id]:
            if own < earliest[i]:
                earliest[i] = own
    return earliest
