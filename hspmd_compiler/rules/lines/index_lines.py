"""The table's lines of lookups: embeddings, dims that tensors of places index, places among bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.graph import Row
from ...ir.own_names import CHECKED
from ..in_code.index_bounds import checked_index
from ..in_code.index_put_rules import PUTS, index_put
from ..in_code.lookup_rules import (
    EMBEDDING,
    EMBEDDING_BACKWARD,
    INDEXING,
    embedding,
    embedding_backward,
    index,
)
from ..op_apply import line, put
from ..op_rule import Linear, OpRule, Ranks, by_ranks, parse
from ..rules import items

PICKED = "elements of it are picked by an index"

line(EMBEDDING, "v d, ... -> ... d", sum="v", code=embedding, flops=0)
line(EMBEDDING_BACKWARD, "... d, ... -> v d", sum="...", linear=Linear.FIRST, code=embedding_backward)
line(CHECKED, "... -> ...", emit=checked_index)
line("aten.searchsorted.Tensor", "bound, ... -> ...", whole="bound")
line("aten.bucketize.Tensor", "..., bound -> ...", whole="bound")


def _index(row: Row, ranks: Ranks) -> OpRule:
    """Indexed dims are whole; the places' own dims stand where the indexed ones did, or in front."""
    given, dims = items(row.args[1]), _letters("d", ranks[0])
    places = [place for place, item in enumerate(given) if item is not None]
    picked = _letters("i", max(rank or 0 for rank in ranks[1:]))
    kept = [name for place, name in enumerate(dims) if place not in places]
    start = places[0] if _neighbours(places) else 0
    found = [*kept[:start], *picked, *kept[start:]]
    if len(found) != len(row.shape or ()):
        return _masked(row, ranks)
    indices = [picked[len(picked) - (rank or 0) :] for rank in ranks[1:]]
    whole = {dims[place] for place in places}
    more = {"linear": Linear.EACH, "carries": (0,), "code": index, "why": PICKED}
    return _line(row, [dims, *indices], found, whole, **more)


def _masked(row: Row, ranks: Ranks) -> OpRule:
    """A mask of truth values stands for several dims: all are whole."""
    tensors = [_letters(f"m{place}x", rank) for place, rank in enumerate(ranks)]
    whole = {name for names in tensors for name in names}
    return _line(row, tensors, _letters("r", len(row.shape or ())), whole, code=index)


def _index_put(row: Row, ranks: Ranks) -> OpRule:
    """Dims before the first index are parallel, all others whole."""
    base, *indices, values = ranks
    dims, places = _letters("d", base), [place for place, rank in enumerate(indices) if rank is not None]
    first, put_rank = places[0], values or 0
    behind = len(dims) - first - len(places) + max(rank or 0 for rank in indices)
    kept = first if _neighbours(places) and put_rank in (*range(behind + 1), first + behind) else 0
    shared = kept if put_rank > behind else 0
    added = [*dims[:shared], *_letters("y", put_rank - shared)]
    tensors = [dims, *(_letters(f"i{place}x", rank) for place, rank in enumerate(indices)), added]
    whole = {name for names in tensors for name in names} - set(dims[:kept])
    return _line(row, tensors, dims, whole, code=index_put)


def _letters(name: str, rank: int | None) -> list[str]:
    return [f"{name}{place}" for place in range(rank or 0)]


def _neighbours(places: Sequence[int]) -> bool:
    return list(places) == list(range(places[0], places[-1] + 1))


def _line(
    row: Row, operands: Sequence[Sequence[str]], result: Sequence[str], whole: set[str], **more: Any
) -> OpRule:
    text = f"{', '.join(map(' '.join, operands))} -> {' '.join(result)}"
    return parse(row.op, text, whole=" ".join(sorted(whole)), **more)


for _op in INDEXING:
    put(OpRule(_op, by_shapes=by_ranks(_index)))
for _op in PUTS:
    put(OpRule(_op, by_shapes=by_ranks(_index_put)))
