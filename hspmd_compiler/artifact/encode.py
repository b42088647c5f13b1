"""Values of a program as JSON. Fields at their default are left out; `decode` is the way back."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from ..errors import InternalError
from .json_text import Json
from .program import DType, Hole, Value

# Inside an argument these are told from plain data by one key; in a typed field they are bare.
TAGS: dict[Any, str] = {Value: "v", Hole: "hole", DType: "dtype"}
FLOAT_TAG = "float"
PLAIN = frozenset((type(None), bool, int, str))


def encode(value: Any) -> Json:
    """The JSON form of a value in a typed field: dataclasses by field name, enums by value."""
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
        return value if math.isfinite(value) else {FLOAT_TAG: repr(value)}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value, _plan_of(type(value)))
    raise InternalError("a value has no place in an artifact", details=[("value", repr(value))])


def encode_argument(value: Any) -> Json:
    """The JSON form of an operator's argument, where a value id must not look like a number."""
    if type(value) in PLAIN:
        plain: Json = value
        return plain
    kind: Any = type(value)
    tag = TAGS.get(kind)
    if tag is not None:
        return {tag: encode(getattr(value, _single_field(kind)))}
    if isinstance(value, (tuple, list)):
        return [item if type(item) in PLAIN else encode_argument(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode_argument(item) for key, item in value.items()}
    if is_dataclass(value) or isinstance(value, Enum):
        raise InternalError("not an argument that an artifact can hold", details=[("value", repr(value))])
    return encode(value)


def _encode_dataclass(value: object, plan: tuple[FieldPlan, ...]) -> Json:
    kind = type(value)
    if kind in TAGS:
        return encode(getattr(value, plan[0].name))
    written: dict[str, Json] = {}
    for item in plan:
        held = getattr(value, item.name)
        if item.has_default and type(held) is item.default_type and held == item.default:
            continue
        if item.is_left_out_empty and not held:
            continue
        if type(held) in PLAIN:
            written[item.name] = held
        else:
            written[item.name] = encode_argument(held) if item.is_untyped else encode(held)
    return written


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """How a field of a dataclass is written; one at its default isn't."""

    name: str
    has_default: bool
    default: object
    default_type: type
    is_left_out_empty: bool
    is_untyped: bool


_plans: dict[type, tuple[FieldPlan, ...]] = {}


def _plan_of(kind: Any) -> tuple[FieldPlan, ...]:
    """How the fields of a dataclass are written, found out once."""
    if kind not in _plans:
        untyped = untyped_fields(kind)
        _plans[kind] = tuple(
            FieldPlan(
                name=item.name,
                has_default=item.default is not MISSING,
                default=item.default,
                default_type=type(item.default),
                is_left_out_empty=item.default is MISSING and item.default_factory is not MISSING,
                is_untyped=item.name in untyped,
            )
            for item in fields(kind)
        )
    return _plans[kind]


@cache
def untyped_fields(kind: Any) -> frozenset[str]:
    """Fields of a dataclass whose annotation speaks of `object`: operator arguments."""
    return frozenset(item.name for item in fields(kind) if "object" in str(item.type))


@cache
def _single_field(kind: Any) -> str:
    (only,) = fields(kind)
    return only.name
