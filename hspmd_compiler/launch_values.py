"""The typed values of HSPMD's launch-script keys, with a Problem for each that can't be read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypeGuard

from .bad_values import Problem
from .limits import MOST_COUNT, beyond
from .shell_values import ShellValues, literal

KEYS = (
    "HETERO",
    "NUM_GPUS",
    "DP",
    "CP",
    "CP_LIST",
    "TP",
    "PP",
    "LAYERS_NUM_LIST",
    "MICRO_BATCH_NUM_LIST",
    "MICRO_BATCH_SIZE",
    "UNUSED_RANK",
    "RANK_TO_DEVICE_MAPPING",
    "SEQ_LEN_LIST",
    "NUM_LAYERS",
    "RECOMPUTE_GRANULARITY",
    "RECOMPUTE_METHOD",
    "RECOMPUTE_NUM_LAYERS",
    "RECOMPUTE_LAYER_IDXS",
    "RECOMPUTE_LAYER_IDXS_LIST",
)
MODEL_AND_RUN_KEYS = (
    "CASE",
    "COMPUTE_ONLY",
    "FFN_HIDDEN_SIZE",
    "GLOBAL_BATCH_SIZE",
    "GLOBAL_TOKEN_NUM",
    "HIDDEN_SIZE",
    "MAX_SEQ_LEN",
    "NUM_HEADS",
    "SEQ_LEN",
    "TORCH_PROFILE",
)


@dataclass(slots=True)
class LaunchValues:
    """Values of a launch script by key and type. A value of another type is a problem and reads as absent."""

    shell: ShellValues
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.problems += self.shell.problems
        for key, value in self.shell.values.items():
            if key not in KEYS and key not in MODEL_AND_RUN_KEYS:
                near = get_close_matches(key, KEYS, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KEYS)}"
                self.bad(key, f"unknown key in line {value.line}, {hint}")

    def bad(self, path: str, text: str) -> None:
        self.problems.append(Problem(path, text))

    def broken(self, key: str) -> bool:
        """Whether something under this key was refused already."""
        return any(re.split(r"[\[.]", problem.path)[0] == key for problem in self.problems)

    def raw(self, key: str) -> object:
        """The literal as it stands; None where there is none, or where it was refused."""
        return self._literal(key)

    def flag(self, key: str, default: bool) -> bool:
        value = self._literal(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.bad(key, f"{value!r}: true or false")
        return default

    def optional_integer(self, key: str) -> int | None:
        """An integer of at least 1, None where there is none."""
        value = self._literal(key)
        if value is None:
            return None
        if _is_count(value) and value <= MOST_COUNT:
            return value
        if _is_count(value):
            self.bad(key, beyond("as a count", value, MOST_COUNT))
            return None
        self.bad(key, f"{value!r}: an integer of at least 1")
        return None

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1; missing without a default is a problem."""
        value = self.optional_integer(key)
        if value is None and default is None and not self.broken(key):
            self.bad(key, "missing: this key is required")
        return value if value is not None else default or 1

    def within(self, key: str, what: str, count: int, most: int) -> bool:
        """Whether a count that keys multiply to is small enough; a problem where it isn't."""
        rule = beyond(what, count, most)
        if rule:
            self.bad(key, rule)
        return not rule

    def integers(self, key: str, minimum: int) -> list[int] | None:
        value = self._literal(key)
        if value is None:
            return None
        return self._integers(key, value, minimum)

    def integer_lists(self, key: str) -> list[list[int]] | None:
        value = self._literal(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not value:
            self.bad(key, f"{value!r}: a list with one list of layer counts per pipeline")
            return []
        return [self._integers(f"{key}[{index}]", item, 1) for index, item in enumerate(value)]

    def mapping(self, key: str) -> dict[int, int] | None:
        value = self._literal(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.bad(key, f"{value!r}: a mapping of rank slots to devices, or null")
            return {}
        pairs: dict[int, int] = {}
        for slot, device in value.items():
            ends = [str(slot), str(device)]
            if all(re.fullmatch(r"[0-9]{1,18}", end) for end in ends):
                pairs[int(ends[0])] = int(ends[1])
            else:
                self.bad(f"{key}[{slot!r}]", f"{device!r}: slots and devices are integers of at least 0")
        return pairs

    def _integers(self, path: str, value: object, minimum: int) -> list[int]:
        if not isinstance(value, list | tuple):
            self.bad(path, f"{value!r}: a list of integers")
            return []
        for index, item in enumerate(value):
            if isinstance(item, int) and item > MOST_COUNT:
                self.bad(f"{path}[{index}]", beyond("as a count", item, MOST_COUNT))
            elif not isinstance(item, int) or isinstance(item, bool) or item < minimum:
                self.bad(f"{path}[{index}]", f"{item!r}: an integer of at least {minimum}")
        return list(value) if not any(problem.path.startswith(path) for problem in self.problems) else []

    def _literal(self, key: str) -> object:
        value = self.shell.values.get(key)
        return None if value is None or self.broken(key) else literal(value.text)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
