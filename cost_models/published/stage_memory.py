"""Peak bytes of a rank of a pipeline stage, by formula: for plans of which there is no program.

A program's own peak follows from what it saves; this is for published plans, and for searching.
"""

from __future__ import annotations

from dataclasses import dataclass

STATE_BYTES = 20
"""Bytes a parameter. In fp32: weight 4, gradient 4, Adam's moments 8, flat reduction buckets 4. In mixed
fp16: weight 2, gradient 2, main weight 4, moments 8, gradient reduced in fp32 4."""
BOUNDARY_TENSORS = 3
"""Of a stage that has a neighbour: what arrives, what leaves, and a gradient on its way."""
USABLE = 0.95
"""Part of a device's memory that a step may plan with: the rest is lost to fragments."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What a rank of one stage holds, in bytes; see `peak_bytes`.

    parameters: of this rank, a tied head's second copy among them. kept_bytes: saved for backward per
    micro-batch. transient_bytes: the largest thing that comes and goes within a layer. boundary_bytes: of
    one tensor between stages. platform_bytes: what the device reports as used before any tensor is there,
    communicators up; measured, or stated by whoever published.
    """

    parameters: float
    kept_bytes: float
    transient_bytes: float
    boundary_bytes: float
    platform_bytes: float

    def peak_bytes(self, in_flight: int, stages: int) -> float:
        """With so many micro-batches kept at once."""
        boundary = BOUNDARY_TENSORS * self.boundary_bytes if stages > 1 else 0.0
        kept = self.kept_bytes * in_flight
        return STATE_BYTES * self.parameters + kept + self.transient_bytes + boundary + self.platform_bytes


def in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """Micro-batches that a stage keeps at once in 1F1B: never more than there are."""
    return min(stages - stage, micro_batches)


def fits(peak_bytes: float, capacity_bytes: float) -> bool:
    """Whether a peak can be planned with on a device of this memory."""
    return peak_bytes <= USABLE * capacity_bytes
