"""What each function of torch does with selected rows; one that is not listed is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import shapes
from .elementwise import IN_PLACE, TYPES, by_element, in_place, is_elementwise, rows_in
from .losses import BY_CLASS, BY_ELEMENT, BY_ROW, loss
from .mask_keys import plain_name
from .rowwise import (
    DIM_AT,
    LOOKUPS,
    NORMS,
    PRODUCTS,
    along_dim,
    dropout,
    joined,
    lookup,
    norm,
    product,
)
from .selected import SelectedRows, refused

LOSSES = (*BY_ELEMENT, *BY_ROW, *BY_CLASS)
SPLITS = ("chunk", "split", "unbind")
"""Functions along a dim whose results are views."""


def call(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function of arguments some of which are selected rows."""
    made = _called(func, args, kwargs)
    if made is not NotImplemented and _may_share(plain_name(func), args, made):
        for rows in rows_in((args, made)):
            rows.viewed = True
    return made


def _may_share(name: str, args: tuple[Any, ...], made: Any) -> bool:
    """Whether in eager the result may look at the memory of an argument."""
    if name in TYPES:
        return name != "clone" and isinstance(made, SelectedRows) and made.dtype == args[0].dtype
    return name in SPLITS or name in shapes.GIVE_VIEWS


def _called(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = plain_name(func)
    if func in LOSSES:
        return loss(func, args, kwargs)
    if name in PRODUCTS:
        return product(func, args, kwargs)
    if name in NORMS:
        return norm(func, args, kwargs)
    if name in LOOKUPS:
        return lookup(func, args, kwargs)
    if name == "dropout":
        return dropout(func, args, kwargs)
    if name in ("cat", "concat", "stack"):
        return joined(func, args, kwargs)
    if name in IN_PLACE:
        return in_place(func, args, kwargs)
    if is_elementwise(func, args):
        return by_element(func, args, kwargs)
    if name in DIM_AT:
        return along_dim(func, args, kwargs)
    rows = args[0] if args else None
    if isinstance(rows, SelectedRows):
        return _of_shape(func, name, rows, args, kwargs)
    raise refused(name)


def _of_shape(
    func: Callable[..., Any],
    name: str,
    rows: SelectedRows,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if name.replace(" ", "_") in shapes.ASKED:
        return func(rows.content, *args[1:], **kwargs)
    found = shapes.asked(name, rows, args[1:] or tuple(kwargs.values()))
    if found is not NotImplemented:
        return found
    if name in shapes.VIEWS:
        return shapes.reshaped(rows, args[1:] or tuple(kwargs.values()))
    if name in shapes.AROUND:
        return shapes.around(func, args, kwargs)
    match name:
        case "flatten" | "ravel":
            return shapes.flattened(rows, args[1:], kwargs)
        case "squeeze":
            return shapes.squeezed(rows, args[1:], kwargs)
        case "unsqueeze":
            return shapes.unsqueezed(rows, args[1:], kwargs)
        case "getitem":
            return shapes.picked(rows, args[1])
    raise refused(name.removeprefix("get "))
