"""Buffers that forward assigns anew: what they are after a step, or why no step can have them so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from ..tensor_memory import storage_key
from .changes import BUFFERS, PARAMETERS, Change, HolderChange, Refusal
from .holders import Contents, StateHolder

HISTORY = "keeps the history of gradients of this step", "assign value.detach()"
IN_PLACE = "change it in place, of one shape and type: self.name.copy_(value)"


def buffer_names(model: nn.Module) -> dict[int, str]:
    """The first name of every buffer, by id."""
    named = list(model.named_buffers(remove_duplicate=False))
    return {id(tensor): name for name, tensor in reversed(named)}


def is_new_value(change: Change, key: object) -> bool:
    """Whether a buffer of the model was given another tensor; the rest of it is like any other change."""
    return change.holder.is_part(BUFFERS) and isinstance(change.before.get(key), torch.Tensor)


def new_buffers(
    changes: Sequence[Change], held: Sequence[HolderChange], names: Mapping[int, str]
) -> tuple[dict[str, torch.Tensor], list[Refusal]]:
    """New values by name, and those that can't be."""
    found: dict[str, torch.Tensor] = {}
    refused: list[Refusal] = []
    for change in changes:
        for key in (key for key in change.keys if is_new_value(change, key)):
            why = next(_wrong(change, key, held), None)
            if why is None:
                new = change.after[key]
                assert isinstance(new, torch.Tensor)
                found[names[id(change.before[key])]] = new
            else:
                refused.append((change.holder.at(key), *why))
    return found, refused


def _wrong(change: Change, key: object, held: Sequence[HolderChange]) -> Iterator[tuple[str, str]]:
    """Why a buffer can't have this value after every step, and the way out."""
    old, new, own = change.before[key], change.after.get(key), (change.holder, key)
    assert isinstance(old, torch.Tensor)
    if not isinstance(new, torch.Tensor):
        yield f"becomes {'None' if new is None else type(new).__name__}", IN_PLACE
        return
    if new.shape != old.shape or new.dtype != old.dtype:
        yield f"becomes {_meta(new)}, and was {_meta(old)}", IN_PLACE
    if new.requires_grad and change.holder.owner is not None and not _is_unsaved(change.holder.owner, key):
        yield HISTORY
    if any(value is old for h, before, _ in held for k, value in before.items() if (h, k) != own):
        yield "is held under another name, too, which keeps its old value", IN_PLACE
    others = [name for holder, _, after in held for name in _sharing(holder, after, new, own)]
    if others:
        yield f"shares memory with {others[0]}", "assign a clone: value.clone()"


def _is_unsaved(module: nn.Module, key: object) -> bool:
    return key in module._non_persistent_buffers_set


def _sharing(
    holder: StateHolder, after: Contents, new: torch.Tensor, own: tuple[StateHolder, object]
) -> Iterator[str]:
    """Names of parameters and buffers that share memory with the new value of a buffer."""
    if not (holder.is_part(BUFFERS) or holder.is_part(PARAMETERS)):
        return
    for name, tensor in after.items():
        shared = isinstance(tensor, torch.Tensor) and storage_key(tensor) == storage_key(new)
        if shared and (holder, name) != own:
            yield holder.at(name)


def _meta(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
