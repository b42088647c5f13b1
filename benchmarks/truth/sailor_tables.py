"""What Sailor publishes beside its points: layer profiles, layer sizes, fits of networks; and data sheets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hspmd_compiler.cluster.cluster import LinkSpec
from hspmd_compiler.cost_models.published.layer_profiles import SizeCurve, size_curve
from hspmd_compiler.cost_models.published.ring import link_of
from hspmd_compiler.errors import EstimateError
from truth.json_file import read_json
from truth.point_file import Place

MEASURED_MB = tuple(0.5 * 2**step for step in range(11))
"""Sizes at which the bandwidth fits are taken at their word: below 0.2 MB they are zero or negative."""

DATA_SHEETS = {
    "GH-96": "GH200-96GB",
    "Titan-RTX": "TITAN-RTX",
    "RTX-2080": "RTX-2080Ti",
    "RTX-3090": "RTX-3090",
    "A100-40": "A100-SXM4-40GB",
    "A100-80": "A100-SXM4-80GB",
    "V100-16": "V100-SXM2-16GB",
}
"""Sailor's names; its RTX-2080 has 11 GiB, which is a 2080 Ti."""

TMP, FOLDER = "profiles_tmp.json", "profiles/"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Widths of a published model that the layer table does not tell."""

    hidden: int
    heads: int
    length: int


MODELS = {
    "OPT-350": ModelFacts(1024, 16, 2048),
    "GPT-Neo-2.7": ModelFacts(2560, 20, 2048),
    "OPT-30": ModelFacts(7168, 56, 2048),
    "LLAMA-3-8": ModelFacts(4096, 32, 8192),
}


@dataclass(frozen=True, slots=True)
class SailorTables:
    """The tables of a `planners` folder. source: of each (model, kind), the file its profile is from."""

    profiles: Mapping[str, Mapping[str, Any]]
    source: Mapping[tuple[str, str], str]
    sizes: Mapping[str, Mapping[str, Any]]
    between: Mapping[str, Any]
    inside: Mapping[str, Any]
    devices: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()
    _curves: dict[tuple[str, str, int, int, int], SizeCurve] = field(default_factory=dict)
    _links: dict[tuple[Place, Place, bool], LinkSpec] = field(default_factory=dict)

    @property
    def layers_of(self) -> dict[str, int]:
        """model -> its number of layers."""
        return {model: len(next(iter(tables.values()))) for model, tables in self.sizes.items()}

    def size(self, model: str, tp: int, layer: int, name: str) -> float:
        """Of one layer on one rank, for one sample; `name` as `params_floats`."""
        table = self.sizes[model].get(str(tp))
        if table is None:
            known = ", ".join(sorted(self.sizes[model]))
            raise EstimateError(f"no layer sizes of {model} at tp {tp}; known: {known}")
        return float(table[str(layer)][name])

    def seconds(self, model: str, place: Place, layer: int, which: int, mbs: float) -> float:
        """Forward (which 0) or backward (1) of one layer, noise repaired, also between measured sizes."""
        key = (model, place.kind, place.tp, layer, which)
        if key not in self._curves:
            points = [
                (float(size), float(layers[str(layer)][which]))
                for size, layers in self.measured(model, place).items()
            ]
            self._curves[key] = size_curve(points)
        return self._curves[key].seconds(mbs)

    def measured(self, model: str, place: Place) -> dict[int, Mapping[str, Any]]:
        """Micro-batch size -> layers, of one kind and degree."""
        table = self.profiles.get(model, {}).get(place.kind, {})
        found = {
            int(size): degrees[str(place.tp)] for size, degrees in table.items() if str(place.tp) in degrees
        }
        if not found:
            raise EstimateError(f"no profile of {model} on {place.kind} at tp {place.tp}")
        return found

    def link(self, one: Place, other: Place, by_nic: bool) -> LinkSpec:
        """Between two nodes: bandwidth of all ranks of the smaller group together, latency refitted.

        by_nic: the slower of what each kind reaches with its own, instead of the pair's own entry.
        """
        key = (one, other, by_nic)
        if key not in self._links:
            used = min(one.tp, other.tp)
            entry = None if by_nic and one.kind != other.kind else self.entry(one, other, used)
            if entry is None and one.kind != other.kind:
                ends = [self.link(end, end, False) for end in (one, other)]
                self._links[key] = min(ends, key=lambda link: link.bandwidth)
            else:
                self._links[key] = aggregate_link(entry or self.coefficients(one, other, used), used)
        return self._links[key]

    def entry(self, one: Place, other: Place, used: int) -> Sequence[Any] | None:
        """What is published of a pair of nodes with so many devices at work on each; else the way back's."""
        for here, there in ((one, other), (other, one)):
            try:
                found = self.between[here.zone][here.kind][str(used)][there.zone][there.kind][str(used)]
            except KeyError:
                continue
            return found  # type: ignore[no-any-return]
        return None

    def coefficients(self, one: Place, other: Place, used: int) -> Sequence[Any]:
        """The published entry of a pair; EstimateError where there is none."""
        found = self.entry(one, other, used)
        if found is None:
            pair = f"{used} {one.kind} in {one.zone} and {used} {other.kind} in {other.zone}"
            raise EstimateError(f"no network figures between {pair}")
        return found

    def inner_link(self, place: Place) -> LinkSpec | None:
        """Of one rank inside a node; the published fits are of n / 2 pairs at once."""
        entry = self.inside.get(place.kind, {}).get(str(place.tp))
        if entry is None:
            return None
        whole = aggregate_link(entry, place.tp)
        return LinkSpec(bandwidth=float(whole.bandwidth) * 2 / place.tp, latency=whole.latency)

    def data_sheet(self, kind: str, name: str) -> float:
        """A figure of the vendor, as `mem_gbps`."""
        row = self.devices.get(DATA_SHEETS.get(kind, kind))
        if row is None:
            raise EstimateError(f"no data sheet of {kind}")
        return float(row[name]["v"])


