"""What a run would save: every element from the rank that owns it, under the names that the model saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import torch
from torch import Tensor, nn

from ..base.by_key import by_key
from ..base.comm_plan import Box
from ..errors import VerifyError
from ..program.boxes import volume
from ..program.literals import torch_dtype
from ..program.program import Program, Shard
from ..program.trained import trained_value
from ..runtime.collect import OwnedPiece
from ..runtime.shards import owned_value, place_run
from .shape.coverage import overlapping
from .values import Rank

RULE = "each element of a parameter is owned by exactly one rank, which saves it and counts it in the norm"
FIX = "report it with the strategy: the compiler made a wrong program"


def check_owned(program: Program) -> None:
    """Raise for elements that no rank owns, or two: they would be saved as zeros, or counted twice."""
    by_name = by_key((shard.name, (own.rank, shard)) for own in program.ranks for shard in own.shards)
    problems = [(name, text) for name, held in by_name.items() for text in _problems(held)]
    if problems:
        raise VerifyError(
            "parameters are not owned as they must be", details=problems[:20], rule=RULE, fix=FIX
        )


def _problems(held: Sequence[tuple[int, Shard]]) -> Iterator[str]:
    whole = held[0][1].whole_view
    boxes: dict[int, list[Box]] = {rank: [box for box, _ in shard.owned] for rank, shard in held}
    if any(shard.whole_view != whole for _, shard in held):
        yield f"rank {held[0][0]} and others view the whole in different ways"
        return
    found, size = sum(volume(of) for of in boxes.values()), prod(whole)
    if found != size:
        yield f"ranks {', '.join(map(str, boxes))} own {found} of {size} elements"
        return
    pair = overlapping([box for of in boxes.values() for box in of])
    if pair is not None:
        owners = [rank for box in pair for rank, of in boxes.items() if box in of]
        yield f"boxes {pair[0]} and {pair[1]} of ranks {owners[0]} and {owners[-1]} overlap"


def saved_state(program: Program, ranks: Sequence[Rank]) -> dict[str, Tensor]:
    """What `state_dict` of an engine gives: whole tensors by the model's names, aliases too."""
    wholes: dict[str, Tensor] = {}
    for rank in ranks:
        for shard in rank.plan.program.shards:
            if shard.persistent:
                piece = OwnedPiece.of(shard)
                empty = torch.zeros(piece.shape, dtype=torch_dtype(piece.dtype))
                row = owned_value(shard, trained_value(shard, rank.state))
                place_run(wholes.setdefault(shard.name, empty), piece.view, piece.boxes, row)
    return wholes | {alias: wholes[name] for alias, name in program.aliases.items() if name in wholes}


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """What the model saves, by all of its names."""
    held: dict[str, Tensor] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        unsaved = module._non_persistent_buffers_set
        own = {**module._parameters, **{k: v for k, v in module._buffers.items() if k not in unsaved}}
        at = f"{prefix}." if prefix else ""
        held |= {at + name: value.detach() for name, value in own.items() if value is not None}
    return held


def check_names(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """The names of a saved state are those of the model's state dict; a VerifyError with every other one."""
    odd = [(name, "is not in the model's state dict") for name in sorted(found.keys() - wanted.keys())]
    odd += [(name, "is not saved") for name in sorted(wanted.keys() - found.keys())]
    if odd:
        raise VerifyError(
            "what is saved is not the model's state dict",
            details=odd,
            rule="a run saves every parameter and persistent buffer, by all of its names",
            fix=FIX,
        )
