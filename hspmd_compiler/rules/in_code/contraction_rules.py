"""Rules of products that sum over a dim: which letter each operand is cut at decides the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...ir.annotated import AnnotatedValue
from ...ir.graph import Row
from ...layout.intervals import is_exact
from ...layout.layout import Axis, Dim, Factor, Layout, dim_cut, dim_size, make_layout, summed_over
from ...layout.view_maps import deduplicated
from ..rules import RuleContext, at_first, consistent, contrib_factor, is_addend, uncut
from .pointwise_rules import join_dims, most_split, one_batch_sum


@dataclass(frozen=True, slots=True)
class Contraction:
    """Letters of both operands' dims and of the result's; `summed` is summed, a letter in both is a batch."""

    left: Sequence[str]
    right: Sequence[str]
    out: Sequence[str]
    summed: str = "k"


def add_once(ctx: RuleContext, bias: AnnotatedValue, layout: Layout) -> AnnotatedValue:
    """A bias as it is added to local products in `layout` of the last dims: zero but at one place."""
    bias = ctx.settle(bias)
    pair = len(layout.dims) - len(bias.layout.dims)
    dims = [
        () if dim_size(own) == 1 else dim
        for own, dim in zip(bias.layout.dims, layout.dims[pair:], strict=True)
    ]
    bias = ctx.convert(bias, consistent(make_layout(tuple(dims))))
    for axis in sorted(layout.partial, key=lambda a: a.value):
        bias = ctx.emit("hspmd.zero_unless", (bias, at_first(axis)), bias.layout, dtype=bias.dtype)
    return bias


def plain_at(ctx: RuleContext, value: AnnotatedValue, dim: int) -> AnnotatedValue:
    """An operand whose dim of the result has no addends: a bias could not be added to these once."""
    return ctx.settle(value) if _contrib_dim(value.layout) == dim else value


def contract(
    ctx: RuleContext, row: Row, letters: Contraction, left: AnnotatedValue, right: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue, Layout]:
    """Both operands converted so that local products give the result in the returned layout."""
    left, right = _one_side_of_samples(ctx, letters, left, right)
    left, right = _settle_one(ctx, left, right)
    left, right = _gather_tokens(ctx, left, right), _gather_tokens(ctx, right, left)
    left, right = _avoid_conflict(ctx, letters, left, right)
    left, right = _match_batch_letters(ctx, letters, left, right)
    left, right, summed = _match_summed(ctx, row, letters, left, right)
    dims = dict(zip(letters.left, left.layout.dims, strict=True))
    for index, letter in enumerate(letters.right):
        if letter not in dims or _contrib_dim(right.layout) == index:
            dims[letter] = right.layout.dims[index]
    partial = summed | left.layout.partial | right.layout.partial
    out = tuple(dims[letter] for letter in letters.out)
    return left, right, make_layout(out, partial)


def _one_side_of_samples(
    ctx: RuleContext, letters: Contraction, left: AnnotatedValue, right: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue]:
    """Samples that are multiplied with other samples: those of the smaller operand are gathered."""
    cuts = [value.layout.cut(ranks=False) for value in (left, right)]
    if cuts[0] is None or cuts[1] is None or letters.left[cuts[0][0]] == letters.right[cuts[1][0]]:
        return left, right
    if prod(left.layout.shape) < prod(right.layout.shape):
        return ctx.convert(left, uncut(left.layout, ranks=False)), right
    return left, ctx.convert(right, uncut(right.layout, ranks=False))


def _settle_one(
    ctx: RuleContext, left: AnnotatedValue, right: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue]:
    """Linear in one operand: at most one keeps its addends, and only where the other is not cut apart."""
    left, right = _whole_tokens(ctx, left, right), _whole_tokens(ctx, right, left)
    if _blocks(left, right):
        left = ctx.settle(left)
    if _blocks(right, left):
        right = ctx.settle(right)
    if is_addend(left.layout) and is_addend(right.layout):
        right = ctx.settle(right)
    return one_batch_sum(ctx, left, right)


def _whole_tokens(ctx: RuleContext, value: AnnotatedValue, other: AnnotatedValue) -> AnnotatedValue:
    """Beside a pending sum, tokens are gathered (the forward did so already) rather than the sum settled."""
    cut = value.layout.cut(ranks=True)
    if Axis.TENSOR not in other.layout.partial or cut is None or cut[1].axis is not Axis.SEQUENCE:
        return value
    return ctx.convert(value, uncut(consistent(value.layout), ranks=True))


def _blocks(value: AnnotatedValue, other: AnnotatedValue) -> bool:
    """A whole pending sum passes only a factor that the ranks do not cut."""
    if Axis.TENSOR not in value.layout.partial:
        return False
    return is_addend(other.layout) or other.layout.cut(ranks=True) is not None


def _cut_letter(letters: Sequence[str], layout: Layout) -> str | None:
    cut = layout.cut(ranks=True)
    return letters[cut[0]] if cut is not None else None


def _gather_tokens(ctx: RuleContext, value: AnnotatedValue, other: AnnotatedValue) -> AnnotatedValue:
    """Tokens that meet a whole parameter are gathered as for its split neighbours, which share the gather;
    not where rows go to their experts from where they are."""
    cut = value.layout.cut(ranks=True)
    if (
        ctx.exchanges_rows
        or cut is None
        or cut[1].axis is not Axis.SEQUENCE
        or not other.static
        or other.layout.cut(ranks=True)
    ):
        return value
    return ctx.convert(value, uncut(consistent(value.layout), ranks=True))


def _avoid_conflict(
    ctx: RuleContext, letters: Contraction, left: AnnotatedValue, right: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue]:
    """Operands cut at different letters: one of them is gathered."""
    a, b = _cut_letter(letters.left, left.layout), _cut_letter(letters.right, right.layout)
    if a is None or b is None or a == b:
        return left, right
    batched = not {*letters.left}.isdisjoint({*letters.right} & {*letters.out})
    if _gathers_first(left, right, (a not in letters.right, b not in letters.left), batched):
        return ctx.convert(left, uncut(consistent(left.layout), ranks=True)), right
    return left, ctx.convert(right, uncut(consistent(right.layout), ranks=True))


def _gathers_first(
    left: AnnotatedValue, right: AnnotatedValue, rows: tuple[bool, bool], batched: bool
) -> bool:
    """Tokens are gathered rather than features; samples, and what else a parameter has no letter for, rather
    than a split parameter; of tokens beside the same tokens, as in attention, those of the second operand
    (keys, values); else the smaller one.

    rows: of each operand, whether the cut letter is not the other one's. batched: whether both have a letter
    that the result has, too.
    """
    cuts = [value.layout.cut(ranks=True) for value in (left, right)]
    sequence = [cut is not None and cut[1].axis is Axis.SEQUENCE for cut in cuts]
    if sequence[0] != sequence[1]:
        return sequence[0]
    if left.static != right.static and rows[left.static] and _several_hold(cuts[left.static]):
        return right.static
    if batched and all(rows) and cuts[0] and cuts[1] and cuts[0][1] is cuts[1][1]:
        return False
    return prod(left.layout.shape) <= prod(right.layout.shape)


def _several_hold(cut: tuple[int, Factor] | None) -> bool:
    """Whether pieces lie on more than one rank; what one rank has is no cut of samples or tokens."""
    return cut is not None and sum(map(bool, cut[1].sets or ())) > 1


def _match_batch_letters(
    ctx: RuleContext, letters: Contraction, left: AnnotatedValue, right: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue]:
    """Dims with the same letter in operands and result meet in one cut."""
    for letter in letters.out:
        if letter in letters.left and letter in letters.right:
            i, j = letters.left.index(letter), letters.right.index(letter)
            dim = most_split([left.layout.dims[i], right.layout.dims[j]])
            left = ctx.convert(left, left.layout.with_dim(i, _as_in(left.layout, i, dim)))
            right = ctx.convert(right, right.layout.with_dim(j, _as_in(right.layout, j, dim)))
    return left, right


def _as_in(layout: Layout, index: int, dim: Dim) -> Dim:
    """`dim` for one operand: where the other one has addends, this one has copies of the same pieces."""
    return dim if _contrib_dim(layout) == index else _copies(dim)


def _match_summed(
    ctx: RuleContext, row: Row, letters: Contraction, left: AnnotatedValue, right: AnnotatedValue
) -> tuple[AnnotatedValue, AnnotatedValue, frozenset[Axis]]:
    """The summed dim in one cut on both sides, each element at one holder (or addends on one side)."""
    i, j = letters.left.index(letters.summed), letters.right.index(letters.summed)
    dim = _summed_dim(left.layout, right.layout, i, j)
    plain = _copies(dim)
    left_contrib = _contrib_dim(left.layout) == i
    right_contrib = _contrib_dim(right.layout) == j
    left = ctx.convert(left, left.layout.with_dim(i, dim if left_contrib else plain))
    right = ctx.convert(right, right.layout.with_dim(j, dim if right_contrib else plain))
    return left, right, summed_over(dim)


def _contrib_dim(layout: Layout) -> int | None:
    cut = contrib_factor(layout)
    return cut[0] if cut is not None else None


def _copies(dim: Dim) -> Dim:
    return tuple(factor.copies() for factor in dim)


def _summed_dim(left: Layout, right: Layout, i: int, j: int) -> Dim:
    """The cut of the summed dim: a contributing side decides, else the finer side, each element once."""
    for layout, index in ((left, i), (right, j)):
        if _contrib_dim(layout) == index:
            return layout.dims[index]
    dims = join_dims([make_layout((left.dims[i],)), make_layout((right.dims[j],))], [dim_size(left.dims[i])])
    chosen = dims[0]
    cut = dim_cut(chosen, ranks=True)
    if cut is not None and cut.sets is not None and not is_exact(cut.size, cut.sets):
        return deduplicated(make_layout((chosen,))).dims[0]
    return chosen
