"""The literals that a local row leaves to the rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .program import Hole


def holes_of(argument: object) -> Iterator[int]:
    """Indexes of the literals that an argument leaves to the rank."""
    if isinstance(argument, Hole):
        yield argument.index
    else:
        for item in _members(argument):
            yield from holes_of(item)


def fill_holes(argument: object, literals: Sequence[object]) -> object:
    """`argument` with every hole replaced by the rank's literal."""
    return map_leaves(argument, lambda leaf: literals[leaf.index] if isinstance(leaf, Hole) else leaf)


def map_leaves(argument: object, change: Callable[[object], object]) -> object:
    """`argument` with every value that is not a tuple, list or dict replaced by `change` of it."""
    if isinstance(argument, (tuple, list)):
        return tuple(map_leaves(item, change) for item in argument)
    if isinstance(argument, dict):
        return {key: map_leaves(item, change) for key, item in argument.items()}
    return change(argument)


def _members(argument: object) -> Iterator[object]:
    if isinstance(argument, (tuple, list)):
        yield from argument
    elif isinstance(argument, dict):
        yield from argument.values()