def bandwidth(entry: Sequence[Any], size_bytes: float) -> float:
    """Bytes per second by a published fit: a polynomial in log2 of MB, highest power first, in GB/s."""
    place = math.log2(size_bytes / 1e6)
    total = 0.0
    for one in entry[0]:
        total = total * place + float(one)
    return total * 1e9


def aggregate_link(entry: Sequence[Any], ranks: int) -> LinkSpec:
    """Latency and bandwidth of so many ranks at once, refitted to where the published fit holds."""
    points = []
    for size in MEASURED_MB:
        speed = min(bandwidth(entry, size * 1e6), float(entry[1]))
        if speed > 0:
            points.append((ranks * size * 1e6, ranks * size * 1e6 / speed))
    if not points:
        raise EstimateError("a network fit is nowhere above zero")
    return link_of(points)


def read_tables(planners: Path, prefer: str = TMP) -> SailorTables:
    """Of a folder laid out as `planners`. prefer: which file's profile is taken where both have one."""
    sailor = planners / "sailor"
    if not sailor.is_dir():
        raise EstimateError(f"{sailor}: no such folder; it holds profiles, network fits and layer sizes")
    sizes = read_json(sailor / "llm_info.json")
    profiles: dict[str, dict[str, Any]] = {}
    source: dict[tuple[str, str], str] = {}
    notes = []
    for name, table in _profile_files(sailor, prefer):
        for model, kinds in table.items():
            for kind, rows in kinds.items():
                problem = _other_layers(rows, sizes.get(model, {}))
                if problem:
                    notes.append(f"{name}: {model} on {kind} is left out: {problem}")
                    continue
                profiles.setdefault(model, {})[kind] = rows
                source[model, kind] = name
    devices = read_json(planners / "devices.json")["devices"]
    return SailorTables(
        profiles,
        source,
        sizes,
        read_json(sailor / "network" / "multizone_bandwidths_het.json"),
        read_json(sailor / "network" / "intra_node_bandwidths.json"),
        {row["name"]: row for row in devices},
        tuple(notes),
    )


def _other_layers(rows: Mapping[str, Any], sizes: Mapping[str, Any]) -> str:
    """What is wrong where a profile has another number of layers than its model; else empty."""
    counts = {len(layers) for degrees in rows.values() for layers in degrees.values()}
    wanted = {len(layers) for layers in sizes.values()}
    if not wanted or counts == wanted:
        return ""
    return f"{sorted(counts)} layers, the model has {sorted(wanted)}"


def _profile_files(sailor: Path, prefer: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The two sources, the preferred one last, for it has the last word."""
    folder: dict[str, dict[str, Any]] = {}
    for path in sorted((sailor / "profiles").glob("*/*/profile.json")):
        folder.setdefault(path.parts[-3], {})[path.parts[-2]] = read_json(path)
    found: list[tuple[str, Mapping[str, Any]]] = [(FOLDER, folder)]
    if (sailor / TMP).is_file():
        found.append((TMP, read_json(sailor / TMP)))
    return sorted(found, key=lambda item: item[0] == prefer)
