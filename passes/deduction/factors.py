"""Sufficient factors: a stage's ranks gather what a gradient is the product of, instead of summing it.

A weight's gradient is one product that sums over samples, of its input and of the gradient of its output.
Where the ranks of a stage cut samples, each has an addend as large as the weight; the factors are smaller
where samples * (in + out) < in * out. Between pipelines gradients are summed as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...base.name_groups import shortened
from ...errors import StrategyError
from ...ir.annotated import AnnotatedValue, PipelineGraph
from ...ir.graph import LogicalGraph, ParamInfo, Ref, Row
from ...layout.layout import Axis, Layout, make_layout
from ...rules.in_code.contraction_rules import Contraction, contract
from ...rules.rules import consistent, is_addend, uncut
from ...strategy.strategy import GradientForm, Strategy
from .deduce_moves import settle_ranks

if TYPE_CHECKING:
    from .deducer import Deducer

MOVES = frozenset(
    (
        *("aten.t.default", "aten.transpose.int", "aten.permute.default", "aten.view.default"),
        *("aten._unsafe_view.default", "aten.unsqueeze.default", "aten.squeeze.dim", "aten._to_copy.default"),
        *("aten.clone.default", "aten.alias.default", "aten.detach.default"),
    )
)
"""What a gradient may pass behind its product."""

PRODUCTS = {"aten.mm.default": (1, 0), "aten.bmm.default": (2, 1)}
"""The summed dim of each operand."""
SUM = "aten.sum.dim_IntList"


def factored(graph: LogicalGraph, strategy: Strategy) -> dict[int, str]:
    """Rows of products, and of sums of biases, whose operands are to be gathered, with the parameters' names.

    A StrategyError lists the parameters whose gradient is neither.
    """
    found: dict[int, str] = {}
    bad: list[tuple[str, str]] = []
    where = ""
    for info in graph.params.values():
        override = strategy.override_of(info.aliases)
        if override is None or override.gradient is not GradientForm.FACTORS or info.grad is None:
            continue
        row = product_of(graph, info.grad)
        if has_factors(row):
            found[row.id] = info.name
        else:
            bad.append((info.name, _reason(graph, info, row)))
            where = where or row.where
    if bad:
        raise StrategyError(
            "gradient: factors asks for gradients that are not one product",
            at=where,
            details=shortened(bad),
            rule="a gradient with factors is one matrix product, as of nn.Linear, or one sum, as of its bias",
            fix="narrow the glob to such layers, or name these in a later override without `gradient`",
        )
    return found


def product_of(graph: LogicalGraph, row: int) -> Row:
    """The row that makes a gradient, behind which it is moved only."""
    found = graph.rows[row]
    while found.op in MOVES:
        source = found.args[0]
        assert isinstance(source, Ref), "a move has a tensor first"
        found = graph.rows[source.id]
    return found


def has_factors(row: Row) -> bool:
    """Whether the row that makes a gradient is one product, or one sum."""
    return row.op in PRODUCTS or is_sum(row)


def is_sum(row: Row) -> bool:
    """Whether the row that makes a gradient sums only, as of a bias."""
    return row.op == SUM


def _reason(graph: LogicalGraph, info: ParamInfo, row: Row) -> str:
    if row.op == "getitem" and isinstance(row.args[0], Ref):
        row = graph.rows[row.args[0].id]
    several = "several places read it: " if row.op.startswith("aten.add.") or len(info.aliases) > 1 else ""
    return f"{several}its gradient is made by {row.op}"


def gathered(deducer: Deducer, value: AnnotatedValue, argument: object) -> AnnotatedValue:
    """An operand of such a row with the samples of all ranks of the stage.

    One that is cut along another dim stays cut: the weight is cut there, too. Where ranks would have no
    addends to sum, as of a weight that they split, the operand stays as it is.
    """
    row = deducer.row
    if not _would_sum(deducer, row):
        return value
    value = settle_ranks(deducer, value)
    cut = value.layout.cut(ranks=True)
    if cut is not None and cut[0] in _summed(row, argument, value.layout.shape):
        value = deducer.convert(value, uncut(value.layout, ranks=True))
    deducer.result.factored.add(row.id)
    return value


def _would_sum(deducer: Deducer, row: Row) -> bool:
    """Whether the row, as its rule has it, would give each rank of the stage an addend."""
    if row.op not in PRODUCTS:
        layout = deducer.plain(deducer.marked(row.args[0])).layout
        cut = layout.cut(ranks=True)
        return is_addend(layout) or (cut is not None and cut[0] in _summed(row, row.args[0], layout.shape))
    call = deducer.call_rule(row)
    (first, second), mine, others, out, summed = call.factors
    left, right = (deducer.plain(deducer.marked(row.args[place])) for place in (first, second))
    letters = Contraction(mine, others, out, summed)
    return is_addend(contract(_Supposed(deducer), row, letters, left, right)[2])  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Supposed:
    """A context in which values are in other layouts, without a row that brings them there."""

    deducer: Deducer

    def __getattr__(self, name: str) -> object:
        return getattr(self.deducer, name)

    def convert(self, value: AnnotatedValue, layout: Layout) -> AnnotatedValue:
        """The value as it would be."""
        return replace(value, layout=layout)

    def settle(self, value: AnnotatedValue) -> AnnotatedValue:
        """Without pending sums."""
        layout = consistent(value.layout)
        return replace(value, layout=make_layout(layout.dims, layout.partial - {Axis.BATCH}))


def _summed(row: Row, argument: object, shape: Sequence[int]) -> list[int]:
    """The summed dims of an operand of this shape."""
    if row.op in PRODUCTS:
        return [dim for dim, operand in zip(PRODUCTS[row.op], row.args, strict=True) if operand == argument]
    dims, rank = row.args[1], len(shape)
    assert isinstance(dims, tuple), "a bias is summed over given dims"
    return [int(dim) % rank for dim in dims] if dims else [*range(rank)]


def check_gathered(names: Mapping[int, str], pipelines: Sequence[PipelineGraph], strategy: Strategy) -> None:
    """A StrategyError for parameters of which no stage gathers factors."""
    used = {row for pipeline in pipelines for row in pipeline.factored}
    bad = [
        (name, "no stage's ranks sum addends of its gradient: they share no samples, or it is split")
        for row, name in names.items()
        if row not in used
    ]
    if bad:
        raise StrategyError(
            "gradient: factors changes nothing",
            details=shortened(bad),
            rule="ranks of one stage gather factors instead of summing addends; pipelines sum gradients",
            fix=_as_one_stage(strategy)
            or "leave `gradient` out, or hold the parameter by `duplicate` and cut the samples of its stage",
        )


def _as_one_stage(strategy: Strategy) -> str:
    """How pipelines of one device each, which only share samples out, are said as one stage; else nothing."""
    pipelines = strategy.pipelines
    if strategy.sizes or len(pipelines) < 2 or any(len(item.devices) > 1 for item in pipelines):
        return ""
    devices = ", ".join(str(device) for item in pipelines for device in item.devices)
    shares = ",".join(str(item.batch_size) for item in pipelines)
    return (
        f"say the same as one pipeline of one stage: devices [{devices}], `duplicate` for all parameters,"
        f" `layouts` with S0({shares}) at each input, micro-batches of all samples together"
    )
