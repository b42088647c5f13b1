"""Whether a model's step on a batch is a weighted sum of its steps on parts of it, as with a home."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from rich.text import Text
from torch import Tensor

from ...artifact.proved_loss import ProvedLoss
from ...errors import VerifyError
from ...runtime.hot.parts import weighed
from ..eager import EagerResult, eager_model, eager_step
from ..equality import NOT_FINITE, differences, gradient_floor, loss_difference, worst_first
from ..reference import Reference
from ..training import TOLERANCE

SHOWN = 5


@dataclass(frozen=True, slots=True)
class PartsReport:
    """samples, weights: of two parts of a batch, whose sum it is; error: the largest relative difference.

    loss: what weights were made of; None: what fits best, where nothing was proved when it was compiled.
    left_out: why it was not asked; empty where it was.
    """

    samples: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    error: float = 0.0
    left_out: str = ""
    loss: ProvedLoss | None = None

    def to_json(self) -> dict[str, object]:
        """For scripts."""
        if self.left_out:
            return {"left_out": self.left_out}
        told = {} if self.loss is None else {"loss": str(self.loss)}
        return {"samples": list(self.samples), "weights": list(self.weights), "error": self.error, **told}

    def rendered(self) -> Text:
        """For people."""
        if self.left_out:
            return Text(f"steps in parts: not asked, {self.left_out}")
        one, other = self.samples
        weights = " and ".join(f"{weight:.6g}" for weight in self.weights)
        return Text(
            f"steps in parts: loss and gradients of {one + other} samples are those of {one} and of {other}"
            f" times {weights}, within {TOLERANCE:g}" + ("" if self.loss is None else f"; it is {self.loss}")
        )


def prove_parts(
    reference: Reference, batch: Mapping[str, Tensor], draws: bool, loss: ProvedLoss | None = None
) -> PartsReport:
    """A VerifyError where two unequal parts of a batch are not the whole, in float64, by the weights that the
    loss was proved to give, or by any, where none are proved.

    draws: the model draws random numbers by the place of a sample, which parts have of their own here.
    """
    samples = len(next(iter(batch.values())))
    if samples < 2 or draws:
        return PartsReport(left_out="the model draws random numbers" if draws else "a batch has one sample")
    first = (samples + 2) // 3
    batch = _uneven(batch, first, loss)
    bounds = ((0, first), (first, samples))
    whole = _step(reference, batch)
    own = [{key: value[low:high] for key, value in batch.items()} for low, high in bounds]
    parts = [_step(reference, each) for each in own]
    columns = torch.stack([_flat(each, whole) for each in parts], 1)
    wanted = _flat(whole, whole)
    if not (columns.isfinite().all() and wanted.isfinite().all()):
        return PartsReport(left_out=NOT_FINITE)
    if loss is None or loss.kind is None:
        weights = torch.linalg.lstsq(columns, wanted[:, None]).solution.flatten().tolist()
        loss = None
    else:
        weights = _proved_weights(loss, own)
    error = _checked(whole, parts, weights, loss)
    return PartsReport((first, samples - first), tuple(weights), error, loss=loss)


def _uneven(batch: Mapping[str, Tensor], first: int, loss: ProvedLoss | None) -> Mapping[str, Tensor]:
    """With labels that don't count in the first part, so that samples and labels weigh otherwise."""
    if loss is None or loss.labels is None:
        return batch
    labels = batch[loss.labels.key].clone()
    if labels.dim() > 1:
        labels[:first, loss.labels.first + 1 :: 2] = loss.labels.ignored
    elif first > 1:
        labels[0] = loss.labels.ignored
    return {**batch, loss.labels.key: labels}


def _proved_weights(loss: ProvedLoss, parts: Sequence[Mapping[str, Tensor]]) -> list[float]:
    """As a step in parts makes them."""
    batches = [("", part) for part in parts]
    found = {part.first: part.weight for part in weighed(batches, loss)}
    starts = accumulate((len(next(iter(part.values()))) for part in parts[:-1]), initial=0)
    return [found.get(start, 0.0) for start in starts]


def _step(reference: Reference, batch: Mapping[str, Tensor]) -> EagerResult:
    """Of a model that has taken none: buffers may change."""
    return eager_step(eager_model(reference.build, reference.state, widen=True), batch, widen=True)


def _flat(result: EagerResult, like: EagerResult) -> Tensor:
    """The loss, then all gradients; zeros for those that a part does not reach."""
    loss = torch.tensor([result.loss], dtype=torch.float64)
    grads = (result.grads.get(name, torch.zeros_like(value)) for name, value in like.grads.items())
    rows = (torch.view_as_real(grad) if grad.is_complex() else grad for grad in grads)
    return torch.cat([loss, *(row.reshape(-1).double() for row in rows)])


def _checked(
    whole: EagerResult, parts: list[EagerResult], weights: list[float], loss: ProvedLoss | None
) -> float:
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
    total = sum(part.loss * weight for part, weight in zip(parts, weights, strict=True))
    found = worst_first(
        [*differences(made, whole.grads, gradient_floor(whole.grads)), loss_difference(total, whole.loss)]
    )
    wrong = [each for each in found if not each.within(TOLERANCE)]
    if wrong and loss is not None:
        raise VerifyError(
            "the loss is another than it was proved to be",
            details=[(each.name, f"differs by {each.error:.2g} of its scale") for each in wrong[:SHOWN]],
            rule=f"by the graph it is {loss}",
            fix="report this model",
        )
    if wrong:
        raise VerifyError(
            "the model can't be run in parts of a batch",
            details=[(each.name, f"differs by {each.error:.2g} of its scale") for each in wrong[:SHOWN]],
            rule="with a home, loss and gradients of a batch are weighted sums of those of its parts",
            fix="compile without --home, and take steps of one strategy",
        )
    return found[0].error
