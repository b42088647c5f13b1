"""Losses of selected rows: per row, then summed or averaged over those that count."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .elementwise import SelectedOperands, by_element
from .mask_keys import plain_name
from .rowwise import over_rows
from .selected import SelectedRows, refused

IGNORED = -100
_BY_ELEMENT = """
    mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
    poisson_nll_loss soft_margin_loss hinge_embedding_loss margin_ranking_loss
"""
BY_ELEMENT = tuple(getattr(functional, name) for name in _BY_ELEMENT.split())
BY_WEIGHT = (functional.mse_loss, functional.l1_loss)
"""Those whose mean divides by the sum of the weights, which are one for each element."""
BY_ROW = (
    functional.cosine_embedding_loss,
    functional.triplet_margin_loss,
    functional.multi_margin_loss,
)
BY_CLASS = (functional.cross_entropy, functional.nll_loss)
OLD = ("size_average", "reduce")


def loss(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The reduction that was asked for."""
    name = plain_name(func)
    args, kwargs = _by_name(func, args, kwargs)
    if any(kwargs.get(word) is not None for word in OLD):
        raise refused(f"{name} with size_average= or reduce=", fix="say reduction='mean' or 'sum'")
    if func in BY_CLASS:
        return of_classes(func, args, kwargs)
    wanted, weight = kwargs.get("reduction", "mean"), kwargs.get("weight")
    if func in BY_WEIGHT and weight is not None and not isinstance(weight, SelectedRows):
        raise refused(f"{name} with weights of all rows", fix="select the weights, too: weight=weight[mask]")
    per_row = _per_row if func in BY_ROW else by_element
    made = per_row(func, args, kwargs | {"reduction": "none"})
    dims = list(range(made.content.dim()))
    if wanted == "none":
        return made
    if wanted == "mean" and weight is not None and func in BY_WEIGHT:
        return over_rows("sum", made, dims) / over_rows("sum", weight, dims)
    if wanted == "batchmean":
        return over_rows("sum", made, dims) / made.selection.count
    return over_rows(wanted, made, dims)


def _by_name(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The tensors that a loss compares, in order, and all other arguments by name."""
    taken = signature(func)
    found = taken.bind(*args, **kwargs).arguments
    compared = [name for name, each in taken.parameters.items() if each.default is each.empty]
    options = {name: value for name, value in found.items() if name not in compared}
    return tuple(found[name] for name in compared), options


def of_classes(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Cross-entropy: rows that don't count have the target that is ignored."""
    name = plain_name(func)
    scores, target, *others = args
    if not isinstance(scores, SelectedRows) or not isinstance(target, SelectedRows):
        raise refused(f"{name} of rows and all of the other tensor", fix="select scores and targets alike")
    if any(isinstance(item, SelectedRows) for item in (*others, *kwargs.values())):
        raise refused(f"{name} with weights of classes per row")
    selection = SelectedOperands(name, [scores, target], one_rank=False).selection
    if target.content.is_floating_point():
        return _of_chances(func, scores, target, others, kwargs)
    ignored = kwargs.get("ignore_index", IGNORED)
    kept: Tensor = torch.where(selection.beside(target.content), target.content, ignored)
    made = func(scores.content, kept, *others, **kwargs)
    return selection.rows(made) if kwargs.get("reduction", "mean") == "none" else made


def _per_row(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> SelectedRows:
    """A loss of rows of several dims and numbers for each."""
    if not all(isinstance(item, SelectedRows) for item in args):
        raise refused(f"{plain_name(func)} of rows and other tensors", fix="select all of them")
    met = SelectedOperands(plain_name(func), list(args), one_rank=False)
    return met.result(func(*(item.content for item in args), **kwargs))


def _of_chances(
    func: Callable[..., Any],
    scores: SelectedRows,
    target: SelectedRows,
    others: list[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Targets that are chances of classes."""
    wanted = kwargs.get("reduction", "mean")
    per_row = func(scores.content, target.content, *others, **kwargs | {"reduction": "none"})
    made = scores.selection.rows(per_row)
    if wanted == "none":
        return made
    return over_rows(wanted, made, list(range(made.content.dim())))
