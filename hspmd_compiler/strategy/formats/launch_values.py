"""The typed values of HSPMD's launch-script keys, with a Problem for each that can't be read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from .format_values import FormatValues
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


class LaunchValues(FormatValues):
    """Values of a launch script by key and type. A value of another type is a problem and reads as absent."""

    def __init__(self, shell: ShellValues) -> None:
        super().__init__({key: literal(value.text) for key, value in shell.values.items()})
        self.shell = shell
        self.problems += shell.problems
        for key, value in shell.values.items():
            if key not in KEYS and key not in MODEL_AND_RUN_KEYS:
                near = get_close_matches(key, KEYS, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KEYS)}"
                self.bad(key, f"unknown key in line {value.line}, {hint}")

    def flag(self, key: str, default: bool) -> bool:
        value = self.of(key)
        return default if value is None else self.read(key, bool, value, default)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1; missing without a default is a problem."""
        value = self.of(key)
        return self.required(key, value) if default is None else self.count(key, value) or default

    def integers(self, key: str, least: int) -> list[int] | None:
        value = self.of(key)
        return None if value is None else self.counts(key, value, least)

    def integer_lists(self, key: str) -> list[list[int]] | None:
        value, wanted = self.of(key), "a list with one list of layer counts per pipeline"
        return None if value is None else self.count_lists(key, value, wanted)

    def devices_of_slots(self, key: str) -> dict[int, int] | None:
        value = self.of(key)
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
