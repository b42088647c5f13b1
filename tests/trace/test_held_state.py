"""What a forward pass keeps for the next one is compiled as a new value of a buffer, or refused by name."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.errors import TraceError
from hspmd_compiler.options import Capture
from hspmd_compiler.trace.blocks.trace_step import trace_step

WIDTH = 4
BATCH = {"x": torch.ones(2, WIDTH)}


class Box:
    """An object with one attribute."""

    def __init__(self) -> None:
        self.value: Tensor | None = None


class Slot:
    """The same without a dict."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Tensor | None = None


Use = Callable[["Keeping", Tensor], Tensor]


class Keeping(nn.Module):
    """Has one of everything that can hold a tensor; `use` says what forward does with it."""

    of_class: Tensor | None = None

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.out, self.use = nn.Linear(WIDTH, WIDTH), use
        for name in ("mean", "other"):
            self.register_buffer(name, torch.ones(WIDTH))
        self.register_buffer("late", None)
        self.table = torch.zeros(WIDTH)
        self.found: dict[str, Any] = {}
        self.nested: dict[str, list[Tensor | None]] = {"means": [None]}
        self.latest: deque[Tensor] = deque(maxlen=2)
        self.means: list[Tensor] = []
        self.box, self.slot = Box(), Slot()
        self.around = closure()

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, self.out(x)).square().sum()


GLOBAL: dict[str, Tensor] = {}
COUNTER = itertools.count(1)


def closure() -> Callable[[Tensor], Tensor]:
    before: Tensor | None = None

    def added(x: Tensor) -> Tensor:
        nonlocal before
        old, before = before, mean(x)
        return plus(x, old)

    return added


class Rounded(torch.autograd.Function):
    """Keeps a tensor in its class."""

    kept: Tensor | None = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        old, Rounded.kept = Rounded.kept, mean(x)
        return plus(x, old).round()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


@lru_cache
def kept_table(size: int) -> Tensor:
    return torch.ones(size).cumsum(0)


@lru_cache
def kept_mean(model: Keeping) -> Tensor:
    return model.out.weight.detach().mean()


@lru_cache
def kept_dict() -> dict[str, Tensor]:
    return {}


def mean(x: Tensor) -> Tensor:
    return x.detach().mean(0)


def plus(x: Tensor, old: Tensor | None) -> Tensor:
    return x if old is None else x + old


def in_a_dict(m: Keeping, x: Tensor) -> Tensor:
    old, m.found["mean"] = m.found.get("mean"), mean(x)
    return plus(x, old)


def in_a_list(m: Keeping, x: Tensor) -> Tensor:
    m.means.append(mean(x))
    return x + torch.stack(m.means).sum(0)


def in_a_deque(m: Keeping, x: Tensor) -> Tensor:
    m.latest.append(mean(x))
    return x + torch.stack(list(m.latest)).sum(0)


def nested(m: Keeping, x: Tensor) -> Tensor:
    old, m.nested["means"][0] = m.nested["means"][0], mean(x)
    return plus(x, old)


def in_an_object(m: Keeping, x: Tensor) -> Tensor:
    old, m.box.value = m.box.value, mean(x)
    return plus(x, old)


def in_a_slot(m: Keeping, x: Tensor) -> Tensor:
    old, m.slot.value = m.slot.value, mean(x)
    return plus(x, old)


def in_a_closure(m: Keeping, x: Tensor) -> Tensor:
    return m.around(x)


def in_the_class(m: Keeping, x: Tensor) -> Tensor:
    old, Keeping.of_class = Keeping.of_class, mean(x)
    return plus(x, old)


def in_a_global(m: Keeping, x: Tensor) -> Tensor:
    old, GLOBAL["mean"] = GLOBAL.get("mean"), mean(x)
    return plus(x, old)


def in_a_function(m: Keeping, x: Tensor) -> Tensor:
    return Rounded.apply(x)  # type: ignore[no-any-return]


def in_a_default(m: Keeping, x: Tensor, kept: list[Tensor | None] = [None]) -> Tensor:  # noqa: B006
    old, kept[0] = kept[0], mean(x)
    return plus(x, old)


