"""What a deduced step gives: the loss as a share that adds up, and the addends of every gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..annotations.layout import Axis, make_layout, whole
from ..errors import DeduceError
from ..graph.annotated import AnnotatedValue, BufferUpdate, GradTerm
from ..graph.ir import Phase, Row
from ..graph.rules import is_addend
from ..graph.view_maps import deduplicated
from .deduce_moves import settle_ranks
from .grad_terms import terms
from .stages import stage_of_layer

if TYPE_CHECKING:
    from .deduce import Deducer


def add_results(deducer: Deducer, sums: set[int]) -> None:
    """Note the loss and the gradients. sums: rows that grad sync adds."""
    graph = deducer.graph
    stage = max(deducer.stages[graph.loss], 0)
    loss = deducer.value_of(graph.loss, stage)
    assert isinstance(loss, AnnotatedValue)
    deducer.phase = Phase.FORWARD
    deducer.result.loss = deducer.within(graph.rows[graph.loss], loss.stage, lambda: _counted(deducer, loss))
    for name, row in graph.mutated.items():
        _add_buffer(deducer, name, row)
    deducer.phase = Phase.BACKWARD
    for name, info in graph.params.items():
        if info.grad is not None:
            for row in terms(graph, info.grad, sums):
                _add_grad(deducer, name, row)


def _add_buffer(deducer: Deducer, name: str, row: int) -> None:
    """The new value of a buffer, whole, in the one stage that holds it."""
    graph = deducer.graph
    logical, held = graph.rows[row], graph.params[name].row
    stage = deducer.stages[row]
    if stage < 0:  # from buffers alone, such as a count of steps
        stage = 0 if logical.layer is None else stage_of_layer(deducer.pipeline, logical.layer)
    found = deducer.value_of(row, stage)
    assert isinstance(found, AnnotatedValue)
    deducer.value_of(held, stage)
    others = [s for (other, s) in deducer.result.params if other == name and s != stage]
    if others or found.layout.cut(ranks=False) is not None:
        raise _buffer_refused(logical, name, sorted([stage, *others]))
    value = deducer.within(logical, stage, lambda: _everybodys(deducer, found))
    deducer.place_waiting(value)
    deducer.result.buffers.append(BufferUpdate(name, stage, value))


def _everybodys(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    value = deducer.over_batch(deducer.plain(value))
    return deducer.convert(value, whole(value.layout.shape))


def _buffer_refused(row: Row, name: str, stages: list[int]) -> DeduceError:
    several = len(stages) > 1
    return DeduceError(
        f"the forward updates the buffer {name}, "
        + ("which several stages read" if several else "a value per sample of the batch"),
        at=row.where,
        details=[("stages", str(stages))] if several else [("shape", str(list(row.shape or ())))],
        rule="a buffer that the forward updates is read in one stage, and holds sums over the batch",
        fix="put the layers that read it into one stage" if several else "keep values per sample elsewhere",
    )


def _counted(deducer: Deducer, loss: AnnotatedValue) -> AnnotatedValue:
    """The loss as a share that all ranks and micro-batches can add up."""
    loss = settle_ranks(deducer, deducer.plain(loss))
    return deducer.convert(loss, whole((), _everywhere(deducer)))


def _everywhere(deducer: Deducer) -> frozenset[Axis]:
    """The axes that have more than one coordinate."""
    axes = {Axis.BATCH} if len(deducer.placement.batch) > 1 else set()
    return frozenset(axes | ({Axis.TENSOR} if len(deducer.stage_devices) > 1 else set()))


def _add_grad(deducer: Deducer, name: str, row: int) -> None:
    """One addend of a gradient; a stage that makes one holds the parameter, even where it doesn't use it.

    A layer that is used again in a later stage draws the backward of what lies between to its own stage.
    """
    graph = deducer.graph
    stage = max(deducer.stages[row], 0)
    deducer.value_of(graph.params[name].row, stage)
    found = deducer.value_of(row, stage)
    assert isinstance(found, AnnotatedValue)
    value = deducer.within(graph.rows[row], stage, lambda: _one_copy(deducer, _batch_share(deducer, found)))
    deducer.place_waiting(value)
    deducer.result.grads.append(GradTerm(name, stage, value))


def _batch_share(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """A gradient that does not depend on the batch counts once."""
    value = deducer.plain(value)
    batch = _everywhere(deducer) & {Axis.BATCH}
    return deducer.convert(value, make_layout(value.layout.dims, value.layout.partial | batch))


def _one_copy(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """Of copies whose last bits may differ the first counts, so that parameters stay equal everywhere."""
    if not value.loose or is_addend(value.layout):
        return value
    if value.layout.cut(ranks=True) is not None:
        return deducer.convert(value, deduplicated(value.layout))
    return deducer.convert(value, make_layout(value.layout.dims, value.layout.partial | {Axis.TENSOR}))
