"""A step traced by one plain run has the rows of an export; what is not plain is refused by name."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hspmd_compiler.trace.eager_trace import NotPlain
from hspmd_compiler.trace.tracer import subject_of, trace_plain, trace_subject
from tests.trace.template_models import MODELS, WIDTH, Block, Stack

BATCH = {"x": torch.zeros(2, 4), "y": torch.zeros(2, dtype=torch.int64)}
MIXED = (
    *("two classes in turn", "two of one, one of another", "one class after another", "any order"),
    *("other classes at the ends", "a tie across classes", "one of a class is scaled"),
)
REFUSED = {
    "batch norm": "aten.add_.Tensor changes a tensor in place that the step was given",
    "in place": "aten.mul_.Tensor changes a tensor in place",
    "dropout": "aten.bernoulli_.float changes a tensor in place",
    "one is evaluated": "aten.bernoulli_.float changes a tensor in place",
    **dict.fromkeys(MIXED, "aten.bernoulli_.float changes a tensor in place"),
    "one without gradient": "aten.native_layer_norm.default is differentiated, but not recorded",
    "one layer in all places": "a module has several names",
    "place in a tensor": "a tensor comes from elsewhere",
}


class Kept(Stack):
    """A tensor is kept for the next step."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        x = super().run(x)
        self.seen = x
        return x


EQUAL = {name: make for name, make in MODELS.items() if name not in {*REFUSED, "reads its device"}}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if place % 5 == 0 else pytest.mark.slow)
        for place, name in enumerate(["kept", *EQUAL])
    ],
)
def test_rows_are_those_of_an_export(name: str) -> None:
    model = (EQUAL | {"kept": Kept})[name]()
    exported = trace_subject(subject_of(copy.deepcopy(model), BATCH, batch=5))
    plain = trace_plain(subject_of(model, BATCH, batch=5))
    assert plain.rows == exported.rows
    assert plain == exported
    assert list(plain.params) == list(exported.params)


class Packed(Stack):
    """What backward needs is packed meanwhile."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
            return super().run(x)


class Noisy(Stack):
    def run(self, x: torch.Tensor) -> torch.Tensor:
        return super().run(x + torch.poisson(x.exp()))


class OtherMemory(Stack):
    """A buffer is given the memory of another tensor, which no operator tells."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(WIDTH))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        self.shift.data = self.shift + 1
        return super().run(x + self.shift)


class Spectrum(Stack):
    def run(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.fft(super().run(x)))[..., 0]


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_not_plain_is_refused(name: str) -> None:
    with pytest.raises(NotPlain, match=REFUSED[name]):
        trace_plain(subject_of(MODELS[name](), BATCH, batch=5))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Noisy, "aten.poisson.default draws random numbers"),
        (OtherMemory, "a tensor was given other memory"),
        (Spectrum, "a complex one"),
        (Packed, "not in a traced step"),
        (lambda: Stack(lambda _: Item()), "data-dependent|DataDependent|numbers in a tensor|gives a"),
    ],
)
def test_what_else_is_not_plain(model: type[nn.Module], reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        trace_plain(subject_of(model(), BATCH, batch=5))


class Item(Block):
    """A number is read out of a tensor."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return super().forward(x, float(x.sum().item()))


def test_hooks_are_gone_afterwards() -> None:
    subject = subject_of(Stack(), BATCH, batch=5)
    trace_plain(subject)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in subject.model.modules())
