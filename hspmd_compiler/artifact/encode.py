"""Values of a program as JSON. Fields at their default are left out; `decode` is the way back."""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, cast

from ..errors import InternalError
from .json_text import Json
from .program import DType, Hole, Value

# Inside an argument these are told from plain data by one key; in a typed field they are bare.
TAGS: dict[Any, str] = {Value: "v", Hole: "hole", DType: "dtype"}
FLOAT_TAG = "float"


def encode(value: object) -> Json:
    """The JSON form of a value in a typed field: dataclasses by field name, enums by value."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Enum):
        return encode(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {FLOAT_TAG: repr(value)}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value)
    raise InternalError("a value has no place in an artifact", details=[("value", repr(value))])


def encode_argument(value: object) -> Json:
    """The JSON form of an operator's argument, where a value id must not look like a number."""
    tag = TAGS.get(type(value))
    if tag is not None:
        return {tag: encode(getattr(value, _single_field(cast(Any, type(value)))))}
    if isinstance(value, (tuple, list)):
        return [encode_argument(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode_argument(item) for key, item in value.items()}
    if is_dataclass(value) or isinstance(value, Enum):
        raise InternalError("not an argument that an artifact can hold", details=[("value", repr(value))])
    return encode(value)


def _encode_dataclass(value: object) -> Json:
    kind: Any = type(value)
    if kind in TAGS:
        return encode(getattr(value, _single_field(kind)))
    untyped = untyped_fields(kind)
    written: dict[str, Json] = {}
    for item in _fields(kind):
        held = getattr(value, item.name)
        if not _is_default(item, held):
            written[item.name] = encode_argument(held) if item.name in untyped else encode(held)
    return written


@cache
def untyped_fields(kind: Any) -> frozenset[str]:
    """Fields of a dataclass whose annotation speaks of `object`: operator arguments."""
    return frozenset(item.name for item in _fields(kind) if "object" in str(item.type))


def _is_default(item: Field[object], held: object) -> bool:
    if item.default is not MISSING:
        return type(held) is type(item.default) and held == item.default
    return item.default_factory is not MISSING and not held


@cache
def _fields(kind: Any) -> tuple[Field[object], ...]:
    return fields(kind)


@cache
def _single_field(kind: Any) -> str:
    (only,) = _fields(kind)
    return only.name
