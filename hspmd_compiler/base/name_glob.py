"""Globs over dotted module and parameter names, matched by whole path components or as a whole."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache

ANY_DEPTH = "**"
WILDCARDS = "*?["
START = ""
"""Before the first component of a whole name; no component is empty."""


def names(pattern: str, name: str) -> bool:
    """Whether the pattern names this parameter, as globs over names of parameters are used elsewhere.

    With wildcards it is compared with the whole dotted name, and `*` passes dots: `*norm.weight` names
    `layers.0.input_layernorm.weight`. Without any it is as in `matches`: the parameter, or a module above it.
    """
    if any(sign in pattern for sign in WILDCARDS):
        return fnmatchcase(name, pattern)
    return matches(pattern, name)


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern names this module or parameter, or a module above it.

    The pattern's components must equal the last components of the name, or of a module above it:
    `up_proj` and `mlp.up_proj` name `model.layers.0.mlp.up_proj.weight`, `layers.1` does not name
    `layers.11`. Inside a component `*`, `?` and `[0-3]` work as in the shell; `**` is any number of
    components. A `*` that begins a component and stands directly before a letter or digit stands
    for whole components in front, never for a part of the name: `*up_proj` is `up_proj`, and
    doesn't name `gate_up_proj`.
    """
    wanted = components(pattern)
    parts = tuple(name.split("."))
    return any(_ends_with(parts[:end], wanted) for end in range(len(parts), 0, -1))


def matches_exactly(pattern: str, name: str) -> bool:
    """Whether the pattern is the whole name: components as in `matches`, none more before or behind them."""
    wanted, parts = components(pattern), tuple(name.split("."))
    if not any(sign in pattern for sign in WILDCARDS):
        return parts == wanted
    return _ends_with((START, *parts), (START, *wanted))


@lru_cache(maxsize=4096)
def components(pattern: str) -> tuple[str, ...]:
    """The pattern's components, with a leading `*` before a letter or digit taken off."""
    return tuple(re.sub(r"^\*(?=[A-Za-z0-9])", "", part) for part in pattern.split("."))


def _ends_with(parts: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether the name's last components match the wanted ones, read from the right."""
    if not wanted:
        return True
    if wanted[-1] == ANY_DEPTH:
        return any(_ends_with(parts[:end], wanted[:-1]) for end in range(len(parts), -1, -1))
    return bool(parts) and fnmatchcase(parts[-1], wanted[-1]) and _ends_with(parts[:-1], wanted[:-1])
