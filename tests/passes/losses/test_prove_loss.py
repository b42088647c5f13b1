"""What a loss is over samples: each kind by its graph, and whatever is proved holds by numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, mse_loss

from hspmd_compiler.artifact.proved_loss import LossKind, ProvedLabels, ProvedLoss
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.options import Capture
from hspmd_compiler.passes.losses.prove import of_all, prove_loss
from hspmd_compiler.runtime.hot.parts import weighed

Loss = Callable[[Tensor, Tensor, nn.Linear], Tensor]
CLASSES, PLACES = 5, 4


class Scored(nn.Module):
    """Scores of classes at each place of a row, and a loss of them."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.layer = nn.Linear(3, CLASSES)
        self.register_buffer("weight", torch.arange(1.0, CLASSES + 1))
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.layer(x), y, self.layer)


def batch(samples: int, seed: int = 0, places: int = PLACES) -> dict[str, Tensor]:
    """Labels of which about a third doesn't count."""
    drawn = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (samples, places), generator=drawn)
    y[torch.rand(samples, places, generator=drawn) < 0.3] = -100
    return {"x": torch.randn(samples, places, 3, generator=drawn), "y": y}


def proved(loss: Loss, places: int = PLACES, samples: int = 3) -> ProvedLoss:
    graphs = [
        trace_graph(Scored(loss), batch(2, places=places), size, Capture.FULL).graph
        for size in (samples, 2 * samples)
    ]
    return prove_loss(*graphs).loss


def ce(o: Tensor, y: Tensor, first: int = 0, ignored: int = -100, **more: object) -> Tensor:
    """Cross-entropy of the labels from a place on."""
    scores = o[:, : PLACES - first].reshape(-1, CLASSES)
    return cross_entropy(scores, y[:, first:].reshape(-1), ignore_index=ignored, **more)  # type: ignore[arg-type]


def counted(o: Tensor, y: Tensor, _: nn.Linear) -> Tensor:
    per_label = cross_entropy(o.flatten(0, 1), y.flatten(), reduction="none")
    return per_label.sum() / (y != -100).sum().clamp(min=1)


MEAN, SUM = ProvedLoss(LossKind.SAMPLES), ProvedLoss(LossKind.SUM)


def labels(first: int = 0, ignored: int = -100) -> ProvedLoss:
    return ProvedLoss(LossKind.LABELS, ProvedLabels("y", ignored, first))


PROVED: dict[str, tuple[Loss, ProvedLoss]] = {
    "cross-entropy": (lambda o, y, m: ce(o, y), labels()),
    "of shifted labels": (lambda o, y, m: ce(o, y, 1), labels(1)),
    "other label ignored": (lambda o, y, m: ce(o, y.clamp(min=0), ignored=2), labels(0, 2)),
    "smoothed": (lambda o, y, m: ce(o, y, label_smoothing=0.1), labels()),
    "counted by hand": (counted, labels()),
    "with a regulariser": (lambda o, y, m: ce(o, y) + 0.1 * m.weight.square().mean(), labels()),
    "mean": (lambda o, y, m: o.square().mean(), MEAN),
    "mean of sums": (lambda o, y, m: o.square().sum() / len(o), MEAN),
    "divided before": (lambda o, y, m: (o.square() / len(o)).sum(), MEAN),
    "and a number": (lambda o, y, m: mse_loss(o, o.detach() * 2) + 1, MEAN),
    "batchmean": (lambda o, y, m: kl_div(o, o.detach().softmax(-1), reduction="batchmean"), MEAN),
    "sum": (lambda o, y, m: 2 * o.square().sum(), SUM),
    "sum over labels": (lambda o, y, m: ce(o, y, reduction="sum"), SUM),
}
UNPROVED: dict[str, Loss] = {
    "labels and samples": lambda o, y, m: ce(o, y) + 0.1 * o.square().mean(),
    "labels and a sum": lambda o, y, m: ce(o, y) + o.square().sum(),
    "two counts": lambda o, y, m: ce(o, y) + ce(o, y, 1),
    "weighted classes": lambda o, y, m: ce(o, y, weight=torch.arange(1.0, 6.0)),
    "a count of other labels": lambda o, y, m: (o.sum(-1) * (y > 2)).sum() / (y > 2).sum(),
    "a function of a mean": lambda o, y, m: o.square().mean().sqrt(),
    "a product of means": lambda o, y, m: o.mean() * o.square().mean(),
    "a mean that is detached": lambda o, y, m: (o * o.mean().detach()).mean(),
    "a sum and a regulariser": lambda o, y, m: o.square().sum() + m.weight.square().sum(),
    "a sum and a number": lambda o, y, m: o.square().sum() + 1,
    "divided twice": lambda o, y, m: o.square().mean() / len(o),
    "normalised over the batch": lambda o, y, m: ((o - o.mean(0)) ** 2).mean(),
    "by the place in the batch": lambda o, y, m: (o * torch.arange(len(o))[:, None, None]).mean(),
    "of the model alone": lambda o, y, m: m.weight.square().sum(),
    "added to each": lambda o, y, m: (o / len(o) + m.bias).sum(),
    "samples beside samples": lambda o, y, m: (o.flatten(1) @ o.flatten(1).T).square().mean(),
}


