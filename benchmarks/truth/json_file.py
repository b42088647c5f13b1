"""Reading others' JSON: data only, bounded, and one clear line for what can't be read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hspmd_compiler.errors import EstimateError

LARGEST_FILE = 64 << 20


def read_json(path: Path) -> Any:
    """The content; EstimateError in one line where it is missing, too large, or no JSON."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise EstimateError(f"{path}: larger than {LARGEST_FILE >> 20} MiB")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EstimateError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise EstimateError(f"{path}: can't be read as JSON: {type(error).__name__}") from None


def number(row: Mapping[str, Any], key: str, least: float = 0.0) -> float:
    """A finite number of at least so much; EstimateError otherwise."""
    value = row.get(key)
    if value is None:
        raise EstimateError(f"`{key}` is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise EstimateError(f"`{key}` is {value!r}: not a number")
    if value < least:
        raise EstimateError(f"`{key}` is {value}: below {least:g}")
    return float(value)


def count(row: Mapping[str, Any], key: str) -> int:
    """A whole number of at least 1."""
    value = number(row, key, 1)
    if value != int(value):
        raise EstimateError(f"`{key}` is {value}: not a whole number")
    return int(value)
