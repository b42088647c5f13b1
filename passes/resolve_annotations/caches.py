"""What resolving remembers between pairs: parts of annotations and blocks, never a pair."""

from __future__ import annotations

from ...annotations.annotation import _held
from . import cells, sides


def clear_caches() -> None:
    """Forget everything, as in a new process; for measurements."""
    for cached in (_held, sides.side_of, sides.members, cells.block_size, cells.local_boxes, cells._placed):
        cached.cache_clear()
