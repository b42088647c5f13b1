"""No operator takes tensor parallelism away without a word."""

from __future__ import annotations

import logging
from math import prod

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.ir.graph import LogicalGraph, Origin, OriginKind, ParamInfo, Ref
from hspmd_compiler.passes.annotate import annotate, parameter_text
from hspmd_compiler.passes.dims.infer_dims import infer_dims
from hspmd_compiler.passes.dims.split_units import find_split_groups, split_groups
from hspmd_compiler.passes.dims.whole_parameters import TAKEN, whole_lines, whole_parameters
from hspmd_compiler.rules.lines.constant_lines import FILLS
from hspmd_compiler.strategy.strategy import Override, PipelineSpec, StageSpec, Strategy
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.rules.split_operands import Operand, StageMesh
from hspmd_compiler.verify.rules.split_operator import OperandSketch

from ..rules.rule_cases import probability
from ..rules.test_rules_brute_force import BY_OP, MARKERS

LOOKUP = "aten.embedding.default"
"""A table that is a product: its columns stay, but for streams that parameters make otherwise."""
FORWARD = [op for op in sorted(BY_OP) if "backward" not in op and op not in (*MARKERS, LOOKUP)]
WIDTH = 5


class Between:
    """The operators of a case, between matrix products that give its operands and use its results."""

    def __init__(self) -> None:
        self.sketch = OperandSketch(StageMesh(1))
        self.params: dict[str, ParamInfo] = {}

    def take(self, operand: Operand) -> Ref:
        """An operand of numbers is a product of data and a parameter, whose columns are its last dim."""
        value = operand.make(operand.shape)
        if value.dtype != torch.float64 or operand.shape[-1:] in ((), (1,)) or operand.pure:
            return self._leaf(Origin(OriginKind.INPUT, "ids"), value)
        rows, columns = prod(operand.shape[:-1]), operand.shape[-1]
        data = self._leaf(Origin(OriginKind.INPUT, "x"), torch.rand(rows, WIDTH, dtype=value.dtype))
        made = self.sketch.call("aten.mm.default", (data, self._weight("made", WIDTH, columns)))
        shaped = self.sketch.call("aten.view.default", (made, operand.shape))
        return self.sketch.call("aten.sigmoid.default", (shaped,)) if operand.make is probability else shaped

    def use(self, ref: Ref) -> None:
        """A product over each dim of a result."""
        value = self.sketch.wholes[ref.id]
        assert isinstance(value, Tensor)
        for dim, size in enumerate(value.shape):
            order = [place for place in range(value.dim()) if place != dim]
            last = self.sketch.call("aten.permute.default", (ref, (*order, dim)))
            flat = self.sketch.call("aten.reshape.default", (last, (-1, size)))
            self.sketch.call("aten.mm.default", (flat, self._weight("used", size, WIDTH)))

    def is_read(self, name: str) -> bool:
        """Whether anything but its shape is read of the operand that a parameter makes."""
        product, shaped = self.params[name].row + 1, self.params[name].row + 2
        assert Ref(product) in _refs(self.sketch.rows[shaped].args)
        return any(Ref(shaped) in _refs(row.args) and row.op not in FILLS for row in self.sketch.rows)

    def graph(self) -> LogicalGraph:
        return LogicalGraph(self.sketch.rows, self.params, {}, len(self.sketch.rows) - 1, 0, 1)

    def _weight(self, kind: str, rows: int, columns: int) -> Ref:
        name = f"{kind}.{len(self.params)}"
        ref = self._leaf(Origin(OriginKind.PARAM, name), torch.rand(rows, columns, dtype=torch.float64))
        shape = (rows, columns)
        self.params[name] = ParamInfo(name, ref.id, shape, torch.float64, True, False, (name,), None)
        return ref

    def _leaf(self, origin: Origin, value: Tensor) -> Ref:
        ref = self.sketch._append("placeholder", (), {}, value)
        self.sketch.rows[ref.id].origin = origin
        return ref


