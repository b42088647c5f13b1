"""Which elements of each kind of state a rank's shards hold and need, and in which tensor they lie. No torch.

A switch moves kinds of state: VALUE, COPY, GRAD, and moments by torch's names (see `switch_plan`). Of a shard
and a kind, `held` and `needed` say which elements, `pairs` where these are in the whole and in the local
tensor, `is_run` whether the rank's tensor of this kind is a flat run of its owned elements in place of the
local tensor, `source_kind` which tensor a holder reads, and `element_type` the type of what moves.
`part_places` turns elements of a plan into boxes of such a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ...base.comm_plan import Box
from ..program import ZERO_GRADS, ZERO_PARAMS, RankProgram, Shard
from ..switch_plan import COPY, GRAD, VALUE, SwitchScope

Gradients = Mapping[str, str]
"""The type that gradients are summed in, by parameter; those that get none are not in it."""


class StateExtent(Enum):
    """Elements of a shard: none, those that its rank owns, or all of its boxes."""

    NONE = "none"
    OWNED = "owned"
    ALL = "all"


def gradients_of(program: RankProgram) -> dict[str, str]:
    """Of the parameters that a step updates on this rank."""
    return {piece.param: bucket.dtype for bucket in program.grad_buckets for piece in bucket.kept}


def kinds_of(scope: SwitchScope, moments: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds that a plan of this scope may move."""
    if scope is SwitchScope.GRADS:
        return (GRAD,)
    return (VALUE, COPY, *moments) if scope is SwitchScope.STATE else (VALUE, COPY)


def held(shard: Shard, kind: str, gradients: Gradients) -> StateExtent:
    """What the rank can give of a kind after a step; a COPY also where it has the VALUE (`source_kind`)."""
    if kind == COPY:
        return StateExtent.ALL if has_copy(shard) else held(shard, VALUE, gradients)
    if kind == VALUE:
        return _trained(shard) if shard.is_flat else StateExtent.ALL
    if shard.name not in gradients:
        return StateExtent.NONE
    if kind == GRAD and shard.zero < ZERO_GRADS:
        return StateExtent.ALL
    return _trained(shard)


def needed(shard: Shard, kind: str, scope: SwitchScope, gradients: Gradients) -> StateExtent:
    """What the rank must have of a kind to go on, in this scope.

    Elements of a COPY whose VALUE the rank needs too do not move: it casts them, once it has the VALUE.
    """
    if kind == COPY:
        return StateExtent.ALL if has_copy(shard) else StateExtent.NONE
    if kind == VALUE and scope is SwitchScope.PARAMS and has_copy(shard):
        return StateExtent.NONE
    if kind == GRAD:
        return _trained(shard) if shard.name in gradients else StateExtent.NONE
    return held(shard, kind, gradients)


def pairs(shard: Shard, extent: StateExtent) -> tuple[tuple[Box, Box], ...]:
    """(box in `whole_view`, box in the local `view`) of these elements, in the order of a run."""
    if extent is StateExtent.ALL:
        return shard.boxes
    return shard.owned if extent is StateExtent.OWNED else ()


def has_copy(shard: Shard) -> bool:
    """Whether the rank keeps a local tensor in the type of segments beside what it trains."""
    return bool(shard.compute) and shard.zero < ZERO_PARAMS


def source_kind(shard: Shard, kind: str) -> str:
    """The kind that a holder reads; a VALUE that is given as a COPY is cast before it is sent."""
    return VALUE if kind == COPY and not has_copy(shard) else kind


def is_run(shard: Shard, kind: str) -> bool:
    """Whether this rank's tensor of a kind is a flat run of `owned`, box after box, each row-major.

    Else it has the elements of the local tensor in the order of the local tensor, whatever its shape.
    """
    if not shard.zero or kind == COPY:
        return False
    if kind == VALUE:
        return shard.is_flat
    return kind != GRAD or shard.zero >= ZERO_GRADS


def element_type(shard: Shard, kind: str, gradients: Gradients) -> str:
    """The type of a kind, by torch's name; moments have that of what is trained."""
    if kind == COPY:
        return shard.local_dtype
    return gradients[shard.name] if kind == GRAD else shard.dtype


def _trained(shard: Shard) -> StateExtent:
    return StateExtent.OWNED if shard.zero else StateExtent.ALL