def on_the_helper(m: Keeping, x: Tensor) -> Tensor:
    old = getattr(on_the_helper, "mean", None)
    on_the_helper.mean = mean(x)  # type: ignore[attr-defined]
    return plus(x, old)


def in_a_cache(m: Keeping, x: Tensor) -> Tensor:
    return x * kept_mean(m)


def in_a_cached_dict(m: Keeping, x: Tensor) -> Tensor:
    old = kept_dict().get("mean")
    kept_dict()["mean"] = mean(x)
    return plus(x, old)


def counted(m: Keeping, x: Tensor) -> Tensor:
    return x * next(COUNTER)


def a_constant_that_grows(m: Keeping, x: Tensor) -> Tensor:
    m.found["steps"] = m.found.get("steps", torch.zeros(WIDTH)) + 1
    return x * m.found["steps"]


def from_none(m: Keeping, x: Tensor) -> Tensor:
    m.late = mean(x) if m.late is None else m.late + mean(x)
    return x + m.late


def to_none(m: Keeping, x: Tensor) -> Tensor:
    x, m.mean = x * m.mean, None  # type: ignore[assignment]
    return x


def longer(m: Keeping, x: Tensor) -> Tensor:
    m.mean = torch.cat([m.mean, mean(x)])  # type: ignore[has-type]
    return x * m.mean.sum()


def wider(m: Keeping, x: Tensor) -> Tensor:
    m.mean = m.mean.double()  # type: ignore[has-type]
    return x * m.mean.float()


def with_history(m: Keeping, x: Tensor) -> Tensor:
    m.mean = m.mean * 0.5 + x.mean(0)  # type: ignore[has-type]
    return x * m.mean


def the_bias(m: Keeping, x: Tensor) -> Tensor:
    x, m.mean = x * m.mean, m.out.bias.detach()  # type: ignore[has-type]
    return x


def the_other(m: Keeping, x: Tensor) -> Tensor:
    m.mean = m.other
    return x * m.mean  # type: ignore[no-any-return]


def shared(m: Keeping, x: Tensor) -> Tensor:
    m.mean = m.mean + 1  # type: ignore[has-type]
    return x * m.mean * m.found["alias"]  # type: ignore[no-any-return]


def parameter(m: Keeping, x: Tensor) -> Tensor:
    if not hasattr(m, "scale"):
        m.scale = nn.Parameter(torch.ones(WIDTH))
    return x * m.scale


def module(m: Keeping, x: Tensor) -> Tensor:
    if not hasattr(m, "more"):
        m.more = nn.Linear(WIDTH, WIDTH)
    return m.more(x)  # type: ignore[no-any-return]


def replaced(m: Keeping, x: Tensor) -> Tensor:
    m.out.weight = nn.Parameter(m.out.weight.detach().clamp(-1, 1))
    return x


def other_memory(m: Keeping, x: Tensor) -> Tensor:
    m.out.weight.data = m.out.weight.data.clamp(-1, 1)
    return x


def frozen(m: Keeping, x: Tensor) -> Tensor:
    m.out.bias.requires_grad_(False)
    return x


def hooked(m: Keeping, x: Tensor) -> Tensor:
    m.out.register_forward_hook(lambda _module, _args, out: out * 2)
    return x


