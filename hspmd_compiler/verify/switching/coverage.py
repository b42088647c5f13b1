"""A switch plan beside the programs of both strategies: what it moves is held before, and needed after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ...base.comm_plan import Box
from ...errors import VerifyError
from ...program.boxes import volume
from ...program.program import RankProgram, Shard
from ...program.state.part_places import in_view
from ...program.state.state_elements import (
    Gradients,
    StateExtent,
    gradients_of,
    held,
    kinds_of,
    needed,
    pairs,
)
from ...program.switch_plan import COPY, VALUE, SwitchClass, SwitchPlan, SwitchScope

SHOWN = 20
RULE = "every element that a rank needs comes exactly once, from a rank that has it; nothing else does"
FIX = "report it with both strategies: the planner made a wrong plan"

View = tuple[int, ...]
Key = tuple[str, str]
"""A parameter or buffer, and a kind of its state."""


@dataclass(frozen=True, slots=True)
class RankShards:
    """What one world rank keeps under one strategy."""

    shards: Mapping[str, Shard]
    gradients: Gradients

    @classmethod
    def of(cls, program: RankProgram) -> RankShards:
        return cls({shard.name: shard for shard in program.shards}, gradients_of(program))

    def held(self, key: Key, view: View) -> tuple[Box, ...]:
        """Boxes of `view` that the rank can give; none of what it doesn't keep."""
        name, kind = key
        shard = self.shards.get(name)
        return () if shard is None else _boxes(shard, held(shard, kind, self.gradients), view)

    def needed(self, key: Key, view: View, scope: SwitchScope) -> tuple[tuple[Box, ...], tuple[Box, ...]]:
        """Boxes that the rank must have, and of these the ones that it makes itself."""
        name, kind = key
        shard = self.shards.get(name)
        if shard is None:
            return (), ()
        made = StateExtent.NONE
        if kind == COPY:
            made = needed(shard, VALUE, scope, self.gradients)
        wanted = needed(shard, kind, scope, self.gradients)
        return _boxes(shard, wanted, view), () if wanted is StateExtent.NONE else _boxes(shard, made, view)


def check_coverage(
    plan: SwitchPlan,
    before: Mapping[int, RankProgram],
    after: Mapping[int, RankProgram],
    moments: tuple[str, ...],
) -> None:
    """A VerifyError that lists elements that a plan forgets, makes up, or takes from whom lacks them.

    before, after: by world rank. The plan is one that `check_switch_plan` let pass.
    """
    had = {rank: RankShards.of(own) for rank, own in before.items()}
    needs = {rank: RankShards.of(own) for rank, own in after.items()}
    problems = [*_unfounded(plan, had, needs), *_forgotten(plan, needs, moments)]
    if problems:
        left = len(problems) - SHOWN
        raise VerifyError(
            f"the plan {plan.source}:{plan.target} ({plan.scope.value}) does not fit the programs",
            details=[*problems[:SHOWN], *([("...", f"{left} more")] if left > 0 else [])],
            rule=RULE,
            fix=FIX,
        )


def _unfounded(
    plan: SwitchPlan, had: Mapping[int, RankShards], needs: Mapping[int, RankShards]
) -> Iterator[tuple[str, str]]:
    """Elements of a holder that has them not, and of a needer that has no use for them."""
    for each in plan.classes:
        for key, view, boxes in _parts(each):
            told = f"{key[1]} of {key[0]}"
            for rank in each.holders:
                lacking = _outside(boxes, had[rank].held(key, view))
                if lacking:
                    yield (
                        told,
                        f"world rank {rank} of {plan.source} does not hold {lacking} elements that it gives",
                    )
            for rank in each.needers:
                wanted, made = needs[rank].needed(key, view, plan.scope)
                odd = _outside(boxes, wanted) + volume(boxes) - _outside(boxes, made)
                if odd:
                    yield (
                        told,
                        f"world rank {rank} of {plan.target} does not need {odd} elements that it gets",
                    )


def _forgotten(
    plan: SwitchPlan, needs: Mapping[int, RankShards], moments: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Elements that a rank needs and does not get. None comes twice: boxes of a plan never overlap."""
    coming: Counter[tuple[int, Key]] = Counter()
    for each in plan.classes:
        for key, _, boxes in _parts(each):
            coming.update({(rank, key): volume(boxes) for rank in each.needers})
    for rank, own in needs.items():
        for name, shard in own.shards.items():
            for kind in kinds_of(plan.scope, moments):
                wanted, made = own.needed((name, kind), shard.whole_view, plan.scope)
                missing = volume(wanted) - volume(made) - coming[rank, (name, kind)]
                if missing > 0:
                    yield f"{kind} of {name}", f"world rank {rank} of {plan.target} lacks {missing} elements"


def _parts(each: SwitchClass) -> Iterator[tuple[Key, View, tuple[Box, ...]]]:
    for part in each.parts:
        for kind in each.kinds:
            yield (part.name, kind), part.view, part.boxes


@lru_cache(maxsize=65536)
def _boxes(shard: Shard, extent: StateExtent, view: View) -> tuple[Box, ...]:
    """Elements of a shard in another view of the whole; none where this is no such view."""
    if prod(view) != prod(shard.whole_view):
        return ()
    return tuple(box for whole, _ in pairs(shard, extent) for box in in_view(whole, shard.whole_view, view))


@lru_cache(maxsize=65536)
def _outside(boxes: tuple[Box, ...], of: tuple[Box, ...]) -> int:
    """Elements of boxes that lie in none of the others; neither overlap among themselves."""
    return volume(boxes) - sum(_shared(one, other) for one in boxes for other in of)


def _shared(one: Box, other: Box) -> int:
    return prod(
        max(0, min(high, end) - max(low, start)) for (low, high), (start, end) in zip(one, other, strict=True)
    )
