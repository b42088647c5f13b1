"""HAP's search against all programs of small models, one by one; what a call is read as."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from hspmd_compiler.errors import OptionError, RuleMissing
from hspmd_compiler.synthesizer.hap.calls import record
from hspmd_compiler.synthesizer.hap.costs import Bandwidths, HapMachine, HapPrices
from hspmd_compiler.synthesizer.hap.operators import HapGraph
from hspmd_compiler.synthesizer.hap.plan import corners, plan_hap
from hspmd_compiler.synthesizer.hap.profiles import speeds_of
from hspmd_compiler.synthesizer.hap.search import VectorFor, cheapest

from .hap_programs import prices_of_all
from .unread_models import Tied, Unknown


class Residual(nn.Module):
    """Linear layers with a residual: three operators whose results may be exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.first(x)
        x = x + F.relu(self.second(x))
        return F.nll_loss(F.log_softmax(x, 1), y, reduction="sum")


class Parts(nn.Module):
    """Two segments."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 4), nn.Linear(4, 8)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.nll_loss(F.log_softmax(x, 1), y, reduction="sum")


def mix(x: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(x @ weight) * x.mean()


class Mixed(nn.Module):
    """A region, an einsum and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.mixing, self.scale = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(3, 4, 5))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = mix(self.table(x), self.mixing)
        x = torch.einsum("bsd,sde->bse", x, self.scale)
        return F.nll_loss(torch.transpose(F.log_softmax(x, 2), 1, 2), y, reduction="sum")


class Forked(nn.Module):
    """A result that two exchanges would serve best, and a loss that has several ways to its sum."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing, self.wide = nn.Parameter(torch.ones(6, 6)), nn.Linear(6, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = mix(x, self.mixing)
        return torch.sum(x + self.wide(x))


def inputs(of: type[nn.Module]) -> dict[str, Tensor]:
    if of is Mixed:
        return {name: torch.zeros(12, 3, dtype=torch.int64) for name in ("x", "y")}
    return {"x": torch.zeros(12, 6), "y": torch.zeros(12, dtype=torch.int64)}


def graph_of(model: type[nn.Module], *segment_ends: str) -> HapGraph:
    return record(model(), inputs(model), ("mix",), segment_ends).graph()


GRAPHS = {
    "residual": graph_of(Residual),
    "parts": graph_of(Parts, "layers.*"),
    "mixed": graph_of(Mixed),
    "forked": graph_of(Forked),
}
BANDWIDTH = st.floats(0.5, 400)
MACHINES = st.builds(
    HapMachine.of,
    st.lists(st.sampled_from([1e2, 2e2, 7e2]), min_size=2, max_size=5),
    st.builds(Bandwidths, *[BANDWIDTH] * 4),
)


ONE_EXCHANGE_TOO_FEW = HapMachine.of([4e2, 1e2, 1e2], Bandwidths(500, 1, 500, 1))
"""Here a second exchange of one value would pay."""


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(GRAPHS)), MACHINES, st.booleans(), st.booleans(), st.booleans())
@example("forked", ONE_EXCHANGE_TOO_FEW, False, True, False)
def test_the_search_finds_the_cheapest_of_all(
    name: str, machine: HapMachine, extra_ps: bool, free_ones: bool, whole: bool
) -> None:
    graph = GRAPHS[name]
    prices = HapPrices(machine, corners(machine)[:2], machine.even if extra_ps else None, free_ones, whole)
    segments = sorted({operator.segment for operator in graph.operators})
    ones = range(len(prices.vectors))
    one = [dict.fromkeys(segments, vector) for vector in ones]
    if len(segments) == 1:
        least = min(price for vectors in one for price in prices_of_all(graph, prices, vectors))
        assert cheapest(graph, prices).seconds == pytest.approx(least, rel=1e-12)
    by_segment = [dict(zip(segments, chosen, strict=True)) for chosen in product(ones, repeat=len(segments))]
    least = min(price for vectors in by_segment for price in prices_of_all(graph, prices, vectors))
    assert cheapest(graph, prices, VectorFor.SEGMENT).seconds == pytest.approx(least, rel=1e-12)
    least = min(prices_of_all(graph, prices, None))
    assert cheapest(graph, prices, VectorFor.TENSOR).seconds == pytest.approx(least, rel=1e-12)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(GRAPHS)), MACHINES, st.booleans())
def test_more_vectors_cost_no_more(name: str, machine: HapMachine, extra_ps: bool) -> None:
    found = [plan_hap(GRAPHS[name], machine, kind, extra_ps).seconds for kind in VectorFor]
    assert found[2] <= found[1] * (1 + 1e-12)
    assert found[1] <= found[0] * (1 + 1e-12)


def test_a_search_is_the_same_twice() -> None:
    machine = HapMachine.of([4e2, 4e2, 1e2], Bandwidths(9, 5, 8, 20))
    first, second = (plan_hap(GRAPHS["mixed"], machine, VectorFor.TENSOR) for _ in range(2))
    assert first.program == second.program


FREE = Bandwidths(1e12, 1e12, 1e12, 1e12)


@pytest.mark.parametrize(
    ("speeds", "longer"), [([1e2] * 4, 1.0), ([3e2, 1e2], 1.0), ([1e2] * 5, (3 / 12) / (1 / 5))]
)
def test_whole_slices_have_their_price(speeds: list[float], longer: float) -> None:
    """Of 12 samples the first of five devices have three; others are shared out without rest."""
    plan = plan_hap(GRAPHS["residual"], HapMachine.of(speeds, FREE))
    assert plan.rounded_s == pytest.approx(plan.program.compute_s * longer, rel=1e-6)


@pytest.mark.parametrize("name", ["residual", "parts", "forked"])
@pytest.mark.parametrize("extra_ps", [False, True])
def test_exchanges_of_whole_slices_have_their_price(name: str, extra_ps: bool) -> None:
    """Dims are even, on two devices that are alike: nothing is rounded."""
    machine = HapMachine.of([1e2, 1e2], Bandwidths(9, 5, 8, 20))
    plan = plan_hap(GRAPHS[name], machine, extra_ps=extra_ps)
    assert plan.rounded_s == pytest.approx(plan.seconds, rel=1e-12)


def test_calls_are_operators() -> None:
    """A region is one, its parameter whole; a norm's weights are counted nowhere; buffers have one reader."""
    assert [operator.kind for operator in GRAPHS["mixed"].operators] == [
        *("embedding", "region", "einsum", "log_softmax", "transpose", "nll_loss")
    ]
    region = GRAPHS["mixed"].operators[1]
    assert [value.name for value in region.inputs] == ["embedding", "mixing"]
    assert region.rule.flops == 10 * 12 * 3 * 4
    segments = [operator.segment for operator in GRAPHS["parts"].operators]
    assert segments == [0, 1, 2, 2]


