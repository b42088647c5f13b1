"""Operators on images: what they say about dims. Channels flow, space stays whole."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.ir import Ref, Row
from .dim_flow import DimFlow, Dims, Found, Rule
from .dim_layout_rules import argument

SPACE = "windows over it overlap"
INSIDE = "filters see all channels of a group"


def convolution(flow: DimFlow, row: Row) -> Found:
    """A product over channels; with groups, these are an outer factor of channels in and out."""
    image, weight = flow.of(row.args[0]), flow.of(row.args[1])
    transposed, groups = bool(row.args[6]), int(argument(row, 8))
    flow.mark_whole((*image[2:], *weight[2:]), SPACE)
    if not flow.is_weight(row.args[1]) or flow.is_weight(row.args[0]):
        flow.mark_whole((image[1], *weight[:2]), "filters are not a parameter")
    if groups > 1:
        out = _grouped(flow, image[1], weight, groups, transposed)
    else:
        channels, out = weight[:2] if transposed else weight[1::-1]
        flow.terms.mark_used(flow.terms.unify(image[1], channels), row.id)
        flow.terms.mark_made(out, row.id)
    if isinstance(row.args[2], Ref):
        out = flow.terms.unify(out, flow.of(row.args[2])[0])
    return (image[0], out, *flow.free((row.shape or ())[2:]))


def _grouped(flow: DimFlow, channels: int, weight: Dims, groups: int, transposed: bool) -> int:
    """Channels out. The groups of image and weight are the same ones; what is inside stays whole."""
    flow.terms.mark_whole(weight[1], INSIDE)
    blocks, _ = _blocks(flow, channels, groups)
    other, within = _blocks(flow, weight[0], groups)
    blocks = flow.terms.unify(blocks, other)
    each = flow.terms.free(flow.terms.sizes[weight[1]]) if transposed else within
    return flow.terms.product((blocks, each)) if transposed else weight[0]


def _blocks(flow: DimFlow, term: int, count: int) -> tuple[int, int]:
    """A dim as `count` blocks, each of which stays whole."""
    found = flow.terms.regroup((term,), (count, flow.terms.sizes[term] // count))
    if found is None:
        flow.terms.mark_whole(term, INSIDE)
        return flow.terms.free(count), flow.terms.free(flow.terms.sizes[term] // count)
    flow.terms.mark_whole(found[1], INSIDE)
    return found[0], found[1]


def over_space(flow: DimFlow, row: Row) -> Found:
    """Poolings and resizings: samples and channels stay."""
    outs = [(row.shape or ())] if row.outs is None else [out[0] if out else () for out in row.outs]
    found = [_resized(flow, flow.of(row.args[0]), shape, row) for shape in outs]
    return found[0] if row.outs is None else found


def _resized(flow: DimFlow, dims: Dims, shape: Sequence[int], row: Row) -> Dims:
    kept = len(dims) - _space(row)
    flow.mark_whole(dims[kept:], SPACE)
    return (*dims[:kept], *flow.free(shape[kept:]))


def _space(row: Row) -> int:
    """Number of dims of space, which is in the operator's name."""
    return next(count for count in (1, 2, 3) if f"{count}d" in row.op)


def group_norm(flow: DimFlow, row: Row) -> Found:
    """Groups of channels are normalised, each as a whole; scale and shift follow the channels."""
    dims = flow.of(row.args[0])
    groups = int(argument(row, 6))
    flow.mark_whole(dims[2:], f"{row.op} is over it")
    channels = dims[1]
    for operand in row.args[1:3]:
        if isinstance(operand, Ref):
            channels = flow.terms.unify(channels, flow.of(operand)[0])
    blocks, _ = _blocks(flow, channels, groups)
    statistics = (dims[0], blocks)
    return [(dims[0], channels, *dims[2:]), statistics, statistics]


def batch_norm(flow: DimFlow, row: Row) -> Found:
    """Channels are normalised one by one; scale, shift and statistics follow them."""
    dims = flow.of(row.args[0])
    flow.mark_whole(dims[2:], f"{row.op} is over it")
    channels = dims[1]
    for operand in row.args[1:5]:
        if isinstance(operand, Ref):
            channels = flow.terms.unify(channels, flow.of(operand)[0])
    outs = row.outs or ()
    statistics = [(channels,) if out and out[0] != (0,) else flow.free((0,)) for out in outs[1:]]
    return [(dims[0], channels, *dims[2:]), *statistics]


_RESIZING = (
    *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *("upsample_nearest2d", "upsample_bilinear2d"),
)

IMAGE_RULES: dict[str, Rule] = {
    "aten.convolution.default": convolution,
    "aten.native_group_norm.default": group_norm,
    "aten._native_batch_norm_legit_functional.default": batch_norm,
    "aten._native_batch_norm_legit.no_stats": batch_norm,
    "aten._native_batch_norm_legit_no_training.default": batch_norm,
    **{f"aten.{name}.default": over_space for name in _RESIZING},
}
