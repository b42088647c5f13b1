"""Layouts of a strategy at anchors of unmodified models: programs compute what one device does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from hspmd_compiler.annotations.of_layout import layout_states
from hspmd_compiler.errors import AnnotationError, HspmdError
from hspmd_compiler.ir.anchor_rows import AnchorPlace, anchors_of
from hspmd_compiler.ir.annotated import PipelineGraph
from hspmd_compiler.passes.annotate import annotate
from hspmd_compiler.passes.deduction.deduce_all import deduce_all
from hspmd_compiler.passes.layout_wishes import bind_layouts
from hspmd_compiler.strategy.form import strategy_from
from hspmd_compiler.strategy.strategy import Strategy

from ..quick import quick_are
from ..trace.anchored_models import Convolutional, Encoder, Mlp, Varied, traced

Wishes = Mapping[str, str]
WHOLE = {"match": "**", "duplicate": True}
NOT_THERE = ("is no pending sum here", "lie among others")
"""What a drawn layout may be refused for."""


def split(match: str, dim: int, *shares: int) -> dict[str, Any]:
    return {"match": match, "split": dim, **({"shares": list(shares)} if shares else {})}


def stage(devices: Sequence[int], layers: int, *shares: int) -> dict[str, Any]:
    return {"devices": list(devices), "layers": layers, **({"shares": list(shares)} if shares else {})}


def strategy(
    stages: Sequence[dict[str, Any]],
    layouts: Wishes,
    overrides: Sequence[dict[str, Any]] = (),
    sizes: Sequence[int] = (8,),
    *others: dict[str, Any],
    recompute: str = "none",
    **more: Any,
) -> Strategy:
    """Parameters are whole where no override says otherwise."""
    first = {"stages": list(stages), "micro_batches": list(sizes), "recompute": recompute}
    wishes = [{"at": at, "to": to} for at, to in layouts.items()]
    form = {"pipelines": [first, *others], "overrides": [WHOLE, *overrides], "layouts": wishes, **more}
    return strategy_from(form)


def three(layers: int, *shares: int) -> list[dict[str, Any]]:
    return [stage((0, 1, 2), layers, *shares)]


MIXED = {"layers.1": "S0(4,2,2)", "layers.2": "S1(8,4,4)", "relu#3": "Dx3"}
"""Behind a row-parallel layer a reduce-scatter, then an all-to-all, then an all-gather."""
COLUMN_ROW = [
    split("layers.0", 0, 2, 1, 1),
    split("layers.1.weight", 1, 2, 1, 1),
    split("layers.3", 0, 2, 1, 1),
]
FEED_FORWARD = [split("linear1", 0, 2, 1, 1), split("linear2.weight", 1, 2, 1, 1)]
GATHERED = {"x": "S0(4,2,2)", "layers.*.norm1": "Dx3", "layers.*.linear2": "S0(4,2,2)"}
HEADS = {"**.self_attn.contiguous": "S3(6,3,3)", "layers.*.self_attn.linear#2": "Dx3"}
CONV = {"x": "S0(4,2,2)", "features.2": "Dx3", "features.4": "Dx3", "classifier.2": "S0(4,2,2)"}
CHANNELS = [split("features.3", 0, 2, 1, 1), split("classifier.0", 0, 2, 1, 1)]
SPLIT = {Mlp: COLUMN_ROW, Encoder: FEED_FORWARD, Convolutional: CHANNELS}
UNLIKE = {
    "stages": [stage((3, 4), 1), stage((5,), 1)],
    "micro_batches": [2, 1],
}

CASES: dict[str, tuple[type[nn.Module], Strategy]] = {
    "mlp": (Mlp, strategy(three(4), MIXED, COLUMN_ROW)),
    "mlp of several micro-batches": (
        Mlp,
        strategy(three(4), MIXED | {"layers.1": "S0(2,1,1)"}, COLUMN_ROW, (4, 4)),
    ),
    "mlp with zero": (Mlp, strategy(three(4), MIXED, COLUMN_ROW, zero=3)),
    "batch": (Encoder, strategy(three(2), {"x": "S0(4,2,2)"})),
    "batch of two micro-batches": (Encoder, strategy(three(2), {"x": "S0(2,1,1)"}, (), (4, 4))),
    "feed-forward": (Encoder, strategy(three(2), GATHERED, FEED_FORWARD)),
    "heads": (Encoder, strategy(three(2), HEADS)),
    "inside fused attention": (
        Encoder,
        strategy(three(2), {"**.scaled_dot_product_attention": "S1(2,1,1)", "**.self_attn.reshape": "D"}),
    ),
    "convolutions": (
        Convolutional,
        strategy(three(4), CONV, CHANNELS),
    ),
    "in-place calls": (
        Varied,
        strategy(
            three(1, 2, 1, 1), {"x": "S0(4,2,2)", "up#2": "D", "attention.bmm": "S0(4,2,2)", "add": "S1"}
        ),
    ),
    "unlike pipelines": (
        Encoder,
        strategy(
            three(2, 2, 1, 1),
            {"x": "S0", "layers.*.norm1": "D", "layers.*.linear2": "S2"},
            [split("linear1", 0), split("linear2.weight", 1)],
            (3, 2),
            UNLIKE,
        ),
    ),
}
CASES |= {
    f"feed-forward, {name}": (Encoder, replace(CASES["feed-forward"][1], **changed))
    for name, changed in {
        "ZeRO-2": {"zero": 2},
        "tokens split between": {"sequence_parallel": True},
    }.items()
}
CASES |= {
    f"feed-forward, {kind} recomputed": (
        Encoder,
        strategy(three(2), GATHERED, FEED_FORWARD, (4, 4), recompute=kind),
    )
    for kind in ("full", "selective")
}
QUICK = ("mlp", "feed-forward", "convolutions", "unlike pipelines")


@pytest.mark.parametrize("name", quick_are(CASES, QUICK))
def test_numbers_are_those_of_one_device(name: str) -> None:
    kind, chosen = CASES[name]
    traced(kind).check(chosen)


def deduced(kind: type[nn.Module], chosen: Strategy) -> PipelineGraph:
    """The first pipeline."""
    graph = bind_layouts(traced(kind).graph, chosen)
    _, placements = annotate(graph, chosen)
    return deduce_all(graph, chosen, placements)[0]


def moves(kind: type[nn.Module], chosen: Strategy) -> list[str]:
    """What moves between the ranks of the first stage: `f S0(4,2,2) -> Dx3`."""
    ranks = chosen.pipelines[0].stages[0].tp
    return [
        f"{row.phase.value} {layout_states(it.source, ranks)} -> {layout_states(it.target, ranks)}"
        for row in deduced(kind, chosen).rows
        if (it := row.marker) is not None
    ]


def test_a_gradient_returns_to_the_layout_that_its_value_came_in() -> None:
    """All-gather and reduce-scatter both ways round, all-to-all both ways; the last move is the loss's."""
    assert moves(Mlp, strategy(three(4), MIXED, COLUMN_ROW)) == [
        "f Px3 -> S0(4,2,2)",
        "f S0(4,2,2) -> S1(8,4,4)",
        "f S1(8,4,4) -> Dx3",
        "b Px3 -> S1(8,4,4)",
        "b S1(8,4,4) -> S0(4,2,2)",
        "b S0(4,2,2) -> Dx3",
        "f Px3 -> Dx3",
    ]


