"""What people write, read by type hints: every value that doesn't fit is a Problem with its key path."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from ..errors import InternalError
from .bad_values import Problem
from .limits import MOST_DEVICES, beyond
from .typed import Converted, Either, Misfit, Misfits, Place, ValueRule, Wanted, path_of, read

T = TypeVar("T")
Plain = dict[str, Any]

ROUNDS = 9
"""After one, all stand-ins are in place; more where a value is wrong in two ways, or deep."""
LONGEST_SHOWN = 80
"""Characters of a text that is shown in a problem."""


def at_most(what: str, most: int) -> ValueRule:
    """Of a count."""
    return ValueRule(lambda count: count <= most, f"at most {most:,} {what}")


def _device_ids(given: str | tuple[int, ...]) -> tuple[int, ...]:
    """Of a list, or of a text of ids and ranges: `0-3,8`."""
    return ranged_numbers(given) if isinstance(given, str) else given


def ranged_numbers(given: str) -> tuple[int, ...]:
    """What `number_ranges` writes; a ValueError says what doesn't fit."""
    devices: list[int] = []
    for part in given.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", part)
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            raise ValueError('a range is low-high, as in "0-3,8"')
        low, high = int(ends[1]), int(ends[2] or ends[1])
        if len(devices) + high + 1 - low > MOST_DEVICES:
            raise ValueError(beyond("devices", len(devices) + high + 1 - low, MOST_DEVICES))
        devices += range(low, high + 1)
    return tuple(devices)


DeviceIds: TypeAlias = Annotated[
    tuple[int, ...],
    Either((str,), str, tuple[int, ...]),
    Wanted('a list of device ids or a text such as "0-3,8"'),
    Converted(_device_ids),
]
Count: TypeAlias = Annotated[int, ValueRule(lambda count: count >= 1, "a count is at least 1")]
Version: TypeAlias = Annotated[Literal[1], Wanted("this version reads 1")]
VERSION: Version = 1
"""Of all forms."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A form as far as it can be read. unread: the paths that have a stand-in, for no rule to judge them."""

    form: T
    problems: tuple[Problem, ...] = ()
    unread: frozenset[str] = frozenset()


def read_form(kind: type[T], content: object, subject: str, stand_ins: Mapping[str, Any]) -> Reading[T]:
    """The form that plain values stand for, with stand-ins for what doesn't fit.

    stand_ins: by key, and by `key[]` for an entry of its list; a key that has none is left out.
    """
    problems: list[Problem] = []
    unread: set[str] = set()
    top: Plain = {"": json.loads(json.dumps(content, default=repr))}
    for _ in range(ROUNDS):
        try:
            return Reading(read(kind, top[""]), tuple(problems), frozenset(unread))
        except Misfits as error:
            new = [each for each in error.found if not (each.is_missing and each.path in unread)]
            problems += problems_of(Misfits(new), subject)
            for misfit in error.found:
                inner = f"{misfit.path}." if misfit.place else ""
                unread |= {misfit.path, *(f"{inner}{key}" for key in misfit.known if not misfit.is_unknown)}
                unread.add(path_of(_mend(top, misfit, stand_ins)))
    raise InternalError(
        "no stand-in makes a form whole", details=[(each.path, each.text) for each in problems]
    )


def _mend(top: Plain, misfit: Misfit, stand_ins: Mapping[str, Any]) -> Place:
    """Put a stand-in in the place of what doesn't fit, a new one each time; that place.

    Where there is none, a key is left out; an entry of a list, or a key that is missing, takes what it is in
    along.
    """
    place, is_missing = misfit.place, misfit.is_missing
    while True:
        *outer, last = ("", *place) if place else ("",)
        try:
            owner = _inside(top, outer)
        except (LookupError, TypeError):  # what it was in is gone
            return place
        key = f"{outer[-1]}[]" if isinstance(last, int) else str(last)
        if key in stand_ins and not misfit.is_unknown and not (misfit.is_entry and place == misfit.place):
            owner[last] = json.loads(json.dumps(stand_ins[key]))
            return place
        if isinstance(owner, dict) and not is_missing:
            owner.pop(last, None)
            return place
        place, is_missing = place[:-1], False


def _inside(value: Any, place: Iterable[str | int]) -> Any:
    for part in place:
        value = value[part]
    return value


def problems_of(error: Misfits, subject: str) -> list[Problem]:
    """In the words of people who write forms; subject: the name of the whole form."""
    return [Problem(misfit.path or subject, _text(misfit)) for misfit in error.found]


def _text(misfit: Misfit) -> str:
    if misfit.is_missing:
        return misfit.wanted
    if misfit.is_unknown:
        return unknown_key(str(misfit.place[-1]), misfit.known)
    found = misfit.found
    if found is None and misfit.known:
        return f"empty: {misfit.wanted}"
    return f"{found[:LONGEST_SHOWN] if isinstance(found, str) else found!r}: {misfit.wanted}"


def unknown_key(key: str, known: Collection[str]) -> str:
    """The text for a key that isn't known, with the nearest that is."""
    near = get_close_matches(key, known, n=1)
    return f"unknown key, did you mean {near[0]}?" if near else f"unknown key, known are {', '.join(known)}"
