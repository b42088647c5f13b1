"""Kernels on images take pieces as ranks hold them: with gaps in memory, and empty."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hspmd_compiler.program.kernels.convolution_kernels import (
    convolution,
    convolution_input_gradient,
    convolution_weight_gradient,
)
from hspmd_compiler.program.kernels.image_kernels import POOLINGS, group_norm, group_norm_backward

WINDOW = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
TYPES = (torch.float32, torch.float64)


def gapped(*shape: int, dtype: torch.dtype) -> Tensor:
    """Every second element of something larger."""
    return torch.randn(*shape, 2, dtype=dtype)[..., 0]


@pytest.mark.parametrize("dtype", TYPES)
def test_gaps_in_memory_do_not_matter(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    image, weight, bias = (gapped(*shape, dtype=dtype) for shape in ((2, 6, 4, 4), (6, 6, 3, 3), (6,)))
    grad, scale, shift = (gapped(*shape, dtype=dtype) for shape in ((2, 6, 4, 4), (6,), (6,)))

    def results(dense: bool) -> list[Tensor]:
        i, w, b, g, up, off = (
            item.contiguous() if dense else item for item in (image, weight, bias, grad, scale, shift)
        )
        out, mean, spread = group_norm(i, up, off, 2, 6, 16, 3, 1e-5)
        backward = group_norm_backward(g, i, mean, spread, up, 2, 6, 16, 3, (True, True, True))
        return [
            convolution(i, w, b, (2, 6, 4, 4), *WINDOW),
            convolution_input_gradient(g, w, (2, 6, 4, 4), *WINDOW),
            convolution_weight_gradient(g, i, (6, 6, 3, 3), *WINDOW),
            *(out, mean, spread, *(item for item in backward if item is not None)),
        ]

    for found, wanted in zip(results(dense=False), results(dense=True), strict=True):
        torch.testing.assert_close(found, wanted)


def test_channels_that_a_rank_does_not_have_add_nothing_but_the_bias() -> None:
    image, weight, bias = torch.zeros(2, 0, 4, 4), torch.zeros(3, 0, 3, 3), torch.arange(3.0)
    out = convolution(image, weight, bias, (2, 3, 4, 4), *WINDOW)
    assert torch.equal(out, bias.reshape(1, 3, 1, 1).expand(2, 3, 4, 4))
    grad = convolution_weight_gradient(
        torch.zeros(0, 3, 4, 4), torch.zeros(0, 2, 4, 4), (3, 2, 3, 3), *WINDOW
    )
    assert torch.equal(grad, torch.zeros(3, 2, 3, 3))


@pytest.mark.parametrize("name", sorted(name for name in POOLINGS if not name.endswith("_backward")))
def test_poolings_of_no_channels_are_empty(name: str) -> None:
    size = (2, 0, 4, 4, 4) if "3d" in name else (2, 0, 4, 4)
    shape = tuple(2 if place > 1 else length for place, length in enumerate(size))
    made = POOLINGS[name](torch.zeros(size), shape, (2,) * (len(size) - 2))
    assert all(tuple(item.shape) == shape for item in (made if isinstance(made, tuple) else (made,)))