def test_a_whole_value_has_a_whole_gradient() -> None:
    """Sliced forward and gathered backward; kept whole, its gradient is summed there."""
    assert moves(Mlp, strategy(three(4), {"layers.1": "S0(4,2,2)", "relu#2": "D"})) == [
        "f S0(4,2,2) -> Dx3",
        "b S0(4,2,2) -> Dx3",
    ]
    split_head = [split("layers.3", 0, 2, 1, 1)]
    assert moves(Mlp, strategy(three(4), {"relu#3": "D"}, split_head)) == ["b Px3 -> Dx3", "f Px3 -> Dx3"]


def test_gradients_of_parameters_come_out_as_these_are_split() -> None:
    found = deduced(Mlp, strategy(three(4), MIXED, COLUMN_ROW))
    layouts = {term.param: (term.value.layout, found.params[term.param, 0].layout) for term in found.grads}
    for name in ("layers.0.weight", "layers.1.weight", "layers.3.weight", "layers.3.bias"):
        gradient, parameter = layouts[name]
        assert gradient.cut(ranks=True) == parameter.cut(ranks=True) is not None
        assert not any(axis.on_ranks for axis in gradient.partial)


@st.composite
def states(draw: st.DrawFn, place: AnchorPlace, any_ranks: bool) -> str:
    """Of the dims of the value, over three ranks by any weights, or over all ranks that there are."""
    dim = draw(st.integers(0, len(place.shape) - 1))
    if any_ranks:
        return draw(st.sampled_from([f"S{dim}", f"S{dim}", "D", "P"]))
    weights = draw(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any))
    split = f"S{dim}({','.join(map(str, weights))})"
    return draw(st.sampled_from([split, split, "D", f"S{dim}", "Px3"]))


