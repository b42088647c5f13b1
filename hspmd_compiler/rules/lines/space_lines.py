"""The table's lines of operators on images: samples and channels are parallel, space is whole."""

from __future__ import annotations

from typing import Any

from ..op_apply import line
from ..op_rule import Linear

SPACES = {1: "w", 2: "h w", 3: "d h w"}
NEW = {1: "x", 2: "y x", 3: "z y x"}
"""Dims of a space before and behind an operator that makes it larger or smaller."""
MEANS_OF_WINDOWS = {"avg_pool2d": 2, "avg_pool3d": 3, "_adaptive_avg_pool2d": 2, "_adaptive_avg_pool3d": 3}
PICKED_OF_WINDOWS = {
    "max_pool2d_with_indices": 2,
    "max_pool3d_with_indices": 3,
    "adaptive_max_pool2d": 2,
    "adaptive_max_pool3d": 3,
}
"""Poolings, by how many dims windows have. Their own kernels take empty pieces too."""

for _name, _dims in MEANS_OF_WINDOWS.items():
    _op, _own, _old, _new = f"aten.{_name}", f"hspmd.{_name}", SPACES[_dims], NEW[_dims]
    _more = dict[str, Any](whole=f"{_old} {_new}", linear=Linear.ONE, empty_ok=True)
    line(f"{_op}.default", f"... {_old} -> ... {_new}", kernel=_own, sized=True, idle=_old, **_more)
    _back = f"{_own}_backward"
    line(f"{_op}_backward.default", f"... {_new} -> ... {_old}", kernel=_back, shape="self", **_more)
for _name, _dims in PICKED_OF_WINDOWS.items():
    _op, _own, _old, _new = f"aten.{_name}", f"hspmd.{_name}", SPACES[_dims], NEW[_dims]
    _more = dict[str, Any](whole=f"{_old} {_new}", sized=True, empty_ok=True)
    line(f"{_op}.default", f"... {_old} -> ... {_new}", kernel=_own, idle=_old, **_more)
    _given = f"... {_new}, ... {_old}, ... {_new} -> ... {_old}"
    line(f"{_op}_backward.default", _given, kernel=f"{_own}_backward", **_more)
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
