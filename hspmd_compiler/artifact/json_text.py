"""JSON as the artifact writes it: one row a line, the same bytes for the same value."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import NoReturn

from ..base.codec import SHOWN, Json
from ..errors import ArtifactError, InternalError

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _encoder() -> Callable[[object], str]:
    """JSONEncoder.encode, with the C encoder made once and not for each of a hundred thousand lines."""
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:
        return _ENCODER.encode
    quoted, plain = json.encoder.encode_basestring, (None, ":", ",", False, False, False)
    encode = make(None, _ENCODER.default, quoted, *plain)
    return lambda value: "".join(encode(value, 0))


_encode = _encoder()


class Ready(str):
    """JSON text of a value, to be written as it is."""

    __slots__ = ()


def ready(value: object) -> Ready:
    """The text of a value on one line."""
    return Ready(_compact(value))


def to_text(value: object, depth: int) -> str:
    """`value` with its outer `depth` levels one item a line and everything below on that line."""
    return _lines(value, depth, "") + "\n"


def _lines(value: object, depth: int, indent: str) -> str:
    if type(value) is Ready:
        return value
    if depth == 0 or not value or not isinstance(value, (dict, list)):
        return _compact(value)
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{_compact(key)}: {_lines(item, depth - 1, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(inner + item for item in items) + f"\n{indent}}}"
    rows = [_lines(item, depth - 1, inner) for item in value]
    return "[\n" + ",\n".join(inner + row for row in rows) + f"\n{indent}]"


def _compact(value: object) -> str:
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InternalError(
            "a value of the artifact is not JSON",
            details=[("value", repr(value)[:SHOWN]), ("reason", str(error))],
        ) from error


def fingerprint(value: object) -> str:
    """A hash of what a value says, whatever the order of its keys."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def parse(content: bytes, name: str) -> Json:
    """The JSON value of file `name`; NaN, and what is read as infinite, are refused like any damage."""
    try:
        value: Json = json.loads(content.decode("utf-8"), parse_constant=_not_json, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{name} is not JSON",
            details=[("reason", str(error))],
            rule="every file of an artifact but the weights is UTF-8 JSON, as `hspmd compile` writes it",
            fix="compile again; files of an artifact are not meant to be edited",
        ) from error
    return value


def _finite(text: str) -> float:
    """A fraction that a double holds; a larger one, such as 1e999, would be read as infinite."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:SHOWN]} is no number that is held in 64 bits")
    return value


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
