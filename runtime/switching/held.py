"""What one rank holds of the state of training: which tensor has which kind of which parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from ...program.boxes import volume
from ...program.execute import RankState
from ...program.literals import torch_dtype
from ...program.program import RankProgram, Shard
from ...program.state.state_elements import (
    StateExtent,
    element_type,
    gradients_of,
    has_copy,
    is_run,
    kinds_of,
    needed,
    pairs,
)
from ...program.switch_plan import COPY, GRAD, VALUE, SwitchScope
from ...program.trained import put_in_local

Moments: TypeAlias = dict[str, dict[str, Tensor]]
TensorKey: TypeAlias = tuple[str, str]
"""A parameter or buffer, and a kind of state."""


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Where one rank keeps its state under one strategy. gradients: types, of parameters that are updated."""

    shards: Mapping[str, Shard] = field(default_factory=dict)
    gradients: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, program: RankProgram | None) -> StateLayout:
        """The layout of a rank's program; a rank that a strategy doesn't use keeps nothing."""
        if program is None:
            return cls()
        return cls({shard.name: shard for shard in program.shards}, gradients_of(program))

    def dtype(self, key: TensorKey) -> torch.dtype:
        """The type of a tensor."""
        name, kind = key
        return torch_dtype(element_type(self.shards[name], kind, self.gradients))

    def shape(self, key: TensorKey) -> tuple[int, ...]:
        """The shape of a tensor: of the local tensor, that one flat, or a flat run of owned elements."""
        name, kind = key
        shard = self.shards[name]
        if is_run(shard, kind):
            return (volume([whole for whole, _ in shard.owned]),)
        return (prod(shard.shape),) if shard.is_flat and kind not in (COPY, GRAD) else shard.shape

    def size_bytes(self, key: TensorKey) -> int:
        """The memory of a tensor."""
        return prod(self.shape(key)) * self.dtype(key).itemsize

    def is_covered(self, key: TensorKey) -> bool:
        """Whether a tensor is its elements of the whole, and has nothing between them.

        The local tensor of a gradient is no such one where the rank needs only what it owns of it.
        """
        name, kind = key
        shard = self.shards[name]
        if is_run(shard, kind):
            return True
        return not (kind == GRAD and shard.zero) and _volume(shard, StateExtent.ALL) == prod(shard.shape)

    def needs(self, scope: SwitchScope, moments: tuple[str, ...]) -> Iterator[tuple[TensorKey, int]]:
        """The tensors that a rank goes on with, and how many of their elements a plan brings.

        A COPY of what the rank trains itself is cast, not brought. A moment without elements is none.
        """
        for name, shard in self.shards.items():
            for kind in kinds_of(scope, moments):
                extent = needed(shard, kind, scope, self.gradients)
                size = _volume(shard, extent)
                if extent is StateExtent.NONE:
                    continue
                if kind == COPY and scope is SwitchScope.STATE:
                    size -= _volume(shard, needed(shard, VALUE, scope, self.gradients))
                if kind in (VALUE, COPY) or self.size_bytes((name, kind)):
                    yield (name, kind), size


def _volume(shard: Shard, extent: StateExtent) -> int:
    return volume([whole for whole, _ in pairs(shard, extent)])


@dataclass(slots=True)
class HeldState:
    """A rank's state under one strategy. moments: by parameter, then by torch's name of the moment."""

    layout: StateLayout
    state: RankState[Tensor] = field(default_factory=lambda: RankState({}))
    moments: Moments = field(default_factory=dict)

    def tensor(self, key: TensorKey) -> Tensor:
        """A tensor of the state."""
        home, name = self._home(key)
        return home[name]

    def holds(self, key: TensorKey) -> bool:
        """Whether the tensor is there: moments are not before the first step."""
        home, name = self._home(key)
        return name in home

    def tensor_keys(self) -> tuple[TensorKey, ...]:
        """All tensors that are there."""
        kinds = (VALUE, COPY, GRAD, *dict.fromkeys(kind for of in self.moments.values() for kind in of))
        keys = ((name, kind) for name in self.layout.shards for kind in kinds)
        return tuple(key for key in keys if self._is_kept(key) and self.holds(key))

    def put(self, key: TensorKey, tensor: Tensor) -> None:
        """Take over a tensor."""
        if self._is_moment(key[1]):
            self.moments.setdefault(key[0], {})
        home, name = self._home(key)
        home[name] = tensor

    def drop(self, key: TensorKey) -> None:
        """Let go of a tensor."""
        home, name = self._home(key)
        home.pop(name, None)

    def make(self, key: TensorKey, device: torch.device, is_filled: bool = False) -> None:
        """Put zeros of the right shape and type there, or memory all of which is to be filled."""
        new = torch.empty if is_filled else torch.zeros
        self.put(key, new(self.layout.shape(key), dtype=self.layout.dtype(key), device=device))

    def cast_copies(self, but: Sequence[TensorKey]) -> None:
        """Write what the rank trains into its local tensors in the type of segments, where it has such."""
        for name, shard in self.layout.shards.items():
            if has_copy(shard) and name in self.state.stored and (name, COPY) not in but:
                put_in_local(shard, self.state.stored[name], self.state.params[name])

    def _is_kept(self, key: TensorKey) -> bool:
        name, kind = key
        shard = self.layout.shards[name]
        return has_copy(shard) if kind == COPY else kind != GRAD or name in self.layout.gradients

    def _home(self, key: TensorKey) -> tuple[dict[str, Tensor], str]:
        name, kind = key
        if kind == GRAD:
            return self.state.synced, name
        if kind == COPY:
            return self.state.params, name
        if kind == VALUE:
            return (self.state.stored if self.layout.shards[name].is_flat else self.state.params), name
        return self.moments.get(name, {}), kind

    @staticmethod
    def _is_moment(kind: str) -> bool:
        return kind not in (VALUE, COPY, GRAD)
