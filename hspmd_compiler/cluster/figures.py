"""A device's figures for people, each with where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..base.quantities import figure_text, memory_text
from .catalogue import CatalogueDevice, Figure, FigureStatus
from .cluster import EFFICIENCY, HALVES, MEMORY_EFFICIENCY, DeviceSpec
from .device_names import NamedDevice, named_device

NOT_TOLD = "not told"
DTYPES = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class ToldFigure:
    """name: such as `peak bfloat16`. value: in base units, None where it is not told."""

    name: str
    text: str
    value: float | None
    status: FigureStatus | None = None
    note: str = ""


def of_catalogue(device: DeviceSpec) -> NamedDevice | None:
    """The catalogue's device of this kind."""
    return None if device.kind is None else named_device(device.kind)


def device_figures(device: DeviceSpec) -> list[ToldFigure]:
    """All that a cluster says of a device, and what is assumed where it says nothing."""
    named = of_catalogue(device)
    known = {} if named is None else _catalogue_figures(named.device)
    memory = NOT_TOLD if device.memory is None else memory_text(device.memory)
    found = [_told("memory", device.memory, memory, known)]
    for dtype, peak in _peaks(device).items():
        found.append(_told(f"peak {dtype}", peak, figure_text(peak, "FLOP/s"), known))
    found += [_emulated(dtype, device) for dtype in HALVES if device.emulates(dtype)]
    rate = device.memory_bandwidth
    text = NOT_TOLD if rate is None else figure_text(rate, "B/s")
    found.append(_told("memory bandwidth", rate, text, known))
    found.append(_part("part of the peak", device.efficiency, EFFICIENCY))
    found.append(_part("part of the bandwidth", device.memory_efficiency, MEMORY_EFFICIENCY))
    if device.pace != 1:
        found.append(ToldFigure("pace", f"{device.pace:g}", device.pace, FigureStatus.GIVEN))
    if device.price_per_hour is not None:
        price = device.price_per_hour
        found.append(ToldFigure("price", f"{price:g} per hour", price, FigureStatus.GIVEN))
    return found


def uncertain(devices: Iterable[DeviceSpec], dtypes: Iterable[str] = DTYPES) -> tuple[str, ...]:
    """A line for each reason not to rely on figures of these devices, as far as these types use them."""
    wanted = {f"peak {dtype}" for dtype in dtypes}
    reasons: dict[tuple[str, str], list[str]] = {}
    for device in _once(devices):
        for figure in device_figures(device):
            is_used = not figure.name.startswith("peak") or figure.name in wanted
            if is_used and (figure.status is FigureStatus.UNCERTAIN or figure.note == EMULATED):
                why = EMULATED if figure.note == EMULATED else f"uncertain ({figure.note})"
                reasons.setdefault((device.kind or "", why), []).append(f"{figure.name} {figure.text}")
    return tuple(f"{kind}: {', '.join(texts)}: {why}" for (kind, why), texts in reasons.items())


EMULATED = "computed in float32, the device has no units for it"


def _emulated(dtype: str, device: DeviceSpec) -> ToldFigure:
    peak = device.peak(dtype)
    text = NOT_TOLD if peak is None else figure_text(peak, "FLOP/s")
    return ToldFigure(f"peak {dtype}", text, peak, FigureStatus.DERIVED, EMULATED)


def _peaks(device: DeviceSpec) -> Mapping[str, float]:
    """By element type, in a fixed order; `flops` are of both 16-bit types."""
    told = dict.fromkeys(HALVES, device.flops) if not any(half in device.peaks for half in HALVES) else {}
    both = {**told, **device.peaks}
    return {dtype: peak for dtype in DTYPES if (peak := both.get(dtype)) is not None}


def _told(name: str, value: float | None, text: str, known: Mapping[str, _Known]) -> ToldFigure:
    if value is None:
        return ToldFigure(name, NOT_TOLD, None)
    found = known.get(name)
    if found is None or found.value != value:
        return ToldFigure(name, text, value, FigureStatus.GIVEN)
    return ToldFigure(name, text, value, found.figure.status, found.figure.note or found.source)


def _part(name: str, value: float | None, assumed: float) -> ToldFigure:
    if value is None:
        return ToldFigure(name, f"{assumed:g}", assumed, FigureStatus.ASSUMED)
    return ToldFigure(name, f"{value:g}", value, FigureStatus.GIVEN)


@dataclass(frozen=True, slots=True)
class _Known:
    value: float | None
    figure: Figure
    source: str


def _catalogue_figures(device: CatalogueDevice) -> dict[str, _Known]:
    spec = device.spec
    found: dict[str, tuple[float | None, Figure]] = {
        "memory": (spec.memory, device.memory_gib),
        "memory bandwidth": (spec.memory_bandwidth, device.memory_gbps),
        **{f"peak {dtype}": (spec.peaks[dtype], figure) for dtype, figure in device.peaks_tflops.items()},
    }
    return {name: _Known(value, figure, device.source) for name, (value, figure) in found.items()}


def _once(devices: Iterable[DeviceSpec]) -> Iterator[DeviceSpec]:
    """Those that differ in more than their id."""
    seen: list[DeviceSpec] = []
    for device in devices:
        if all(device.kind != other.kind or device.peaks != other.peaks for other in seen):
            seen.append(device)
            yield device
