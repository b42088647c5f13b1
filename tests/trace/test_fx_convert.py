"""The names of rows' operators lead to their callables."""

from __future__ import annotations

import torch

from hspmd_compiler.ir.fx_convert import target_of


def test_targets() -> None:
    assert target_of("aten.mm.default") is torch.ops.aten.mm.default
    assert target_of("hspmd.comm.default") is torch.ops.hspmd.comm.default
