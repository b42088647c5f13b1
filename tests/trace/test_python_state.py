"""Models whose forward changes what Python holds: the next step must be the same one, or none is compiled."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.errors import TraceError
from hspmd_compiler.options import Capture
from hspmd_compiler.trace.blocks.trace_step import trace_step
from hspmd_compiler.trace.state.kept_tensors import stand_in_of
from hspmd_compiler.trace.tracer import trace


class Counting(nn.Module):
    """Counts its calls; `use` says what becomes of the count."""

    def __init__(self, use: Callable[[Counting, Tensor], Tensor]) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)
        self.use = use
        self.calls = 0
        self.seen: list[int] = []
        self.last: Tensor | None = None
        self.numbers, self.generator = random.Random(0), np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.use(self, self.out(x)).sum()


def warmed_up(model: Counting, x: Tensor) -> Tensor:
    return x * min(1.0, model.calls / 10)


def skipped(model: Counting, x: Tensor) -> Tensor:
    return x * random.random()


def drawn(model: Counting, x: Tensor) -> Tensor:
    return x * float(np.random.rand())


def listed(model: Counting, x: Tensor) -> Tensor:
    model.seen.append(1)
    return x * len(model.seen)


def own(model: Counting, x: Tensor) -> Tensor:
    return x * model.numbers.random()


def own_of_numpy(model: Counting, x: Tensor) -> Tensor:
    return x * float(model.generator.random())


def smoothed(model: Counting, x: Tensor) -> Tensor:
    before, model.last = model.last, x.detach()
    return x if before is None else x + before


def centred(model: Counting, x: Tensor) -> Tensor:
    if model.last is None:
        model.last = x.detach().mean(0)
    return x - model.last


def masked_alike(model: Counting, x: Tensor) -> Tensor:
    if model.last is None:
        model.last = nn.functional.dropout(torch.ones(x.shape[-1]))
    return x * model.last


def warm_at_the_second(model: Counting, x: Tensor) -> Tensor:
    """Changes a tensor in place, so that a plain run gives up and an export does it again."""
    model.seen.append(1)
    return x.clone().clamp_(min=-1) * min(1.0, len(model.seen) / 2)


def looked_at(model: Counting, x: Tensor) -> Tensor:
    before, model.last = model.last, x.detach()
    return x if before is None else x * before.sum().item()


def unused(model: Counting, x: Tensor) -> Tensor:
    return x


def remembered(model: Counting, x: Tensor) -> Tensor:
    model.calls, model.width, model.last = 0, x.shape[-1], x.detach()
    return x


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (warmed_up, ["calls", "0 before, 1 after", "a buffer"]),
        (skipped, ["random numbers of Python", "input of the batch"]),
        (listed, ["seen", "[] before, [1] after"]),
        (own, ["numbers", "one state before"]),
        (own_of_numpy, ["generator", "one state before"]),
        (smoothed, ["last", "None before, a tensor of shape [2, 4] after", "a buffer"]),
        (centred, ["last", "None before, a tensor of shape [4] after"]),
        (masked_alike, ["last", "None before, a tensor of shape [4] after"]),
        (warm_at_the_second, ["seen", "[] before, [1] after"]),
        (looked_at, ["last", "None before, a tensor of shape [2, 4] after"]),
        (drawn, ["random numbers of NumPy", "input of the batch"]),
    ],
)
@pytest.mark.parametrize("capture", Capture)
def test_another_step_is_refused(
    use: Callable[[Counting, Tensor], Tensor], words: list[str], capture: Capture
) -> None:
    with pytest.raises(TraceError) as caught:
        trace_step(Counting(use), {"x": torch.ones(2, 4)}, batch=2, capture=capture)
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_same_step_is_warned_of_while_something_changes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trace(Counting(unused), {"x": torch.ones(2, 4)}, batch=2)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["forward changes calls"]


class Checking(nn.Linear):
    """Checks its input."""

    def forward(self, x: Tensor) -> Tensor:
        torch._assert_async((x < 9).all(), "too large")
        return super().forward(x).sum()


@pytest.mark.parametrize("capture", Capture)
def test_a_check_that_a_step_leaves_out_is_told(capture: Capture, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trace_step(Checking(4, 4), {"x": torch.ones(2, 4)}, batch=2, capture=capture)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "torch._assert_async checks nothing" in told and '(x < 9).all(), "too large"' in told


WIDE = 512
"""A graph holds fewer numbers than this."""


class Table(nn.Module):
    """Makes a table at the first call, and again for longer inputs; and keeps its loss for others to read."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDE, WIDE)
        self.length = 0
        self.loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] > self.length:
            self.length = x.shape[-1]
            self.table = torch.ones(self.length).cumsum(0).cos()
            self.causal = torch.ones(self.length, dtype=torch.bool)
        self.loss = (self.out(x) * self.table).masked_fill(~self.causal, 0).sum()
        return self.loss


@pytest.mark.parametrize("capture", Capture)
def test_a_table_of_constants_that_the_first_step_keeps(
    capture: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        traced = trace_step(Table(), {"x": torch.ones(2, WIDE)}, batch=2, capture=capture)
    assert any(row.op == "aten.cumsum.default" for row in traced.graph.rows)
    assert not caplog.records


def test_what_is_kept_once_is_no_matter(caplog: pytest.LogCaptureFixture) -> None:
    model = Counting(remembered)
    with caplog.at_level(logging.WARNING):
        trace(model, {"x": torch.ones(2, 4)}, batch=2)
    assert not caplog.records and not hasattr(model, "width") and model.last is None


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int64, torch.bfloat16])
def test_every_type_has_a_stand_in(dtype: torch.dtype) -> None:
    stand_in = stand_in_of(torch.ones(3, 2, dtype=dtype))
    assert stand_in.dtype is dtype and stand_in.shape == (3, 2)
    assert len({str(number) for number in stand_in.flatten().tolist()}) == 1
