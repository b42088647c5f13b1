"""Plain JSON values into dataclasses by their type hints: strictly, and every value that doesn't fit told.

pydantic does the reading. It is loaded by the first read, so that a command that reads nothing starts fast.
Metadata of `Annotated` say what a type hint can't: `Wanted`, `ValueRule`, `Either`, `Bare`, `Converted`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from .limits import LARGEST

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema, ErrorDetails, SchemaValidator

T = TypeVar("T")
Place = tuple[str | int, ...]

MISSING, TOO_LONG = ("missing", "missing_argument"), ("too_long", "unexpected_positional_argument")
LONG = "a whole number of at most 63 bits"
WANTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "list_type": "a list",
    "namedtuple_type": "a list",
    "dict_type": "an object of keys and values",
    "none_required": "null",
    "greater_than_equal": LONG,
    "less_than_equal": LONG,
    "json_invalid": "texts of Unicode characters, not nested deeper than 200",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the error says a value should be, in place of what is wrong inside of it."""

    text: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.custom_error_schema(
            handler(source), custom_error_type="wanted", custom_error_message=self.text
        )


@dataclass(frozen=True, slots=True)
class Called:
    """What the error says where something of another type stands; what is wrong inside is told by itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ValueRule:
    """What holds of a value that has its type; the error says `wanted`."""

    holds: Callable[[Any], bool]
    wanted: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: T) -> T:
        if not self.holds(value):
            raise ValueError(self.wanted)
        return value


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Of whole numbers."""

    least: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return {**handler(source), "ge": self.least}


class Unfit(ValueError):
    """What a `Converted` refuses; place: of the bad part inside the value."""

    def __init__(self, wanted: str, found: object, place: Place = ()) -> None:
        super().__init__(wanted)
        self.found = found
        self.place = place


@dataclass(frozen=True, slots=True)
class Converted:
    """A value that `read` makes of what has the hinted type; a ValueError, or Unfit, says what is wanted."""

    read: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.read, handler(source))


@dataclass(frozen=True, slots=True)
class As:
    """A value that `made` makes of another kind, which is what is read; as of `Converted`."""

    kind: Any
    made: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.made, handler.generate_schema(self.kind))


@dataclass(frozen=True)
class Either:
    """Two ways to write a value: `first` where the value is of these JSON types, else `second`."""

    types: tuple[type, ...]
    first: Any
    second: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        choices = {way: handler.generate_schema(kind) for way, kind in self.ways.items()}
        return core_schema.tagged_union_schema(choices, discriminator=self._way)

    @property
    def ways(self) -> dict[str, Any]:
        return {"<first>": self.first, "<second>": self.second}

    def _way(self, value: object) -> str:
        return "<first>" if isinstance(value, self.types) else "<second>"


class Bare:
    """A dataclass of one field that stands in JSON as the value of that field."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        (hint,) = get_type_hints(cls, include_extras=True).values()
        return core_schema.no_info_after_validator_function(cls, handler.generate_schema(hint))


@dataclass(frozen=True, slots=True)
class Misfit:
    """A value that doesn't fit.

    known: where a key is unknown, or in the place of an object is something else, the keys of the object.
    is_entry: of an object with keys of any name.
    """

    place: Place
    found: object
    wanted: str
    is_missing: bool = False
    is_unknown: bool = False
    known: tuple[str, ...] = ()
    is_entry: bool = False

    @property
    def path(self) -> str:
        return path_of(self.place)


class Misfits(ValueError):
    """All values that don't fit."""

    def __init__(self, found: Sequence[Misfit]) -> None:
        super().__init__("; ".join(f"{each.path}: {each.wanted}" for each in found))
        self.found = tuple(found)


def read(kind: type[T], value: object) -> T:
    """The value of this type hint that plain JSON values stand for, or Misfits."""
    from pydantic import ValidationError

    text = json.dumps(value, default=_plain)
    try:
        made: T = _validator(cast(Hashable, kind)).validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        found = [_misfit(kind, each) for each in error.errors(include_url=False)]
        once = {(each.place, each.wanted): each for each in found}  # a list too short lacks each entry
        raise Misfits(list(once.values())) from None
    return made


def _plain(value: object) -> object:
    """What json knows of a mapping of another type; anything else fits nowhere."""
    return dict(value) if isinstance(value, Mapping) else {"": repr(value)}


@cache
def _validator(kind: Hashable) -> SchemaValidator:
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    return SchemaValidator(_with_bounds(TypeAdapter(cast(Any, kind)).core_schema))


