"""Walks the joint graph once per pipeline: each row's rule gives local rows with layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ...base.comm_plan import Combine
from ...errors import InternalError
from ...ir.annotated import AnnotatedRow, AnnotatedValue, CommMarker, PipelineGraph, values_in
from ...ir.graph import LogicalGraph, Phase, Ref, Row
from ...layout.intervals import Sets
from ...layout.layout import Dim, Factor, Layout, cuts_of_samples, has_unlike_copies, placement, whole
from ...layout.several_cuts import collapsed, is_plain
from ...rules import rule_book  # noqa: F401  (rules register on import)
from ...rules.call_rule import Alternative, CallRule, GraphCalls
from ...rules.rules import batch_coupled
from ...rules.unknown_operators import find_rule
from ...strategy.strategy import PipelineSpec
from .batch_values import step_value
from .deduce_leaves import leaf, lookup_cut
from .deduce_memo import MadeRow, RuleMemo, again
from .deduce_moves import all_reduce, over_batch, sent, settle
from .deduce_results import add_results
from .factors import gathered
from .grad_terms import untied_sums
from .insert_comm import check_takes_several_cuts, convert
from .placement import StartLayouts
from .routed_rows import RowRoutings, dim_at_owners
from .stages import RowKinds

Found = TypeVar("Found")


@dataclass(slots=True)
class Deducer:
    """One pipeline's deduction; implements `rules.rules.RuleContext`.

    row, stage: what is being deduced, and where. used_as: what operators take parameters in that lie in
    several cuts, by value. made_plain: values in several cuts, by the plain value that was made of them.
    steps: sums over the batch, by what is summed. gathered: of the whole batch, by the value per sample.
    made: the row of each value. choices: by row, what a planner chose. products: how products met. arrivals:
    layouts in which values came to anchors, by name and stage. renamed: logical rows of values that a layout
    operator gives once more, in another layout.
    """

    graph: LogicalGraph
    pipeline: PipelineSpec
    placement: StartLayouts
    result: PipelineGraph
    kinds: RowKinds
    stages: list[int]
    operands: list[list[int]]
    row: Row
    calls: GraphCalls
    stage: int = 0
    phase: Phase = Phase.FORWARD
    values: dict[tuple[int, int], AnnotatedValue | tuple[AnnotatedValue, ...]] = field(default_factory=dict)
    converted: dict[tuple[int, int, Layout], AnnotatedValue] = field(default_factory=dict)
    transferred: dict[tuple[int, int], AnnotatedValue] = field(default_factory=dict)
    steps: dict[int, AnnotatedValue] = field(default_factory=dict)
    gathered: dict[int, AnnotatedValue] = field(default_factory=dict)
    made: dict[int, AnnotatedRow] = field(default_factory=dict)
    renamed: dict[int, int] = field(default_factory=dict)
    batch_sums: Counter[int] = field(default_factory=Counter)
    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    memo: RuleMemo = field(default_factory=RuleMemo)
    used_as: dict[int, Layout] = field(default_factory=dict)
    made_plain: dict[int, AnnotatedValue] = field(default_factory=dict)
    arrivals: dict[tuple[str, int], Layout] = field(default_factory=dict)
    next_id: int = 0
    choices: Mapping[int, Alternative] = field(default_factory=dict)
    products: dict[object, Any] = field(default_factory=dict)
    routings: RowRoutings = field(default_factory=RowRoutings)

    def choice(self, row: Row) -> Alternative | None:
        """What a planner chose for a row; None: the rule's own preference."""
        return self.choices.get(row.id)

    def call_rule(self, row: Row) -> CallRule:
        """The row's rule read against its call: of the graph alone, so that all pipelines share it."""
        return self.calls.of(row)

    @property
    def sequence_parallel(self) -> bool:
        """Whether pending sums of token activations become sequence-split."""
        return self.placement.sequence_parallel

    @property
    def stage_devices(self) -> tuple[int, ...]:
        """The devices of the current stage, in the order of its ranks."""
        return self.pipeline.stages[self.stage].devices

    @property
    def stage_shares(self) -> tuple[int, ...] | None:
        """The weights of the current stage's devices, None where they are equal."""
        return self.pipeline.stages[self.stage].shares

    @property
    def pipeline_devices(self) -> tuple[int, ...]:
        """The devices of all stages of the pipeline."""
        return self.pipeline.devices

    @property
    def batch(self) -> int:
        """The global batch size."""
        return self.graph.batch

    @property
    def samples(self) -> Sets:
        """The samples of each BATCH coordinate."""
        return self.placement.batch

    @property
    def by_token(self) -> bool:
        """Whether random numbers have places by token."""
        return self.placement.by_token

    @property
    def micro_batches(self) -> range:
        """The BATCH coordinates of the pipeline."""
        own = self.placement.own
        return range(len(self.placement.batch)) if own is None else own

    # Operands

    def operand(self, argument: object) -> AnnotatedValue:
        """The value of a Ref in the current stage, in a layout that rules know."""
        value = self.plain(self.marked(argument))
        return gathered(self, value, argument) if self.row.id in self.placement.factors else value

    def plain(self, value: AnnotatedValue) -> AnnotatedValue:
        """The value as a rule can take it: ranks cut at most one dim."""
        if is_plain(value.layout):
            return value
        found = self.convert(value, self.used_as.get(value.id) or collapsed(value.layout))
        self.made_plain[found.id] = value
        return found

    def marked(self, argument: object) -> AnnotatedValue:
        """The value of a Ref in the current stage, as a marker or an override left it."""
        if not isinstance(argument, Ref):
            raise InternalError(f"{self.row.op} has no tensor at this argument", at=self.row.where)
        value = self.value_of(argument.id, self.stage)
        if isinstance(value, tuple):
            raise InternalError(f"{self.row.op} uses a tuple as a tensor", at=self.row.where)
        return value

    def optional(self, argument: object) -> AnnotatedValue | None:
        """The value of a Ref, or None."""
        return None if argument is None else self.operand(argument)

    def row_of(self, argument: object) -> Row:
        """The row that a Ref names."""
        if not isinstance(argument, Ref):
            raise InternalError(f"{self.row.op} has no tensor at this argument", at=self.row.where)
        self.memo.looked = True
        return self.graph.rows[argument.id]

    def note_whole(self, row: Row, gathered: int) -> None:
        """Note that a row without a rule is computed whole."""
        self.memo.looked = True
        if len(self.stage_devices) > 1:
            self.result.computed_whole[row.id] = gathered

    def producer_op(self, argument: object) -> str:
        """The operator of the row that a Ref names."""
        return self.row_of(argument).op

    def value_of(self, row: int, stage: int) -> AnnotatedValue | tuple[AnnotatedValue, ...]:
        """The value of a row in a stage: computed there on demand, or transferred from its stage."""
        found = self.values.get((row, stage))
        if found is None:
            home = self.stages[row]
            if home >= 0 and home != stage:
                found = sent(self, row, home, stage)
            else:
                before, self.row, self.stage = (self.row, self.stage), self.graph.rows[row], stage
                found = self._compute(self.row, stage)
                self.row, self.stage = before
            self.values[row, stage] = found
        return found

    def within(self, row: Row, stage: int, work: Callable[[], Found]) -> Found:
        """Do `work` as part of another row's deduction; if it fails, that row is the place of the error."""
        before, self.row, self.stage = (self.row, self.stage), row, stage
        found = work()
        self.row, self.stage = before
        return found

    # Rows

    def run(self) -> PipelineGraph:
        """Deduce all rows, the loss and the gradients."""
        sums = untied_sums(self.graph, self.stages, self.operands)
        for row in self.graph.rows:
            if row.op == "placeholder" or self.kinds.on_demand[row.id] or row.id in sums:
                continue
            self.phase = row.phase
            self.value_of(row.id, self.stages[row.id])
        add_results(self, sums)
        return self.result

    def _compute(self, row: Row, stage: int) -> AnnotatedValue | tuple[AnnotatedValue, ...]:
        if row.op == "placeholder":
            return leaf(self, row, stage)
        if row.op == "getitem":
            whole_value = self.value_of(self.row_of(row.args[0]).id, stage)
            picked = whole_value[int(row.args[1])]  # type: ignore[index, call-overload]
            self._complete(row, picked)
            return picked
        result = self._by_rule(row, stage)
        if isinstance(result, AnnotatedValue):
            self._complete(row, result)
        return result

    def _by_rule(self, row: Row, stage: int) -> AnnotatedValue | tuple[AnnotatedValue, ...]:
        """What the row's rule gives, or gave for a row like it."""
        operands = self.operands[row.id]
        alone = row.id in self.choices or row.id in self.placement.factors
        key = None if alone else self.memo.key(row, stage, operands, self.values)
        found = self.memo.find(key)
        if found is not None:
            return self._again(found, [self.values[i, stage] for i in operands])  # type: ignore[misc]
        values, rows, self.memo.looked = self.next_id, len(self.result.rows), False
        result = find_rule(row)(self, row)
        alone = self.next_id == values + 1 and len(self.result.rows) == rows + 1 and not self.memo.looked
        if key is not None and alone and self.result.rows[-1].out is result:
            read = [self.values[i, stage] for i in operands]
            self.memo.learn(key, self.result.rows[-1], read)  # type: ignore[arg-type]
        return result

    def _again(self, made: MadeRow, read: list[AnnotatedValue]) -> AnnotatedValue:
        """A row that was made before, of other operands."""
        self.next_id += 1
        local = again(made, read, self.next_id, self.row, self.stage, self.phase)
        self.result.rows.append(local)
        self.made[local.out.id] = local
        return local.out

    def _complete(self, row: Row, value: AnnotatedValue) -> None:
        """Note which value realises a logical row."""
        if value.layout.shape != tuple(row.shape or ()):
            raise InternalError(
                f"the rule of {row.op} gives shape {list(value.layout.shape)} for {list(row.shape or ())}",
                at=row.where,
                fix="report this model and strategy",
            )
        if value.logical is None:
            value.logical = row.id
        if self.kinds.on_demand[row.id]:
            self.result.on_demand[row.id, value.stage] = value
        else:
            self.result.logical[row.id] = value

    def new(
        self,
        layout: Layout,
        dtype: torch.dtype | None,
        stage: int,
        *,
        pure: bool = False,
        constant: bool = False,
        via: tuple[Row, AnnotatedValue] | None = None,
    ) -> AnnotatedValue:
        """A value that no row makes yet."""
        if dtype is None:
            raise InternalError(f"{self.row.op} has no dtype", at=self.row.where)
        self.next_id += 1
        return AnnotatedValue(self.next_id, layout, dtype, stage, pure, constant, via=via)

    def emit(
        self,
        op: str,
        args: tuple[object, ...],
        layout: Layout,
        *,
        kwargs: dict[str, object] | None = None,
        dtype: torch.dtype | None = None,
        via: AnnotatedValue | None = None,
        marker: CommMarker | None = None,
    ) -> AnnotatedValue:
        """Place a local row; one whose operands are pure waits for its first use."""
        if cuts_of_samples(layout) > 1:
            raise batch_coupled(self.row, layout, "it has samples in two dims")
        operands = values_in(args) if kwargs is None else values_in((args, tuple(kwargs.values())))
        pure = constant = static = True
        loose = False
        for value in operands:
            pure, constant, static = pure and value.pure, constant and value.constant, static and value.static
            loose = loose or value.loose
        check_takes_several_cuts(op, self.row, (layout, *(value.layout for value in operands)))
        made_by = None if via is None else (self.row, via)
        dtype = dtype or self.row.dtype or operands[0].dtype
        out = self.new(layout, dtype, self.stage, pure=pure, constant=constant, via=made_by)
        out.static = static
        if marker is not None and marker.combine is not Combine.COPY:  # the same on all ranks
            out.loose = marker.source.addends is not None  # but where they add other copies, in other orders
        else:
            out.loose = loose or has_unlike_copies(layout)
        row = AnnotatedRow(
            out, op, args, kwargs or {}, self.stage, self.phase, self.row.where, marker, operands
        )
        self.made[out.id] = row
        if pure:
            out.producer = row
        else:
            self._put(row)
        return out

    def emit_many(
        self,
        op: str,
        args: tuple[object, ...],
        layouts: Sequence[Layout | None],
        *,
        kwargs: dict[str, object] | None = None,
    ) -> tuple[AnnotatedValue, ...]:
        """Place a local row with several outputs, and the picks of each."""
        metas = self.row.outs or ()
        joint = self.emit(op, args, whole(()), kwargs=kwargs, dtype=torch.float32)
        parts = []
        for index, layout in enumerate(layouts):
            dtype = metas[index][1] if index < len(metas) and metas[index] is not None else torch.float32  # type: ignore[index]
            parts.append(self.emit("getitem", (joint, index), layout or whole(()), dtype=dtype))
        return tuple(parts)

    def _put(self, row: AnnotatedRow) -> None:
        """Append a row after the waiting rows that it uses."""
        for value in row.reads:
            if value.producer is not None:
                value.producer.phase = self.phase
                self.place_waiting(value)
        self.result.rows.append(row)

    def place_waiting(self, value: AnnotatedValue) -> None:
        """Append the row that makes a value, if it waits for its first use."""
        if value.producer is not None:
            waiting, value.producer = value.producer, None
            self._put(waiting)

    # Conversions

    def convert(self, value: AnnotatedValue, layout: Layout) -> AnnotatedValue:
        """The value in another layout, each conversion done once."""
        if value.layout is layout or placement(value.layout) is placement(layout):
            return value
        key = (value.id, self.stage, layout)
        found = self.converted.get(key)
        if found is None:
            found = convert(self, value, layout)
            self.converted[key] = found
        return found

    def settle(self, value: AnnotatedValue) -> AnnotatedValue:
        """Without pending sums and addends; a sum over the batch becomes a step value."""
        return settle(self, value)

    def all_reduce(self, value: AnnotatedValue, combine: Combine) -> AnnotatedValue:
        """Reduce pieces that are whole on every rank of the stage."""
        self.memo.looked = True
        return all_reduce(self, value, combine)

    def at_owners(self, ids: object, rows: AnnotatedValue, of: AnnotatedValue, owners: Sets) -> Dim | None:
        """How rows lie at the owners of their experts; None where these take all rows."""
        return dim_at_owners(self, self.row_of(ids).id, rows, of, owners)

    @property
    def exchanges_rows(self) -> bool:
        """Whether rows go to the owners of their experts."""
        return self.placement.exchanges_rows and self.pipeline.stages[self.stage].experts is not None

    def over_batch(self, value: AnnotatedValue) -> AnnotatedValue:
        """A sum over the batch, reduced over all pipelines in the middle of a pass; whole on every rank."""
        self.memo.looked = True
        return over_batch(self, value)

    def step_value(self, value: AnnotatedValue) -> AnnotatedValue:
        """A sum over the batch, reduced over all micro-batches and pipelines once a step."""
        self.memo.looked = True
        return step_value(self, value)

    def note_arrival(self, anchor: str, layout: Layout) -> None:
        """Note in which layout a value came to an anchor, in the current stage."""
        self.memo.looked = True
        self.arrivals[anchor, self.stage] = layout

    def arrival(self, anchor: str) -> Layout | None:
        """In which layout the value came to an anchor; None: not in the current stage."""
        self.memo.looked = True
        return self.arrivals.get((anchor, self.stage))

    def is_lookup_of(self, index_row: int, rows: int) -> Factor | None:
        """How the table that the forward looked up with this index is cut along its rows."""
        self.memo.looked = True
        return lookup_cut(self, index_row, rows)
