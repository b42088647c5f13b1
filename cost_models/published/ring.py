"""Seconds of an exchange on links with a latency and a bandwidth: point to point, and rings."""

from __future__ import annotations

from collections.abc import Sequence

from ...cluster.link import LinkSpec
from .nonnegative import Point, affine_fit

WIDEST = 1e15
"""Bytes per second of a link whose measured times do not grow with the size."""


def link_of(points: Sequence[Point]) -> LinkSpec:
    """Latency and bandwidth from measured (bytes, seconds), neither negative, by relative error."""
    fit = affine_fit(points)
    return LinkSpec(bandwidth=1 / fit.each_s if fit.each_s > 0 else WIDEST, latency=fit.fixed_s)


def message_s(link: LinkSpec, size_bytes: float) -> float:
    """Seconds of one message that has the link for itself."""
    return link.latency + size_bytes / link.bandwidth if size_bytes else 0.0


def all_reduce_s(link: LinkSpec, size_bytes: float, members: int, sharing: int = 1) -> float:
    """A ring over the slowest link of its members: 2 (n - 1) rounds, each of a n-th of the bytes.

    sharing: rings that cross that link at once, as those of a node's tensor-parallel ranks share its NIC.
    """
    if members <= 1 or not size_bytes:
        return 0.0
    rounds = 2 * (members - 1)
    return rounds * link.latency + rounds / members * size_bytes * sharing / link.bandwidth


def all_gather_s(link: LinkSpec, size_bytes: float, members: int, sharing: int = 1) -> float:
    """Half of an all-reduce; `size_bytes` of what every member has in the end."""
    return all_reduce_s(link, size_bytes, members, sharing) / 2
