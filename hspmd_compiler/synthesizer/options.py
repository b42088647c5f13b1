"""What a search may choose, and by what it prices memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..options import OptimizerConfig


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """zero: ZeRO levels that a parameter's copies may have, 0 for none. factors: whether gradients may be
    computed from gathered factors. recompute: whether layers may keep their inputs alone. memory: whether
    each device's memory is a constraint. bucket_bytes: of gradients that are summed together while backward
    goes on; None: what costs least, 0: all are summed when it has ended. dominance, templates: off only to
    prove that they change no optimum.
    """

    zero: tuple[int, ...] = (0, 1, 2, 3)
    factors: bool = True
    recompute: bool = True
    memory: bool = True
    bucket_bytes: int | None = None
    dominance: bool = True
    templates: bool = True
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


@dataclass(frozen=True, slots=True)
class MemoryPrices:
    """Seconds that a byte on each lane of a machine is priced at; all 0 where everything fits.

    anything: whether any isn't.
    """

    per_byte_s: tuple[float, ...] = ()

    @property
    def anything(self) -> bool:
        return any(self.per_byte_s)
