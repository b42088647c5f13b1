"""From recorded calls to an InitProgram: dead calls dropped, each tensor freed after its last use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..base.by_key import by_key
from ..errors import TraceError
from ..program.arguments import leaves
from ..program.init_program import (
    DTYPE,
    FLOAT,
    MEMORY_FORMAT,
    RESEED,
    RESTORE,
    VALUE,
    InitProgram,
    InitStep,
    is_allowed,
)


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """A tensor of the recording, by id."""

    id: int


@dataclass(slots=True)
class Call:
    """A recorded call; args hold Values and torch objects.

    func is None for a control word. writes: memories that it allocates or changes; reads: those that it
    looks at. draw: its number, from 1, among the calls that draw from the default generator, else 0.
    """

    op: str
    func: Callable[..., object] | None
    args: tuple[object, ...]
    kwargs: dict[str, object] = field(default_factory=dict)
    outs: tuple[int, ...] = ()
    writes: frozenset[int] = frozenset()
    reads: frozenset[int] = frozenset()
    is_view: bool = False
    draw: int = 0
    where: str = ""


def live_calls(calls: Sequence[Call], values: set[int], memories: set[int]) -> list[Call]:
    """The calls that these values need, and the random ones that advance the generator before them."""
    values, memories = set(values), set(memories)
    advances = False  # a later call needs the generator as the calls before it leave it
    restored = 0  # the latest draw whose generator state comes back later
    kept: list[Call] = []
    for call in reversed(calls):
        advances = advances or 0 < call.draw <= restored
        if call.op == RESEED:
            needed, advances = advances, False
        elif call.op == RESTORE:
            needed, advances = advances, False
            restored = max(restored, _integer(call.args[0])) if needed else restored
        elif call.is_view:
            needed = call.outs[0] in values
        else:
            needed = bool(call.writes & memories) or (call.draw > 0 and advances)
            advances = advances or (needed and call.draw > 0)
        if needed:
            kept.append(call)
            values.update(value.id for value in values_of((call.args, call.kwargs)))
            memories |= call.reads | call.writes
    return kept[::-1]


def values_of(argument: object) -> list[RecordedTensor]:
    """Every recorded tensor in nested arguments, in order."""
    return [leaf for leaf in leaves(argument) if isinstance(leaf, RecordedTensor)]


def program_of(calls: Sequence[Call], finals: Mapping[str, int], memory_of: Mapping[int, int]) -> InitProgram:
    """The steps of live calls; a name is done after the last change of its memory."""
    calls = live_calls(calls, set(finals.values()), {memory_of[id] for id in finals.values()})
    _check(calls)
    last_write = {memory: place for place, call in enumerate(calls) for memory in call.writes}
    made = {id: place for place, call in enumerate(calls) for id in call.outs}
    done_at = {name: max(last_write[memory_of[id]], made[id]) for name, id in finals.items()}
    last_use = dict(made)
    for place, call in enumerate(calls):
        last_use.update((value.id, place) for value in values_of((call.args, call.kwargs)))
    for name, id in finals.items():
        last_use[id] = max(last_use[id], done_at[name])
    done = by_key((place, name) for name, place in done_at.items())
    frees = by_key((place, id) for id, place in last_use.items())
    draws = {draw: kept for kept, draw in enumerate([0, *(call.draw for call in calls if call.draw)])}
    ids = _Renumbering()
    steps = tuple(
        _step(call, ids, draws, done.get(place, ()), frees.get(place, ())) for place, call in enumerate(calls)
    )
    return InitProgram({name: ids(id) for name, id in finals.items()}, steps)


def _step(
    call: Call, ids: _Renumbering, draws: Mapping[int, int], done: Sequence[str], frees: Sequence[int]
) -> InitStep:
    return InitStep(
        call.op,
        tuple(ids.encode(arg) for arg in _args(call, draws)),
        {key: ids.encode(value) for key, value in call.kwargs.items()},
        tuple(ids(id) for id in call.outs),
        call.draw > 0,
        tuple(done),
        tuple(ids(id) for id in frees),
    )


def _check(calls: Sequence[Call]) -> None:
    bad = [call for call in calls if not is_allowed(call.op)]
    own = [c for c in calls if any(isinstance(a, torch.Generator) for a in (*c.args, *c.kwargs.values()))]
    if bad or own:
        raise TraceError(
            "the model's initialisation can't be recorded",
            at=list(dict.fromkeys(call.where for call in (*bad, *own) if call.where))[:5],
            details=[(call.op, "is no initialiser operator") for call in bad[:5]]
            + [(call.op, "draws from a generator of its own") for call in own[:5]],
            rule="parameters come from aten operators and the default generator, for ranks to replay",
            fix="use torch.manual_seed and torch.nn.init, or give the weights with --init FILE",
        )


def _args(call: Call, draws: Mapping[int, int]) -> tuple[object, ...]:
    """A generator state is named by its draw's number among the kept ones."""
    return (draws[_integer(call.args[0])],) if call.op == RESTORE else call.args


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value


class _Renumbering:
    """Ids in order of appearance, and arguments as JSON values."""

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}

    def __call__(self, id: int) -> int:
        return self._ids.setdefault(id, len(self._ids))

    def encode(self, value: object) -> object:
        match value:
            case RecordedTensor(id=id):
                return {VALUE: self(id)}
            case torch.dtype():
                return {DTYPE: str(value).removeprefix("torch.")}
            case torch.memory_format():
                return {MEMORY_FORMAT: str(value).removeprefix("torch.")}
            case float() if not math.isfinite(value):
                return {FLOAT: str(value)}
            case tuple() | list():
                return [self.encode(item) for item in value]
            case None | bool() | int() | float() | str():
                return value
            case _:
                raise TraceError(f"an initialiser has the argument {value!r}, which can't be stored")
