"""What a deduced step gives: the loss as a share that adds up, and the addends of every gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import DeduceError
from ...ir.annotated import AnnotatedValue, BufferUpdate, GradTerm
from ...ir.graph import Phase, Row
from ...ir.prune import sources
from ...layout.layout import Axis, make_layout, whole
from ...layout.view_maps import deduplicated
from ...rules.rules import is_addend
from .batch_values import among_zeros
from .deduce_moves import settle_ranks
from .grad_terms import terms
from .stages import stage_of_layer

if TYPE_CHECKING:
    from .deducer import Deducer


def add_results(deducer: Deducer, sums: set[int]) -> None:
    """Note the loss and the gradients. sums: rows that grad sync adds."""
    graph = deducer.graph
    stage = max(deducer.stages[graph.loss], 0)
    loss = deducer.value_of(graph.loss, stage)
    assert isinstance(loss, AnnotatedValue)
    deducer.phase = Phase.FORWARD
    deducer.result.loss = deducer.within(graph.rows[graph.loss], loss.stage, lambda: _counted(deducer, loss))
    _add_buffers(deducer)
    deducer.phase = Phase.BACKWARD
    for name, info in graph.params.items():
        if info.grad is not None:
            for row in terms(graph, info.grad, sums):
                _add_grad(deducer, name, row)


def _add_buffers(deducer: Deducer) -> None:
    """New values of buffers, whole, in the stages that hold them."""
    graph = deducer.graph
    of_batch = {name: row for name, row in graph.mutated.items() if deducer.stages[row] >= 0}
    for name, row in of_batch.items():
        deducer.value_of(graph.params[name].row, deducer.stages[row])
        found = deducer.value_of(row, deducer.stages[row])
        assert isinstance(found, AnnotatedValue)
        if found.layout.cut(ranks=False) is not None:
            raise _buffer_refused(graph.rows[row], name, [deducer.stages[row]])
        _update_buffer(deducer, name, row, deducer.stages[row])
    _add_pure_buffers(deducer, {n: row for n, row in graph.mutated.items() if n not in of_batch})
    for name, row in of_batch.items():
        if len(stages := _stages_that_hold(deducer, name)) > 1:
            raise _buffer_refused(graph.rows[row], name, sorted(stages))


def _add_pure_buffers(deducer: Deducer, pure: Mapping[str, int]) -> None:
    """New values from buffers alone, such as a count of steps: every stage that holds one makes its own."""
    for name, row in pure.items():
        if not _stages_that_hold(deducer, name):
            deducer.value_of(deducer.graph.params[name].row, _stage_of_pure(deducer, row))
    made: set[tuple[str, int]] = set()
    while left := [(n, s) for n in pure for s in _stages_that_hold(deducer, n) if (n, s) not in made]:
        for name, stage in left:  # a stage may come to hold another buffer by this
            _update_buffer(deducer, name, pure[name], stage)
        made.update(left)


def _stage_of_pure(deducer: Deducer, row: int) -> int:
    """Where a buffer is updated that nobody reads: where one that it is made of lies, if any."""
    graph = deducer.graph
    names = {info.row: name for name, info in graph.params.items()}
    held = [stage for at in sources(graph, row) for stage in _stages_that_hold(deducer, names.get(at, ""))]
    if held:
        return min(held)
    layer = graph.rows[row].layer
    return 0 if layer is None else stage_of_layer(deducer.pipeline, layer)


def _stages_that_hold(deducer: Deducer, name: str) -> list[int]:
    return [stage for (held, stage) in deducer.result.params if held == name]


def _update_buffer(deducer: Deducer, name: str, row: int, stage: int) -> None:
    found = deducer.value_of(row, stage)
    assert isinstance(found, AnnotatedValue)
    value = deducer.within(deducer.graph.rows[row], stage, lambda: _everybodys(deducer, found))
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
    """A gradient that does not depend on the batch counts once; each sample adds what it alone gives."""
    value = deducer.plain(value)
    if value.layout.cut(ranks=False) is not None:
        return among_zeros(deducer, value)
    batch = _everywhere(deducer) & {Axis.BATCH}
    return deducer.convert(value, make_layout(value.layout.dims, value.layout.partial | batch))


def _one_copy(deducer: Deducer, value: AnnotatedValue) -> AnnotatedValue:
    """Of copies whose last bits may differ the first counts, so that parameters stay equal everywhere."""
    if not value.loose or is_addend(value.layout):
        return value
    if value.layout.cut(ranks=True) is not None:
        return deducer.convert(value, deduplicated(value.layout))
    return deducer.convert(value, make_layout(value.layout.dims, value.layout.partial | {Axis.TENSOR}))
