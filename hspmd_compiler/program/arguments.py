"""Nested arguments of operators, and the literals that a local row leaves to the rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .program import Hole, LocalRow

NESTED = frozenset({tuple, list, dict})


def leaves(argument: object) -> list[Any]:
    """Every value inside of tuples, lists and dicts, in order."""
    found: list[Any] = []
    _gather(argument, found)
    return found


def _gather(argument: object, found: list[Any]) -> None:
    """Append them: generators inside of generators take longer."""
    if isinstance(argument, (tuple, list)):
        for item in argument:
            _gather(item, found)
    elif isinstance(argument, dict):
        for item in argument.values():
            _gather(item, found)
    else:
        found.append(argument)


def row_leaves(row: LocalRow) -> Sequence[Any]:
    """Every value inside of a row's arguments; few rows have nested ones, so that only those are walked."""
    items = (*row.args, *row.kwargs.values()) if row.kwargs else row.args
    return items if NESTED.isdisjoint(map(type, items)) else [*leaves(items)]


def map_leaves(argument: object, change: Callable[[Any], object]) -> Any:
    """`argument` with every value that is not a tuple, list or dict replaced by `change` of it."""
    if isinstance(argument, (tuple, list)):
        return tuple(map_leaves(item, change) for item in argument)
    if isinstance(argument, dict):
        return {key: map_leaves(item, change) for key, item in argument.items()}
    return change(argument)


def holes_of(row: LocalRow) -> list[int]:
    """Indexes of the literals that a row leaves to the rank."""
    return [leaf.index for leaf in row_leaves(row) if isinstance(leaf, Hole)]


def fill_holes(argument: object, literals: Sequence[object]) -> object:
    """`argument` with every hole replaced by the rank's literal."""
    return map_leaves(argument, lambda leaf: literals[leaf.index] if isinstance(leaf, Hole) else leaf)
