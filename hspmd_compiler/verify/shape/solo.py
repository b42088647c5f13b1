"""One rank alone, by shape: what it asks of others, in order, and the memory that it holds at most.

Answers are by shape too, so that what a rank asks does not depend on its partners. Whether they ask
for the same is for the lockstep to see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ...base.comm_plan import Combine, CommStep
from ...program.boxes import received_volumes, sent_volumes, volume
from ...program.execute import RankPlan, RankState, run_step
from ...program.gradients.homes import flat_of
from ...program.literals import torch_dtype
from ...program.program import KEY_SIZE, ZERO_PARAMS, Program, RankProgram
from ...program.requests import (
    AllReduce,
    Exchange,
    ExchangeStart,
    GradReduce,
    LossReduce,
    OptimizerStep,
    Recv,
    ReduceStart,
    ReduceWait,
    Request,
    Send,
    StepRun,
)
from ...program.sized.documents import documents_key, documents_read
from ..lockstep.blocked import BUCKETS, RankRun
from ..lockstep.lockstep import OF_A_PROGRAM, failed, meets_at_start
from .shape_segments import ShapeBook, ShapeSegments
from .shapes import MemoryBlock, Meter, ShapeArrays, ShapeValue

IDLE = Meter()
"""Charged for what stands for a value and is none."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. slot: of its step in `comms` or `transfers`, or the number of its bucket."""

    position: int
    kind: type
    slot: int
    value: ShapeValue | None


@dataclass(frozen=True, slots=True)
class Script:
    """A step of one rank. peak: most bytes it held at once, without optimizer state."""

    asked: tuple[Asked, ...]
    loss: ShapeValue
    peak: int


def solo(program: Program, plan: RankPlan, book: ShapeBook) -> Script:
    """Walk one rank's step; a VerifyError where it can't be computed."""
    meter = Meter()
    own = replace(plan, program=_distinct(plan.program))
    arrays = ShapeArrays(meter)
    state = _state(own, arrays)
    state.keys = _keys(own, arrays)
    steps = run_step(own, state, _batches(program, own, arrays), ShapeSegments(own, book, meter), arrays)
    run = RankRun(own, state, arrays, steps)
    asked: list[Asked] = []
    numbers = _Numbers(own.program)
    posted: dict[int, ShapeValue] = {}
    started: dict[int, ShapeValue] = {}
    begun: dict[int, ShapeValue] = {}
    try:
        request = next(steps)
        while True:
            asked.append(Asked(state.position, type(request), numbers.of(request), _standing(request)))
            _post_ahead(request, arrays, posted)
            answer = (
                _of_started(request, started) or _begun(request, arrays, begun) or _answer(request, arrays)
            )
            del request
            request = steps.send(answer)
            del answer
    except StopIteration as end:
        return Script(tuple(asked), _like(end.value), meter.peak)
    except OF_A_PROGRAM as error:
        raise failed(run, error) from error


def follow(script: Script, own: RankProgram, state: RankState[ShapeValue]) -> StepRun[ShapeValue]:
    """The same step for a rank that is alike: its own partners, groups and tags."""
    for asked in script.asked:
        state.position, state.slot = asked.position, asked.slot
        yield _request(asked, own)
    state.position = len(own.instructions)
    return script.loss


class FollowedArrays:
    """`Moves` for requests that are followed: the sizes that move. Boxes were checked in the solo walk."""

    def __init__(self) -> None:
        self._sent: dict[int, dict[int, ShapeValue]] = {}

    def cut(self, step: CommStep, source: ShapeValue) -> dict[int, ShapeValue]:
        """See Moves."""
        if id(step) not in self._sent:
            self._sent[id(step)] = {
                peer: ShapeValue((size,), source.dtype, MemoryBlock(IDLE, 0))
                for peer, size in sent_volumes(step).items()
            }
        return self._sent[id(step)]

    def paste(self, step: CommStep, arrived: Mapping[int, ShapeValue]) -> ShapeValue:
        """See Moves."""
        return NOTHING

    def reduce(self, values: Sequence[ShapeValue], combine: Combine) -> ShapeValue:
        """See Moves."""
        return values[0]

    def own(self, value: ShapeValue, into: ShapeValue | None) -> ShapeValue:
        """See Moves."""
        return value


NOTHING = ShapeValue((), torch.float64, MemoryBlock(IDLE, 0))


class _Numbers:
    """Which slot or bucket a request is about."""

    def __init__(self, own: RankProgram) -> None:
        tables: tuple[Sequence[object], ...] = (own.comms, own.transfers, own.grad_buckets)
        self._slots = {id(entry): slot for table in tables for slot, entry in enumerate(table)}

    def of(self, request: Request[ShapeValue]) -> int:
        """Its number; -1 for what has none."""
        if isinstance(request, BUCKETS):
            return self._slots[id(request.bucket)]
        if isinstance(request, (LossReduce, OptimizerStep)):
            return -1
        return self._slots[id(request.step)]


def _distinct(own: RankProgram) -> RankProgram:
    """The tables with an object of its own in each slot, so that a step tells its slot."""
    return replace(
        own,
        comms=[replace(step) for step in own.comms],
        transfers=[replace(step) for step in own.transfers],
        grad_buckets=[replace(bucket) for bucket in own.grad_buckets],
    )


