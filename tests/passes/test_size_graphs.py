"""Graphs that two traces give are those of a trace, and what they do not give is not guessed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hspmd_compiler.errors import HspmdError
from hspmd_compiler.ir.alike_graphs import NoLine
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.passes import causal_mask
from hspmd_compiler.passes.causal_mask import MaskKind, mask_kinds
from hspmd_compiler.passes.compile_state import Example, Traced
from hspmd_compiler.passes.pass_chain import Dump, begin
from hspmd_compiler.passes.pipeline import tracing
from hspmd_compiler.passes.sized.lower_sized import unit_of
from hspmd_compiler.passes.sized.probe_graphs import Inputs, ProbeGraphs, StepSource
from hspmd_compiler.passes.sized.probes import probes_of
from hspmd_compiler.passes.sized.size_graphs import SMALL, SizeGraphs
from hspmd_compiler.passes.trace import Trace
from hspmd_compiler.strategy.strategy import SizesSpec, Strategy
from hspmd_compiler.trace.tracer import trace

from ..training.training_cases import Mlp
from .test_sized import PIECES, UNEQUAL, Packed, numbers, packed
from .test_sized_compile import Blocks, inputs


def graphs_of(model: nn.Module, batch: Inputs, strategy: Strategy, sizes: SizesSpec) -> ProbeGraphs:
    """Of a compile for these sizes."""
    sized = replace(strategy, sizes=sizes)
    unit, (low, high) = unit_of(sized), sizes.range

    def traced(given: Inputs, samples: int, dump: Dump) -> Traced:
        return begin(Trace()).run(Example(model, given, samples), dump)

    step = StepSource(batch, traced, lambda graph, _, __: graph)
    return ProbeGraphs.of(step, probes_of(sized, unit, low, high), unit, Dump(None))


def resized_to(batch: Inputs, tokens: int) -> dict[str, Tensor]:
    """Inputs with rows of so many tokens; 0: as they are."""
    return {
        name: value[:, :1].expand(-1, tokens, *value.shape[2:]) if tokens else value
        for name, value in batch.items()
    }


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The samples of every trace from here on."""
    found: list[int] = []
    run = Trace.run

    def noted(self: Trace, state: Example) -> Traced:
        found.append(state.batch)
        return run(self, state)

    monkeypatch.setattr(Trace, "run", noted)
    return found


