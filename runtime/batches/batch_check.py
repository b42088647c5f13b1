"""Whether ranks were given the same batch: one number of each rank, zero in sum where batches are alike."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import cast

import torch
from torch import Tensor

from ...errors import RunError
from ..start.same_start import by_value, unlike
from ..transport import Transport

MODULUS = 2**40 - 87
"""A prime; the sum of as many numbers below it as there are ranks is exact in float64."""
SAME_SEED = (
    "seed torch, NumPy and Python alike on every rank before the data are made, and shuffle by that seed"
)
FIXES = {
    False: f"{SAME_SEED}; or give each rank its own rows, by step(..., local=True)",
    True: SAME_SEED,
}
RULES = {
    False: "every rank gives the same global batch to each step, bit for bit",
    True: "ranks that take the same rows of the global batch are given the same values of them",
}

Settings = Mapping[str, str]
"""What a rank takes a step with, by name."""
SAME_SETTINGS = "all ranks take a step with the same rate and seed, and in the same parts"


@dataclass(frozen=True, slots=True)
class _Reader:
    """What one rank says of itself: the rows that it takes, and the inputs that it reads of them."""

    rows: tuple[tuple[int, int], ...]
    keys: tuple[str, ...]


class BatchCheck:
    """Compares the batches of all ranks, by one addend per rank to a sum that is formed anyway.

    The factors of ranks that must hold the same value sum to zero, so that the sum of factor times
    digest is zero where the digests are equal, and by chance only (1 in 2**32) where they aren't.
    """

    def __init__(self, transport: Transport, rows: Iterable[tuple[int, int]], keys: Iterable[str]) -> None:
        self._transport = transport
        self._own = _Reader(tuple(rows), tuple(sorted(keys)))
        self._readers: list[_Reader] | None = None
        self._factors: dict[tuple[str, bool], int] = {}

    def addend(self, batch: Mapping[str, Tensor], local: bool, settings: Settings) -> int:
        """This rank's part of the sum; local: the batch holds its own rows only. settings: alike for all."""
        if self._transport.world_size == 1:
            return 0
        if local and self._readers is None:  # also a rank that reads nothing itself
            self._readers = cast(list[_Reader], self._transport.gather_objects(self._own))
        own = sum(self._factor(key, local) * digest(batch[key]) for key in self._keys(batch, local))
        said = (self._factor(name, False) * zlib.crc32(text.encode()) for name, text in settings.items())
        return (own + sum(said)) % MODULUS

    def check(
        self, total: float, batch: Mapping[str, Tensor], local: bool, step: int, settings: Settings
    ) -> None:
        """RunError on every rank where the sum says that batches or settings differ."""
        if int(total) % MODULUS == 0:
            return
        own = {key: digest(batch[key]) for key in self._keys(batch, local)}
        told = cast(list[tuple[dict[str, int], Settings]], self._transport.gather_objects((own, settings)))
        wrong = self._unlike([digests for digests, _ in told], local)
        others = unlike({rank: said for rank, (_, said) in enumerate(told)})
        raise RunError(
            f"the ranks have different {'batches' if wrong else 'settings'} in step {step}",
            details=[*wrong, *others],
            rule=RULES[local] if wrong else SAME_SETTINGS,
            fix=FIXES[local] if wrong else "set them alike on every rank",
        )

    def _unlike(self, told: Sequence[Mapping[str, int]], local: bool) -> list[tuple[str, str]]:
        groups = ((key, self._members(key, local, rank)) for rank in range(len(told)) for key in told[rank])
        found = {
            (key, tuple(members)): by_value({rank: f"{told[rank][key]:08x}" for rank in members})
            for key, members in groups
            if len({told[rank].get(key) for rank in members}) > 1
        }
        return [(key, f"digest of {text}") for (key, _), text in found.items()]

    def _keys(self, batch: Mapping[str, Tensor], local: bool) -> Sequence[str]:
        return self._own.keys if local else sorted(batch)

    def _factor(self, key: str, local: bool) -> int:
        if (key, local) not in self._factors:
            rank = self._transport.rank
            first, *others = self._members(key, local, rank)
            drawn = {other: _drawn(key, other) for other in others}
            self._factors[key, local] = -sum(drawn.values()) if rank == first else drawn[rank]
        return self._factors[key, local]

    def _members(self, key: str, local: bool, rank: int) -> Sequence[int]:
        """The ranks that must hold of this input what `rank` holds."""
        if not local:
            return range(self._transport.world_size)
        assert self._readers is not None, "gathered before the first addend"
        rows = self._readers[rank].rows
        return [i for i, each in enumerate(self._readers) if each.rows == rows and key in each.keys]


def digest(tensor: Tensor) -> int:
    """A number of 32 bits from the bits of a tensor, the same wherever it lies."""
    held = tensor.detach().cpu().contiguous()
    return zlib.crc32(held.reshape(-1).view(torch.uint8).numpy().data) if held.numel() else 0


def _drawn(key: str, rank: int) -> int:
    return int.from_bytes(sha256(f"{rank} {key}".encode()).digest()[:5], "big") % MODULUS
