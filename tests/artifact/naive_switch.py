"""Plans of a switch as simple as can be: element by element, the first holder sends."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from hspmd_compiler.base.by_key import by_key
from hspmd_compiler.base.dtypes import BYTES
from hspmd_compiler.program.program import RankProgram
from hspmd_compiler.program.switch_plan import VALUE, Move, StatePart, SwitchClass, SwitchPlan, SwitchScope

Cell = tuple[int, ...]


def naive_plan(
    source: str, target: str, before: Mapping[int, RankProgram], after: Mapping[int, RankProgram]
) -> SwitchPlan:
    """Values only, of strategies that view parameters alike."""
    shards = {shard.name: shard for own in before.values() for shard in own.shards}
    classes = []
    for name, shard in sorted(shards.items()):
        had, needed = (_ranks_of(name, programs) for programs in (before, after))
        cells = product(*(range(size) for size in shard.whole_view))
        groups = by_key(((had.get(cell, ()), needed.get(cell, ())), cell) for cell in cells)
        for (holders, needers), of in groups.items():
            boxes = tuple(tuple((at, at + 1) for at in cell) for cell in of)
            classes.append(
                SwitchClass(
                    (VALUE,),
                    BYTES[shard.dtype],
                    holders,
                    needers,
                    (StatePart(name, shard.whole_view, boxes),),
                    tuple(Move(holders[0], rank, 0, len(of)) for rank in needers if rank not in holders),
                )
            )
    return SwitchPlan(source, target, SwitchScope.STATE, tuple(classes))


def _ranks_of(name: str, programs: Mapping[int, RankProgram]) -> dict[Cell, tuple[int, ...]]:
    held = by_key(
        (cell, rank)
        for rank, own in sorted(programs.items())
        for shard in own.shards
        if shard.name == name
        for whole, _ in shard.boxes
        for cell in product(*(range(*side) for side in whole))
    )
    return {cell: tuple(dict.fromkeys(ranks)) for cell, ranks in held.items()}
