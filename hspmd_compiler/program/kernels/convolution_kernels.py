"""Convolutions of the local samples and channels, forward and backward.

shape: the local shape of the result. A rank may have no samples, no channels, or no channels to sum
over: the result is then empty or zero, and PyTorch's kernels, which refuse such sizes, are not called.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Sizes = Sequence[int]


def convolution(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Tensor:
    """Sum over the local channels, plus the bias."""
    if image.numel() and weight.numel():
        op = torch.ops.aten.convolution.default
        bias = None if bias is None else bias.contiguous()
        made: Tensor = op(image, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
        return made  # fmt: skip
    zeros = image.new_zeros(tuple(shape))
    return zeros if bias is None else zeros + bias.reshape(1, -1, *(1 for _ in shape[2:]))


def convolution_input_gradient(
    grad: Tensor, weight: Tensor, shape: Sizes, *settings: Sizes | bool | int
) -> Tensor:
    """The gradient of the image. settings: stride to groups, as of `convolution`."""
    if not (grad.numel() and weight.numel()):
        return grad.new_zeros(tuple(shape))
    image = grad.new_empty(1).expand(tuple(shape))
    return _gradients(grad, image, weight, settings, (True, False, False))[0]


def convolution_weight_gradient(
    grad: Tensor, image: Tensor, shape: Sizes, *settings: Sizes | bool | int
) -> Tensor:
    """The gradient of the weight: the sum over the local samples. settings: stride to groups."""
    if not (grad.numel() and image.numel()):
        return grad.new_zeros(tuple(shape))
    weight = grad.new_empty(1).expand(tuple(shape))
    return _gradients(grad, image, weight, settings, (False, True, False))[1]


def _gradients(
    grad: Tensor,
    image: Tensor,
    weight: Tensor,
    settings: tuple[Sizes | bool | int, ...],
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor, ...]:
    op = torch.ops.aten.convolution_backward.default
    made: tuple[Tensor, ...] = op(grad, image, weight, None, *settings, wanted)
    return made
