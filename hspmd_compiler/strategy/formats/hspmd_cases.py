"""HSPMD's launch-script cases: KEY=VALUE lines, and lists of cases as JSON, told apart by `id`.

A case's keys are the launch script's in lower case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ...base.bad_values import Problem
from ...errors import StrategyError
from ..check import raise_if_any
from .expanded import Choices, Entry, Expanded
from .hspmd_lines import read_lines, read_values
from .launch_values import KEYS, LaunchValues
from .shell_values import ShellValue, ShellValues

ABOUT_THE_CASE = (
    "id",
    "source",
    "comment",
    "model",
    "derived",
    "overridden_earlier_values",
    "inferred_from",
    "why",
    "confidence",
    "zero",
)
OTHER_GENERATOR = ("layers_num_list_flat", "stages_num_list", "recompute_layers")
FIX = "a case has the keys of HSPMD's launch script in lower case; docs/strategy.md lists them"


def expand_lines(text: str, choices: Choices, at: str) -> Expanded:
    """The strategy of a launch script's lines."""
    return read_lines(text, choices, at)


def case_entries(content: object, choices: Choices, at: str) -> list[Entry]:
    """The cases of a list, of an object that holds one under `strategies`, or one case alone."""
    if isinstance(content, Mapping):
        content = content.get("strategies", [content])
    cases = content if isinstance(content, Sequence) and not isinstance(content, str) else [content]
    bad = [
        Problem(f"[{index}]", f"{str(case)[:60]}: a case is an object of keys and values")
        for index, case in enumerate(cases)
        if not isinstance(case, Mapping)
    ]
    raise_if_any(bad, at, FIX, "a list of HSPMD cases")
    return [
        Entry(_id(case, index, len(cases)), partial(expand_case, case, choices, at))
        for index, case in enumerate(cases)
    ]


def _id(case: Mapping[str, object], index: int, count: int) -> str:
    return str(case.get("id", index if count > 1 else ""))


def expand_case(case: Mapping[str, object], choices: Choices, at: str = "") -> Expanded:
    """The strategy of one case."""
    where = f"{at}, {case['id']}" if at and "id" in case else at
    try:
        found = read_values(LaunchValues(ShellValues(_values(case))), choices, where)
    except StrategyError as error:
        raise _in_lower_case(error) from None
    strategy = replace(found.strategy, zero=1) if case.get("zero") is True else found.strategy
    return replace(found, strategy=strategy, notes=(*_case_notes(case, found), *found.notes))


def _values(case: Mapping[str, object]) -> dict[str, ShellValue]:
    """The launch-script values of a case; null and what tells about the case left out."""
    passed_over = (*ABOUT_THE_CASE, *OTHER_GENERATOR)
    given = {key: value for key, value in case.items() if key not in passed_over and value is not None}
    lines = {key: index for index, key in enumerate(case, 1)}
    values = {key.upper(): ShellValue(_text(value), lines[key]) for key, value in given.items()}
    layers = _model_layers(case)
    if "LAYERS_NUM_LIST" not in values and layers is not None:
        values.setdefault("NUM_LAYERS", ShellValue(str(layers), lines["model"]))
    return values


def _text(value: object) -> str:
    """A value as the script's literal; JSON's own literals but true, false and null are Python's too."""
    if isinstance(value, str | bool) or value is None:
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{item}" for key, item in value.items()) + "}"
    return repr(value) if isinstance(value, list) else json.dumps(value)


def _model_layers(case: Mapping[str, object]) -> int | None:
    model = case.get("model")
    layers = model.get("layers") if isinstance(model, Mapping) else None
    return layers if isinstance(layers, int) else None


def _case_notes(case: Mapping[str, object], found: Expanded) -> Iterator[str]:
    layers = _model_layers(case)
    if layers is not None and layers != found.strategy.num_layers:
        yield f"model.layers={layers} is not checked: layers_num_list has {found.strategy.num_layers}"
    if any(map(bool, _items(case.get("recompute_layers")))):
        yield "recompute_layers belongs to another generator: it is passed over"
    if case.get("overridden_earlier_values"):
        yield "the script sets a key twice: the last value counts"


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _in_lower_case(error: StrategyError) -> StrategyError:
    """The same error in the keys of a case."""
    names = re.compile(r"\b(" + "|".join(sorted(KEYS, key=len, reverse=True)) + r")\b")

    def lower(text: str) -> str:
        text = re.sub(r"^unknown key in line \d+", "unknown key", text)
        return names.sub(lambda name: name[0].lower(), text)

    details = [(lower(_lower_path(path)), lower(text)) for path, text in error.details]
    what = error.what.replace("a strategy", "a case")
    return StrategyError(what, at=error.at, details=details, rule=error.rule, fix=FIX)


def _lower_path(path: str) -> str:
    return path if path.startswith("line ") else path.lower()