@st.composite
def programs(draw: st.DrawFn, kind: type[nn.Module]) -> Strategy:
    """Some anchors with drawn layouts, under parameters that are split by the compiler, or whole."""
    places = draw(st.lists(st.sampled_from(anchors_of(traced(kind).graph)), min_size=1, max_size=4))
    layers = len(traced(kind).graph.layers)
    shares = draw(st.sampled_from([(), (2, 1, 1), (1, 0, 2)]))
    stages, split = three(layers, *shares), draw(st.sampled_from([[], SPLIT[kind]]))
    if in_two := draw(st.booleans()):
        stages = [stage((0, 1, 2), layers // 2, *shares), stage((3, 4), layers - layers // 2)]
        split = []
    return strategy(
        stages,
        {place.name: draw(states(place, in_two)) for place in places},
        split,
        draw(st.sampled_from([(8,), (4, 4), (5, 3)])),
        zero=draw(st.sampled_from([0, 0, 3])),
        recompute=draw(st.sampled_from(["none", "none", "full"])),
    )


def check_drawn(kind: type[nn.Module], chosen: Strategy) -> None:
    try:
        traced(kind).check(chosen)
    except AnnotationError as error:
        assume(not any(text in error.what for text in NOT_THERE))
        raise


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(programs(Mlp))
def test_drawn_layouts_change_no_number(chosen: Strategy) -> None:
    check_drawn(Mlp, chosen)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Mlp, Encoder, Convolutional])
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_many_drawn_layouts_change_no_number(kind: type[nn.Module], data: st.DataObject) -> None:
    check_drawn(kind, data.draw(programs(kind)))


TWO_STAGES = [stage((0, 1, 2), 1), stage((3, 4), 1)]
REFUSED: dict[str, tuple[type[nn.Module], Strategy]] = {
    "no_such_anchors": (Encoder, strategy(three(2), {"layers.*.linear3": "Dx3", "norm1": "D", "x": "D"})),
    "beyond_the_dims": (Encoder, strategy(three(2), {"**.linear1": "S3(2,1,1)", "x": "S0x3", "head": "S7"})),
    "other_ranks": (Encoder, strategy(TWO_STAGES, {"layers.*.linear1": "S2(2,1,1)"})),
    "other_ranks_outside_of_layers": (Encoder, strategy(TWO_STAGES, {"head": "S2(2,1,1)"})),
    "no_pending_sum": (Encoder, strategy(three(2), {"layers.1.norm1": "Px3"})),
    "intervals_of_samples": (Mlp, strategy(three(4), {"x": "S0(0:2,2:3,3:4)"}, (), (4, 3, 1))),
    "samples_among_others": (Encoder, strategy(three(2), {"layers.*.self_attn.reshape": "S0"}, (), (4, 4))),
    "intervals": (Mlp, strategy(three(4), {"layers.0": "S1(0:2,2:3,3:4)"})),
    "units": (Mlp, strategy(three(4), {"layers.0": "S1/3"})),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, expect: Callable[[str, str], None]) -> None:
    kind, chosen = REFUSED[name]
    with pytest.raises(HspmdError) as caught:
        traced(kind).check(chosen)
    expect(f"layouts/{name}", str(caught.value))
