"""A model with fewer blocks, made beside the whole one, which stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from .signatures import StackPlan

DEPTHS = frozenset(
    ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")
)
CONFIG = "config"
Memo = dict[int, object]


def copy_with(model: nn.Module, tensors: Mapping[int, torch.Tensor]) -> nn.Module:
    """A copy that holds `tensors`, by id of the parameters and buffers that they stand for."""
    return copy.deepcopy(model, dict(tensors))


def reduced_copy(
    model: nn.Module, tensors: Mapping[int, torch.Tensor], stacks: Iterable[StackPlan]
) -> nn.Module:
    """As `copy_with`, with only the traced blocks of each stack, named by their places.

    Lists of the model and its configuration that have an entry per block keep those of traced blocks,
    and numbers of the configuration that are called a depth become the new one. Whoever uses the copy
    must check that it stands for the whole: a model may know its depth in other ways.
    """
    memo: Memo = dict(tensors)
    for stack in stacks:
        container = model.get_submodule(stack.path)
        memo[id(container)] = _shortened(container, stack, memo)
    reduced = copy.deepcopy(model, memo)
    for stack in stacks:
        _cut_lists(reduced, stack)
    return reduced


def _shortened(container: nn.Module, stack: StackPlan, memo: Memo) -> nn.Module:
    kind = type(container)
    made: nn.Module = kind.__new__(kind)
    memo[id(container)] = made
    for name, value in vars(container).items():
        if name != "_modules":
            made.__dict__[name] = copy.deepcopy(value, memo)
    children = list(container.children())
    made.__dict__["_modules"] = {
        str(place): copy.deepcopy(children[block], memo) for place, block in enumerate(stack.traced)
    }
    return made


def _cut_lists(model: nn.Module, stack: StackPlan) -> None:
    depth = len(stack.children)
    for fields, is_config in _fields_outside(model, stack):
        for name, value in fields.items():
            if isinstance(value, (list, tuple)) and len(value) == depth:
                fields[name] = type(value)(_kept(value, stack.traced))
            elif is_config and name in DEPTHS and value == depth:
                fields[name] = len(stack.traced)


def _kept(values: Sequence[object], places: Sequence[int]) -> list[object]:
    return [values[place] for place in places]


def _fields_outside(model: nn.Module, stack: StackPlan) -> Iterator[tuple[dict[str, object], bool]]:
    """Attributes of modules outside the blocks, and of configurations; each once."""
    seen: set[int] = set()
    inside = f"{stack.path}." if stack.path else ""
    for path, module in model.named_modules():
        if not (path.startswith(inside) and path != stack.path):
            yield vars(module), False
        config = getattr(module, CONFIG, None)
        for fields in _configs(config, seen):
            yield fields, True


def _configs(config: object, seen: set[int]) -> Iterator[dict[str, object]]:
    """The fields of a configuration and of those in it."""
    if config is None or id(config) in seen or isinstance(config, type) or not hasattr(config, "__dict__"):
        return
    seen.add(id(config))
    fields = vars(config)
    yield fields
    for name, value in list(fields.items()):
        if name.endswith(CONFIG) and not isinstance(value, nn.Module):
            yield from _configs(value, seen)
