"""Products of consecutive groups of rows, each with a matrix of its own: what a mixture of experts computes.

The ends of the groups are values, so that no list of plain operators of fixed shapes says it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from .shape_only import is_shape_only


def grouped_mm(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """[rows, n]: group i of rows [rows, k] ends at ends[i] and meets weights[i] of [groups, k, n].

    Rows behind the last group give zeros.
    """
    out = rows.new_zeros((rows.shape[0], weights.shape[2]))
    for group, low, high in groups(ends):
        out[low:high] = rows[low:high] @ weights[group]
    return out


def grouped_mm_backward(rows: Tensor, weights: Tensor, ends: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `rows` and `weights`."""
    grad_rows, grad_weights = rows.new_zeros(rows.shape), weights.new_zeros(weights.shape)
    for group, low, high in groups(ends):
        grad_rows[low:high] = grad[low:high] @ weights[group].T
        grad_weights[group] = rows[low:high].T @ grad[low:high]
    return grad_rows, grad_weights


def groups(ends: Tensor) -> Iterator[tuple[int, int, int]]:
    """(group, first row, end) of each group with rows; none where only shapes are known."""
    low = 0
    for group, high in enumerate([] if is_shape_only(ends) else ends.tolist()):
        if low < high:
            yield group, low, high
        low = max(low, high)
