"""How gradients are summed over all pipelines, and stored parameters brought to all of their holders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..compile_state import Shared, Synced, grown
from ..pass_chain import Pass
from ..reductions import reductions
from ..resolve_comm import CommResolver
from ..texts.plan_text import reductions_text


@dataclass(frozen=True, slots=True)
class GradSync(Pass[Shared, Synced]):
    """Elements with the same contributors and holders share a bucket."""

    name: ClassVar[str] = "grad_sync"

    def run(self, state: Shared) -> Synced:
        resolver = CommResolver()
        made = reductions(state.places, state.ownership, state.inside, state.strategy.zero, resolver)
        return grown(Synced, state, resolver=resolver, reductions=made)

    def text(self, before: Shared, after: Synced) -> str:
        return reductions_text(after.reductions)

    def problems(self, before: Shared, after: Synced) -> Iterator[str]:
        """Every gradient is summed, by ranks that are members of its bucket."""
        buckets = {id(bucket): bucket for held in after.reductions.grads.values() for bucket in held}
        summed = {piece.param for bucket in buckets.values() for piece in bucket.pieces}
        trained = {name for name, layout in after.places.gradients.items() if 0 not in layout.shape}
        if trained - summed:
            yield f"no bucket sums the gradients of {sorted(trained - summed)}"
        for rank, held in after.reductions.grads.items():
            yield from (
                f"rank {rank} is not in the group {bucket.group} of its bucket {bucket.id}"
                for bucket in held
                if rank not in bucket.group
            )
