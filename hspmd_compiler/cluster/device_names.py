"""Devices of the catalogue by the names that people and drivers write: `A100-80`, `3090`, `Tesla T4`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from ..base.devices import TORCH_NAMES
from .catalogue import CatalogueDevice, catalogue

SILENT = {"cuda", "nvidia", "amd", "tesla", "geforce", "quadro", "instinct", "rtx", "gtx", "graphics", "gpu"}
SILENT |= {"hbm2", "hbm2e", "hbm3", "hbm3e", "oam", "superchip"}
FORMS = ("sxm", "pcie")
SIZE = re.compile(r"([0-9]+)(?:g|gb|gib)?")
MARKS = (
    (re.compile(r"[^a-z0-9]+"), " "),
    (re.compile(r"\b(rtx|gtx|titan)(?=[a-z0-9])"), r"\1 "),
    (re.compile(r"(?<=[0-9])(sxm[0-9]?|pcie)\b"), r" \1"),
    (re.compile(r"\b([0-9]{4}) (ti|super)\b"), r"\1\2"),
    (re.compile(r"\b([0-9]+) (gb|gib|g)\b"), r"\1\2"),
)


@dataclass(frozen=True, slots=True)
class NamedDevice:
    """What a name means. note: where it could mean others, which."""

    device: CatalogueDevice
    note: str = ""


def known_text(*others: str) -> str:
    """Which devices are known, for the end of an error."""
    return f"known devices are {', '.join([*(device.name for device in catalogue()), *others])}"


@cache
def named_device(name: str) -> NamedDevice | None:
    """The device that a name means; None where none does, or where it could be any."""
    exact = [device for device in catalogue() if TORCH_NAMES[device.name] == name.removeprefix("cuda ")]
    if exact:
        return NamedDevice(exact[0])
    words = _words(name)
    fitting = [device for device in catalogue() if _fits(words, device)]
    chips = {_chip(device) for device in fitting}
    if len(chips) != 1:
        return None
    chosen = next((device for device in fitting if device.is_usual), fitting[0])
    others = ", ".join(device.name for device in fitting if device is not chosen)
    return NamedDevice(chosen, f"{name} is taken as {chosen.name}; it could be {others}" if others else "")


def is_named(device: CatalogueDevice, name: str) -> bool:
    """Whether the name may mean this device, among others."""
    return _fits(_words(name), device)


def _words(name: str) -> frozenset[str]:
    text = name.lower()
    for pattern, written in MARKS:
        text = pattern.sub(written, text)
    return frozenset(text.split()) - SILENT


def _chip(device: CatalogueDevice) -> str:
    """`a100` of `A100-SXM4-80GB`."""
    words = _words(device.name)
    return next(word for word in sorted(words) if not word.startswith(FORMS) and not word.endswith("gb"))


def _fits(words: frozenset[str], device: CatalogueDevice) -> bool:
    """Whether the chip is named, and all that is said beside it holds."""
    chip = _chip(device)
    if chip not in words:
        return False
    own = _words(device.name)
    return all(
        word in own or any(one.startswith(word) for one in own if word in FORMS) or _is_size(word, device)
        for word in words - {chip}
    )


def _is_size(word: str, device: CatalogueDevice) -> bool:
    found = SIZE.fullmatch(word)
    return found is not None and int(found[1]) in (device.memory_gib.value, *device.sizes_in_names)
