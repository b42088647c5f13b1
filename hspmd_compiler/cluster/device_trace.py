"""Which devices are there when, and which are slow: a file that a run with lost devices is replayed from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ..base.bad_values import Problem, ProblemSubject
from ..base.forms import VERSION, DeviceIds, Version, problems_of
from ..base.json_yaml import read_file
from ..base.number_ranges import number_ranges
from ..base.typed import AtLeast, Misfits, Wanted, read
from ..errors import OptionError

SLOWEST = 1000.0
LONGEST_S = 365 * 24 * 3600.0
TRACE = ProblemSubject(
    "a trace of devices",
    OptionError,
    "examples/elastic_training/README.md shows one: moments, each with the devices that are there",
)
Number = Annotated[float, Wanted("a number")]


@dataclass(frozen=True, slots=True)
class DeviceMoment:
    """From a moment on exactly these devices are there.

    step: behind so many steps; or seconds: from the start of the run. slow: how many times longer a device
    takes for what it computes; those that are not named go at their own speed.
    """

    step: int | None
    seconds: float | None
    present: tuple[int, ...]
    slow: dict[int, float]


@dataclass(frozen=True, slots=True)
class DeviceTrace:
    """Moments in their order, the first of them at the start."""

    moments: tuple[DeviceMoment, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        """All that are ever there."""
        return tuple(sorted({device for moment in self.moments for device in moment.present}))


@dataclass(frozen=True, slots=True)
class MomentForm:
    """The keys of a moment."""

    present: DeviceIds
    step: Annotated[int, AtLeast(0)] | None = None
    seconds: Number | None = None
    slow: dict[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceTraceForm:
    """The keys of a trace."""

    moments: tuple[MomentForm, ...]
    version: Version = VERSION


def read_device_trace(path: Path) -> DeviceTrace:
    """The trace of a JSON or YAML file; one error lists every bad value."""
    at = str(path)
    content = read_file(path, TRACE, "the devices")
    try:
        form = read(DeviceTraceForm, content)
    except Misfits as error:
        TRACE.refuse(problems_of(error, "trace"), at)
        raise
    TRACE.refuse(list(_problems(form)), at)
    return DeviceTrace(tuple(_moment(each) for each in form.moments))


def check_devices(trace: DeviceTrace, known: Collection[int], at: str = "") -> None:
    """Raise one error for devices that no strategy of a run uses."""
    text = f"unknown: the strategies use {number_ranges(known)}"
    TRACE.refuse(
        [
            Problem(f"moments[{index}].present", f"device {device} is {text}")
            for index, moment in enumerate(trace.moments)
            for device in moment.present
            if device not in known
        ],
        at,
    )


def _moment(form: MomentForm) -> DeviceMoment:
    slow = {int(device): factor for device, factor in form.slow.items()}
    return DeviceMoment(form.step, form.seconds, tuple(sorted(form.present)), slow)


def _problems(form: DeviceTraceForm) -> Iterator[Problem]:
    if not form.moments:
        yield Problem("moments", "none: the first says which devices there are at the start")
    for index, moment in enumerate(form.moments):
        path = f"moments[{index}]"
        yield from (Problem(f"{path}{key}", text) for key, text in _bad_values(moment))
        before = form.moments[index - 1] if index else None
        if (moment.step is None) == (moment.seconds is None):
            yield Problem(path, "either step or seconds says when it is")
        elif before is None:
            if moment.step or moment.seconds:
                yield Problem(path, "the first moment is the start: step 0, or seconds 0")
        elif (before.step is None) != (moment.step is None):
            yield Problem(path, "all moments are told by step, or all by seconds")
        elif _at(moment) <= _at(before):
            yield Problem(
                path, f"at {_at(moment):g}, behind one at {_at(before):g}: moments follow each other"
            )


def _at(moment: MomentForm) -> float:
    return float((moment.seconds if moment.step is None else moment.step) or 0)


def _bad_values(moment: MomentForm) -> Iterator[tuple[str, str]]:
    """(key, text) of each."""
    if not moment.present:
        yield ".present", "no device is left: a run ends there"
    for device, count in Counter(moment.present).items():
        if count > 1:
            yield ".present", f"device {device} stands {count} times"
        if device < 0:
            yield ".present", f"device {device}: devices are numbered from 0"
    if moment.seconds is not None and not 0 <= moment.seconds <= LONGEST_S:
        yield ".seconds", f"{moment.seconds:g}: 0 or more, at most {LONGEST_S:.0f}"
    for name, factor in moment.slow.items():
        if name not in map(str, moment.present):
            yield f".slow.{name[:80]}", "no device that is present"
        if not 1 <= factor <= SLOWEST:
            yield f".slow.{name[:80]}", f"{factor:g}: how many times longer it takes, 1 to {SLOWEST:.0f}"
