"""The loss in what a forward pass returns."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..errors import TraceError

RULE = (
    "forward(**batch) returns the scalar loss, an object with .loss, a dict with 'loss', or a tuple whose"
    " first item is the loss"
)


def find_loss(output: object) -> object:
    """What stands for the loss in it; None where nothing does."""
    if isinstance(output, torch.Tensor):
        return output
    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if named is not None or not isinstance(output, (tuple, list)) or not output:
        return named
    first = output[0]
    return first if isinstance(first, torch.Tensor) and first.dim() == 0 else None


def loss_of(output: object) -> torch.Tensor:
    """The scalar loss that a forward returned."""
    loss = find_loss(output)
    if not isinstance(loss, torch.Tensor):
        fix = "put labels into the batch" if hasattr(output, "loss") else "return the loss from forward"
        raise TraceError(f"forward returned a {type(output).__name__} without a loss", rule=RULE, fix=fix)
    if loss.dim() or not loss.is_floating_point():
        shown = f"{str(loss.dtype).removeprefix('torch.')}{list(loss.shape)}"
        raise TraceError(
            f"the loss is {shown}, not a scalar", rule=RULE, fix="reduce it with .mean() or .sum()"
        )
    if not loss.requires_grad:
        raise TraceError(
            "the loss does not depend on any trainable parameter",
            rule="a training step needs a gradient",
            fix="remove no_grad or detach from forward, or unfreeze a parameter",
        )
    return loss