def _with_bounds(schema: Any) -> Any:
    """The same for whole numbers of at most 63 bits, wherever one is read."""
    if isinstance(schema, list):
        return [_with_bounds(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: item if key == "metadata" else _with_bounds(item) for key, item in schema.items()}
    return {"ge": -LARGEST, "le": LARGEST, **inner} if schema.get("type") == "int" else inner


def path_of(place: Place) -> str:
    """Where a value stands, such as `segments[0].rows[3].op`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in place]
    return "".join(parts).removeprefix(".")


def _misfit(root: Any, error: ErrorDetails) -> Misfit:
    code, loc, context = error["type"], error["loc"], error.get("ctx", {})
    if code in MISSING and isinstance(loc[-1], str):
        return Misfit(_walk(root, loc)[0], None, "missing: this key is required", is_missing=True)
    if code == "unexpected_keyword_argument":
        place, owner = _walk(root, loc[:-1])
        known = keys_of(_stripped(owner))
        return Misfit((*place, loc[-1]), error["input"], "unknown", is_unknown=True, known=known)
    if code in MISSING or code in TOO_LONG:
        place, owner = _walk(root, loc if code == "too_long" else loc[:-1])
        found = error["input"]
        return Misfit(place, found, _length(_stripped(owner)))
    is_key = loc[-1:] == ("[key]",) and get_origin(_stripped(_walk(root, loc[:-2])[1])) is dict
    place, hint = _walk(root, loc[:-1] if is_key else loc)
    if isinstance(raised := context.get("error"), Unfit):
        return Misfit((*place, *raised.place), raised.found, str(raised))
    known = keys_of(_stripped(hint)) if code == "dataclass_type" else ()
    wanted = _wanted(hint, code, error["msg"], context)
    is_entry = bool(place) and get_origin(_stripped(_walk(root, loc[:-2] if is_key else loc[:-1])[1])) is dict
    return Misfit(place, error["input"], wanted, known=known, is_entry=is_entry)


def _wanted(hint: Any, code: str, message: str, context: Mapping[str, Any]) -> str:
    if code == "wanted":
        return message
    if code == "greater_than_equal" and context["ge"] > -LARGEST:
        return f"an integer of at least {context['ge']}"
    if code == "value_error":
        return str(context["error"])
    called = next((each.text for each in _metadata(hint) if isinstance(each, Called)), "")
    if called and code.endswith("_type"):
        return called
    hint = _stripped(hint)
    if code == "enum":
        return f"one of {', '.join(str(member.value) for member in hint)}"
    if code == "dataclass_type":
        return f"a mapping with the keys {', '.join(keys_of(hint))}"
    return WANTED.get(code, message)


def _length(hint: Any) -> str:
    return f"a list of {len(getattr(hint, '_fields', get_args(hint)))}"


def keys_of(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass."""
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else ()


def _walk(hint: Any, loc: Place) -> tuple[Place, Any]:
    """The place that pydantic means, without ways of an Either, and the type hint of what stands there."""
    place: Place = ()
    for part in loc:
        ways = next((each.ways for each in _metadata(hint) if isinstance(each, Either)), None)
        hint = _inner(_stripped(hint), part) if ways is None else ways[str(part)]
        place = place if ways else (*place, part)
    return place, hint


def _inner(hint: Any, part: str | int) -> Any:
    names = getattr(hint, "_fields", ())
    if names or is_dataclass(hint):
        name = names[part] if isinstance(part, int) else part
        return _hints(cast(Hashable, hint)).get(name, object)
    inner = get_args(hint) or (object,)
    if get_origin(hint) is tuple and inner[-1] is not Ellipsis and isinstance(part, int):
        return inner[min(part, len(inner) - 1)]
    return inner[-1] if get_origin(hint) is dict else inner[0]


def _metadata(hint: Any) -> Iterator[Any]:
    yield from getattr(hint, "__metadata__", ())
    for inner in get_args(hint) if type(None) in get_args(hint) else ():
        yield from getattr(inner, "__metadata__", ())


def _stripped(hint: Any) -> Any:
    """What is read in its place: without metadata, and of an optional value the value."""
    if get_origin(hint) is Annotated:
        other = [each.kind for each in hint.__metadata__ if isinstance(each, As)]
        return _stripped(other[0] if other else get_args(hint)[0])
    inner = [each for each in get_args(hint) if each is not type(None)]
    return _stripped(inner[0]) if type(None) in get_args(hint) and len(inner) == 1 else hint


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(cast(Any, kind), include_extras=True)
