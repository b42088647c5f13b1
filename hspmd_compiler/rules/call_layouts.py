"""Layouts of a call's operands and results, letter by letter: pure functions of the call and of layouts."""

from __future__ import annotations

from collections.abc import Sequence

from ..layout.layout import Axis, Dim, Factor, Layout, dim_cut, dim_size, make_layout, summed_over
from ..layout.view_maps import at_places, deduplicated, flat_factor, map_view, slice_factor
from .call_rule import CallRule
from .in_code.pointwise_rules import join_dims
from .op_rule import Dims, Letters, beside
from .rules import consistent, contrib_factor, uncut

Layouts = tuple[Layout, ...]
Results = tuple[Layout | None, ...]


def met_layouts(call: CallRule, layouts: Layouts) -> tuple[Layouts, Results]:
    """Where all operands meet: a layout for each, and those of the results."""
    found = call.known.get(layouts)
    if found is None:
        found = call.known[layouts] = _met(call, layouts)
    return found


def _met(call: CallRule, layouts: Layouts) -> tuple[Layouts, Results]:
    order = list(call.sizes)
    spreads = [_spread(call, dims, layout) for dims, layout in zip(call.operands, layouts, strict=True)]
    met = make_layout(join_dims(spreads, list(call.sizes.values())))
    cut = met.cut(ranks=True)
    if cut is not None and order[cut[0]] in call.summed:
        met = deduplicated(met)
    adds = contrib_factor(met) is not None
    letters = dict(zip(order, met.dims, strict=True))
    plain = dict(zip(order, consistent(met).dims, strict=True)) if adds else letters
    targets = tuple(
        placed(call, dims, letters if contrib_factor(layout) else plain, layout.shape, layout.partial)
        for dims, layout in zip(call.operands, layouts, strict=True)
    )
    partial = frozenset[Axis]().union(*(layout.partial for layout in layouts))
    return targets, result_layouts(call, letters, partial)


def product_layouts(call: CallRule, met: Layout) -> tuple[Results, Layout]:
    """Of a product whose operands met in `met`: layouts of the results, and where a bias is added."""
    key = ("product", met)
    found = call.known.get(key)
    if found is None:
        out = call.factors[3]
        letters = _whole_letters(call) | dict(zip(out, met.dims, strict=True))
        bias = () if call.rule.added is None else call.operands[call.rule.added : call.rule.added + 1]
        dims = tuple(joined(names, letters) for names in bias[0]) if bias else ()
        found = call.known[key] = result_layouts(call, letters, met.partial), make_layout(dims, met.partial)
    return found


def _whole_letters(call: CallRule) -> dict[str, Dim]:
    return {name: (Factor(size),) for name, size in call.sizes.items()}


def batch_letters(call: CallRule, layouts: Layouts) -> dict[str, Dim]:
    """How the batch cuts each letter, where operands in these layouts meet."""
    letters = _whole_letters(call)
    for dims, layout in zip(call.operands, met_layouts(call, layouts)[0], strict=True):
        for names, dim in zip(dims, layout.dims, strict=True):
            if len(names) == 1 and dim_cut(dim, ranks=False) is not None:
                letters[names[0]] = dim
    return letters


def result_layouts(call: CallRule, letters: dict[str, Dim], partial: frozenset[Axis]) -> Results:
    """Layouts of the results, given how letters are cut; a summed letter that a result lacks is pending."""
    made: list[Layout | None] = []
    for dims in call.results:
        if dims is None:
            made.append(None)
            continue
        lacked = call.summed - {name for names in dims for name in names}
        pending = partial | summed_over(factor for name in lacked for factor in letters.get(name, ()))
        made.append(make_layout(tuple(joined(names, letters) for names in dims), pending))
    return tuple(made)


def side_by_side(call: CallRule, letters: dict[str, Dim]) -> dict[str, Dim] | None:
    """How letters side by side are cut where the dim of them all is, and the other way round.

    None: only some of them are, or samples lie among elements that have no letter.
    """
    found = dict(letters)
    for name in call.joins:
        spans = dict(call.spans(name))
        parts = {part: flat_factor(letters[part]) for part in beside(name)}
        if _is_cut(letters[name]):
            factor = flat_factor(letters[name])
            found |= {part: (slice_factor(factor, *spans[part]),) for part in parts}
        elif any(factor.axis is not None for factor in parts.values()):
            axes = {factor.axes for factor in parts.values()}
            if len(axes) > 1 or (Axis.BATCH in set().union(*axes) and len(parts) <= name.count("|")):
                return None
            placed_parts = [(spans[part][0], factor) for part, factor in parts.items()]
            found[name] = (at_places(placed_parts, call.sizes[name]),)
    return found


def _is_cut(dim: Dim) -> bool:
    return any(factor.axis is not None for factor in dim)


def joined(names: Letters, letters: dict[str, Dim]) -> Dim:
    """A dim made of letters, each cut in its own way."""
    return tuple(factor for name in names for factor in letters[name])


def placed(
    call: CallRule, dims: Dims, letters: dict[str, Dim], shape: Sequence[int], partial: frozenset[Axis]
) -> Layout:
    """The layout of one operand; broadcast dims are whole."""
    made = tuple(
        joined(names, letters) if size != 1 or call.size(names) == 1 else ()
        for names, size in zip(dims, shape, strict=True)
    )
    return make_layout(made, partial)


def _spread(call: CallRule, dims: Dims, layout: Layout) -> Layout:
    """The operand's cuts by letter, a dim for each letter of the call in its order."""
    found: dict[str, Dim] = {}
    for names, dim in zip(dims, layout.dims, strict=True):
        if dim_size(dim) == 1 and call.size(names) != 1:
            continue
        if len(names) == 1:
            found[names[0]] = dim
        elif names:
            found.update(zip(names, _apart(call, names, dim), strict=True))
    return make_layout(tuple(found.get(name, ()) for name in call.sizes))


def _apart(call: CallRule, names: Letters, dim: Dim) -> tuple[Dim, ...]:
    """A dim read as a product of letters; a cut across these, or inside a whole one, is given up."""
    one = make_layout((dim,))
    shape = tuple(call.sizes[name] for name in names)
    for layout in (one, uncut(one, ranks=True), uncut(uncut(one, ranks=True), ranks=False)):
        mapped = map_view(layout, shape)
        if mapped is None or mapped.source != layout:
            continue
        parts = zip(names, mapped.target.dims, strict=True)
        if not any(name in call.whole and dim_cut(part, ranks=True) is not None for name, part in parts):
            return mapped.target.dims
    return tuple((Factor(size),) for size in shape)
