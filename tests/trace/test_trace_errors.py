"""What tracing refuses: each error names the user's line or module, and the way out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hspmd_compiler.errors import TraceError
from hspmd_compiler.trace import capture, trace_checks
from hspmd_compiler.trace.blocks.trace_step import trace_step
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.eager import eager_step


class Linear(nn.Module):
    """What the models below have: a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)
        self.drop = nn.Identity()


class Branch(Linear):
    def forward(self, x: torch.Tensor) -> object:
        if self.out(x).sum() > 0:
            return self.out(x).sum()
        return x.sum()


class Item(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return self.out(x).sum() * x.max().item()


class Masked(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return self.out(x)[x > 0][0]


class Clamped(Linear):
    def forward(self, x: torch.Tensor) -> object:
        with torch.no_grad():
            self.out.weight.clamp_(-1, 1)
        return self.out(x).sum()


class WrongShape(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return self.out(x.view(7, 5)).sum()


class Counts(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return (self.out(x) + torch.poisson(x.exp())).sum()


class Shuffled(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return (self.out(x) * torch.randperm(4)).sum()


class Sampled(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return (self.out(x) * torch.multinomial(x.sigmoid(), 1)).sum()


class Imaginary(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return (torch.fft.fft(self.out(x)) * 1j).real.sum()


class NotScalar(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return self.out(x)


class NoLoss(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return {"logits": self.out(x)}


class NoGradient(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return self.out(x).detach().sum()


TABLE_OF_LITERALS = torch.randn(200, 4)


class OutsideTensor(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return (self.out(x) * TABLE_OF_LITERALS[:1]).sum()


class Windowed(Linear):
    """Holds a window on a parameter, whose numbers move with it."""

    def __init__(self) -> None:
        super().__init__()
        self.row = self.out.weight.detach()[0]

    def forward(self, x: torch.Tensor) -> object:
        return (self.out(x) * self.row).sum()


class Remembering(Linear):
    """Was called before it was traced, and reads what that call left."""

    def __init__(self) -> None:
        super().__init__()
        self.last = self.out(torch.ones(4))

    def forward(self, x: torch.Tensor) -> object:
        return (self.out(x) * self.last).sum()


class ByData(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return (self.out(x) * self.out.bias.data).sum()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Windowed, ["reads memory of a parameter", "row  is no constant"]),
        (Remembering, ["or of an earlier call", "last is no constant", "a buffer"]),
        (ByData, ["reads memory of a parameter", "such as self.weight.data", "self.weight.detach()"]),
        (Branch, ["can't be traced", "test_trace_errors.py:", "in Branch.forward", "remove branches"]),
        (Item, ["value of a tensor", "test_trace_errors.py:", "x.max().item()"]),
        (Masked, ["an index of the rows' dim", "in Masked.forward", "rows that a boolean mask selects"]),
        (WrongShape, ["can't be traced", "in WrongShape.forward", "shape '[7, 5]' is invalid"]),
        (Counts, ["random numbers that can't be drawn by position", "in Counts.forward", "aten.poisson"]),
        (Shuffled, ["random numbers", "in Shuffled.forward", "pass them as an input", "aten.randperm"]),
        (Sampled, ["random numbers", "in Sampled.forward", "aten.multinomial"]),
        (Clamped, ["forward changes the parameter out.weight", "changed copy"]),
        (Imaginary, ["a complex number written in its code", "in Imaginary.forward", "torch.complex("]),
        (NotScalar, ["the loss is float32[3, 4], not a scalar", ".mean()"]),
        (NoLoss, ["dict without a loss", "return the loss"]),
        (NoGradient, ["does not depend on any trainable parameter"]),
        (OutsideTensor, ["no parameter, buffer or input", "in OutsideTensor.forward", "register_buffer"]),
    ],
)
def test_refused_forward(model: type[Linear], words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TraceError) as caught:
        trace(model(), {"x": torch.ones(2, 4)}, batch=3)
    text = str(caught.value)
    assert [word for word in words if word not in text] == []
    assert "\n  fix " in text and "\n  rule " in text
    assert capfd.readouterr().err == ""


class Plain(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return self.drop(self.out(x)).sum()


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (None, ["no example inputs"]),
        ({}, ["no example inputs"]),
        ({"x": torch.ones(2, 4), "n": 3, "s": [1]}, ["n    is a int", "s    is a list"]),
        ({"x": torch.ones(2, 4), "y": torch.ones(3)}, ["x    has 2 samples", "y    has 3 samples"]),
        ({"x": torch.ones(())}, ["x    has no dim 0"]),
    ],
)
def test_refused_inputs(inputs: dict[str, torch.Tensor] | None, words: list[str]) -> None:
    with pytest.raises(TraceError) as caught:
        trace(Plain(), inputs, batch=3)
    assert [word for word in words if word not in str(caught.value)] == []


def test_refused_batch_size() -> None:
    with pytest.raises(TraceError, match="is 0, not a positive number"):
        trace(Plain(), {"x": torch.ones(2, 4)}, batch=0)


def test_parameters_that_overlap_in_memory_are_refused() -> None:
    model = Plain()
    model.part = nn.Parameter(model.out.weight.data[:2])
    with pytest.raises(TraceError, match=r"out\.weight +shares memory with part|part +shares memory with"):
        trace(model, {"x": torch.ones(2, 4)}, batch=3)


def test_a_buffer_that_overlaps_with_a_parameter_is_refused() -> None:
    model = Plain()
    model.register_buffer("part", model.out.weight.detach()[:2])
    with pytest.raises(TraceError, match=r"out\.weight +shares memory with part"):
        trace(model, {"x": torch.ones(2, 4)}, batch=3)


def test_what_an_earlier_call_left_is_no_matter_where_nobody_reads_it() -> None:
    model = Plain()
    model.last = model.out(torch.ones(2, 4))
    model.seen = [model.last]
    assert (
        trace(model, {"x": torch.ones(2, 4)}, batch=3).params.keys() == dict(model.named_parameters()).keys()
    )


def test_lazy_modules_are_refused() -> None:
    with pytest.raises(TraceError, match="lazy modules were never called") as caught:
        trace(nn.Sequential(nn.LazyLinear(4)), {"input": torch.ones(2, 4)}, batch=2)
    assert "0.weight" in str(caught.value) and "0.bias" in str(caught.value)


def test_a_batch_norm_without_momentum_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))
    with pytest.raises(TraceError) as caught:
        trace(model, {"input": torch.ones(2, 4)}, batch=3)
    assert "1    BatchNorm1d(momentum=None)" in caught.value.text()
    assert "momentum=0.1" in caught.value.fix


def test_a_lost_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the meta device, where torch captures some losses without any backward and says nothing."""
    own = capture._roles

    def without_gradients(
        graph: torch.fx.Graph, assigned: tuple[str, ...]
    ) -> list[capture.OutputRole | None]:
        roles = own(graph, assigned)
        kinds = (None if role and role.kind is capture.JointOutputKind.GRAD else role for role in roles)
        return list(kinds)

    monkeypatch.setattr(capture, "_roles", without_gradients)
    with pytest.raises(TraceError, match="lost gradients that eager autograd computes"):
        trace(Plain(), {"x": torch.ones(2, 4)}, batch=3)


def test_old_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(TraceError, match=r"torch 2\.9\.1\+cpu is too old"):
        trace(Plain(), {"x": torch.ones(2, 4)}, batch=3)


@torch.library.custom_op("hspmd_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, grad: grad * 2)


class Foreign(Linear):
    def forward(self, x: torch.Tensor) -> object:
        return twice(self.out(x)).sum()


def test_operators_of_a_library_are_refused() -> None:
    with pytest.raises(TraceError, match=r"hspmd_test\.twice\.default") as caught:
        trace(Foreign(), {"x": torch.ones(2, 4)}, batch=3)
    assert "in Foreign.forward" in str(caught.value)
    assert trace_checks.ALLOWED_NAMESPACES == ("aten", "hspmd")


class Returning(Linear):
    """Returns its loss in one of many ways."""

    def __init__(self, how: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> object:
        return self.how(self.out(x).square().mean())


@pytest.mark.parametrize(
    "how",
    [lambda loss: {"loss": loss, "logits": None}, lambda loss: (loss, None), lambda loss: [loss]],
    ids=["dict", "tuple", "list"],
)
def test_a_loss_in_a_dict_or_first_in_a_tuple(how: Callable[[torch.Tensor], object]) -> None:
    model, batch = Returning(how), {"x": torch.ones(2, 4)}
    assert trace(model, batch, batch=2).rows[-1] is not None
    assert eager_step(model, batch, widen=False).loss == pytest.approx(
        float(model.out(batch["x"]).square().mean())
    )


def solved(model: Linear, x: torch.Tensor) -> torch.Tensor:
    value = torch.linalg.solve(torch.eye(4) + model.out.weight, model.out(x).T)
    return value.square().mean()


def branching(model: Linear, x: torch.Tensor) -> torch.Tensor:
    return model.out(x).sum() if x.sum() > 0 else x.sum()


class Using(Linear):
    def __init__(self, use: Callable[[Linear, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(self, x)


def counting(model: Linear, x: torch.Tensor) -> torch.Tensor:
    model.table.add_(x.detach().mean())  # type: ignore[operator]
    return (model.out(x) * model.table).sum()


class Counting(Using):
    """A live model's tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__(counting)
        self.table = torch.zeros(4)


class Penalised(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_(True)
        (grad,) = torch.autograd.grad(self.out(x).tanh().sum(), x, create_graph=True)
        return grad.norm(dim=1).sum()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: Using(branching), ["branching", "looks at the numbers", "torch.where"]),
        (Counting, ["table is no buffer", "register_buffer", "changes a tensor in place"]),
        (Penalised, ["torch.autograd.grad", "capture='auto'", "torch.where"]),
    ],
    ids=["branching", "changed in place", "gradient in forward"],
)
def test_true_causes_in_place_of_names_of_torch(model: Callable[[], Linear], words: list[str]) -> None:
    with pytest.raises(TraceError) as caught:
        trace(model(), {"x": torch.ones(2, 4)}, batch=2)
    text = str(caught.value)
    assert torch.is_grad_enabled()
    assert [word for word in words if word not in text] == []
    assert "AOT" not in text and "Unbacked" not in text and "DataDependent" not in text


def test_a_check_of_a_solution_is_no_operator() -> None:
    graph = trace_step(Using(solved), {"x": torch.ones(2, 4)}, batch=2).graph
    assert "aten._linalg_check_errors.default" not in {row.op for row in graph.rows}
