"""Whether a model's step on a batch is a weighted sum of its steps on parts of it, as with a home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from rich.text import Text
from torch import Tensor

from ...errors import VerifyError
from ..eager import EagerResult, eager_model, eager_step
from ..equality import NOT_FINITE, differences, gradient_floor, loss_difference, worst_first
from ..reference import Reference
from ..training import TOLERANCE

SHOWN = 5


@dataclass(frozen=True, slots=True)
class PartsReport:
    """samples, weights: of two parts of a batch, whose sum it is; error: the largest relative difference.

    left_out: why it was not asked; empty where it was.
    """

    samples: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    error: float = 0.0
    left_out: str = ""

    def to_json(self) -> dict[str, object]:
        """For scripts."""
        if self.left_out:
            return {"left_out": self.left_out}
        return {"samples": list(self.samples), "weights": list(self.weights), "error": self.error}

    def rendered(self) -> Text:
        """For people."""
        if self.left_out:
            return Text(f"steps in parts: not asked, {self.left_out}")
        one, other = self.samples
        weights = " and ".join(f"{weight:.6g}" for weight in self.weights)
        return Text(
            f"steps in parts: loss and gradients of {one + other} samples are those of {one} and of {other}"
            f" times {weights}, within {TOLERANCE:g}"
        )


def prove_parts(reference: Reference, batch: Mapping[str, Tensor], draws: bool) -> PartsReport:
    """A VerifyError where no weights make two unequal parts of a batch the whole, in float64.

    draws: the model draws random numbers by the place of a sample, which parts have of their own here.
    """
    samples = len(next(iter(batch.values())))
    if samples < 2 or draws:
        return PartsReport(left_out="the model draws random numbers" if draws else "a batch has one sample")
    first = (samples + 2) // 3
    whole, *parts = (
        _step(reference, {key: value[low:high] for key, value in batch.items()})
        for low, high in ((0, samples), (0, first), (first, samples))
    )
    columns = torch.stack([_flat(each, whole) for each in parts], 1)
    wanted = _flat(whole, whole)
    if not (columns.isfinite().all() and wanted.isfinite().all()):
        return PartsReport(left_out=NOT_FINITE)
    weights = torch.linalg.lstsq(columns, wanted[:, None]).solution.flatten().tolist()
    error = _checked(whole, parts, weights)
    return PartsReport((first, samples - first), tuple(weights), error)


def _step(reference: Reference, batch: Mapping[str, Tensor]) -> EagerResult:
    """Of a model that has taken none: buffers may change."""
    return eager_step(eager_model(reference.build, reference.state, widen=True), batch, widen=True)


def _flat(result: EagerResult, like: EagerResult) -> Tensor:
    """The loss, then all gradients; zeros for those that a part does not reach."""
    loss = torch.tensor([result.loss], dtype=torch.float64)
    grads = (result.grads.get(name, torch.zeros_like(value)) for name, value in like.grads.items())
    rows = (torch.view_as_real(grad) if grad.is_complex() else grad for grad in grads)
    return torch.cat([loss, *(row.reshape(-1).double() for row in rows)])


def _checked(whole: EagerResult, parts: list[EagerResult], weights: list[float]) -> float:
    """The largest relative difference between the whole and the weighted sum of its parts."""
    made = {
        name: sum(
            (
                part.grads[name] * weight
                for part, weight in zip(parts, weights, strict=True)
                if name in part.grads
            ),
            torch.zeros_like(value),
        )
        for name, value in whole.grads.items()
    }
    loss = sum(part.loss * weight for part, weight in zip(parts, weights, strict=True))
    found = worst_first(
        [*differences(made, whole.grads, gradient_floor(whole.grads)), loss_difference(loss, whole.loss)]
    )
    wrong = [each for each in found if not each.within(TOLERANCE)]
    if wrong:
        raise VerifyError(
            "the model can't be run in parts of a batch",
            details=[(each.name, f"differs by {each.error:.2g} of its scale") for each in wrong[:SHOWN]],
            rule="with a home, loss and gradients of a batch are weighted sums of those of its parts",
            fix="compile without --home, and take steps of one strategy",
        )
    return found[0].error
