"""The ends of a link that differs: a node, a device, a zone or a kind of device, as texts."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple


class EndKind(IntEnum):
    """What an end names; of two links that hold, the one with higher ends does."""

    KIND = 0
    ZONE = 1
    NODE = 2
    DEVICE = 3


class LinkEnd(NamedTuple):
    """name: of the node, zone or kind. local: the device's index on its node."""

    kind: EndKind
    name: str
    local: int = 0


@lru_cache(maxsize=4096)
def link_end(text: str) -> LinkEnd:
    """`zone NAME`, `kind NAME`, `ADDRESS/INDEX` or `ADDRESS`."""
    word, space, name = text.partition(" ")
    if space and word.upper() in ("ZONE", "KIND"):
        return LinkEnd(EndKind[word.upper()], name.strip())
    address, slash, local = text.rpartition("/")
    if slash and local.isdecimal() and len(local) < 10:
        return LinkEnd(EndKind.DEVICE, address, int(local))
    return LinkEnd(EndKind.NODE, text)