@pytest.mark.parametrize("case", ["packed", "samples", "positions"])
def test_graphs_between_the_ends_are_those_of_a_trace(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    if case == "packed":
        model, batch, sizes = Packed(), packed(3, 2, rows=2), SizesSpec(tokens=(1, 500))
        asked = [(19, 3), (30, 4), (499, 2)]
    elif case == "samples":
        model, batch, sizes = (
            Mlp(nn.functional.mse_loss),
            numbers(2, nn.functional.mse_loss),
            SizesSpec(samples=(1, 64)),
        )
        asked = [(0, 7), (0, 100)]
    else:
        model, batch, sizes = Blocks(nn.functional.softplus), inputs(), SizesSpec(tokens=(1, 40))
        asked = [(19, 3), (30, 4)]
    found = graphs_of(model, batch, PIECES if case == "packed" else UNEQUAL, sizes)
    made = [found.at(*each) for each in asked]
    for graph, (tokens, samples) in zip(made, asked, strict=True):
        assert graph == tracing().run(Example(model, resized_to(batch, tokens), samples)).graph


def test_a_compile_traces_both_ends_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    found = counted(monkeypatch)
    graphs = graphs_of(Packed(), packed(3, 2, rows=2), PIECES, SizesSpec(tokens=(1, 500)))
    graphs.at(77, 5)
    assert len(found) == 2


def test_what_two_traces_do_not_say_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean's gradient has one over the elements as a number with a fraction here."""
    torch.manual_seed(0)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(6, 6)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return ((self.line(x) - y) * (1 / (x.shape[0] * x.shape[1]))).sum()

    found = counted(monkeypatch)
    graphs = graphs_of(Scaled(), inputs(), UNEQUAL, SizesSpec(tokens=(1, 41)))
    made = graphs.at(19, 3)
    assert found[2:] == [3]
    assert any(1 / 57 in row.args for row in made.rows)


sizes = st.tuples(st.integers(3, 3000), st.integers(2, 40))
terms = [(0, 0, 1, 0), *((0, 1, 0, more) for more in SMALL), *((1, 0, more, 0) for more in SMALL)]


@given(st.sampled_from(terms), st.integers(1, 300), st.sampled_from(SMALL), sizes, sizes, sizes)
def test_a_number_is_read_rightly_or_not_at_all(
    term: tuple[int, int, int, int],
    factor: int,
    plus: int,
    one: tuple[int, int],
    other: tuple[int, int],
    at: tuple[int, int],
) -> None:
    def value(tokens: int, rows: int) -> int:
        both, of_tokens, of_rows, more = term
        return factor * (both * rows * tokens + of_tokens * tokens + of_rows * rows + more) + plus

    graph = LogicalGraph([], {}, {}, 0, 0, 0)
    found = SizeGraphs(graph, graph, one, other)
    told = value(*one), value(*other)
    if len(set(found._readings(*told))) == 1:
        assert found._number(told, *at) == value(*at)
    else:
        with pytest.raises(NoLine):
            found._number(told, *at)


def odd(x: Tensor) -> Tensor:
    return torch.relu(x) if x.shape[1] % 2 else torch.tanh(x)


def odd_rows(x: Tensor) -> Tensor:
    return torch.relu(x) if x.shape[0] % 2 else torch.tanh(x)


@pytest.mark.parametrize("high", [40, 41])
@pytest.mark.parametrize(("looks", "unit"), [(odd, "tokens"), (odd_rows, "tokens"), (odd_rows, "samples")])
def test_what_is_odd_is_looked_at(looks: Callable[[Tensor], Tensor], high: int, unit: str) -> None:
    with pytest.raises(HspmdError, match="does not compute the same at all sizes"):
        graphs_of(Blocks(looks), inputs(), UNEQUAL, SizesSpec(**{unit: (1, high)}))


@pytest.mark.parametrize("multiple", range(2, 17))
@pytest.mark.parametrize("high", [200, 2048, 2049, 2052, 3003])
def test_what_is_rounded_to_a_multiple_is_no_size(multiple: int, high: int) -> None:
    """Up or down, and then read as a number of tokens: never by both traces."""
    strategy = replace(UNEQUAL, sizes=SizesSpec(tokens=(1, high)))
    probes = probes_of(strategy, unit_of(strategy), 1, high)
    one, other = ((each.tokens, each.strategy.global_batch) for each in (probes[0], probes[-1]))
    graph = LogicalGraph([], {}, {}, 0, 0, 0)
    found = SizeGraphs(graph, graph, one, other)
    for up in (0, multiple - 1):
        told = [(tokens + up) // multiple * multiple for tokens, _ in (one, other)]
        assert not list(found._readings(*told)), (one, other, told)


class Masked(nn.Module):
    """Attention under a constant mask. window: how far back it reaches."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.line, self.window = nn.Linear(4, 4), window

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        mask = places[None, :] <= places[:, None]
        if self.window is not None:
            mask = mask & (places[:, None] - places[None, :] < self.window)
        q = self.line(x)[:, None]
        return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).sum()


@pytest.mark.parametrize(
    ("window", "longest", "wanted"),
    [
        (None, 32768, MaskKind.CAUSAL),
        (None, 300, MaskKind.CAUSAL),
        (20, 32768, MaskKind.OTHER),
        (20, 300, MaskKind.OTHER),
        (301, 300, MaskKind.CAUSAL),
    ],
)
def test_masks_of_long_rows_are_those_of_short_ones(
    window: int | None, longest: int, wanted: MaskKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is made as large as the rows, unless a number in it says that it has to be."""
    model = Masked(window)
    short, longer = (trace(model, {"x": torch.zeros(2, tokens, 4)}, batch=2) for tokens in (11, longest))
    largest: list[int] = []
    computed = causal_mask.ConstantValues._compute

    def noted(self: causal_mask.ConstantValues, row: causal_mask.Row) -> Tensor:
        value = computed(self, row)
        largest.append(value.numel())
        return value

    monkeypatch.setattr(causal_mask.ConstantValues, "_compute", noted)
    assert set(mask_kinds(short, longer).values()) == {wanted}
    assert max(largest) <= (2**25 if window is not None and longest == 300 else 500)


def test_packed_masks_of_long_rows_are_those_of_short_ones() -> None:
    graphs = graphs_of(Packed(), packed(3, 2, rows=2), PIECES, SizesSpec(tokens=(1, 32768)))
    both = graphs.ends.one, graphs.ends.other
    assert [[row.op for row in graph.rows if "packed" in row.op] for graph in both] == [
        [f"hspmd.packed_attention{part}.default" for part in ("", "", "_backward", "_backward")]
    ] * 2
