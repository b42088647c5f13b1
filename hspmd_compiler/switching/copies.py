"""Who keeps copies of what too few nodes have, so that any `lost` nodes leave each element somewhere.

Variables: the ranks that keep a copy of each piece, a part of a parameter with the same owners. Constraint:
owners and copies of a piece are on lost + 1 nodes, or on all that there are. Objective: ranks that have the
piece's gradient anyway come first, as nothing is sent to them; among equals, the least of the largest load.
Greedy, largest piece first: no bound of the largest load is proved, as who may keep a piece differs by piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..base.collection import without_collection
from ..base.dtypes import BYTES
from ..program.boxes import volume
from ..program.program import Shard
from ..program.state.state_copies import StateCopies, copies_as_program, copy_of
from ..program.state.state_elements import gradients_of
from ..program.switch_plan import VALUE, StatePart, SwitchClass, SwitchPlan, SwitchScope
from .element_classes import element_classes
from .kept_state import KeptState, Programs
from .links import SwitchLinks
from .plan import plan_switch


@dataclass(frozen=True, slots=True)
class CopiedPiece:
    """Elements with the same owners. near: ranks that have their gradient. size_bytes: of one copy."""

    part: StatePart
    owners: tuple[int, ...]
    near: tuple[int, ...]
    size_bytes: int


@dataclass(slots=True)
class CopyPlaces:
    """Pieces and who is to keep copies of them. survived: any so many nodes may be lost."""

    nodes: Sequence[int]
    survived: int
    loads: list[int] = field(default_factory=list)
    boxes: dict[tuple[int, str], list[StatePart]] = field(default_factory=dict)

    def place(self, piece: CopiedPiece, lost: int) -> None:
        """Choose ranks of other nodes until the piece is on lost + 1 of them."""
        used = {self.nodes[rank] for rank in piece.owners}
        while len(used) <= lost:
            free = [rank for rank, node in enumerate(self.nodes) if node not in used]
            if not free:
                break
            chosen = min(free, key=lambda rank: (rank not in piece.near, self.loads[rank], rank))
            self.loads[chosen] += piece.size_bytes
            self.boxes.setdefault((chosen, piece.part.name), []).append(piece.part)
            used.add(self.nodes[chosen])
        self.survived = min(self.survived, len(used) - 1)


def plan_copies(
    programs: Programs, links: SwitchLinks, lost: int, moments: tuple[str, ...], changing: frozenset[str]
) -> StateCopies:
    """The copies that let any `lost` nodes go; equal programs give equal copies.

    programs: by world rank. links: of all world ranks, also of those that the strategy leaves idle, which
    may keep copies. changing: buffers that a step writes.
    """
    with without_collection():
        shards = {shard.name: shard for own in programs.values() for shard in own.shards}
        gradients = {name: kind for own in programs.values() for name, kind in gradients_of(own).items()}
        places = CopyPlaces(links.nodes, lost, [0] * len(links.nodes))
        pieces = _pieces(programs, shards, gradients, moments)
        for piece in sorted(pieces, key=lambda each: (-each.size_bytes, each.part.name, each.owners)):
            places.place(piece, lost)
    copied = tuple(_shards_at(places, rank, shards) for rank in range(len(links.nodes)))
    return _planned(programs, links, copied, gradients, moments, changing, lost, places.survived)


def _pieces(
    programs: Programs, shards: Mapping[str, Shard], gradients: Mapping[str, str], moments: tuple[str, ...]
) -> Iterator[CopiedPiece]:
    """All elements: those that are trained by who trains them, others by who has them."""
    kept = KeptState.of(programs, programs)

    def size(part: StatePart, kinds: int) -> int:
        return volume(part.boxes) * BYTES[shards[part.name].dtype] * kinds

    for each in element_classes(kept, SwitchScope.GRADS, ()):
        for part in each.parts:
            yield CopiedPiece(part, each.needers, each.holders, size(part, 1 + len(moments)))
    for each in element_classes(kept, SwitchScope.STATE, ()):
        for part in each.parts if VALUE in each.kinds else ():
            if part.name not in gradients:
                yield CopiedPiece(part, each.holders, (), size(part, 1))


def _shards_at(places: CopyPlaces, rank: int, shards: Mapping[str, Shard]) -> tuple[Shard, ...]:
    """The copies of a rank, in the order of the model."""
    found = []
    for name, shard in shards.items():
        parts = places.boxes.get((rank, name))
        if parts:
            boxes = sorted(box for part in parts for box in part.boxes)
            found.append(copy_of(shard, parts[0].view, boxes))
    return tuple(found)


def _planned(
    programs: Programs,
    links: SwitchLinks,
    copied: tuple[tuple[Shard, ...], ...],
    gradients: dict[str, str],
    moments: tuple[str, ...],
    changing: frozenset[str],
    wanted: int,
    survived: int,
) -> StateCopies:
    targets = {rank: copies_as_program(shards, programs) for rank, shards in enumerate(copied) if shards}
    changed = {
        rank: replace(own, shards=[shard for shard in own.shards if shard.name in changing])
        for rank, own in targets.items()
    }
    make = plan_switch(programs, targets, links, names=("state", "copies"), moments=moments)
    buffers = plan_switch(programs, changed, links, names=("buffers", "copies"))
    each_step = plan_switch(programs, targets, links, names=("gradients", "copies"), scope=SwitchScope.GRADS)
    names = {shard.name for shards in copied for shard in shards}
    types = {name: kind for name, kind in gradients.items() if name in names}
    memory = [_memory_bytes(shards, types, len(moments)) for shards in copied]
    sent = sum(
        (move.high - move.low) * each.element_bytes
        for plan in (each_step, buffers)
        for each in plan.classes
        for move in each.moves
    )
    return StateCopies(
        copied, types, make, each_step, buffers, wanted, survived, max(memory, default=0), sent
    )


def _memory_bytes(shards: Sequence[Shard], gradients: Mapping[str, str], moments: int) -> int:
    total = 0
    for shard in shards:
        size = BYTES[shard.dtype]
        if shard.name in gradients:
            size += moments * BYTES[shard.dtype] + BYTES[gradients[shard.name]]
        total += volume([whole for whole, _ in shard.owned]) * size
    return total


def plan_restored(
    before: Programs,
    copies: Programs,
    after: Programs,
    links: SwitchLinks,
    names: tuple[str, str],
    moments: tuple[str, ...],
) -> tuple[SwitchPlan, SwitchPlan]:
    """What comes from copies since nobody in `before` has it, and what nobody has at all.

    All by world rank. Copies are planned as those of a second rank on the same node, then both are one again.
    """
    world = len(links.nodes)
    doubled = replace(links, nodes=(*links.nodes, *links.nodes))
    own = {world + rank: program for rank, program in copies.items()}
    plan = plan_switch({**before, **own}, after, doubled, names=names, moments=moments, missing_ok=True)
    restored = [_as_one(each, world) for each in plan.classes if each.holders and min(each.holders) >= world]
    return replace(plan, classes=tuple(restored)), replace(plan, classes=plan.orphans())


def _as_one(each: SwitchClass, world: int) -> SwitchClass:
    holders = tuple(rank - world for rank in each.holders)
    moves = (
        replace(move, source=source, is_relay=move.is_relay and source not in holders)
        for move in each.moves
        if (source := move.source % world) != move.target and move.target not in holders
    )
    return replace(each, holders=holders, moves=tuple(moves))
