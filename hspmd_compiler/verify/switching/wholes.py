"""Whole state gathered from all ranks and cut again for another strategy: what a switch must equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...errors import VerifyError
from ...program.program import RankProgram, Shard
from ...program.trained import started, trained_value
from ...runtime.collect import OwnedPiece
from ...runtime.shards import boxes_of, cut_shard, fill_kept, owned_value, place_run
from ...runtime.switching.held import HeldState, StateLayout, TensorKey
from ..values import Rank

CPU = torch.device("cpu")

SHOWN = 20

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Wholes:
    """Whole parameters and buffers, moments by their names, and synchronised gradients, each by parameter."""

    values: Tensors = field(default_factory=dict)
    moments: dict[str, Tensors] = field(default_factory=dict)
    grads: Tensors = field(default_factory=dict)


def gathered(ranks: Sequence[Rank], moments: Mapping[int, Mapping[str, Tensors]]) -> Wholes:
    """Every element from the rank that owns it. moments: by rank, parameter and name; none before a step."""
    found = Wholes()
    for rank in ranks:
        for shard in rank.plan.program.shards:
            name = shard.name
            place(found.values, shard, owned_value(shard, trained_value(shard, rank.state)))
            for moment, value in moments.get(rank.plan.program.rank, {}).get(name, {}).items():
                place(found.moments.setdefault(moment, {}), shard, owned_value(shard, value))
    return found


def place(wholes: Tensors, shard: Shard, row: Tensor) -> None:
    """Put the elements that a rank owns into the whole."""
    piece = OwnedPiece.of(shard)
    if shard.name not in wholes:
        wholes[shard.name] = torch.zeros(piece.shape, dtype=row.dtype)
    place_run(wholes[shard.name], piece.view, piece.boxes, row)


def resliced(wholes: Wholes, program: RankProgram | None) -> HeldState:
    """What a rank starts from when all of this is loaded, as a run that is resumed does."""
    layout = StateLayout.of(program)
    given = {name: cut_shard(shard, wholes.values[name], CPU) for name, shard in layout.shards.items()}
    made = HeldState(layout, started(layout.shards.values(), given))
    for moment, of in wholes.moments.items():
        for name in layout.gradients:
            value = fill_kept(layout.shards[name], boxes_of(layout.shards[name], of[name]), CPU)
            if value.numel():
                made.put((name, moment), value)
    return made


def check_same_bits(
    title: str,
    found: Mapping[int, HeldState],
    wanted: Mapping[int, HeldState],
    keys: Mapping[int, Sequence[TensorKey]],
) -> int:
    """A VerifyError that names every tensor that is another; how many are the same. keys: by world rank."""
    wrong: list[tuple[str, str]] = []
    count = 0
    for rank, of_rank in keys.items():
        for key in of_rank:
            count += 1
            text = _difference(found[rank], wanted[rank], key)
            if text:
                wrong.append((f"world rank {rank}", f"{key[1]} of {key[0]}: {text}"))
    if wrong:
        raise VerifyError(
            f"{title} brings other bits than gathering everything and cutting it again",
            details=[
                *wrong[:SHOWN],
                *([("...", f"{len(wrong) - SHOWN} more")] if len(wrong) > SHOWN else []),
            ],
            rule="a switch changes where state lies, and no bit of it",
            fix="report it with both strategies: the plan, or how it is carried out, is wrong",
        )
    return count


def _difference(found: HeldState, wanted: HeldState, key: TensorKey) -> str:
    if not found.holds(key):
        return "is not there"
    here, there = found.tensor(key).reshape(-1), wanted.tensor(key).reshape(-1)
    if here.dtype != there.dtype or here.shape != there.shape:
        return f"{len(here)} x {here.dtype}, wanted {len(there)} x {there.dtype}"
    differs = (_bits(here) != _bits(there)).view(len(here), -1).any(1) if len(here) else torch.zeros(0)
    if not differs.any():
        return ""
    first = int(differs.nonzero()[0])
    values = f"first {here[first].item()!r}, wanted {there[first].item()!r}"
    return f"{int(differs.sum())} of {len(here)} elements, {values}"


def _bits(row: Tensor) -> Tensor:
    row = row.detach().contiguous()
    return (torch.view_as_real(row) if row.is_complex() else row).contiguous().view(torch.uint8)
