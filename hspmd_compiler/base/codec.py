"""What we write as JSON, and back: dataclasses by field name, enums by value, literals with a tag.

Fields at their default are left out. Reading is strict: every field has its declared type, or the file and
the key path of what hasn't are named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args, get_type_hints

from ..errors import ArtifactError, InternalError
from .limits import LARGEST
from .typed import LONG, Bare, Misfit, Misfits, Place, Unfit, path_of, read

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
T = TypeVar("T")

PLAIN = frozenset((type(None), bool, int, str))
FLOAT_TAG = "float"
FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
SHOWN, ROWS_SHOWN = 60, 10
AGAIN = "compile again with this version of hspmd_compiler"


@dataclass(frozen=True, slots=True)
class Tag:
    """A kind of literal that JSON doesn't have. read: undoes `write`; its ValueError says what is wanted."""

    name: str
    kind: type
    write: Callable[[Any], Json]
    read: Callable[[Any], Any]


class Literals:
    """Arguments of operators: plain data, and what has one of these tags. It is metadata of a type hint."""

    def __init__(self, *tags: Tag) -> None:
        self._of_kind = {tag.kind: tag for tag in tags}
        self._of_name = {tag.name: tag for tag in tags}

    def encode(self, value: Any) -> Json:
        """The JSON form of an argument, where a value id must not look like a number."""
        kind: Any = type(value)
        if kind in PLAIN:
            plain: Json = value
            return plain
        tag = self._of_kind.get(kind)
        if tag is not None:
            return {tag.name: tag.write(value)}
        if isinstance(value, (tuple, list)):
            return [item if type(item) in PLAIN else self.encode(item) for item in value]
        if isinstance(value, dict):
            return {str(key): self.encode(item) for key, item in value.items()}
        if isinstance(value, float):
            return _encode_float(value)
        raise InternalError("not an argument that an artifact can hold", details=[("value", repr(value))])

    def read(self, value: object, place: Place = ()) -> object:
        """An argument back from its JSON form; Unfit."""
        if isinstance(value, list):
            return tuple(self.read(item, (*place, index)) for index, item in enumerate(value))
        if isinstance(value, int) and abs(value) > LARGEST:
            raise Unfit(LONG, value, place)
        if not isinstance(value, dict):
            return value
        ((name, held),) = value.items() if len(value) == 1 else (("", None),)
        if name == FLOAT_TAG and isinstance(held, str) and held in FLOATS:
            return FLOATS[held]
        if name not in self._of_name:
            known = ", ".join([*self._of_name, FLOAT_TAG])
            raise Unfit(f"a plain value, or an object with one key of {known}", value, place)
        try:
            return self._of_name[name].read(held)
        except ValueError as error:
            raise Unfit(str(error), held, (*place, name)) from error

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.read)


def encode(value: Any) -> Json:
    """The JSON form of a value in a typed field."""
    kind = type(value)
    if kind in PLAIN:
        plain: Json = value
        return plain
    if kind is tuple or kind is list:
        return [item if type(item) in PLAIN else encode(item) for item in value]
    if kind in _plans:
        return _encode_dataclass(value, _plans[kind])
    return _encode_other(value)


def _encode_other(value: object) -> Json:
    """What is rarer than the above, and the first value of each dataclass."""
    if isinstance(value, (int, str)):
        return value
    if isinstance(value, Enum):
        return encode(value.value)
    if isinstance(value, float):
        return _encode_float(value)
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value, _plan_of(type(value)))
    raise InternalError("a value has no place in an artifact", details=[("value", repr(value))])


def _encode_float(value: float) -> Json:
    return value if math.isfinite(value) else {FLOAT_TAG: repr(value)}


def _encode_dataclass(value: object, plan: tuple[FieldPlan, ...]) -> Json:
    if isinstance(value, Bare):
        return encode(getattr(value, plan[0].name))
    written: dict[str, Json] = {}
    for item in plan:
        held = getattr(value, item.name)
        if item.leaves_out(held):
            continue
        if type(held) in PLAIN:
            written[item.name] = held
        else:
            written[item.name] = item.encode(held)
    return written


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """How a field of a dataclass is written; one at its default isn't."""

    name: str
    has_default: bool
    default: object
    default_type: type
    is_left_out_empty: bool
    encode: Callable[[Any], Json]

    def leaves_out(self, held: Any) -> bool:
        """Whether the reader finds the same without it."""
        if self.has_default and type(held) is self.default_type and held == self.default:
            return True
        return self.is_left_out_empty and not held


_plans: dict[type, tuple[FieldPlan, ...]] = {}


def _plan_of(kind: Any) -> tuple[FieldPlan, ...]:
    """How the fields of a dataclass are written, found out once."""
    if kind not in _plans:
        hints = get_type_hints(kind, include_extras=True)
        _plans[kind] = tuple(
            FieldPlan(
                name=item.name,
                has_default=item.default is not MISSING,
                default=item.default,
                default_type=type(item.default),
                is_left_out_empty=item.default is MISSING and item.default_factory is not MISSING,
                encode=next((each.encode for each in literals_in(hints[item.name])), encode),
            )
            for item in fields(kind)
        )
    return _plans[kind]


def literals_in(hint: Any) -> list[Literals]:
    """The tables of literals that a type hint names, outside of other dataclasses."""
    own = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Literals)]
    return own + [each for inner in get_args(hint) for each in literals_in(inner)]


def decode(kind: type[T], value: object, file: str, place: Place = ()) -> T:
    """The value that stands in a file, at a place inside of it; ArtifactError."""
    try:
        return read(kind, value)
    except Misfits as error:
        raise damaged(
            file, [(place + each.place, each.found, _wanted(each)) for each in error.found]
        ) from None


def _wanted(misfit: Misfit) -> str:
    return f"no key of this name, known are {', '.join(misfit.known)}" if misfit.is_unknown else misfit.wanted


def damaged(file: str, rows: Sequence[tuple[Place, object, str]]) -> ArtifactError:
    """The error for values of a file, each with its place, what was found, and what should stand there."""
    what = f"{file} does not hold what its place asks for"
    if len(rows) == 1:
        place, found, wanted = rows[0]
        at = f"{file}: {path_of(place) or 'the whole file'}"
        return ArtifactError(what, at=at, details=[("found", shown(found)), ("wanted", wanted)], fix=AGAIN)
    details = [
        (path_of(place) or "the whole file", f"{shown(found)}: {wanted}") for place, found, wanted in rows
    ]
    left = [("", f"and {len(rows) - ROWS_SHOWN} more")] if len(rows) > ROWS_SHOWN else []
    return ArtifactError(what, at=file, details=[*details[:ROWS_SHOWN], *left], fix=AGAIN)


def shown(value: object) -> str:
    """A JSON value for people, cut short."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def natural(value: object) -> int:
    """A whole number of 0 or more, of at most 63 bits; ValueError."""
    if type(value) is int and 0 <= value <= LARGEST:
        return value
    raise ValueError("an integer of at least 0")