def seeded(m: Keeping, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return nn.functional.dropout(x, 0.5)


REFUSED: dict[Use, list[str]] = {
    in_a_dict: ["found['mean'] nothing before, a tensor of shape [4] after"],
    in_a_list: ["means[0]"],
    in_a_deque: ["latest[0]"],
    nested: ["nested['means'][0] None before"],
    in_an_object: ["box.value None before"],
    in_a_slot: ["slot.value None before"],
    in_a_closure: ["before around closure.<locals>.added"],
    in_the_class: ["Keeping.of_class None before"],
    in_a_global: ["GLOBAL['mean'] nothing before"],
    in_a_function: ["Rounded.kept None before"],
    in_a_default: ["the defaults of in_a_default[0] None before"],
    on_the_helper: ["on_the_helper.mean nothing before"],
    in_a_cache: ["the cache of kept_mean nothing before"],
    in_a_cached_dict: ["the cache of kept_dict nothing before"],
    counted: ["COUNTER", "one state before, another after"],
    a_constant_that_grows: ["found['steps'] nothing before"],
    from_none: ["late None before"],
    to_none: ["mean becomes None", "copy_"],
    longer: ["mean becomes float32[8], and was float32[4]", "copy_"],
    wider: ["mean becomes float64[4], and was float32[4]", "copy_"],
    with_history: ["mean keeps the history of gradients", "value.detach()"],
    the_bias: ["mean shares memory with out.bias", "clone"],
    the_other: ["mean shares memory with other", "clone"],
    shared: ["mean is held under another name", "copy_"],
    parameter: ["scale registers a parameter", "__init__"],
    module: ["more registers a module", "__init__"],
    replaced: ["out.weight replaces a parameter"],
    other_memory: ["out.weight gives the parameter other memory"],
    frozen: ["out.bias sets requires_grad from True to False"],
    hooked: ["registers or removes a hook"],
    seeded: ["torch.manual_seed seeds what is drawn", "--seed"],
}


def made(use: Use) -> Keeping:
    model = Keeping(use)
    if use is shared:
        model.found["alias"] = model.mean
    return model


@pytest.mark.parametrize("use", REFUSED, ids=lambda use: use.__name__)
def test_what_is_kept_is_refused_by_name(use: Use) -> None:
    with pytest.raises(TraceError) as caught:
        trace_step(made(use), BATCH, batch=2)
    text = " ".join(str(caught.value).split())
    assert [words for words in REFUSED[use] if words not in text] == []


@pytest.mark.parametrize("use", [in_a_dict, the_other, parameter])
def test_an_export_sees_the_same(use: Use) -> None:
    with pytest.raises(TraceError) as caught:
        trace_step(made(use), BATCH, batch=2, capture=Capture.FULL)
    assert " ".join(REFUSED[use][0].split()) in " ".join(str(caught.value).split())


def test_all_is_left_as_it_was() -> None:
    models = [made(use) for use in (in_a_dict, in_a_list, nested, in_the_class, in_a_global, in_a_default)]
    for model in models:
        with pytest.raises(TraceError):
            trace_step(model, BATCH, batch=2)
        assert (model.found, model.means, model.nested) == ({}, [], {"means": [None]})
    assert Keeping.of_class is None and GLOBAL == {} and in_a_default.__defaults__ == ([None],)
    assert Rounded.kept is None and kept_mean.cache_info().currsize == 0


def table_in_a_dict(m: Keeping, x: Tensor) -> Tensor:
    if WIDTH not in m.found:
        m.found[str(WIDTH)] = torch.ones(WIDTH).cumsum(0)
    return x * m.found[str(WIDTH)]


def table_in_a_late_buffer(m: Keeping, x: Tensor) -> Tensor:
    if m.late is None:
        m.register_buffer("late", torch.ones(WIDTH).cumsum(0), persistent=False)
    return x * m.late


def table_in_a_cache(m: Keeping, x: Tensor) -> Tensor:
    return x * kept_table(WIDTH)


def loss_for_others(m: Keeping, x: Tensor) -> Tensor:
    m.found["loss"] = x.detach().mean()
    return x


@pytest.mark.parametrize("use", [table_in_a_dict, table_in_a_late_buffer, table_in_a_cache, loss_for_others])
def test_what_makes_no_difference_is_taken(use: Use, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        graph = trace_step(made(use), BATCH, batch=2).graph
    assert not caplog.records and not graph.mutated
    assert use is loss_for_others or any(row.op == "aten.cumsum.default" for row in graph.rows)


def weight_in_a_dict(m: Keeping, x: Tensor) -> Tensor:
    return x * m.found.setdefault("scale", m.scale)


@pytest.mark.parametrize("capture", Capture)
def test_a_parameter_that_is_kept_stays_the_parameter(capture: Capture) -> None:
    """An export puts others in their places, and takes them away behind the pass."""
    model = made(weight_in_a_dict)
    model.scale = nn.Parameter(torch.ones(WIDTH))
    assert trace_step(model, BATCH, batch=2, capture=capture).graph.params["scale"].grad is not None
