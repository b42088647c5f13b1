"""From graphs of a model at several lengths to the programs of pipelines that share sequences.

Each pipeline is laid out for its own tokens, as if its samples had no more; members run the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...base.comm_plan import CostModel, Interval
from ...base.context import ContextForm
from ...base.devices import DeviceKind
from ...errors import StrategyError
from ...ir.annotated import PipelineGraph
from ...ir.graph import LogicalGraph, OriginKind, Ref
from ...ir.type_text import dtype_name
from ...program.context.row_piece import BlankInput, RowPiece, TokenShift
from ...program.program import Program, RankProgram
from ...strategy.context_spec import ContextChoice, ContextSpec
from ...strategy.strategy import Strategy
from ..compile_state import Deduced, Traced
from ..deduction.placement import first_coordinate
from ..lower.lower import Lowered
from ..pass_chain import Dump
from ..pipeline import laying_out, programming
from .attend import Attending, SharedMembers
from .lengths import LengthGraphs
from .marks import Attention, marked
from .token_rows import PAD, SLICE, TokenRows, token_rows

Runs = tuple[Interval, ...]
NLL = "aten.nll_loss_forward.default"
FORMS = {
    ContextChoice.RING: ContextForm.RING,
    ContextChoice.GATHER: ContextForm.GATHER,
    ContextChoice.HEADS: ContextForm.HEADS,
}
MOVES = frozenset(
    {"aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.clone.default"}
    | {"aten.alias.default", "aten.detach.default", "aten._to_copy.default", PAD, SLICE}
)


def alone(strategy: Strategy) -> Strategy:
    """The strategy with members as pipelines beside each other, each with samples of its own."""
    return replace(strategy, context=())


def check_lengths(strategy: Strategy, tokens: int | None) -> int:
    """Tokens of a sample, which every group shares out."""
    if tokens is None:
        raise StrategyError(
            "the model's inputs have no tokens to share out",
            details=[("context", str([list(spec.pipelines) for spec in strategy.context]))],
            rule="an input of whole numbers with the dims sample and token tells how many there are",
            fix="leave out the strategy's `context`",
        )
    wrong = [
        (f"context[{place}]", _lengths_text(spec, tokens))
        for place, spec in enumerate(strategy.context)
        if sum(spec.lengths_of(tokens)) + spec.padding != tokens
        or (not spec.lengths and min(spec.lengths_of(tokens)) < 1)
    ]
    if wrong:
        raise StrategyError(
            "lengths of a context group are not those of its sequence",
            details=wrong,
            rule="the members' tokens and the padding that none runs are all of a sample; without `lengths`"
            " each has one or more",
            fix="change `lengths` or `padding`, or compile for samples of so many tokens, with --seq-len",
        )
    return tokens


def _lengths_text(spec: ContextSpec, tokens: int) -> str:
    shown = " + ".join(map(str, spec.lengths)) if spec.lengths else "even lengths"
    padding = f" and {spec.padding} of padding" if spec.padding else ""
    return f"{shown}{padding}, samples have {tokens}"


def share_sequences(
    graphs: LengthGraphs,
    whole: LogicalGraph,
    strategy: Strategy,
    device: DeviceKind = DeviceKind.CPU,
    cost: CostModel | None = None,
    dump: Dump | None = None,
) -> Lowered:
    """The programs of all ranks.

    graphs: of as many samples as pipelines take that stand alone. whole: of those of a step.
    """
    return Sharing(graphs, whole, strategy, device, cost, Dump(None) if dump is None else dump).run()


@dataclass(slots=True)
class Sharing:
    """graphs, whole: see `share_sequences`."""

    graphs: LengthGraphs
    whole: LogicalGraph
    strategy: Strategy
    device: DeviceKind
    cost: CostModel | None
    dump: Dump

    def run(self) -> Lowered:
        rows, runs = token_rows(self.graphs), self.runs()
        lowered = self.lowered(rows, runs)
        return replace(lowered, program=self.whole_program(lowered.program, rows, runs))

    def lowered(self, rows: TokenRows, runs: Sequence[Runs]) -> Lowered:
        """The programs of pipelines that have these tokens each, their members met."""
        state, attention = self._laid_out(rows, runs)
        groups = [self._members(spec, attention, runs) for spec in self.strategy.context]
        return meeting(state, groups, self.device, self.cost, self.dump)

    def runs(self) -> list[Runs]:
        """The tokens of each pipeline."""
        tokens = self.graphs.tokens[2]
        return [self._runs(pipeline, tokens) for pipeline in range(len(self.strategy.pipelines))]

    def _runs(self, pipeline: int, tokens: int) -> Runs:
        spec = self.strategy.context_of(pipeline)
        if spec is None:
            return ((0, tokens),)
        return spec.runs(tokens)[spec.pipelines.index(pipeline)]

    def _laid_out(self, rows: TokenRows, runs: Sequence[Runs]) -> tuple[Deduced, list[list[Attention]]]:
        """Each pipeline of the graph of its own length, and its attention."""
        strategy = alone(self.strategy)
        lengths = [sum(high - low for low, high in own) for own in runs]
        laid: dict[int, Deduced] = {
            length: laying_out(strategy, self.cost).run(Traced(self.graphs.at(length)), self.dump)
            for length in dict.fromkeys(lengths)
        }
        pipelines: list[PipelineGraph] = []
        attention: list[list[Attention]] = []
        for number, (own, length) in enumerate(zip(runs, lengths, strict=True)):
            found: tuple[PipelineGraph, list[Attention]] = laid[length].pipelines[number], []
            if self.strategy.context_of(number) is not None:
                found = marked(laid[length].pipelines[number], rows, self.graphs, own)
            pipelines.append(found[0])
            attention.append(found[1])
        return replace(laid[lengths[0]], pipelines=pipelines), attention

    def _members(
        self,
        spec: ContextSpec,
        attention: Sequence[Sequence[Attention]],
        runs: Sequence[Runs],
    ) -> SharedMembers:
        return SharedMembers(
            spec.pipelines,
            tuple(runs[pipeline] for pipeline in spec.pipelines),
            tuple(attention[pipeline] for pipeline in spec.pipelines),
            FORMS.get(spec.form),
        )

    def whole_program(self, program: Program, rows: TokenRows, runs: Sequence[Runs]) -> Program:
        """The program with the samples and inputs of the whole batch."""
        graph = self.whole
        inputs = {name: (info.shape, dtype_name(info.dtype)) for name, info in graph.inputs.items()}
        blank = blank_inputs(graph)
        ranks = [self._of_rank(own, rows, runs[own.pipeline], blank) for own in program.ranks]
        return replace(program, batch=self.strategy.global_batch, inputs=inputs, ranks=ranks)

    def _of_rank(
        self,
        own: RankProgram,
        rows: TokenRows,
        runs: Runs,
        blank: tuple[BlankInput, ...],
    ) -> RankProgram:
        spec, taken = self.strategy.context_of(own.pipeline), self.strategy.rows(own.pipeline)
        if spec is None:
            return replace(own, rows=taken)
        shifts = tuple(TokenShift(each.name, each.by, each.fill) for each in rows.shifts.values())
        end = self.graphs.tokens[2] - spec.padding if spec.padding else -1
        if spec.padding and not blank:
            raise StrategyError(
                "samples are padded, and nothing tells that padding counts for nothing",
                rule="tokens of padding bear no label: the loss leaves out a number that stands for none",
                fix="leave out `padding`, or use a loss with an ignored label",
            )
        piece = RowPiece(runs, tuple(sorted(rows.tokens)), shifts, end, blank if spec.padding else ())
        return replace(own, rows=taken, piece=piece)


def meeting(
    state: Deduced, groups: Sequence[SharedMembers], device: DeviceKind, cost: CostModel | None, dump: Dump
) -> Lowered:
    """The programs of pipelines that are laid out, in which the members of groups meet in attention."""
    lowered, pipelines = programming(device, cost).run(state, dump), state.strategy.pipelines
    ranks = {
        (p, s): state.ranks.of_stage(p, s) for p, own in enumerate(pipelines) for s in range(len(own.stages))
    }
    batches = [first_coordinate(state.strategy, pipeline) for pipeline in range(len(pipelines))]
    program = Attending(lowered.program, groups, ranks, batches, cost).run()
    met = {step.group for own in program.ranks for step in own.comms if len(step.group) > 1}
    ordered = sorted(met | set(program.groups), key=lambda group: (len(group), group))
    return replace(lowered, program=replace(program, groups=ordered))


def blank_inputs(graph: LogicalGraph) -> tuple[BlankInput, ...]:
    """Inputs of labels, with the one that stands for none; empty where some loss has no such input."""
    found = []
    for row in graph.rows:
        if row.op == NLL:
            source = graph.rows[row.args[1].id] if isinstance(row.args[1], Ref) else row
            while source.op in MOVES and isinstance(source.args[0], Ref):
                source = graph.rows[source.args[0].id]
            ignored = row.args[4] if len(row.args) > 4 else None
            if source.origin.kind is not OriginKind.INPUT or not isinstance(ignored, int):
                return ()
            found.append(BlankInput(source.origin.name, ignored))
    return tuple(dict.fromkeys(found))
