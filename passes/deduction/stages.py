"""Which stage of a pipeline computes each row, and which rows every stage computes for itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...errors import DeduceError
from ...ir.graph import LogicalGraph, OriginKind, Phase, Row, row_inputs
from ...strategy.strategy import PipelineSpec


@dataclass(frozen=True, slots=True)
class RowKinds:
    """What a row depends on. constant: nothing. pure: no parameter. static: no input (parameters alone).

    Random masks are pure, and neither constant nor static: they differ between steps and samples.
    """

    constant: tuple[bool, ...]
    pure: tuple[bool, ...]
    static: tuple[bool, ...]

    def on_demand(self, row: int) -> bool:
        """Whether every stage that uses the row computes it for itself."""
        return self.pure[row] or self.static[row]


def operand_rows(graph: LogicalGraph) -> list[list[int]]:
    """Ids of the rows that each row reads."""
    return [row_inputs(row) for row in graph.rows]


def classify(graph: LogicalGraph, operands: list[list[int]] | None = None) -> RowKinds:
    """Dependence of every row on parameters and inputs."""
    operands = operand_rows(graph) if operands is None else operands
    constant: list[bool] = []
    pure: list[bool] = []
    static: list[bool] = []
    for row in graph.rows:
        kind = row.origin.kind if row.op == "placeholder" else None
        inputs = operands[row.id]
        constant.append(_all(kind, (OriginKind.BUFFER, OriginKind.TANGENT), (constant[i] for i in inputs)))
        pure_kinds = (OriginKind.BUFFER, OriginKind.TANGENT, OriginKind.INPUT, OriginKind.RANDOM)
        pure.append(_all(kind, pure_kinds, (pure[i] for i in inputs)))
        static_kinds = (OriginKind.BUFFER, OriginKind.TANGENT, OriginKind.PARAM)
        static.append(_all(kind, static_kinds, (static[i] for i in inputs)))
    return RowKinds(tuple(constant), tuple(pure), tuple(static))


def _all(kind: OriginKind | None, accepted: tuple[OriginKind, ...], inputs: Iterable[bool]) -> bool:
    return kind in accepted if kind is not None else all(inputs)


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
    ran: dict[int, set[int]] = {layer: set() for layer in layers}
    for row in graph.rows:
        if kinds.on_demand(row.id) or row.op == "placeholder":
            continue
        held = [i for i in operands[row.id] if stages[i] >= 0]
        if row.phase is Phase.FORWARD:
            stages[row.id] = _forward_stage(row, [stages[i] for i in held], first_use[row.id], home)
            if row.layer is not None:
                ran[row.layer].add(stages[row.id])
        else:
            saved = [stages[i] for i in held if graph.rows[i].phase is Phase.FORWARD]
            gradients = [stages[i] for i in held if graph.rows[i].phase is Phase.BACKWARD]
            own = None if row.layer is None else _used_at(home[row.layer], ran[row.layer], saved, gradients)
            stages[row.id] = _backward_stage(own, saved, gradients, last)
    return stages


def _forward_stage(row: Row, operands: list[int], first_use: int, home: Mapping[int, int]) -> int:
    own = [home[row.layer]] if row.layer is not None else []
    if operands or own:
        return max(operands + own)
    return first_use


def _used_at(home: int, ran: Iterable[int], saved: list[int], gradients: list[int]) -> int:
    """Where the use of a layer ran that a backward row differentiates: where the values are that it kept,
    else the last one that the gradient comes from. ran: stages of all uses."""
    if saved:
        return max([home, *saved])
    return max((stage for stage in ran if stage <= min(gradients, default=stage)), default=home)


def _backward_stage(own: int | None, saved: list[int], gradients: list[int], last: int) -> int:
    if gradients or own is not None:
        return min(gradients if own is None else [*gradients, own])
    return max(saved, default=last)


def _first_use(
    graph: LogicalGraph, kinds: RowKinds, home: Mapping[int, int], last: int, operands: list[list[int]]
) -> list[int]:
    """The earliest stage whose layers use a forward row, directly or through rows outside layers."""
    earliest = [last] * len(graph.rows)
    for row in reversed(graph.rows):
        if row.phase is not Phase.FORWARD or kinds.on_demand(row.id):
            continue
        if row.layer is not None:
            earliest[row.id] = home[row.layer]
        for i in operands[row.id]:
            earliest[i] = min(earliest[i], earliest[row.id])
    return earliest
