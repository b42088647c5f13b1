"""The link between the devices of a node, as the catalogue has it or as it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..base.quantities import BANDWIDTH, DURATION
from .catalogue import GIGA, LATENCIES, CatalogueDevice
from .link import LinkKind, LinkSpec

FORM = "BANDWIDTH[@LATENCY]"
WANTED = f"nvlink, pcie, or {FORM} with units, such as 25GB/s@5us"


@dataclass(frozen=True, slots=True)
class NodeLink:
    """link: between any two devices. pairs: by local index, where two have another one."""

    link: LinkSpec | None = None
    pairs: tuple[tuple[int, int, LinkSpec], ...] = ()
    notes: tuple[str, ...] = ()


def link_of_text(text: str, kind: LinkKind | None = None) -> LinkSpec:
    """`BANDWIDTH[@LATENCY]`, both with units; ValueError. Without a latency it has the assumed one."""
    bandwidth, sign, latency = text.partition("@")
    if any(part.strip()[-1:].isdecimal() for part in (bandwidth, latency)):
        raise ValueError(f"{FORM} with units, such as 25Gbit or 25Gbit@10us")
    seconds = DURATION.read(latency) if sign else LATENCIES[kind or LinkKind.PCIE]
    return LinkSpec(BANDWIDTH.read(bandwidth), seconds, kind)


def node_link(devices: Sequence[CatalogueDevice | None], choice: str = "") -> NodeLink:
    """Of these devices, in order; None is a cpu. choice: empty for what the catalogue says; ValueError."""
    if choice not in ("", LinkKind.NVLINK, LinkKind.PCIE):
        return NodeLink(_told_link(choice))
    known = [device for device in devices if device is not None]
    if len(known) < max(len(devices), 2):
        return NodeLink()
    without = sorted({device.name for device in known if device.link is None})
    if choice == LinkKind.NVLINK and without:
        raise ValueError(f"{', '.join(without)} has no NVLink")
    pcie = min((device.pcie_link for device in known), key=lambda link: link.bandwidth)
    notes = tuple(dict.fromkeys(f"{one.name}: {one.pcie.note}" for one in known if one.pcie.note))
    if choice == LinkKind.PCIE:
        return NodeLink(pcie, notes=notes)
    if all(device == known[0] for device in known) and known[0].link is not None:
        return _own_link(known[0], len(known), choice, pcie)
    mixed = any(device != known[0] for device in known)
    notes += ("devices of several kinds in a node are taken to meet on PCIe",) if mixed else ()
    return NodeLink(pcie, notes=notes)


def _told_link(choice: str) -> LinkSpec:
    try:
        return link_of_text(choice)
    except ValueError:
        raise ValueError(WANTED) from None


def _own_link(device: CatalogueDevice, count: int, choice: str, pcie: LinkSpec) -> NodeLink:
    """Of equal devices that have NVLink or the like."""
    own = device.own_link
    assert device.link is not None and own is not None
    note = (f"{device.name}: {own.kind}: {device.link.figure.note}",) if device.link.figure.note else ()
    pairs = tuple((low, low + 1) for low in range(0, count - 1, 2))
    if device.board is not None:
        board = replace(own, bandwidth=device.board.link.value * GIGA)
        told = (f"{device.name}: a board shows as {device.board.devices} devices",)
        return NodeLink(own, tuple((*pair, board) for pair in pairs), (*note, *told))
    if not device.link.is_for_pairs:
        return NodeLink(own, notes=note)
    bridged = tuple((*pair, own) for pair in pairs)
    if choice:
        return NodeLink(pcie, bridged, (f"{device.name}: NVLink bridges join pairs",))
    told = (f"{device.name}: no NVLink bridges are assumed; --link nvlink joins pairs by them",)
    return NodeLink(pcie, notes=told)
