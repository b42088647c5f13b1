"""Recomputation: values that the forward pass does not keep are made again where backward first needs them.

Rows of the forward pass are copied into the backward pass, so every number stays the same; what such
rows communicate is communicated twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..ir.annotated import COMM, AnnotatedRow, AnnotatedValue, PipelineGraph
from ..ir.graph import LogicalGraph, Phase
from ..strategy.strategy import PipelineSpec, RecomputeKind
from ..strategy.strategy import Recompute as Range
from .compile_state import Live
from .liveness import LivePipeline, StageRows
from .pass_chain import Pass
from .row_checks import live_problems
from .texts.cells import NOTHING, Line, alike, joined, row_cells, value_name

GETITEM = "getitem"
COSTLY_OPS = frozenset(
    {
        "aten.mm.default",
        "aten.addmm.default",
        "hspmd.attention",
        "hspmd.packed_attention",
        "hspmd.convolution",
        "hspmd.grouped_mm.default",
        "hspmd.expert_mm",
        COMM,
    }
)
"""What SELECTIVE keeps. Batched products are not among them: where attention is written out, they make a
weight per pair of tokens, while the fused one gives an output per token."""


@dataclass(frozen=True, slots=True)
class _Policy:
    """How one layer is recomputed. unit: layers of one unit keep what enters the unit only."""

    unit: int
    kind: RecomputeKind


def recompute(
    live: LivePipeline, graph: PipelineGraph, logical: LogicalGraph, spec: PipelineSpec
) -> LivePipeline:
    """The pipeline with the forward rows of its recomputed layers copied into the backward pass."""
    policies = _policies(spec)
    if not policies:
        return live
    layers = layers_of(graph, logical)
    policy_of = {number: policies[layer] for number, layer in layers.items() if layer in policies}
    roots = {term.value.id for term in graph.grads} | {update.value.id for update in graph.buffers}
    roots |= {graph.loss.id} if graph.loss is not None else set()
    stages = [with_clones(rows, recomputed(rows, policy_of, roots)) for rows in live.stages]
    return LivePipeline(stages, live.made)


def _policies(spec: PipelineSpec) -> dict[int, _Policy]:
    """The policy of each recomputed layer."""
    return {
        layer: _Policy(layer - (layer - item.layers[0]) % item.every, item.kind)
        for item in spec.recompute
        if item.kind is not RecomputeKind.NONE
        for layer in range(*item.layers)
    }


def layers_of(graph: PipelineGraph, logical: LogicalGraph) -> dict[int, int | None]:
    """The layer of each value; one that makes no row of the logical graph belongs to the row after it."""
    layers: dict[int, int | None] = {}
    current: int | None = None
    for row in reversed(graph.rows):
        if row.out.logical is not None:
            current = logical.rows[row.out.logical].layer
        layers[row.out.id] = current
    return layers


def recomputed(
    rows: StageRows, policy_of: Mapping[int, _Policy], roots: Collection[int]
) -> dict[int, AnnotatedRow]:
    """Forward rows whose values backward is to make again, by value.

    A value that another unit of layers reads, or another stage, is kept.
    """
    needed = {*roots, *(crossing.source.id for crossing in rows.departures)}
    needed |= {item.share.id for item in rows.sums}
    for row in rows.forward:
        own = policy_of.get(row.out.id)
        needed |= {value.id for value in row.reads if _unit(policy_of.get(value.id)) != _unit(own)}
    found: dict[int, AnnotatedRow] = {}
    for row in rows.forward:
        policy = policy_of.get(row.out.id)
        if policy is None or row.out.id in needed or not _is_remade(row, policy, found):
            continue
        found[row.out.id] = row
    return found


def _unit(policy: _Policy | None) -> int | None:
    return None if policy is None else policy.unit


def _is_remade(row: AnnotatedRow, policy: _Policy, found: Mapping[int, AnnotatedRow]) -> bool:
    """Whether a policy makes the row again; one result of an operator is as the operator itself."""
    if row.op == GETITEM:
        return row.reads[0].id in found
    if row.marker is not None and row.marker.batch_sum is not None:
        return False  # pipelines that recompute differently would wait for each other
    return policy.kind is RecomputeKind.FULL or row.op not in COSTLY_OPS


def with_clones(rows: StageRows, found: Mapping[int, AnnotatedRow]) -> StageRows:
    """Backward reads copies of the `found` rows; forward keeps those that it reads itself."""
    if not found:
        return rows
    cloner = _Cloner(rows, found)
    backward = [made for row in rows.backward for made in cloner.backward(row)]
    return replace(rows, forward=_still_read(rows.forward, cloner.made), backward=backward)


@dataclass(slots=True)
class _Cloner:
    """Copies rows just before the first backward row that needs them. made: copies by value."""

    rows: StageRows
    found: Mapping[int, AnnotatedRow]
    made: dict[int, AnnotatedValue] = field(default_factory=dict)
    place: dict[int, int] = field(init=False)
    next_id: int = field(init=False)

    def __post_init__(self) -> None:
        self.place = {row.out.id: index for index, row in enumerate(self.rows.forward)}
        every = (*self.rows.forward, *self.rows.backward)
        self.next_id = 1 + max((value.id for row in every for value in (row.out, *row.reads)), default=0)

    def backward(self, row: AnnotatedRow) -> list[AnnotatedRow]:
        """The copies that the row is the first to need, in their order, then the row reading copies."""
        needed = self._needed(row.reads)
        clones = [self._clone(self.found[number]) for number in sorted(needed, key=self.place.__getitem__)]
        if not any(value.id in self.made for value in row.reads):
            return [row]
        return [*clones, self._reading(row, row.out)]

    def _needed(self, reads: Iterable[AnnotatedValue]) -> set[int]:
        needed: set[int] = set()
        queue = list(reads)
        while queue:
            number = queue.pop().id
            if number in self.found and number not in self.made and number not in needed:
                needed.add(number)
                queue += self.found[number].reads
        return needed

    def _clone(self, row: AnnotatedRow) -> AnnotatedRow:
        out = replace(row.out, id=self.next_id, logical=None, producer=None, via=None)
        self.next_id += 1
        clone = self._reading(row, out)
        self.made[row.out.id] = out
        return clone

    def _reading(self, row: AnnotatedRow, out: AnnotatedValue) -> AnnotatedRow:
        return replace(
            row,
            out=out,
            phase=Phase.BACKWARD,
            args=tuple(self._mapped(argument) for argument in row.args),
            kwargs={name: self._mapped(argument) for name, argument in row.kwargs.items()},
            reads=tuple(self.made.get(value.id, value) for value in row.reads),
        )

    def _mapped(self, argument: object) -> object:
        if isinstance(argument, AnnotatedValue):
            return self.made.get(argument.id, argument)
        if isinstance(argument, (tuple, list)):
            return tuple(self._mapped(item) for item in argument)
        return argument


def _still_read(forward: Sequence[AnnotatedRow], cloned: Collection[int]) -> list[AnnotatedRow]:
    """Forward rows without those that were there for backward alone."""
    read: set[int] = set()
    kept: list[AnnotatedRow] = []
    for row in reversed(forward):
        if row.out.id in cloned and row.out.id not in read:
            continue
        read |= {value.id for value in row.reads}
        kept.append(row)
    return kept[::-1]


def changes_text(before: Sequence[LivePipeline], after: Sequence[LivePipeline]) -> str:
    """Per stage what forward keeps no longer, and the rows that make it again, before what needs it first."""
    old = {id(now): was for was, now in zip(before, after, strict=True)}
    lines: list[Line] = []
    for title, held in alike(after):
        for number, (was, now) in enumerate(zip(old[id(held)].stages, held.stages, strict=True)):
            lines.append(
                (f"{title}, stage {number}", *([] if _again(was, now) else [f"{NOTHING} made again"]))
            )
            lines += [("  made again", *row_cells(row), f"for {reader}") for row, reader in _again(was, now)]
            gone = made_again(was, now)
            lines += [("  not kept", *row_cells(row)) for row in was.forward if row.out.id in gone]
    return joined(lines)


def _again(before: StageRows, after: StageRows) -> list[tuple[AnnotatedRow, str]]:
    """Backward rows that a stage did not have, and the value of the next one that it had."""
    known = {row.out.id for row in before.backward}
    found: list[tuple[AnnotatedRow, str]] = []
    reader = ""
    for row in reversed(after.backward):
        if row.out.id in known:
            reader = value_name(row.out)
        else:
            found.append((row, reader))
    return found[::-1]


def made_again(before: StageRows, after: StageRows) -> set[int]:
    """Values of forward that backward read before the pass, and reads no more."""
    was, now = ({value.id for row in rows.backward for value in row.reads} for rows in (before, after))
    return {row.out.id for row in before.forward} & (was - now)


@dataclass(frozen=True, slots=True)
class RecomputePass(Pass[Live, Live]):
    """Which layers do so is part of the strategy."""

    def run(self, state: Live) -> Live:
        known: dict[tuple[int, tuple[Range, ...]], LivePipeline] = {}
        live = []
        for number, (pipeline, graph) in enumerate(zip(state.live, state.pipelines, strict=True)):
            spec = state.strategy.pipelines[number]
            key = (id(pipeline), spec.recompute)
            if key not in known:
                known[key] = recompute(pipeline, graph, state.graph, spec)
            live.append(known[key])
        return replace(state, live=live)

    def text(self, before: Live, after: Live) -> str:
        return changes_text(before.live, after.live)

    def problems(self, before: Live, after: Live) -> Iterator[str]:
        return live_problems(after.pipelines, before.live, after.live)
