"""What the loss of a model is over the samples of a batch, proved from its graph.

The graph is deduced with its samples in two micro-batches on one device, so that rules say which values are
of one sample, which are sums over samples, and which need the whole batch (`batch_forms.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...artifact.proved_loss import LossKind, ProvedLoss
from ...errors import HspmdError
from ...ir.annotated import PipelineGraph
from ...ir.graph import LogicalGraph
from ...strategy.strategy import PipelineSpec, StageSpec, Strategy
from ..annotate import annotate
from ..deduction.deduce_all import deduce
from ..deduction.placement import GraphFacts
from .batch_forms import BatchForms, Form, LossTerm, OfSamples, Unproved

LEAST = 2
"""Samples of which two micro-batches are made."""


@dataclass(frozen=True, slots=True)
class LossOfGraph:
    """loss: what was proved. factors: the numbers that its sums are multiplied by, for each sample."""

    loss: ProvedLoss
    factors: tuple[tuple[str, float], ...] = ()


def prove_loss(graph: LogicalGraph, doubled: LogicalGraph) -> LossOfGraph:
    """graph, doubled: of one model, traced at some samples, two or more, and at twice as many."""
    try:
        forms = BatchForms(in_two(graph), in_two(doubled), graph.batch)
        form = forms.of_loss()
    except HspmdError as error:
        return LossOfGraph(ProvedLoss(why=f"{error.what}"))
    return LossOfGraph(_proved(form), tuple(forms.factors))


def in_two(graph: LogicalGraph) -> PipelineGraph:
    """The graph on one device, with one sample in the first of two micro-batches."""
    stage = StageSpec((0,), (0, max(len(graph.layers), 1)))
    strategy = Strategy((PipelineSpec((stage,), (1, graph.batch - 1)),))
    facts = GraphFacts.of(graph)
    _, placements = annotate(graph, strategy, facts)
    return deduce(graph, 0, strategy.pipelines[0], placements[0], facts)


def of_all(found: Sequence[LossOfGraph]) -> ProvedLoss:
    """What the loss is under all strategies: samples may be of other lengths, but nothing else."""
    losses = list(dict.fromkeys(each.loss for each in found))
    unproved = next((loss for loss in losses if loss.kind is None), None)
    if unproved is not None:
        return unproved
    if len(losses) > 1:
        return ProvedLoss(why=f"it is {' under one strategy, and under another '.join(map(str, losses))}")
    if len({each.factors for each in found}) > 1:
        return ProvedLoss(why="it is a mean over what a sample has more or less of under other strategies")
    return losses[0]


def _proved(form: Form) -> ProvedLoss:
    if isinstance(form, Unproved):
        return ProvedLoss(why=form.why + (f", {form.where}" if form.where else ""))
    if not isinstance(form, OfSamples) or not form.terms:
        return ProvedLoss(why="it is the same for all batches")
    kinds = [_kind(term) for term in sorted(form.terms, key=str)]
    if None in kinds:
        return ProvedLoss(why="it goes by a power of the number of samples")
    if len(kinds) > 1:
        return ProvedLoss(why=f"it adds {_listed(str(kind) for kind in kinds)}")
    (kind,) = kinds
    assert kind is not None, "told above"
    if kind.kind is LossKind.SUM and form.fixed:
        return ProvedLoss(why="it adds what is of no sample, such as a regulariser, to a sum over samples")
    return kind


def _kind(term: LossTerm) -> ProvedLoss | None:
    if term.over is not None:
        return ProvedLoss(LossKind.LABELS, term.over) if not term.power else None
    return {0: ProvedLoss(LossKind.SUM), -1: ProvedLoss(LossKind.SAMPLES)}.get(term.power)


def _listed(texts: Iterable[str]) -> str:
    return " and ".join(texts)
