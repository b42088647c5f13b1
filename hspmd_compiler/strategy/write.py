"""A Strategy as a text, JSON or YAML, that reads back as an equal one."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path

import yaml

from ..base.json_yaml import YAML_SUFFIXES, write_text
from ..errors import StrategyError
from .form import form_of
from .strategy import Strategy


class TextForm(Enum):
    """How a strategy is written as text."""

    JSON = "json"
    YAML = "yaml"


def strategy_text(strategy: Strategy, form: TextForm = TextForm.JSON) -> str:
    """A text that depends on the Strategy alone and reads back as an equal one."""
    content = form_of(strategy)
    if form is TextForm.YAML:
        text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)
        return text
    return _json_text(content, "") + "\n"


def write_strategy(strategy: Strategy, path: Path) -> None:
    """Write a file, as YAML where its suffix says so, else as JSON; it appears whole or not at all."""
    form = TextForm.YAML if path.suffix in YAML_SUFFIXES else TextForm.JSON
    write_text(path, strategy_text(strategy, form), StrategyError)


def _json_text(value: object, indent: str) -> str:
    """JSON with one stage, one override and one list of sizes a line."""
    if indent and not _holds_mappings(value):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + "  "
    if isinstance(value, dict):
        rows = [f"{inner}{json.dumps(key)}: {_json_text(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    assert isinstance(value, list)
    return "[\n" + ",\n".join(inner + _json_text(item, inner) for item in value) + f"\n{indent}]"


def _holds_mappings(value: object) -> bool:
    """Whether it is a list of mappings, or a mapping that has one."""
    if isinstance(value, list):
        return any(isinstance(item, dict) for item in value)
    return isinstance(value, dict) and any(_holds_mappings(item) for item in value.values())