def _state(plan: RankPlan, arrays: ShapeArrays) -> RankState[ShapeValue]:
    """What the rank stores before a step."""
    state: RankState[ShapeValue] = RankState({})
    for name, shard in plan.shards.items():
        if shard.is_flat:
            state.stored[name] = arrays.make((volume(shard.kept),), torch_dtype(shard.dtype))
        if shard.zero < ZERO_PARAMS:
            state.params[name] = arrays.make(shard.shape, torch_dtype(shard.local_dtype))
    for home in plan.homes.values():
        flat_of(arrays, state.flats, home.bucket)
    return state


def _keys(plan: RankPlan, arrays: ShapeArrays) -> list[ShapeValue]:
    """Keys of random masks, where the program draws any."""
    if not plan.shared.draws:
        return []
    return [arrays.make((KEY_SIZE,), torch.int64) for _ in plan.program.rows]


def _batches(program: Program, plan: RankPlan, arrays: ShapeArrays) -> list[dict[str, ShapeValue]]:
    types = {key: (shape, torch_dtype(dtype)) for key, (shape, dtype) in program.inputs.items()}
    for name in documents_read(plan.shared) & types.keys():
        types[documents_key(name)] = types[name][0], torch.int64
    return [
        {
            key: arrays.make(plan.program.micro_shape(key, shape, high - low, mb), dtype)
            for key, (shape, dtype) in types.items()
        }
        for mb, (low, high) in enumerate(plan.program.rows)
    ]


def _standing(request: Request[ShapeValue]) -> ShapeValue | None:
    """The request's value as a type that keeps no memory alive."""
    value = None if isinstance(request, (Recv, ReduceWait, OptimizerStep)) else request.value
    return None if value is None else _like(value)


def _like(value: ShapeValue) -> ShapeValue:
    return ShapeValue(value.shape, value.dtype, MemoryBlock(IDLE, 0), value.stride)


def _of_started(request: Request[ShapeValue], started: dict[int, ShapeValue]) -> ShapeValue | None:
    """A bucket that is under way is held until it is waited for."""
    if isinstance(request, ReduceStart):
        started[request.bucket.id] = request.value
    return started.pop(request.bucket.id, None) if isinstance(request, ReduceWait) else None


def _begun(
    request: Request[ShapeValue], arrays: ShapeArrays, begun: dict[int, ShapeValue]
) -> ShapeValue | None:
    """A collective that starts has memory for its result from then on."""
    if isinstance(request, ExchangeStart) and meets_at_start(request.step):
        result = _answer(Exchange(request.step, request.value), arrays)
        if result is not None:
            begun[request.step.id] = result
    return begun.pop(request.step.id, None) if isinstance(request, Exchange) else None


def _answer(request: Request[ShapeValue], arrays: ShapeArrays) -> ShapeValue | None:
    """What partners would answer. What is sent is held until it is answered."""
    if isinstance(request, AllReduce):
        return arrays.own(request.value, request.value if request.may_overwrite else None)
    if isinstance(request, (GradReduce, LossReduce)):
        return request.value
    if isinstance(request, (OptimizerStep, ReduceStart, ReduceWait)):
        return None
    if isinstance(request, ExchangeStart):
        return request.value
    step = request.step
    source = None if isinstance(request, Recv) else request.value
    held = {} if source is None or step.src_view is None else arrays.cut(step, source)
    if isinstance(request, Send) or step.dst_view is None:
        return None
    return arrays.paste(step, held)


def _post_ahead(request: Request[ShapeValue], arrays: ShapeArrays, posted: dict[int, ShapeValue]) -> None:
    """Receives that are posted hold their memory until they are waited for."""
    if isinstance(request, Recv):
        posted.pop(request.tag, None)
        for step, tag in request.ahead:
            size = sum(received_volumes(step).values())
            posted[tag] = arrays.make((size,), torch_dtype(step.dtype))


def _request(asked: Asked, own: RankProgram) -> Request[ShapeValue]:
    kind, value = asked.kind, asked.value
    if kind is AllReduce:
        return AllReduce(own.comms[asked.slot], _given(value))
    if kind is Exchange:
        return Exchange(own.comms[asked.slot], value)
    if kind is ExchangeStart:
        return ExchangeStart(own.comms[asked.slot], value)
    if kind is Send:
        return Send(own.transfers[asked.slot], _given(value), own.instructions[asked.position].tag)
    if kind is Recv:
        instruction = own.instructions[asked.position]
        return Recv(own.transfers[asked.slot], instruction.tag, instruction.over)
    if kind is GradReduce:
        return GradReduce(own.grad_buckets[asked.slot], _given(value))
    if kind is ReduceStart:
        return ReduceStart(own.grad_buckets[asked.slot], _given(value))
    if kind is ReduceWait:
        return ReduceWait(own.grad_buckets[asked.slot])
    return LossReduce(_given(value)) if kind is LossReduce else OptimizerStep()


def _given(value: ShapeValue | None) -> ShapeValue:
    assert value is not None, "such a request has a value"
    return value
