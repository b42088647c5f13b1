"""The table's lines of operators on images: samples and channels are parallel, space is whole."""

from __future__ import annotations

from .image_rules import POOLINGS, pool
from .op_apply import line
from .op_rule import Linear

SPACES = {1: "w", 2: "h w", 3: "d h w"}
NEW = {1: "x", 2: "y x", 3: "z y x"}
"""Dims of a space before and behind an operator that makes it larger or smaller."""

for _name, _kind in POOLINGS.items():
    _old, _new = SPACES[_kind.space], NEW[_kind.space]
    _passes = Linear.NO if _kind.picks else Linear.ONE
    line(
        f"aten.{_name}.default",
        f"... {_old} -> ... {_new}",
        whole=f"{_old} {_new}",
        linear=_passes,
        code=pool,
        idle=_old,
    )
for _dims, _old in SPACES.items():
    _new = NEW[_dims]
    _both = f"{_old} {_new}"
    for _name in (f"reflection_pad{_dims}d", f"replication_pad{_dims}d"):
        line(f"aten.{_name}.default", f"... {_old} -> ... {_new}", whole=_both)
        line(f"aten.{_name}_backward.default", f"... {_new}, ... {_old} -> ... {_old}", whole=_both)
    if _dims > 1:
        line(f"aten.max_unpool{_dims}d.default", f"... {_old}, ... {_old} -> ... {_new}", whole=_both)
        _sampled = f"n c {_old}, n {_new} place -> n c {_new}"
        line(f"aten.grid_sampler_{_dims}d.default", _sampled, whole=f"{_both} place")
        _given = f"n c {_new}, n c {_old}, n {_new} place -> n c {_old}, n {_new} place"
        line(f"aten.grid_sampler_{_dims}d_backward.default", _given, whole=f"c {_both} place")
for _name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    line(f"aten.{_name}.default", "... h w -> ... y x", whole="h w y x")
    line(f"aten.{_name}_backward.default", "... y x -> ... h w", whole="h w y x", shape="input_size")
