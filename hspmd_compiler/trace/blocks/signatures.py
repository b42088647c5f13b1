"""Which blocks of a model are alike: a plan to trace one of each kind instead of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    for every block, the place in `traced` of the one that it is made from.
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


def plan_stacks(model: nn.Module) -> tuple[StackPlan, ...]:
    """A plan for every list of blocks of one class that has fewer kinds than blocks."""
    return tuple(_plans(model))


def _plans(model: nn.Module) -> Iterator[StackPlan]:
    for path, named in containers(model):
        children = [child for _, child in named]
        alike = len({type(child) for child in children}) == 1 and all(map(owns_parameters, children))
        if alike and len(children) > 3:
            kinds = _kinds(children)
            if max(kinds) + 1 < len(children):
                yield _plan(path, tuple(name for name, _ in named), kinds)


def _kinds(children: Sequence[nn.Module]) -> list[int]:
    """Number of the template of every block: 0 the first, then one per signature, then the last."""
    facts = [dict(_facts(child)) for child in children]
    places = set.intersection(*(_places(block, place) for place, block in enumerate(facts)))
    numbers: dict[Signature, int] = {}
    kinds = [0]
    for block in facts[1:-1]:
        signature = tuple((key, None if key in places else value) for key, value in block.items())
        kinds.append(numbers.setdefault(signature, len(numbers) + 1))
    return [*kinds, len(numbers) + 1]


def _places(facts: Mapping[FactKey, Fact], place: int) -> set[FactKey]:
    """The attributes that hold the place of the block, such as a layer index."""
    return {key for key, value in facts.items() if value == (int, place)}


def _plan(path: str, names: tuple[str, ...], kinds: list[int]) -> StackPlan:
    return StackPlan(path, names, tuple(kinds.index(kind) for kind in range(max(kinds) + 1)), tuple(kinds))


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
