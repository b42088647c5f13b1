"""Devices, and ordered groups of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .problems import AnnotationProblem, refuse

MOST_DEVICES = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Distinct device ids; their order is the order of the pieces they hold."""

    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        refuse(self._problems(), f"device group [{self}]")

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.devices)

    def __str__(self) -> str:
        return ",".join(map(str, self.devices))

    def index(self, device: int) -> int:
        """Position of a device in the group; ValueError if it isn't a member."""
        return self.devices.index(device)

    def _problems(self) -> Iterator[AnnotationProblem]:
        if not self.devices:
            yield AnnotationProblem(
                "a device group is empty", "a group has at least one device", "name its devices"
            )
        for device in dict.fromkeys(self.devices):
            if device < 0:
                yield AnnotationProblem(
                    f"device {device} is negative", "device ids are 0 or more", "number devices from 0"
                )
            if device >= MOST_DEVICES:
                yield AnnotationProblem(
                    f"device {device} is too large",
                    f"device ids are below {MOST_DEVICES}, since sets of devices are bits of a number",
                    "number devices from 0",
                )
            if (times := self.devices.count(device)) > 1:
                yield AnnotationProblem(
                    f"device {device} is listed {times} times",
                    "a device is in a group once",
                    f"list device {device} once",
                )
