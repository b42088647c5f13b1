"""The traced steps of all probes: traced at the first and the last, and between them as these two say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from torch import Tensor

from ...errors import TraceError
from ...ir.alike_graphs import UnlikeRow
from ...ir.graph import LogicalGraph
from ...program.sized.sizes import Count
from ..causal_mask import CausalMask, mask_kinds
from ..compile_state import Traced
from ..context.share import alone
from ..packed.packed_mask import PackedMask, packed_kinds
from ..pass_chain import Chain, Dump, begin
from .probes import Probe
from .refusals import sized_parameters, unlike_graphs
from .size_graphs import SizeGraphs

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class StepSource:
    """What is compiled, on any inputs and number of samples.

    trace: the step as it is traced; dump: for its text. bound: a graph of such inputs with the strategy's
    layouts in its anchors.
    """

    inputs: Inputs
    trace: Callable[[Inputs, int, Dump], Traced]
    bound: Callable[[LogicalGraph, Inputs, int], LogicalGraph]


@dataclass(frozen=True, slots=True)
class ProbeGraphs:
    """Graphs of a step, each made once. how: its trace came about. first: the first probe, and `before`
    its graph as traced. masks: what these do, as that graph says. ends: both traces, and what they say of
    others."""

    step: StepSource
    how: str
    first: Probe
    before: LogicalGraph
    unit: Count
    masks: Chain[Traced, Traced]
    ends: SizeGraphs
    known: dict[tuple[int, int], LogicalGraph]

    @staticmethod
    def of(step: StepSource, probes: Sequence[Probe], unit: Count, dump: Dump) -> ProbeGraphs:
        """The two traces, which do the same but for numbers. Masks are read at the first: none is made at
        the end of the range."""
        first, last = probes[0], probes[-1]
        ends = [(each.tokens, rows_of_probe(each)) for each in (first, last)]
        inputs = [resized(step.inputs, tokens) for tokens, _ in ends]
        long = step.trace(inputs[1], ends[1][1], Dump(None))
        short = step.trace(inputs[0], ends[0][1], dump)
        check_graphs(short.graph, long.graph, (size_text(first, unit), size_text(last, unit)))
        causal = begin(CausalMask(mask_kinds(short.graph, long.graph)))
        seen = causal.run(short, dump).graph, causal.run(long).graph
        packed = begin(PackedMask(packed_kinds(*seen)))
        graphs = packed.run(Traced(seen[0]), dump).graph, packed.run(Traced(seen[1])).graph
        one, other = (
            step.bound(graph, given, rows)
            for graph, given, (_, rows) in zip(graphs, inputs, ends, strict=True)
        )
        known = {ends[0]: one, ends[1]: other}
        held = SizeGraphs(one, other, ends[0], ends[1])
        return ProbeGraphs(step, short.how, first, short.graph, unit, causal.joined(packed), held, known)

    def of_probe(self, probe: Probe) -> LogicalGraph:
        """At the probe's tokens, of rows that one pipeline has."""
        return self.at(probe.tokens, rows_of_probe(probe))

    def at(self, tokens: int, rows: int) -> LogicalGraph:
        """The graph of a step of rows of so many tokens; 0: as they are. Where both ends do not say it, it is
        traced."""
        if (tokens, rows) not in self.known:
            self.known[tokens, rows] = self._between(tokens, rows)
        return self.known[tokens, rows]

    def _between(self, tokens: int, rows: int) -> LogicalGraph:
        try:
            return self.ends.at(tokens, rows)
        except UnlikeRow:
            inputs = resized(self.step.inputs, tokens)
            traced = self.step.trace(inputs, rows, Dump(None))
            other = f"{tokens} tokens" if self.unit is Count.TOKENS else f"{rows} samples"
            check_graphs(self.before, traced.graph, (size_text(self.first, self.unit), other))
            return self.step.bound(self.masks.run(traced).graph, inputs, rows)


def rows_of_probe(probe: Probe) -> int:
    """Samples of the traced step: one for each micro-batch of each pipeline, also where these share rows."""
    return alone(probe.strategy).global_batch


def size_text(probe: Probe, unit: Count) -> str:
    """How large a micro-batch of a probe is."""
    micro = probe.plan.pipelines[0][0]
    return f"{micro.tokens} tokens" if unit is Count.TOKENS else f"{micro.samples} samples"


def resized(inputs: Inputs, tokens: int) -> Inputs:
    """Example inputs of rows of so many tokens; 0: as they are. Only their shapes and types are traced."""
    if not tokens:
        return inputs
    lengths = {name: value.shape[1] if value.dim() > 1 else None for name, value in inputs.items()}
    if None in lengths.values() or len(set(lengths.values())) != 1:
        raise TraceError(
            "inputs are not rows of tokens",
            details=[(name, str(list(value.shape))) for name, value in inputs.items()],
            rule="with sizes.tokens, dim 1 of every input is the tokens: [rows, tokens, ...]",
            fix="give example inputs of one length, or let the samples vary: sizes: {samples: [1, 64]}",
        )
    return {
        name: value.new_zeros(()).expand(len(value), tokens, *value.shape[2:])
        for name, value in inputs.items()
    }


def check_graphs(one: LogicalGraph, other: LogicalGraph, at: tuple[str, str]) -> None:
    """Two traced steps are the same but for numbers, and no parameter depends on a size. at: their sizes."""
    for mine, theirs in zip_longest(one.rows, other.rows):
        if mine is None or theirs is None or mine.op != theirs.op:
            found = tuple("nothing more" if row is None else row.op for row in (mine, theirs))
            places = [row.where for row in (mine, theirs) if row is not None and row.where]
            raise unlike_graphs(list(dict.fromkeys(places)), list(zip(at, found, strict=True)))
    held = {name: (info.shape, other.params[name].shape) for name, info in one.params.items()}
    unlike = {name: shapes for name, shapes in held.items() if shapes[0] != shapes[1]}
    if unlike:
        raise sized_parameters(unlike, at)
