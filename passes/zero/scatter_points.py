"""When ranks that keep a share of the summed gradients hand the rest of theirs over: ZeRO-2 and -3.

All pipelines meet equally often, as often as the one with the fewest micro-batches has them, and spread
these meetings over their own micro-batches. Nobody waits for ever: a stage sends on what a backward pass
made before it meets the others, and whatever that pass needed of other stages stands before the same
meeting there, since stages run their backward passes in one order and the forwards of an earlier stage
are never behind those of a later one.
"""

from __future__ import annotations

from collections.abc import Sequence


def scatter_points(counts: Sequence[int]) -> list[frozenset[int]]:
    """Per pipeline of so many micro-batches, those behind whose backward pass it meets the others.

    The meeting behind the last micro-batch is left out: it is the end of the step.
    """
    meetings = min(counts)
    return [frozenset(count * k // meetings - 1 for k in range(1, meetings)) for count in counts]
