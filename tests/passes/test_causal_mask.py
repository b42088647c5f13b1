"""Constant masks: what they are, and what of them is held while they are computed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from hspmd_compiler.passes.causal_mask import (
    MASK,
    ConstantValues,
    MaskKind,
    mask_kind,
    passing,
    retarget_masks,
)
from hspmd_compiler.trace.tracer import trace

LOW = torch.ones(4, 4, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (LOW, MaskKind.CAUSAL),
        (LOW.expand(3, 1, 4, 4), MaskKind.CAUSAL),
        (torch.zeros(4, 4).masked_fill(~LOW, float("-inf")), MaskKind.CAUSAL),
        (torch.zeros(2, 4), MaskKind.OPEN),
        (LOW.triu(-1), MaskKind.OTHER),
        (LOW[:3], MaskKind.OTHER),
        (LOW.float(), MaskKind.OTHER),
        (torch.stack([LOW, LOW | True]), MaskKind.OTHER),
    ],
)
def test_kinds(mask: Tensor, kind: MaskKind) -> None:
    before = mask.clone()
    assert mask_kind(mask) is kind
    assert torch.equal(mask, before)


class TwoMasks(nn.Module):
    """A causal mask and a window, each made of one grid."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1])
        ahead = place[:, None] - place[None]
        causal = torch.where(ahead >= 0, 0.0, float("-inf"))[None, None].expand(x.shape[0], 1, -1, -1)
        window = torch.where((ahead >= 0) & (ahead < 2), 0.0, float("-inf"))[None, None]
        y = self.proj(x)[:, None]
        y = scaled_dot_product_attention(y, y, y, attn_mask=causal)
        y = scaled_dot_product_attention(y, y, y, attn_mask=window.expand(x.shape[0], 1, -1, -1))
        return scaled_dot_product_attention(y, y, y, attn_mask=causal * 1.0).sum()


def test_masks_of_one_grid_are_told_apart() -> None:
    graph = trace(TwoMasks(), {"x": torch.zeros(2, 6, 8)}, batch=2)
    masks = [ref.id for row in graph.rows if (ref := row.kwargs.get(MASK)) is not None]
    values = ConstantValues(graph)
    kinds = [mask_kind(values.of(mask)) for mask in masks]
    assert kinds.count(MaskKind.OTHER) == 2  # forward and backward
    assert kinds.count(MaskKind.CAUSAL) == 4
    assert not values._known
    after = retarget_masks(graph)
    assert sum(MASK in row.kwargs for row in after.rows) == 2


class Written(nn.Module):
    """Masks written out from booleans: as torch does it, the other way round, and with another number."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1])
        passes = (place[:, None] >= place[None])[None, None].expand(x.shape[0], 1, -1, -1)
        y = self.proj(x)[:, None]
        y = scaled_dot_product_attention(y, y, y, attn_mask=passes)
        y = scaled_dot_product_attention(y, y, y, attn_mask=torch.where(passes, float("-inf"), 0.0))
        return scaled_dot_product_attention(y, y, y, attn_mask=torch.where(passes, 1.0, float("-inf"))).sum()


def test_a_mask_is_known_by_the_booleans_it_is_written_from() -> None:
    graph = trace(Written(), {"x": torch.zeros(2, 6, 8)}, batch=2)
    masks = list(dict.fromkeys(ref.id for row in graph.rows if (ref := row.kwargs.get(MASK)) is not None))
    values = ConstantValues(graph)
    sources = [passing(graph, mask) for mask in masks]
    assert [graph.rows[source].dtype for source in sources] == [torch.bool, torch.float32, torch.float32]
    assert [mask_kind(values.of(source)) for source in sources] == [mask_kind(values.of(m)) for m in masks]
    assert mask_kind(values.of(sources[0])) is MaskKind.CAUSAL


class Kept(nn.Module):
    """A causal mask that was made in `__init__`, cut in forward; `given`: by an input instead."""

    def __init__(self, given: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.given = given
        self.register_buffer("mask", torch.ones(9, 9, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        y = self.proj(x)[:, None]
        mask = allowed[:, None] if self.given else self.mask[: x.shape[1], : x.shape[1]]
        return scaled_dot_product_attention(y, y, y, attn_mask=mask).sum()


@pytest.mark.parametrize("given", [False, True])
def test_masks_of_buffers_and_inputs_stay(given: bool) -> None:
    """What a buffer holds is not known while compiling, and may be loaded later."""
    inputs = {"x": torch.zeros(2, 6, 8), "allowed": torch.ones(2, 6, 6, dtype=torch.bool)}
    graph = trace(Kept(given), inputs, batch=2)
    after = retarget_masks(graph)
    assert sum(MASK in row.kwargs for row in after.rows) == 2
