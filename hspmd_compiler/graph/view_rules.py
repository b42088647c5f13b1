"""Rules of layout operators: views re-read factors; slices, splits and concatenations move interval sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from ..annotations.layout import (
    Dim,
    Factor,
    Intervals,
    Layout,
    Sets,
    canonical_dim,
    dim_cut,
    dim_size,
    is_exact,
    make_layout,
    map_sets,
    scale,
    subtract,
    union,
    whole,
)
from ..annotations.refine import cut_factor
from .annotated import AnnotatedValue, PerCoordinate
from .ir import Row
from .pointwise_rules import join_dims
from .rules import (
    Result,
    RuleContext,
    consistent,
    contrib_factor,
    integer,
    is_addend,
    items,
    local_shape,
    pull_for,
    rule_for,
    uncut,
)

VIEWS = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
END = 2**62


@dataclass(frozen=True, slots=True)
class ViewMap:
    """A layout read in another shape, and the layout the source must be enlarged to first, if any."""

    source: Layout
    target: Layout


def map_view(layout: Layout, shape: Sequence[int]) -> ViewMap | None:
    """Read `layout` in `shape`; None where a cut factor can't be read even after enlarging its sets."""
    return _map_view(layout, tuple(shape))


@cache
def _map_view(layout: Layout, shape: tuple[int, ...]) -> ViewMap | None:
    if 0 in shape or 0 in layout.shape:
        return ViewMap(layout, whole(shape, layout.partial)) if layout.cut(ranks=True) is None else None
    queue = list(canonical_dim(layout.factors()))
    taken: list[Factor] = []
    dims: list[Dim] = []
    enlarged = False
    for size in shape:
        parts = _take(queue, size)
        if parts is None:
            return None
        dims.append(tuple(parts[0]))
        taken += parts[0]
        enlarged |= parts[1]
    if queue:
        return None  # a cut dim of length 1 that the new shape has no dim for
    target = make_layout(tuple(dims), layout.partial)
    if not enlarged:
        return ViewMap(layout, target)
    grouped = _group(taken, layout.shape)
    return None if grouped is None else ViewMap(make_layout(grouped, layout.partial), target)


def _take(queue: list[Factor], size: int) -> tuple[list[Factor], bool] | None:
    """Factors from the front of `queue` whose product is `size`, and whether sets were enlarged for it."""
    parts: list[Factor] = []
    left = size
    while left > 1:
        if not queue:
            return None
        factor = queue.pop(0)
        if left % factor.size == 0:
            parts.append(factor)
            left //= factor.size
            continue
        pieces = cut_factor(factor, left)
        enlarged = pieces is None
        if pieces is None:
            pieces = _cut_enlarged(factor, left)
        if pieces is None:
            return None
        queue.insert(0, pieces[1])
        return [*parts, pieces[0]], enlarged
    while queue and queue[0].size == 1:
        parts.append(queue.pop(0))
    return parts, False


def _cut_enlarged(factor: Factor, outer: int) -> tuple[Factor, Factor] | None:
    """Cut a factor whose sets don't allow it, enlarged to multiples of the inner size, as addends."""
    if factor.size % outer or factor.sets is None or factor.axis is None or not factor.axis.on_ranks:
        return None
    if not factor.contrib and not is_exact(factor.size, factor.sets):
        return None
    inner = factor.size // outer
    return cut_factor(enlarge(factor, inner), outer)


