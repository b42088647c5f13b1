"""Figures with units, as people write them: `80GiB`, `25Gbit/s`, `5us`; plain numbers are in base units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, TypeAlias

from .limits import LARGEST
from .typed import Converted, Either, ValueRule, Wanted

NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?)\s*(.*?)\s*", re.ASCII)
LARGEST_FIGURE = 1e30


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is measured: its units by name, in base units. wanted: what an error says a value should be.

    least: what it may not be below, or not reach where it is_above. A unit is found by its exact name,
    else by its name in any case, where only one is called so.
    """

    wanted: str
    units: Mapping[str, float]
    least: float = 0.0
    is_above: bool = True
    most: float = LARGEST_FIGURE

    def read(self, given: str | float) -> float:
        """In base units, of a number or a text of number and unit; ValueError."""
        value = self._parsed(given) if isinstance(given, str) else float(given)
        if not self.holds(value):
            raise ValueError(self.wanted)
        return value

    def holds(self, value: float) -> bool:
        """Whether a value in base units is one."""
        above = value > self.least if self.is_above else value >= self.least
        return above and value <= self.most

    def exact_text(self, value: float, *units: str) -> str | float:
        """A text that is read back as this very value, in the first of these units that is short; else it."""
        for unit in units:
            text = f"{float(f'{value / self.units[unit]:.6g}'):g}{unit}"
            if "e" not in text and self._parsed(text) == value:
                return text
        return value

    def _parsed(self, text: str) -> float:
        found = NUMBER.fullmatch(text)
        unit = None if found is None else self._unit(found[2])
        if found is None or unit is None:
            raise ValueError(self.wanted)
        return float(Decimal(found[1]) * Decimal(repr(unit)))  # so that 5us is 5e-06 to the bit

    def _unit(self, name: str) -> float | None:
        if not name:
            return 1.0
        if name in self.units:
            return self.units[name]
        alike = {size for unit, size in self.units.items() if unit.lower() == name.lower()}
        return alike.pop() if len(alike) == 1 else None


def _powers(base: str, names: Mapping[str, float], *endings: str) -> dict[str, float]:
    """`GB`, `GB/s`, ...: each prefix before the base, each ending behind."""
    return {f"{name}{base}{ending}": size for name, size in names.items() for ending in endings or ("",)}


DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
BINARY = {f"{name}i": 1024.0**power for power, name in enumerate("KMGTP", 1)}
EIGHTHS = {name: size / 8 for name, size in DECIMAL.items()}
PER_SECOND = ("/s", "ps")

BYTE_COUNT = Quantity(
    "bytes above 0, a number or a text such as 80GiB or 80GB",
    _powers("B", DECIMAL) | _powers("B", BINARY),
    most=LARGEST,
)
BANDWIDTH = Quantity(
    "bytes per second above 0, a number or a text such as 25Gbit/s, 100GbE or 12GB/s",
    _powers("B", DECIMAL, *PER_SECOND)
    | _powers("B", BINARY, *PER_SECOND)
    | _powers("bit", EIGHTHS, "", *PER_SECOND)
    | _powers("b", EIGHTHS, *PER_SECOND)
    | {"MbE": 1e6 / 8, "GbE": 1e9 / 8},
)
DURATION = Quantity(
    "seconds, 0 or more, a number or a text such as 5us",
    {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9},
    is_above=False,
)
RATE = Quantity(
    "operations per second above 0, a number or a text such as 312TFLOP/s",
    _powers("FLOP", DECIMAL, "/s", "S") | _powers("OP", DECIMAL, "/s", "S"),
)
PART = Quantity("a part above 0, at most 1, such as 0.4 or 40%", {"%": 0.01}, most=1.0)
POSITIVE = Quantity("a number above 0", {})
PRICE = Quantity("a price of an hour, 0 or more, such as 3.67", {"/h": 1.0}, is_above=False)

Bandwidth: TypeAlias = Annotated[
    float, Either((str,), str, float), Wanted(BANDWIDTH.wanted), Converted(BANDWIDTH.read)
]
Duration: TypeAlias = Annotated[
    float, Either((str,), str, float), Wanted(DURATION.wanted), Converted(DURATION.read)
]
FlopRate: TypeAlias = Annotated[float, Either((str,), str, float), Wanted(RATE.wanted), Converted(RATE.read)]
Part: TypeAlias = Annotated[float, Either((str,), str, float), Wanted(PART.wanted), Converted(PART.read)]
Positive: TypeAlias = Annotated[float, Wanted(POSITIVE.wanted), ValueRule(POSITIVE.holds, POSITIVE.wanted)]
Price: TypeAlias = Annotated[float, Wanted(PRICE.wanted), ValueRule(PRICE.holds, PRICE.wanted)]


def _whole_bytes(given: str | float) -> int:
    return round(BYTE_COUNT.read(given))


ByteCount: TypeAlias = Annotated[
    int, Either((str,), str, float), Wanted(BYTE_COUNT.wanted), Converted(_whole_bytes)
]


def figure_text(value: float, unit: str) -> str:
    """Three digits and a prefix: `2.04 TB/s`; seconds go down to `ns`."""
    prefixes = {-3: "n", -2: "µ", -1: "m", 0: ""} if unit == "s" else dict(enumerate(("", *"kMGTPE")))
    step = math.floor(math.log10(float(f"{value:.3g}")) / 3) if value > 0 else 0
    step = min(max(step, min(prefixes)), max(prefixes))
    return f"{value / 1000.0**step:.3g} {prefixes[step]}{unit}"


def memory_text(size_bytes: int) -> str:
    """`80 GiB`."""
    power = min((max(size_bytes, 1).bit_length() - 1) // 10, len(BINARY))
    return f"{size_bytes / 1024**power:.4g} {['', *BINARY][power]}B"
