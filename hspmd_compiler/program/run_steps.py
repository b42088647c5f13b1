"""One rank's steps for one tensor, as requests to a driver."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ..base.comm_plan import CommStep
from .execute import comm_request
from .requests import Request, V


def run_steps(steps: Sequence[CommStep], value: V | None) -> Generator[Request[V], V | None, V | None]:
    """The steps in their order, each with what the one before has left; returns what the last one leaves.

    value: this rank's tensor, None where it holds nothing; it is not changed.
    """
    for step in steps:
        value = yield comm_request(step, value, False)
    return value
