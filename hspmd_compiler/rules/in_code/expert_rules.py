"""Rules of products of each row with the matrix of its own expert.

Inside of each matrix the ranks cut as in any product. Where they share out the experts, rows go to the owners
of their experts; or each rank takes all rows and computes those of its own: the others are zeros of a pending
sum.
"""

from __future__ import annotations

from ...ir.annotated import AnnotatedValue, PerCoordinate
from ...ir.graph import Row
from ...layout.intervals import Sets
from ...layout.layout import Axis, Dim, Factor, make_layout, summed_over
from ...layout.view_maps import flat_factor
from ..cuts import exact, single_factor
from ..rules import Result, RuleContext, consistent, held_intervals, local_sizes, uncut
from .contraction_rules import Contraction, contract
from .pointwise_rules import copies, join_dims, operand_layout

FORWARD = "hspmd.expert_mm"
GRAD = "hspmd.expert_grad"


def expert_mm(ctx: RuleContext, row: Row) -> Result:
    """Linear in the rows, and in the matrices."""
    rows, weights = ctx.operand(row.args[0]), ctx.settle(ctx.operand(row.args[1]))
    experts = ctx.settle(ctx.operand(row.args[2]))
    shared = _shared_experts(ctx, weights)
    if shared is None:
        letters = Contraction(("s", "k"), ("e", "k", "n"), ("s", "n"))
        rows, weights, layout = contract(ctx, row, letters, rows, weights)
        experts = _beside(ctx, experts, layout.dims[0])
        return ctx.emit(FORWARD, (rows, weights, experts), layout)
    weights, held, owners = shared
    rows = ctx.settle(rows)
    dim = ctx.at_owners(row.args[2], rows, experts, owners)
    if dim is not None:
        rows, experts = _at_owners(ctx, dim, rows, experts)
        layout = make_layout((dim, (Factor(weights.layout.shape[2]),)))
        return ctx.emit(FORWARD, (rows, weights, experts, held, weights.layout.shape[0]), layout)
    rows, experts, samples = _whole_rows(ctx, rows, experts)
    layout = make_layout((samples, (Factor(weights.layout.shape[2]),)), frozenset({Axis.TENSOR}))
    return ctx.emit(FORWARD, (rows, weights, experts, held, weights.layout.shape[0]), layout)


def expert_grad(ctx: RuleContext, row: Row) -> Result:
    """A sum over the rows; of the matrices only their cut counts."""
    rows, grad, experts = ctx.operand(row.args[0]), ctx.operand(row.args[1]), ctx.operand(row.args[2])
    experts, weights = ctx.settle(experts), ctx.operand(row.args[3])
    cut = weights.layout.cut(ranks=True)
    if cut is not None and cut[0] == 0 and not cut[1].contrib:
        return _of_shared(ctx, row, (ctx.settle(rows), ctx.settle(grad), experts), weights)
    letters = Contraction(("s", "k"), ("s", "n"), ("k", "n"), "s")
    rows, grad, layout = contract(ctx, row, letters, rows, grad)
    experts = _beside(ctx, experts, copies((rows.layout.dims[0],))[0])
    count = weights.layout.shape[0]
    made = make_layout(((Factor(count),), *layout.dims), layout.partial)
    return ctx.emit(GRAD, (rows, grad, experts, count), made)


def _of_shared(
    ctx: RuleContext, row: Row, operands: tuple[AnnotatedValue, ...], weights: AnnotatedValue
) -> AnnotatedValue:
    """Each rank has the gradients of its own experts."""
    rows, grad, experts = operands
    factor = flat_factor(weights.layout.dims[0])
    dim = ctx.at_owners(row.args[2], rows, experts, factor.sets or ())
    if dim is not None:
        rows, experts = _at_owners(ctx, dim, rows, experts)
        grad, _ = _at_owners(ctx, dim, grad, experts)
        samples = uncut(make_layout((dim,)), ranks=True).dims[0]
    else:
        rows, experts, _ = _whole_rows(ctx, rows, experts)
        grad, experts, samples = _whole_rows(ctx, grad, experts)
        rows = ctx.convert(rows, make_layout((samples, rows.layout.dims[1])))
    made = make_layout(((factor,), rows.layout.dims[1], grad.layout.dims[1]), summed_over(samples))
    held = held_intervals(factor, factor.size)
    args = (rows, grad, experts, local_sizes(made, 0), held, factor.size)
    return ctx.emit(GRAD, args, made)


def _at_owners(
    ctx: RuleContext, dim: Dim, rows: AnnotatedValue, experts: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue]:
    """Rows, whole ones, and their experts at these experts' owners."""
    width = uncut(consistent(rows.layout), ranks=True).dims[1]
    return ctx.convert(rows, make_layout((dim, width))), ctx.convert(experts, make_layout((dim,)))


def _shared_experts(
    ctx: RuleContext, weights: AnnotatedValue
) -> tuple[AnnotatedValue, PerCoordinate, Sets] | None:
    """The matrices, each at one rank, and whose, here and on all: where the ranks cut the experts."""
    cut = weights.layout.cut(ranks=True)
    if cut is None or cut[0] != 0:
        return None
    weights, factor = single_factor(ctx, exact(ctx, weights), 0)
    return weights, held_intervals(factor, weights.layout.shape[0]), factor.sets or ()


def _whole_rows(
    ctx: RuleContext, rows: AnnotatedValue, experts: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue, Dim]:
    """Rows and their experts on every rank; samples stay cut."""
    rows = ctx.convert(rows, uncut(consistent(rows.layout), ranks=True))
    experts = ctx.convert(experts, uncut(consistent(experts.layout), ranks=True))
    size = rows.layout.shape[:1]
    (samples,) = join_dims([make_layout(rows.layout.dims[:1]), experts.layout], size)
    rows = ctx.convert(rows, make_layout((samples, *rows.layout.dims[1:])))
    return rows, _beside(ctx, experts, samples), samples


def _beside(ctx: RuleContext, experts: AnnotatedValue, rows: Dim) -> AnnotatedValue:
    """The experts of the rows, cut as these."""
    size = experts.layout.shape
    return ctx.convert(experts, operand_layout(experts, copies((rows,)), size))