@pytest.mark.parametrize("name", PROVED)
def test_kinds_are_proved(name: str) -> None:
    loss, wanted = PROVED[name]
    assert proved(loss) == wanted
    holds(loss, wanted)


@pytest.mark.parametrize("name", UNPROVED)
def test_what_is_no_kind_is_not_proved(name: str) -> None:
    found = proved(UNPROVED[name])
    assert found.kind is None and found.why


def holds(loss: Loss, found: ProvedLoss) -> None:
    """Loss and gradients of unequal parts, by the weights of the kind, are those of the whole."""
    torch.manual_seed(0)
    model = Scored(loss).double()
    whole = {key: value.double() if value.is_floating_point() else value for key, value in batch(7).items()}
    parts = [{key: value[low:high] for key, value in whole.items()} for low, high in ((0, 2), (2, 3), (3, 7))]
    total, wanted = torch.zeros(()), taken(model, whole)
    for part in weighed([("", part) for part in parts], found):
        total = total + part.weight * taken(model, part.batch)
    assert torch.allclose(total, wanted, rtol=1e-12, atol=1e-12)


def taken(model: nn.Module, given: Mapping[str, Tensor]) -> Tensor:
    """The loss and all gradients of a batch."""
    loss = model(**given)
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return torch.cat([loss.detach()[None], *(grad.flatten() for grad in grads if grad is not None)])


TERMS: tuple[Loss, ...] = (
    lambda o, y, m: ce(o, y),
    lambda o, y, m: ce(o, y, 1),
    lambda o, y, m: ce(o, y, reduction="sum"),
    counted,
    lambda o, y, m: o.square().mean(),
    lambda o, y, m: o.square().sum(),
    lambda o, y, m: o.sigmoid().sum((1, 2)).mean(),
    lambda o, y, m: m.weight.square().sum(),
)
CHANGES: tuple[Callable[[Tensor, int], Tensor], ...] = (
    lambda term, samples: 0.5 * term,
    lambda term, samples: term / samples,
    lambda term, samples: term * samples,
    lambda term, samples: term + 1,
    lambda term, samples: term.square(),
    lambda term, samples: -term,
    lambda term, samples: term.detach() * term,
    lambda term, samples: term.reshape(1).expand(2).sum(),
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_is_proved_holds(data: st.DataObject) -> None:
    """Of sums and products of terms, each changed some times over."""
    terms = data.draw(st.lists(st.sampled_from(range(len(TERMS))), min_size=1, max_size=3))
    changes = [
        data.draw(st.lists(st.sampled_from(range(len(CHANGES))), max_size=2)) for _ in range(len(terms))
    ]
    is_product = data.draw(st.booleans())

    def loss(o: Tensor, y: Tensor, m: nn.Linear) -> Tensor:
        total = None
        for term, own in zip(terms, changes, strict=True):
            value = TERMS[term](o, y, m)
            for change in own:
                value = CHANGES[change](value, len(o))
            total = value if total is None else total * value if is_product else total + value
        assert total is not None
        return total

    found = proved(loss)
    assume(found.kind is not None)
    holds(loss, found)


def test_samples_of_other_lengths() -> None:
    """A mean over all that samples have is not of samples alone; a mean over labels is of labels."""
    for loss, is_same in ((PROVED["mean"][0], False), (PROVED["mean of sums"][0], True), (counted, True)):
        found = [
            prove_loss(*(trace_graph(Scored(loss), batch(2, places=places), size).graph for size in (3, 6)))
            for places in (4, 6)
        ]
        assert (of_all(found).kind is not None) == is_same


def test_reasons_name_the_line() -> None:
    found = proved(UNPROVED["weighted classes"])
    assert "no count of labels, test_prove_loss.py:" in found.why
