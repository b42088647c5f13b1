"""Conversions of several cuts priced by bytes alone: small tensors take several rounds, as large ones do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hspmd_compiler.passes import resolve_layouts, resolve_rounds
from hspmd_compiler.passes.resolve_annotations.price import FlatCost


@contextmanager
def by_bytes() -> Iterator[None]:
    """Steps and messages cost nothing; plans that were made before are made again, and not kept."""
    cached = (resolve_layouts.plan, resolve_rounds.rounds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve_layouts, "FLAT", FlatCost(latency=0.0, message=0.0))
        for each in cached:
            each.cache_clear()
        yield
    for each in cached:
        each.cache_clear()
