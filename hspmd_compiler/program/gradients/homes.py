"""Gradients that are added up where they are sent from: in the memory of their bucket, kept between steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ...base.comm_plan import GradBucket, GradPiece
from ..boxes import full_box
from ..program import RankProgram
from ..requests import V

if TYPE_CHECKING:  # prices ask where gradients lie without PyTorch
    from ..arrays import Arrays


@dataclass(frozen=True, slots=True)
class Home:
    """Where the whole local gradient of a parameter lies in a bucket, flat."""

    bucket: GradBucket
    start: int
    length: int

    def of(self, arrays: Arrays[V], flats: MutableMapping[int, V], name: str, shape: tuple[int, ...]) -> V:
        """The gradient in its bucket, which is made where it isn't there yet."""
        part = arrays.part(flat_of(arrays, flats, self.bucket), self.start, self.length)
        return arrays.view(name, part, shape)


def homes_of(own: RankProgram) -> dict[str, Home]:
    """By parameter, in buckets of waves to which the rank gives whole gradients only."""
    given = Counter(piece.param for bucket in own.grad_buckets for piece in bucket.given if piece.src_boxes)
    sizes = {shard.name: prod(shard.shape) for shard in own.shards}
    found: dict[str, Home] = {}
    for bucket in own.grad_buckets:
        alone = all(_is_whole(piece) and given[piece.param] == 1 for piece in bucket.given)
        # A rank may have an addend of what it holds nothing of.
        if bucket.wave < 0 or not alone or any(piece.length != sizes[piece.param] for piece in bucket.given):
            continue
        start = 0
        for piece in bucket.given:
            found[piece.param] = Home(bucket, start, piece.length)
            start += piece.length
    return found


def flat_of(arrays: Arrays[V], flats: MutableMapping[int, V], bucket: GradBucket) -> V:
    """The memory of a bucket: that of the steps before, else new."""
    if bucket.id not in flats:
        length = sum(piece.length for piece in bucket.given)
        flats[bucket.id] = arrays.pack("", None, length, None, None, bucket.dtype)
    return flats[bucket.id]


def filled_flat(
    flats: Mapping[int, V], bucket: GradBucket, grads: Mapping[str, V], homes: Mapping[str, Home]
) -> V | None:
    """The memory of a bucket whose gradients are all in it; None where some aren't, or live elsewhere."""
    at_home = all(piece.param in homes and piece.param in grads for piece in bucket.given)
    return flats[bucket.id] if at_home and bucket.given else None


def _is_whole(piece: GradPiece) -> bool:
    return piece.src_view is not None and piece.src_boxes == (full_box(piece.src_view),)
