"""Which labels a count counts: found by putting a number of its own at each place of a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ...artifact.proved_loss import ProvedLabels
from ...ir.annotated import AnnotatedRow, AnnotatedValue, PerCoordinate, PipelineGraph
from ...layout.layout import Coordinate
from ...program.kernels.kernels import kernel

FIRST, OTHERS = Coordinate(0, 0), Coordinate(0, 1)
"""Of the micro-batches: the first has one sample."""
MOST = 1 << 26
"""Elements of a constant that is computed."""
COUNTS = "hspmd.valid_count"
SUMS = ("aten.sum.default", "aten.sum.dim_IntList")
NOT = ("aten.bitwise_not.default", "aten.logical_not.default")
SAME = (
    "aten._to_copy.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.view.default",
    "aten.reshape.default",
    "aten.clone.default",
)


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """Of one pipeline. made: the row of each value. inputs: their names, by value."""

    made: Mapping[int, AnnotatedRow]
    inputs: Mapping[int, str]

    @staticmethod
    def of(pipeline: PipelineGraph) -> LabelCounts:
        """What is needed of an annotated graph."""
        inputs = {value.id: name for (name, _), value in pipeline.inputs.items()}
        return LabelCounts({row.out.id: row for row in pipeline.rows}, inputs)

    def labels(self, share: AnnotatedValue) -> ProvedLabels | None:
        """What a sum over the batch counts, if it counts labels that are not one number."""
        found = self._counted(share)
        if found is None:
            return None
        target, ignored = found
        sources = self._inputs(target)
        if len(sources) != 1:
            return None
        (source,) = sources
        first = self._first(target, source, ignored)
        return None if first is None else ProvedLabels(self.inputs[source.id], ignored, first)

    def _counted(self, share: AnnotatedValue) -> tuple[AnnotatedValue, int] | None:
        """The values that are counted, and the number that doesn't count."""
        row = self._behind(share)
        if row is not None and row.op == COUNTS and isinstance(row.args[1], int):
            return _value(row.args[0]), row.args[1]
        if row is None or row.op not in SUMS:
            return None
        row, wanted = self._behind(row.reads[0]), "aten.ne.Scalar"
        if row is not None and row.op in NOT:
            row, wanted = self._behind(row.reads[0]), "aten.eq.Scalar"
        if row is None or row.op != wanted or not isinstance(row.args[1], int):
            return None
        return _value(row.args[0]), row.args[1]

    def _behind(self, value: AnnotatedValue) -> AnnotatedRow | None:
        """The row that makes a value, behind what changes its form alone."""
        row = self.made.get(value.id)
        while row is not None and row.op in SAME:
            row = self.made.get(row.reads[0].id)
        return row

    def _inputs(self, target: AnnotatedValue) -> set[AnnotatedValue]:
        """What a value is made of, down to inputs and what is held."""
        found: set[AnnotatedValue] = set()
        queue, seen = [target], {target.id}
        while queue:
            value = queue.pop()
            row = self.made.get(value.id)
            if row is None:
                found.add(value)
                continue
            queue += [each for each in row.reads if each.id not in seen]
            seen.update(each.id for each in row.reads)
        return found

    def _first(self, target: AnnotatedValue, source: AnnotatedValue, ignored: int) -> int | None:
        """From which place of a row labels count; None where it is no such rule, or no labels."""
        shape = source.layout.shape[1:]
        if source.id not in self.inputs or source.dtype.is_floating_point or source.dtype == torch.bool:
            return None
        own = (torch.arange(prod(shape)) + max(ignored + 1, 0)).reshape(1, *shape)
        found = self._value_of(target, {source.id: own.to(source.dtype)})
        kept = sorted(found[found != ignored].flatten().tolist())
        if not shape:
            return 0 if kept == own.flatten().tolist() else None
        width = prod(shape[1:])
        first = (own.numel() - len(kept)) // max(width, 1)
        return first if kept == own[:, first:].flatten().tolist() and kept else None

    def is_alike(self, value: AnnotatedValue) -> bool:
        """Whether a constant is the same for all samples."""
        cut = value.layout.cut(ranks=False)
        shape = value.layout.shape
        if cut is None or len(value.layout.dims[cut[0]]) != 1 or not value.constant or prod(shape) > MOST:
            return False
        one, others = (self._value_of(value, {}, at) for at in (FIRST, OTHERS))
        return one.shape[cut[0]] == 1 and torch.equal(one.expand_as(others), others)

    def _value_of(self, value: AnnotatedValue, known: dict[int, Tensor], at: Coordinate = FIRST) -> Tensor:
        """A value of one micro-batch."""
        if value.id not in known:
            row = self.made[value.id]
            args = [self._filled(each, known, at) for each in row.args]
            kwargs = {key: self._filled(each, known, at) for key, each in row.kwargs.items()}
            known[value.id] = kernel(row.op)(*args, **kwargs)
        return known[value.id]

    def _filled(self, argument: object, known: dict[int, Tensor], at: Coordinate) -> object:
        if isinstance(argument, AnnotatedValue):
            return self._value_of(argument, known, at)
        if isinstance(argument, PerCoordinate):
            return argument.at(at)
        if isinstance(argument, (tuple, list)):
            return [self._filled(each, known, at) for each in argument]
        return argument


def _value(argument: object) -> AnnotatedValue:
    assert isinstance(argument, AnnotatedValue), "what is counted is a value"
    return argument