@pytest.mark.parametrize("model", [Unknown, Tied])
def test_what_hap_has_not_is_told_with_its_line(
    model: type[nn.Module], expect: Callable[[str, str], None]
) -> None:
    with pytest.raises(RuleMissing) as caught:
        graph_of(model)
    expect(f"hap/{model.__name__.lower()}", str(caught.value))


@pytest.mark.parametrize(
    ("text", "devices", "speeds"),
    [
        ("homogeneous, every device_flops=5", 3, [5.0] * 3),
        ("[7]*(n*2/8) + [3]*(n*6/8)", 8, [7.0] * 2 + [3.0] * 6),
        ("[4*3]*(n/2) + [3]*(n/2) (synthetic 4:1)", 4, [12.0, 12.0, 3.0, 3.0]),
        ("[9,9,1,1,1]*2", 10, [9.0, 9.0, 1.0, 1.0, 1.0] * 2),
        ("[9]*round(n/8*2) + [2]*round(n/8*6)", 16, [9.0] * 4 + [2.0] * 12),
        ("1 x 9 + 2 x 4 (3 devices; cards per node [1,2])", 3, [9.0, 4.0, 4.0]),
    ],
)
def test_mixes_of_devices(text: str, devices: int, speeds: list[float]) -> None:
    assert speeds_of(text, devices) == speeds


@pytest.mark.parametrize(
    "text", ["", "[1]*9**9", "[1]*1e99", "[" * 3000, "open('x')", "[1]*(n", "[1,2]", "n.__class__", "3/0"]
)
def test_other_texts_are_no_mix(text: str) -> None:
    with pytest.raises(OptionError):
        speeds_of(text, 3)


def test_a_device_that_computes_nothing_has_no_price(expect: Callable[[str, str], None]) -> None:
    with pytest.raises(OptionError) as caught:
        HapMachine.of([4.0, 0.0, -1.0], Bandwidths(1, 1, 1, 1))
    expect("hap/speed_0", str(caught.value))
