"""The same rules where PyTorch is asked: within `QuickTypes` it answers only what has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...base.dtypes import ELEMENT_TYPES
from ..arguments import leaves, map_leaves
from .plain import NEW, Outline
from .table import INSIDE

META = torch.device("meta")


class QuickTypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """In this block common operators on tensors of the device `meta` are answered by rule."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """What PyTorch asks before it imports its compiler, to keep it away: nothing compiles here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is torch.ops.aten.scatter_.src:  # in place: the first operand, whatever is written
            return args[0] if _fits(*args) else func(*args, **named)
        if func is torch.ops.aten._unsafe_view.default and args[0].is_meta:
            return args[0].view(args[1])
        rule = INSIDE.get(str(func))
        device = named.get("device")
        tensors = [item for item in leaves(args) if isinstance(item, Tensor)]
        known = all(item.is_meta and str(item.dtype)[6:] in ELEMENT_TYPES for item in tensors)
        if rule is None or not known or device not in (None, META) or not (tensors or device):
            return func(*args, **named)
        del device
        named.pop("device", None)
        answer = rule(*map_leaves(args, _plain), **map_leaves(named, _plain))
        return func(*args, **dict(kwargs or {})) if answer is None else _tensors(answer)


def _fits(value: Tensor, dim: int, index: Tensor, source: Tensor) -> bool:
    same = value.dim() == index.dim() == source.dim() and value.dtype == source.dtype
    return same and value.is_meta and index.dtype is torch.int64 and index.shape == source.shape


def _plain(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return Outline(tuple(leaf.shape), ELEMENT_TYPES[str(leaf.dtype)[6:]], leaf.stride(), NEW)
    if isinstance(leaf, torch.dtype):
        return ELEMENT_TYPES.get(str(leaf)[6:], leaf)
    if isinstance(leaf, torch.memory_format | torch.layout):
        return str(leaf).removeprefix("torch.")
    return leaf


def _tensors(answer: Any) -> Any:
    if isinstance(answer, Outline):
        dtype = getattr(torch, answer.dtype.name)
        return torch.empty_strided(answer.shape, answer.strides, dtype=dtype, device=META)
    return tuple(None if item is None else _tensors(item) for item in answer)