def enlarge(factor: Factor, step: int) -> Factor:
    """Sets with bounds at multiples of `step`; what was not held counts as zero, so pieces are addends."""

    def grow(held: Intervals) -> Intervals:
        return union((low // step * step, -(-high // step) * step) for low, high in held)

    return Factor(factor.size, factor.axis, map_sets(factor.sets or (), grow), contrib=True)


def _group(factors: Sequence[Factor], shape: Sequence[int]) -> tuple[Dim, ...] | None:
    """The same factors in the source's own dims, None where they straddle its dims."""
    queue = list(factors)
    dims: list[Dim] = []
    for size in shape:
        parts = _take(queue, size)
        if parts is None or parts[1]:
            return None
        dims.append(tuple(parts[0]))
    return tuple(dims)


@rule_for(*VIEWS)
def view(ctx: RuleContext, row: Row) -> Result:
    """A view reads the factors in another grouping; local sizes become the literal."""
    value = ctx.operand(row.args[0])
    return emit_view(ctx, row, value, row.shape or ())


def emit_view(ctx: RuleContext, row: Row, value: AnnotatedValue, shape: Sequence[int]) -> AnnotatedValue:
    """View `value` in a global shape, padding or gathering where its cut does not allow it."""
    mapped = map_view(value.layout, shape)
    if mapped is None:
        value = ctx.convert(value, uncut(value.layout, ranks=True))
        mapped = map_view(value.layout, shape)
    if mapped is None:
        value = _uncut_batch_error(ctx, row, value)
        mapped = ViewMap(value.layout, whole(shape))
    source = ctx.convert(value, mapped.source)
    via = source if source is value else None
    return ctx.emit("aten.reshape.default", (source, local_shape(mapped.target)), mapped.target, via=via)


def _uncut_batch_error(ctx: RuleContext, row: Row, value: AnnotatedValue) -> AnnotatedValue:
    return ctx.convert(value, uncut(value.layout, ranks=False))


def invert(row: Row, source: Layout, target: Layout) -> Layout | None:
    """The operand's layout with which a layout operator gives `target`, if there is one."""
    if row.op in VIEWS:
        mapped = map_view(target, source.shape)
        if mapped is None or mapped.source != target:
            return None
        again = map_view(mapped.target, target.shape)
        return mapped.target if again is not None and again.target == target else None
    if row.op in _PERMUTED:
        order = _PERMUTED[row.op](row, len(source.dims))
        dims: list[Dim] = [()] * len(order)
        for position, origin in enumerate(order):
            dims[origin] = target.dims[position]
        return make_layout(tuple(dims), target.partial)
    if row.op in ("aten.detach.default", "aten.alias.default", "aten.clone.default"):
        return target
    return None


def reemit(ctx: RuleContext, row: Row, source: AnnotatedValue, target: Layout) -> AnnotatedValue:
    """The layout operator once more, on a converted operand."""
    if row.op in VIEWS:
        return ctx.emit("aten.reshape.default", (source, local_shape(target)), target)
    return ctx.emit(row.op, (source, *row.args[1:]), target, kwargs=row.kwargs)


def _transposed(row: Row, rank: int) -> list[int]:
    order = list(range(rank))
    first, second = integer(row.args[1]) % rank, integer(row.args[2]) % rank
    order[first], order[second] = order[second], order[first]
    return order


def _reversed(row: Row, rank: int) -> list[int]:
    return list(range(rank))[::-1]


def _permuted(row: Row, rank: int) -> list[int]:
    return [integer(dim) % rank for dim in items(row.args[1])]


_PERMUTED: dict[str, Callable[[Row, int], list[int]]] = {
    "aten.t.default": _reversed,
    "aten.transpose.int": _transposed,
    "aten.permute.default": _permuted,
}


@rule_for(*_PERMUTED)
def permute(ctx: RuleContext, row: Row) -> Result:
    """Dims change places with their cuts."""
    value = ctx.operand(row.args[0])
    order = _PERMUTED[row.op](row, len(value.layout.dims))
    layout = value.layout.with_dims(value.layout.dims[origin] for origin in order)
    return ctx.emit(row.op, (value, *row.args[1:]), layout, kwargs=row.kwargs, via=value)


@rule_for("aten.unsqueeze.default")
def unsqueeze(ctx: RuleContext, row: Row) -> Result:
    """A dim of length 1 is put in."""
    value = ctx.operand(row.args[0])
    dims = list(value.layout.dims)
    dims.insert(_dim(row, 1, len(dims) + 1), ())
    return ctx.emit(row.op, (value, *row.args[1:]), value.layout.with_dims(dims), kwargs=row.kwargs)


@pull_for("aten.unsqueeze.default")
def pull_unsqueeze(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    dims = list(layout.dims)
    if dims.pop(_dim(row, 1, len(dims))):
        return None
    source = ctx.convert(ctx.operand(row.args[0]), make_layout(tuple(dims)))
    return ctx.emit(row.op, (source, *row.args[1:]), layout)


@rule_for("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default")
def squeeze(ctx: RuleContext, row: Row) -> Result:
    """Dims of global length 1 are dropped; a local view, so that a local length 1 is not taken for them."""
    return emit_view(ctx, row, ctx.operand(row.args[0]), row.shape or ())


@rule_for("aten.expand.default")
def expand(ctx: RuleContext, row: Row) -> Result:
    """New and stretched dims are whole."""
    value = _whole_stretched(ctx, ctx.operand(row.args[0]), row.shape or ())
    return _emit_expand(ctx, row, value, _expanded(value.layout, row.shape or ()))


def _whole_stretched(ctx: RuleContext, value: AnnotatedValue, shape: Sequence[int]) -> AnnotatedValue:
    """A dim of length 1 that is stretched is needed on every rank, also where ranks cut it."""
    missing = len(shape) - len(value.layout.dims)
    for dim, size in enumerate(value.layout.shape):
        if size == 1 and shape[missing + dim] != 1:
            value = _whole_dim(ctx, value, dim)
    return value


def _expanded(layout: Layout, shape: Sequence[int]) -> Layout:
    missing = len(shape) - len(layout.dims)
    dims: list[Dim] = [(Factor(size),) for size in shape[:missing]]
    for size, dim in zip(shape[missing:], layout.dims, strict=True):
        dims.append((Factor(size),) if dim_size(dim) == 1 and size != 1 else dim)
    return layout.with_dims(dims)


def _emit_expand(ctx: RuleContext, row: Row, value: AnnotatedValue, layout: Layout) -> AnnotatedValue:
    return ctx.emit("aten.expand.default", (value, local_shape(layout)), layout)


@pull_for("aten.expand.default")
def pull_expand(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    """Stretched dims take any cut; the others are asked of the operand."""
    value = ctx.operand(row.args[0])
    missing = len(layout.dims) - len(value.layout.dims)
    dims = [
        own if dim_size(own) == 1 else dim
        for own, dim in zip(value.layout.dims, layout.dims[missing:], strict=True)
    ]
    return _emit_expand(ctx, row, ctx.convert(value, make_layout(tuple(dims))), layout)


def _dim(row: Row, position: int, rank: int) -> int:
    dim = row.args[position] if len(row.args) > position else 0
    return integer(dim) % max(rank, 1)


def _argument(row: Row, position: int, name: str, default: object) -> object:
    if len(row.args) > position:
        return row.args[position]
    return row.kwargs.get(name, default)


def _bounds(row: Row, first: int, size: int) -> tuple[int, int, int]:
    start, stop = _argument(row, first, "start", 0), _argument(row, first + 1, "end", END)
    step = integer(_argument(row, first + 2, "step", 1))
    low, high, _ = slice(start, stop if stop is None or integer(stop) < END else None, step).indices(size)
    return low, max(low, high), step


@rule_for("aten.slice.Tensor")
def slice_(ctx: RuleContext, row: Row) -> Result:
    """A slice of a cut dim keeps what each coordinate holds of it."""
    value = ctx.operand(row.args[0])
    dim = _dim(row, 1, len(value.layout.dims))
    low, high, step = _bounds(row, 2, value.layout.shape[dim])
    if (low, high, step) == (0, value.layout.shape[dim], 1):
        return ctx.emit("aten.alias.default", (value,), value.layout)
    if step != 1:
        value = _whole_dim(ctx, value, dim)
        return ctx.emit(row.op, (value, *row.args[1:]), _resized(value.layout, dim, (row.shape or ())[dim]))
    return _emit_slice(ctx, value, dim, low, high)


def _whole_dim(ctx: RuleContext, value: AnnotatedValue, dim: int) -> AnnotatedValue:
    """The value with `dim` not cut at all."""
    if dim_cut(value.layout.dims[dim], ranks=True) is not None:
        value = ctx.convert(value, uncut(consistent(value.layout), ranks=True, dim=dim))
    if dim_cut(value.layout.dims[dim], ranks=False) is not None:
        value = ctx.convert(value, uncut(value.layout, ranks=False, dim=dim))
    return value


def _resized(layout: Layout, dim: int, size: int) -> Layout:
    return layout.with_dims((Factor(size),) if index == dim else own for index, own in enumerate(layout.dims))


def _single(ctx: RuleContext, value: AnnotatedValue, dim: int) -> tuple[AnnotatedValue, Factor]:
    """The value and its dim as one factor; a dim that two axes cut is gathered first."""
    if sum(factor.axis is not None for factor in value.layout.dims[dim]) > 1:
        value = _whole_dim(ctx, value, dim)
    return value, flat_factor(value.layout.dims[dim])


def flat_factor(dim: Dim) -> Factor:
    """A dim that at most one axis cuts as one factor: what a coordinate holds, as intervals of the dim."""
    result = Factor(1)
    for factor in reversed(dim):
        result = _times(factor, result)
    return result


def _times(outer: Factor, inner: Factor) -> Factor:
    if inner.sets is None:
        return scale(outer, inner.size)
    count = outer.size
    sets = tuple(
        union((low + k * inner.size, high + k * inner.size) for k in range(count) for low, high in held)
        for held in inner.sets
    )
    return Factor(count * inner.size, inner.axis, sets, inner.contrib)


def _emit_slice(ctx: RuleContext, value: AnnotatedValue, dim: int, low: int, high: int) -> AnnotatedValue:
    value, factor = _single(ctx, value, dim)
    sliced = slice_factor(factor, low, high)
    layout = value.layout.with_dims((sliced,) if i == dim else own for i, own in enumerate(value.layout.dims))
    start = PerCoordinate(lambda at: _before(factor.held(at), low))
    stop = PerCoordinate(lambda at: _before(factor.held(at), high))
    return ctx.emit("aten.slice.Tensor", (value, dim, start, stop), layout)


def slice_factor(factor: Factor, low: int, high: int) -> Factor:
    """The factor of the elements in [low, high)."""
    if factor.sets is None:
        return Factor(high - low)

    def cut(held: Intervals) -> Intervals:
        return union((max(a, low) - low, min(b, high) - low) for a, b in held)

    return Factor(high - low, factor.axis, map_sets(factor.sets, cut), factor.contrib)


def _before(held: Intervals, bound: int) -> int:
    """Elements of an interval set below `bound`: where a slice starts in the local tensor."""
    return sum(max(0, min(high, bound) - low) for low, high in held)


@rule_for("aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int", "aten.chunk.default")
def split(ctx: RuleContext, row: Row) -> Result:
    """A split is one slice per part."""
    value = ctx.operand(row.args[0])
    if row.op == "aten.unbind.int":
        return _unbind(ctx, row, value)
    dim = _dim(row, 2, len(value.layout.dims))
    parts = []
    low = 0
    for meta in row.outs or ():
        size = meta[0][dim] if meta is not None else 0
        parts.append(_emit_slice(ctx, value, dim, low, low + size))
        low += size
    return tuple(parts)


def _unbind(ctx: RuleContext, row: Row, value: AnnotatedValue) -> tuple[AnnotatedValue, ...]:
    value = _whole_dim(ctx, value, dim := _dim(row, 1, len(value.layout.dims)))
    layout = value.layout.with_dims(own for index, own in enumerate(value.layout.dims) if index != dim)
    count = value.layout.shape[dim]
    return tuple(ctx.emit("aten.select.int", (value, dim, index), layout) for index in range(count))


@rule_for("aten.select.int")
def select(ctx: RuleContext, row: Row) -> Result:
    """One index of a whole dim."""
    value = ctx.operand(row.args[0])
    dim = _dim(row, 1, len(value.layout.dims))
    value = _whole_dim(ctx, value, dim)
    layout = value.layout.with_dims(own for index, own in enumerate(value.layout.dims) if index != dim)
    return ctx.emit(row.op, (value, dim, row.args[2]), layout)


@rule_for("aten.select_backward.default")
def select_backward(ctx: RuleContext, row: Row) -> Result:
    """The gradient of a selection is zero at the other indices."""
    value = ctx.operand(row.args[0])
    sizes = [integer(size) for size in items(row.args[1])]
    dim = integer(row.args[2]) % len(sizes)
    dims = list(value.layout.dims)
    dims.insert(dim, (Factor(sizes[dim]),))
    layout = value.layout.with_dims(dims)
    return ctx.emit(row.op, (value, local_shape(layout), dim, row.args[3]), layout)


@rule_for("aten.slice_backward.default")
def slice_backward(ctx: RuleContext, row: Row) -> Result:
    """On a cut dim the data stay and the sets move to their place: addends, zero elsewhere."""
    value = ctx.operand(row.args[0])
    dim = integer(row.args[2]) % len(value.layout.dims)
    size = (row.shape or ())[dim]
    low, high, step = _bounds(row, 3, size)
    if dim_cut(value.layout.dims[dim], ranks=True) is not None and step == 1:
        value, factor = _single(ctx, _exact(ctx, value), dim)
        if factor.sets is not None:
            return _shift_into(ctx, value, factor, dim, low, size)
    value = _whole_dim(ctx, value, dim)
    layout = _resized(value.layout, dim, size)
    return ctx.emit(row.op, (value, local_shape(layout), dim, low, high, step), layout)


def _exact(ctx: RuleContext, value: AnnotatedValue) -> AnnotatedValue:
    """Consistent copies that overlap are thinned to one holder per element."""
    cut = value.layout.cut(ranks=True)
    if cut is None or cut[1].contrib or cut[1].sets is None or is_exact(cut[1].size, cut[1].sets):
        return value
    return ctx.convert(value, deduplicated(value.layout))


def deduplicated(layout: Layout) -> Layout:
    """The layout in which the first holder of an element is its only holder."""
    dims = tuple(
        tuple(
            Factor(f.size, f.axis, first_holders(f.sets)) if f.sets and f.axis and f.axis.on_ranks else f
            for f in dim
        )
        for dim in layout.dims
    )
    return make_layout(dims, layout.partial)


def first_holders(sets: Sets) -> Sets:
    """Each element at its first holder only."""
    seen: Intervals = ()
    result = []
    for held in sets:
        result.append(subtract(held, seen))
        seen = union((*seen, *held))
    return tuple(result)


def _shift_into(
    ctx: RuleContext, value: AnnotatedValue, factor: Factor, dim: int, low: int, size: int
) -> AnnotatedValue:
    sets = map_sets(factor.sets or (), lambda held: tuple((a + low, b + low) for a, b in held))
    moved = Factor(size, factor.axis, sets, contrib=True)
    layout = value.layout.with_dims((moved,) if i == dim else own for i, own in enumerate(value.layout.dims))
    return ctx.emit("aten.alias.default", (value,), layout)


@rule_for("aten.cat.default")
def cat(ctx: RuleContext, row: Row) -> Result:
    """Parts that are all cut alike along the joined dim join their sets; else the dim is gathered."""
    values = [ctx.operand(ref) for ref in items(row.args[0])]
    dim = _dim(row, 1, len(row.shape or ()))
    if any(is_addend(v.layout) for v in values) and not all(_contrib_at(v.layout, dim) for v in values):
        values = [ctx.settle(value) for value in values]
    cuts = [dim_cut(value.layout.dims[dim], ranks=True) for value in values]
    if any(cut is not None for cut in cuts):
        if all(cut is not None for cut in cuts) and all(_one_cut(v.layout.dims[dim]) for v in values):
            return _cat_cut(ctx, row, values, dim)
        values = [_whole_dim(ctx, value, dim) for value in values]
    return _cat_whole(ctx, row, values, dim)


def _one_cut(dim: Dim) -> bool:
    return sum(factor.axis is not None for factor in dim) == 1


def _contrib_at(layout: Layout, dim: int) -> bool:
    cut = contrib_factor(layout)
    return cut is not None and cut[0] == dim


def _cat_cut(ctx: RuleContext, row: Row, values: list[AnnotatedValue], dim: int) -> AnnotatedValue:
    if any(contrib_factor(value.layout) is not None for value in values):
        values = [_exact(ctx, value) for value in values]
    factors = [flat_factor(value.layout.dims[dim]) for value in values]
    coordinates = len(factors[0].sets or ())
    joined: list[list[tuple[int, int]]] = [[] for _ in range(coordinates)]
    offset = 0
    for factor in factors:
        for held, into in zip(factor.sets or (), joined, strict=True):
            into += [(low + offset, high + offset) for low, high in held]
        offset += factor.size
    contrib = any(factor.contrib for factor in factors)
    result = Factor(offset, factors[0].axis, tuple(union(held) for held in joined), contrib)
    values, dims = _meet_beside(ctx, row, values, dim)
    layout = make_layout((*dims[:dim], (result,), *dims[dim + 1 :]), values[0].layout.partial)
    return ctx.emit(row.op, (tuple(values), dim), layout)


def _cat_whole(ctx: RuleContext, row: Row, values: list[AnnotatedValue], dim: int) -> AnnotatedValue:
    values, dims = _meet_beside(ctx, row, values, dim)
    size = sum(value.layout.shape[dim] for value in values)
    layout = make_layout((*dims[:dim], (Factor(size),), *dims[dim + 1 :]), values[0].layout.partial)
    return ctx.emit(row.op, (tuple(values), dim), layout)


def _meet_beside(
    ctx: RuleContext, row: Row, values: list[AnnotatedValue], dim: int
) -> tuple[list[AnnotatedValue], tuple[Dim, ...]]:
    """Bring the parts to one cut in all dims but the joined one."""
    others = [make_layout(tuple(d if i != dim else () for i, d in enumerate(v.layout.dims))) for v in values]
    shape = [1 if index == dim else size for index, size in enumerate(row.shape or ())]
    dims = join_dims(others, shape)
    result = []
    for value in values:
        wanted = tuple(value.layout.dims[i] if i == dim else d for i, d in enumerate(dims))
        result.append(ctx.convert(value, make_layout(wanted, value.layout.partial)))
    return result, dims


@pull_for("aten.cat.default")
def pull_cat(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    """Parts of a pure concatenation are asked for in the cut of the other dims."""
    dim = _dim(row, 1, len(layout.dims))
    if any(factor.axis is not None for factor in layout.dims[dim]):
        return None
    parts = []
    for ref in items(row.args[0]):
        value = ctx.operand(ref)
        wanted = tuple(value.layout.dims[i] if i == dim else d for i, d in enumerate(layout.dims))
        parts.append(ctx.convert(value, make_layout(wanted)))
    return ctx.emit(row.op, (tuple(parts), dim), layout)


@pull_for("aten.slice.Tensor")
def pull_slice(ctx: RuleContext, row: Row, layout: Layout) -> AnnotatedValue | None:
    """A pure slice of a whole dim asks its operand for the cut of the other dims."""
    value = ctx.operand(row.args[0])
    dim = _dim(row, 1, len(layout.dims))
    if any(factor.axis is not None for factor in (*layout.dims[dim], *value.layout.dims[dim])):
        return None
    wanted = tuple(value.layout.dims[i] if i == dim else d for i, d in enumerate(layout.dims))
    low, high, step = _bounds(row, 2, value.layout.shape[dim])
    source = ctx.convert(value, make_layout(wanted))
    return ctx.emit(row.op, (source, dim, low, high, step), layout)


@rule_for("aten.constant_pad_nd.default")
def constant_pad(ctx: RuleContext, row: Row) -> Result:
    """Padded dims are whole."""
    value = ctx.settle(ctx.operand(row.args[0]))
    pads = [integer(pad) for pad in items(row.args[1])]
    padded = [len(value.layout.dims) - 1 - i // 2 for i, pad in enumerate(pads) if pad]
    for dim in padded:
        value = _whole_dim(ctx, value, dim)
    shape = row.shape or ()
    layout = value.layout.with_dims(
        (Factor(shape[index]),) if index in padded else own for index, own in enumerate(value.layout.dims)
    )
    return ctx.emit(row.op, (value, *row.args[1:]), layout)