@pytest.mark.parametrize("op", FORWARD)
def test_the_dim_goes_through_or_the_reason_is_told(op: str) -> None:
    """What a parameter product gives, another can sum over in pieces; or a row is named that forbids it."""
    for case in BY_OP[op]:
        between = Between()
        case.build(between.sketch, between.take)  # type: ignore[arg-type]
        used = {ref.id for row in between.sketch.rows for ref in _refs(row.args)}
        results = [row.id for row in between.sketch.rows if row.id not in used and row.outs is None]
        is_numbers = [_is_numbers(between.sketch.wholes[row]) for row in results]
        if not all(is_numbers):
            continue
        for row in results:
            between.use(Ref(row))
        graph = between.graph()
        flow = infer_dims(graph)
        for item in whole_parameters(graph, flow, split_groups(graph, flow)):
            if item.name.startswith("made") and between.is_read(item.name):
                told = [reason for reason in item.reasons if reason.at is not None or reason.why == TAKEN]
                assert any(reason.dim == 1 for reason in told), (op, item)


def _refs(value: object) -> list[Ref]:
    if isinstance(value, Ref):
        return [value]
    return [ref for item in value for ref in _refs(item)] if isinstance(value, (tuple, list)) else []


def _is_numbers(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float64 and value.dim() > 0


class Block(nn.Module):
    """Two linears with something between."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.up, self.between, self.down = nn.Linear(6, 8), between, nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.between(self.up(x)))


class Blocks(nn.Module):
    """Two blocks behind a norm, so that nothing but what is inside of them can be split."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.layers = nn.ModuleList((Block(nn.ReLU()), Block(between)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(self.norm(x))
        return nn.functional.mse_loss(x, y)


class Rolled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.roll(1, -1)


def graph_of(between: nn.Module) -> LogicalGraph:
    batch = {"x": torch.zeros(2, 4, 6), "y": torch.zeros(2, 4, 6)}
    return trace(Blocks(between), batch, batch=2)


def strategy(**options: object) -> Strategy:
    stage = StageSpec((0, 1), (0, 2))
    return Strategy((PipelineSpec((stage,), (2,)),), **options)  # type: ignore[arg-type]


def told(caplog: pytest.LogCaptureFixture, graph: LogicalGraph, wanted: Strategy) -> list[str]:
    with caplog.at_level(logging.WARNING, "hspmd_compiler"):
        annotate(graph, wanted)
    return [record.getMessage() for record in caplog.records if record.name == "hspmd_compiler"]


def test_what_keeps_parameters_whole_is_told_once_with_its_cost(caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = told(caplog, graph_of(Rolled()), strategy())
    assert warning.startswith(
        "aten.roll.default keeps whole what tensor parallelism could split: layers.1.up.weight,"
        " layers.1.down.weight; every rank of their stage holds and computes all 384 bytes of them;"
    )
    assert "return x.roll(1, -1)" in warning


def test_it_is_listed_in_the_text_of_parameters() -> None:
    layouts, _ = annotate(graph_of(Rolled()), strategy())
    text = parameter_text(layouts)
    (line,) = [line for line in text.splitlines() if line.startswith("layers.1.up.weight  dim 0: ")]
    assert "aten.roll.default is over it" in line
    assert "return x.roll(1, -1)" in line


@pytest.mark.parametrize("between", [nn.Hardswish(), nn.ReLU()])
def test_nothing_is_told_where_all_is_split(caplog: pytest.LogCaptureFixture, between: nn.Module) -> None:
    graph = graph_of(between)
    assert not told(caplog, graph, strategy())
    assert len(find_split_groups(graph)) == 2


def test_nothing_is_told_where_the_user_splits_it_or_no_stage_would(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of(Rolled())
    by_hand = (Override("layers.1.up", split=0), Override("layers.1.down", split=1))
    assert not told(caplog, graph, strategy(overrides=by_hand))
    one = Strategy((PipelineSpec((StageSpec((0,), (0, 2)),), (2,)),))
    assert not told(caplog, graph, one)


def test_the_lines_name_every_reason() -> None:
    graph = graph_of(Rolled())
    flow = infer_dims(graph)
    lines = whole_lines(whole_parameters(graph, flow, split_groups(graph, flow)))
    assert [line.partition(":")[0] for line in lines] == [
        f"layers.1.{name}.weight  dim {dim}"
        for name, dims in (("up", (1, 0)), ("down", (0, 1)))
        for dim in dims
    ]
