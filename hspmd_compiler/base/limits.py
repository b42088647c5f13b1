"""How large the numbers of a file may be, so that a small file can't ask for more than a machine has."""

from __future__ import annotations

MOST_DEVICES = 1 << 16
MOST_LAYERS = 1 << 16
MOST_MICRO_BATCHES = 1 << 16
MOST_SAMPLES = (1 << 31) - 1
MOST_COUNT = 1 << 20
"""Of any other count of a published format, such as a sequence length."""
LARGEST = (1 << 63) - 1
"""Of any whole number: one of a tensor's integers."""
TEXT_BYTES = 1 << 25
SLOW_CHARACTERS = 1 << 21
"""Of a text that is no JSON: YAML of this length takes half a minute to read."""
MOST_VALUES = 1 << 21
DEEPEST = 100


def beyond(what: str, count: int, most: int) -> str:
    """The rule that a count breaks; empty where it breaks none."""
    shown = f"{count:,}" if count < LARGEST else "a number of more than 18 digits"
    return f"{shown} {what}: at most {most:,}" if count > most else ""
