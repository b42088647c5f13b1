"""The bar for equal: the largest difference of each tensor, against its own scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan

import torch
from rich.table import Table
from torch import Tensor

from ..errors import VerifyError

GRADIENT_FLOOR = 1e-3
"""Part of the model's largest gradient below which a gradient's own scale does not count."""
SHOWN = 8
REPORT = "report it with the strategy; `--rows` names the first wrong value"
NOT_FINITE = (
    "eager's own numbers are not finite, so nothing can be compared: find where they arise in the model"
    " (a sqrt or log on the other side of a torch.where gives them in backward), or verify with other"
    " weights and data"
)

Sides = Callable[[str], list[tuple[str, str]]]
"""What both sides hold of a tensor, for an error."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor. largest: max|a-b|. scale: max(max|reference|, floor). error: their ratio."""

    name: str
    largest: float
    scale: float

    @property
    def error(self) -> float:
        """Relative difference; zero scale and zero difference are equal."""
        if self.scale:
            return self.largest / self.scale
        return 0.0 if self.largest == 0 else float("inf")

    def within(self, tolerance: float) -> bool:
        """Whether it is equal; never where a number is not one."""
        return self.error <= tolerance


def differences(
    actual: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    floor: float,
    unset: Mapping[str, Tensor] | None = None,
) -> list[Difference]:
    """Every tensor of both, worst first. A VerifyError where the names or shapes are not the same.

    A reference without elements needs no counterpart: ranks have nothing of its gradient to sum.
    unset: by name, the elements that are equal where both sides have no number, as before the first step.
    """
    missing = sorted(name for name in reference.keys() - actual.keys() if reference[name].numel())
    odd = [(name, "only computed") for name in sorted(actual.keys() - reference.keys())]
    odd += [(name, "only in the reference") for name in missing]
    odd += [
        (name, f"{tuple(actual[name].shape)} instead of {tuple(reference[name].shape)}")
        for name in sorted(actual.keys() & reference.keys())
        if actual[name].shape != reference[name].shape
    ]
    if odd:
        raise VerifyError("tensors have no counterpart", details=odd, rule="no tensor is exempt")
    unset = unset or {}
    found = [
        _difference(name, actual[name], reference[name], floor, unset.get(name))
        for name in reference
        if name in actual
    ]
    return worst_first(found)


def without_numbers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By name, where tensors have elements that are no number, as a buffer that is filled in later has."""
    masks = ((name, tensor.isnan()) for name, tensor in state.items())
    return {name: mask for name, mask in masks if mask.any()}


def worst_first(found: Iterable[Difference]) -> list[Difference]:
    """By relative difference, what is no number first."""
    return sorted(found, key=_badness, reverse=True)


def gradient_floor(reference: Mapping[str, Tensor]) -> float:
    """The floor for gradients: a thousandth of the model's largest."""
    return GRADIENT_FLOOR * max((_largest(tensor) for tensor in reference.values()), default=0.0)


def loss_difference(actual: float, reference: float) -> Difference:
    """The loss as a tensor of one number."""
    return Difference("loss", abs(actual - reference), abs(reference))


def check_equal(
    found: Sequence[Difference],
    tolerance: float,
    what: str,
    sides: Sides | None = None,
    fix: str = REPORT,
) -> None:
    """Raise a VerifyError that names every tensor beyond `tolerance`, and both sides of the worst."""
    wrong = [difference for difference in found if not difference.within(tolerance)]
    if wrong:
        raise VerifyError(
            f"{what}: {len(wrong)} of {len(found)} tensors differ by more than {tolerance:g}",
            details=[
                *(sides(wrong[0].name) if sides is not None else ()),
                *((item.name, f"{item.largest:.3g} at scale {item.scale:.3g}") for item in wrong[:SHOWN]),
                *([("...", f"{len(wrong) - SHOWN} more")] if len(wrong) > SHOWN else []),
            ],
            rule="max|a-b| <= tolerance x max(max|reference|, floor), for every tensor",
            fix=fix if all(isfinite(item.scale) for item in wrong) else NOT_FINITE,
        )


def difference_table(found: Sequence[Difference], title: str) -> Table:
    """The worst cases, for people."""
    table = Table(title=title)
    table.add_column("tensor")
    for name in ("largest difference", "scale", "relative"):
        table.add_column(name, justify="right")
    for item in found[:SHOWN]:
        table.add_row(item.name, f"{item.largest:.3g}", f"{item.scale:.3g}", f"{item.error:.3g}")
    return table


def _difference(
    name: str, actual: Tensor, reference: Tensor, floor: float, unset: Tensor | None
) -> Difference:
    gap = _largest(as_double(actual) - as_double(reference))
    if isnan(gap):  # as two infinities give, which are equal, as those of a mask
        equal = reference.isinf() & (actual == reference)
        if unset is not None:
            equal |= unset & actual.isnan() & reference.isnan()
        actual, reference = (tensor.masked_fill(equal, 0) for tensor in (actual, reference))
        gap = _largest(as_double(actual) - as_double(reference))
    return Difference(name, gap, max(_largest(reference), floor))


def _largest(tensor: Tensor) -> float:
    return (
        float(torch.linalg.vector_norm(as_double(tensor.detach()), ord=float("inf")))
        if tensor.numel()
        else 0.0
    )


def as_double(tensor: Tensor) -> Tensor:
    """Every number in double precision, as real or complex ones."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _badness(difference: Difference) -> float:
    return difference.error if difference.error == difference.error else float("inf")
