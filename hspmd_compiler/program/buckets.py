"""Which pieces make up a flat bucket of gradients or parameters, and where they go."""

from __future__ import annotations

from collections.abc import Container, Mapping

from ..base.comm_plan import GradBucket, GradPiece, ParamBucket, ParamPiece
from .arrays import Arrays
from .boxes import full_box
from .program import Shard
from .requests import V


def pack_bucket(arrays: Arrays[V], bucket: GradBucket, grads: Mapping[str, V]) -> V:
    """This rank's contribution to `bucket`, flat, in memory of its own."""
    return arrays.join([_packed(arrays, piece, grads, bucket.dtype) for piece in bucket.given], bucket.dtype)


def unpack_bucket(
    arrays: Arrays[V], bucket: GradBucket, flat: V, shards: Mapping[str, Shard], synced: dict[str, V]
) -> None:
    """Put what this rank receives of a reduced bucket into its synchronised gradients."""
    start = 0
    for piece in bucket.kept:
        if piece.dst_boxes is not None:
            _receive(arrays, piece, arrays.part(flat, start, piece.length), shards, synced)
        start += piece.length


def keep_bucket(
    arrays: Arrays[V],
    bucket: GradBucket,
    grads: Mapping[str, V],
    owned: Container[str],
    shards: Mapping[str, Shard],
    synced: dict[str, V],
) -> None:
    """A bucket of this rank alone: its gradients are synchronised. owned: those it may take over."""
    for piece in bucket.pieces:
        if piece.dst_boxes is not None:
            values = _packed(arrays, piece, grads, bucket.dtype)
            mine = values if piece.param in owned else arrays.own(values, None)
            _receive(arrays, piece, mine, shards, synced)


def pack_params(
    arrays: Arrays[V],
    bucket: ParamBucket,
    params: Mapping[str, V],
    stored: Mapping[str, V],
    shards: Mapping[str, Shard],
) -> V:
    """What this rank stores of `bucket`, flat, in the type of the bucket."""
    rows = [_row(arrays, piece, params, stored, shards, bucket.dtype) for piece in bucket.pieces]
    return arrays.join(rows, bucket.dtype)


def _row(
    arrays: Arrays[V],
    piece: ParamPiece,
    params: Mapping[str, V],
    stored: Mapping[str, V],
    shards: Mapping[str, Shard],
    dtype: str,
) -> V:
    param, (low, high) = piece.param, piece.row
    length = high - low
    if param in stored:
        row = arrays.part(stored[param], low, length)
        return arrays.pack(param, row, length, (length,), (((0, length),),), dtype)
    return arrays.pack(param, params[param], length, shards[param].view, piece.own, dtype)


def unpack_params(
    arrays: Arrays[V], bucket: ParamBucket, flat: V, shards: Mapping[str, Shard], params: dict[str, V]
) -> None:
    """Put all of a gathered bucket into local tensors, new ones where they are not there."""
    start = 0
    for piece in bucket.pieces:
        values, shard = arrays.part(flat, start, piece.length), shards[piece.param]
        into = params.get(piece.param)
        params[piece.param] = arrays.fill(piece.param, into, values, shard.shape, shard.view, piece.boxes)
        start += piece.length


def _packed(arrays: Arrays[V], piece: GradPiece, grads: Mapping[str, V], dtype: str) -> V:
    grad = grads.get(piece.param)
    return arrays.pack(piece.param, grad, piece.length, piece.src_view, piece.src_boxes, dtype)


def _receive(
    arrays: Arrays[V], piece: GradPiece, values: V, shards: Mapping[str, Shard], synced: dict[str, V]
) -> None:
    view, boxes = piece.dst_view, piece.dst_boxes
    assert view is not None and boxes is not None, "only a receiver unpacks"
    shape = shards[piece.param].synced_shape(view)
    if boxes == (full_box(view),):
        synced[piece.param] = arrays.view(piece.param, values, shape)
    else:
        into = synced.get(piece.param)
        synced[piece.param] = arrays.fill(piece.param, into, values, shape, view, boxes)
