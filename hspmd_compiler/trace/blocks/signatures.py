"""Which blocks of a model are alike: a plan to trace one of each kind instead of all of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from ...ir.layers import containers, owns_parameters

FactKey = tuple[str, str]
Fact = tuple[object, ...]
Signature = tuple[tuple[FactKey, Fact | None], ...]


@dataclass(frozen=True, slots=True)
class StackPlan:
    """How a list of blocks is traced: its first and last block, and one of each kind between them.

    path: of the list. children: names of all blocks. traced: places of those that are traced. template:
    for every block, the place in `traced` of the one that it is made from; some may only be neighbours.
    """

    path: str
    children: tuple[str, ...]
    traced: tuple[int, ...]
    template: tuple[int, ...]

    def full_path(self, block: int) -> str:
        """Path of a block in the whole model."""
        return self._join(self.children[block])

    def traced_path(self, place: int) -> str:
        """Path of a traced block in the reduced model, where names are places."""
        return self._join(str(place))

    def _join(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def plan_stacks(model: nn.Module, *, by_neighbours: bool = False) -> tuple[StackPlan, ...]:
    """A plan for every list of blocks that has fewer kinds than blocks, in whichever order these come.

    by_neighbours: blocks of one kind have neighbours of one kind, too, and are traced beside such; only
    lists of which half or less is traced so.
    """
    return tuple(_plans(model, by_neighbours))


def _plans(model: nn.Module, by_neighbours: bool) -> Iterator[StackPlan]:
    for path, named in containers(model):
        children = [child for _, child in named]
        if len(children) <= 3 or not all(map(owns_parameters, children)):
            continue
        kinds = _kinds(_signatures(children))
        traced = _first_of_each(kinds)
        if by_neighbours:
            alike, kinds = kinds, _kinds(_among_neighbours(kinds))
            traced = _with_neighbours(_first_of_each(kinds), alike)
            if 2 * len(traced) > len(children):
                continue
        if len(traced) < len(children):
            template = tuple(traced.index(kinds.index(kind)) for kind in kinds)
            yield StackPlan(path, tuple(name for name, _ in named), tuple(traced), template)


def _kinds(told: Sequence[Hashable]) -> list[int]:
    """Number of the kind of every block: 0 the first, then one for all that are told alike, then the last."""
    numbers: dict[Hashable, int] = {}
    inner = [numbers.setdefault(value, len(numbers) + 1) for value in told[1:-1]]
    return [0, *inner, len(numbers) + 1]


def _first_of_each(kinds: Sequence[int]) -> list[int]:
    return [kinds.index(kind) for kind in range(max(kinds) + 1)]


def _among_neighbours(kinds: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(kinds[max(place - 1, 0) : place + 2]) for place in range(len(kinds))]


def _with_neighbours(traced: Sequence[int], alike: Sequence[int]) -> list[int]:
    """The traced blocks, and those between them without which one has a neighbour of another kind."""
    kept = set(traced)
    for left, right in pairwise(traced):
        if alike[left + 1] != alike[right] or alike[right - 1] != alike[left]:
            kept |= {left + 1, right - 1}
    return sorted(kept)


def _signatures(children: Sequence[nn.Module]) -> list[Signature]:
    """What is said of each block, but where it stands."""
    facts = [dict(_facts(child)) for child in children]
    places = _places(facts)
    return [tuple((key, None if key in places else value) for key, value in block.items()) for block in facts]


def _places(facts: Sequence[Mapping[FactKey, Fact]]) -> set[FactKey]:
    """The attributes that hold a block's place, such as a layer index, among all or those that have it."""
    found: dict[FactKey, list[tuple[int, Fact]]] = {}
    for place, block in enumerate(facts):
        for key, value in block.items():
            found.setdefault(key, []).append((place, value))
    return {
        key
        for key, held in found.items()
        if all(value == (int, place) for place, value in held)
        or all(value == (int, number) for number, (_, value) in enumerate(held))
    }


def _facts(block: nn.Module) -> Iterator[tuple[FactKey, Fact]]:
    """Classes, parameters and plain attributes of a block."""
    for path, module in block.named_modules():
        yield (path, "class"), (type(module), len(module._forward_hooks) + len(module._forward_pre_hooks))
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            yield (path, name), () if tensor is None else _tensor(tensor)
        for name, value in vars(module).items():
            if not name.startswith("_") and _is_plain(value):
                yield (path, name), (type(value), value)


def _tensor(tensor: torch.Tensor) -> Fact:
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype))
