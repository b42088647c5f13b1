"""How much longer ranks of one machine take that compute at once: of the same work, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..cluster.calibration import AtOnce


def counts_at_once(ranks: int, cores: int) -> list[int]:
    """One, two and so on in powers of two; as many as have a processor each; all."""
    powers = {1 << shift for shift in range(ranks.bit_length())}
    return sorted(count for count in powers | {min(cores, ranks), ranks} if count <= ranks)


def slowed_by(taken: Sequence[Sequence[Mapping[int, float]]], usual: int) -> tuple[AtOnce, ...]:
    """Factors by the number of ranks at once, in parts of what they take when `usual` compute at once.

    taken: of each rank, turn by turn, seconds of work by that number. A turn's numbers follow on each other,
    so that a slow while meets all of them; the median of the turns counts.
    """
    turns = list(zip(*taken, strict=True))
    counts = sorted({count for turn in turns for each in turn for count in each})
    found = []
    for count in counts:
        factors = [_mean(turn, count) / _mean(turn, usual) for turn in turns]
        factor = float(np.median(factors))
        spread = float(np.median(np.abs(np.array(factors) / factor - 1.0)))
        found.append(AtOnce(count, factor, spread))
    return tuple(found)


def _mean(turn: Sequence[Mapping[int, float]], count: int) -> float:
    """Seconds of a rank, of all that computed."""
    return float(np.mean([each[count] for each in turn if count in each]))
