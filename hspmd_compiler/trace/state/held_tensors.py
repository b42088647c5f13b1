"""Tensors that modules hold beside parameters and buffers, as attributes or in lists and dicts there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import torch
from torch import nn

from ..tensor_memory import storage_key

HeldTensor = tuple[str, torch.Tensor]
"""The path of an attribute, and a tensor there."""


def held_tensors(model: nn.Module) -> Iterator[HeldTensor]:
    """All of them, by the module and the attribute that hold them."""
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            where = f"{path}.{name}" if path else name
            yield from ((where, found) for found in _within(value) if id(found) not in own)


def _within(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        yield from (item for item in items if isinstance(item, torch.Tensor))


def moving_tensors(model: nn.Module) -> Iterator[HeldTensor]:
    """Those that are no constants: windows on a parameter, and results of an earlier call."""
    memories = {storage_key(parameter) for parameter in model.parameters()}
    for where, tensor in held_tensors(model):
        strided = tensor.layout is torch.strided
        if tensor.grad_fn is not None or (strided and storage_key(tensor) in memories):
            yield where, tensor


def tables_as_buffers(model: nn.Module) -> nn.Module:
    """The model, whose own tensors that it holds as plain attributes are buffers that nobody saves.

    Of a model that a factory makes, whose initial values are made again on every rank, as those of buffers
    are. What shares memory with a parameter, depends on one, or hides an attribute of the class, stays.
    """
    held = [*model.parameters(), *model.buffers()]
    memories = {storage_key(tensor) for tensor in held if tensor.layout is torch.strided}
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if _is_table(value) and storage_key(value) not in memories and not hasattr(type(module), name):
                memories.add(storage_key(value))
                delattr(module, name)
                module.register_buffer(name, value, persistent=False)
    return model


def _is_table(value: object) -> TypeGuard[torch.Tensor]:
    if not isinstance(value, torch.Tensor) or isinstance(value, nn.Parameter):
        return False
    return value.layout is torch.strided and not value.requires_grad
