"""Sees, in a forward pass, where a boolean mask selects rows of a tensor, or says which are replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .mask_keys import MaskKeys, plain_name
from .selected import SelectedRows, Selection, refused


class WatchMasks(TorchFunctionMode):
    """Inside, rows that a mask selects are `SelectedRows`."""

    def __init__(self) -> None:
        super().__init__()
        self._keys = MaskKeys()
        self._selections: dict[object, Selection] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by PyTorch for each function."""
        given = kwargs or {}
        name = plain_name(func)
        known = CREATE.get(name)
        if known is not None:
            made = known(self, args, given)
            if made is not NotImplemented:
                return made
        result = func(*args, **given)
        self._keys.note(name, args, given, result)
        return result

    def selection(self, mask: Tensor) -> Selection:
        """One for each mask, however often it is computed."""
        key = self._keys.of(mask)
        if key not in self._selections:
            self._selections[key] = Selection(mask.reshape(-1).clone(), tuple(mask.shape), key)
        return self._selections[key]

    def getitem(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
        """`x[mask]`, `x[mask, ...]`, and by the places where a mask is true."""
        tensor, index = args
        if isinstance(index, SelectedRows) and _are_numbers(index) and not isinstance(tensor, SelectedRows):
            return index.selection.rows(tensor[index.content])
        found = self._chosen(tensor, index)
        if found is None:
            return NotImplemented
        selection, rest = found
        rows = selection.select(tensor)
        return rows[(slice(None), *rest)] if rest else rows

    def setitem(self, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
        """`x[mask] = value`: where the mask is true. One number is left to PyTorch."""
        tensor, index, value = args
        found = self._chosen(tensor, index)
        if found is None or not isinstance(value, Tensor):
            return NotImplemented
        if not isinstance(value, SelectedRows) and value.numel() == 1:
            return NotImplemented
        selection, rest = found
        if rest:
            raise refused("an assignment to parts of rows", fix="use torch.where(mask, value, x)")
        tensor.copy_(self._replaced(tensor, selection, value))
        return None

    def masked_select(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`torch.masked_select`, which broadcasts."""
        named = dict(zip(("input", "mask"), args, strict=False)) | kwargs
        tensor, mask = named["input"], named["mask"]
        if isinstance(tensor, SelectedRows) or isinstance(mask, SelectedRows) or len(named) > 2:
            raise refused("masked_select")
        shape = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
        return self.selection(self._spread(mask, shape)).select(tensor.expand(shape))

    def masked_scatter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The selected elements of a tensor of the same mask, put back."""
        named = dict(zip(("input", "mask", "source"), args, strict=False)) | kwargs
        tensor, mask, source = named["input"], named["mask"], named["source"]
        if not isinstance(source, SelectedRows):
            return NotImplemented
        return self._replaced(tensor, self.selection(self._spread(mask, tensor.shape)), source)

    def nonzero(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The places where a mask is true: a tuple, or a tensor with a column for each dim."""
        mask = args[0]
        if not _is_mask(mask):
            return NotImplemented
        selection = self.selection(mask)
        places = [self._places(selection, dim) for dim in range(mask.dim())]
        if kwargs.get("as_tuple"):
            return tuple(places)
        values = torch.stack([place.content for place in places], 1)
        return SelectedRows.of(values, selection, tuple(range(mask.dim())))

    def where(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """With a condition alone it names places."""
        return self.nonzero(args, {"as_tuple": True}) if len(args) == 1 and not kwargs else NotImplemented

    def _places(self, selection: Selection, dim: int) -> SelectedRows:
        sizes = selection.shape
        numbers = torch.arange(prod(sizes), device=selection.mask.device)
        along = (numbers // prod(sizes[dim + 1 :])) % sizes[dim]
        return SelectedRows.of(selection.rows(along).content, selection, (dim,))

    def _chosen(self, tensor: Any, index: Any) -> tuple[Selection, tuple[Any, ...]] | None:
        """The mask that an index of a tensor begins with, and what follows it."""
        parts = index if isinstance(index, tuple) else (index,)
        if not isinstance(tensor, Tensor) or isinstance(tensor, SelectedRows) or not parts:
            return None
        if isinstance(parts[0], SelectedRows):
            return self._by_places(tensor, parts)
        masks = [part for part in parts if _is_mask(part)]
        if not masks:
            return None
        mask, rest = parts[0], tuple(parts[1:])
        if mask is not masks[0] or any(isinstance(part, Tensor) for part in rest):
            raise refused(
                "an index with a mask among others", fix="put the mask first: x.transpose(0, 1)[mask]"
            )
        if tuple(mask.shape) != tuple(tensor.shape[: mask.dim()]):
            return None
        return self.selection(mask), rest

    def _by_places(self, tensor: Tensor, parts: tuple[Any, ...]) -> tuple[Selection, tuple[Any, ...]] | None:
        """An index by all the places that `nonzero` gave."""
        first: SelectedRows = parts[0]
        count = len(first.selection.shape)
        places, rest = parts[:count], parts[count:]
        in_order = len(places) == count and all(
            isinstance(part, SelectedRows)
            and part.columns == (dim,)
            and part.selection.key == first.selection.key
            for dim, part in enumerate(places)
        )
        if not in_order or any(isinstance(part, Tensor) for part in rest):
            raise refused("an index of selected numbers", fix="index with the mask itself: x[mask]")
        if tuple(tensor.shape[:count]) != first.selection.shape:
            raise refused("an index of a tensor by places of a mask of another shape")
        return first.selection, rest

    def _replaced(self, tensor: Tensor, selection: Selection, value: Tensor) -> Tensor:
        """The tensor with a value where the mask is true."""
        rest = tensor.shape[len(selection.shape) :]
        mask = selection.mask.view(*selection.shape, *(1 for _ in rest))
        if isinstance(value, SelectedRows):
            if value.selection.key != selection.key or tuple(value.content.shape[1:]) != tuple(rest):
                raise refused("an assignment of rows of another mask", fix="select both with one mask")
            value = value.content.reshape(tensor.shape)
        elif value.dim() == len(rest) + 1 and value.shape[0] == 1:
            value = value.squeeze(0)
        elif value.dim() > len(rest):
            raise refused(
                "an assignment of as many rows as a mask selects", fix="use torch.where(mask, values, x)"
            )
        if value.dtype != tensor.dtype:
            raise refused(
                f"an assignment of {value.dtype} to {tensor.dtype}", fix="cast the values: value.to(x.dtype)"
            )
        return torch.where(mask, value, tensor)

    def _spread(self, mask: Tensor, shape: Sequence[int]) -> Tensor:
        """The mask, broadcast to a shape."""
        if tuple(mask.shape) == tuple(shape):
            return mask
        made = mask.expand(shape)
        self._keys.note("expand", (mask, tuple(shape)), {}, made)
        return made


def _are_numbers(index: SelectedRows) -> bool:
    """Whether they are whole numbers, and not all that says where a mask is true."""
    is_place = index.columns == (0,) and len(index.selection.shape) == 1
    return not is_place and index.content.dtype is not torch.bool


def _is_mask(value: Any) -> bool:
    plain = isinstance(value, Tensor) and not isinstance(value, SelectedRows)
    return plain and value.dtype is torch.bool and value.dim() > 0


CREATE: dict[str, Callable[[WatchMasks, tuple[Any, ...], dict[str, Any]], Any]] = {
    "getitem": WatchMasks.getitem,
    "setitem": WatchMasks.setitem,
    "masked_select": WatchMasks.masked_select,
    "masked_scatter": WatchMasks.masked_scatter,
    "nonzero": WatchMasks.nonzero,
    "argwhere": WatchMasks.nonzero,
    "where": WatchMasks.where,
}
"""Functions that may read a mask."""
