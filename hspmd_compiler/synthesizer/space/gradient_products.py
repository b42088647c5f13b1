"""Parameters whose gradient may be formed of gathered factors, and the products that form them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...ir.graph import LogicalGraph
from ...passes.deduction.factors import has_factors, is_sum, product_of


def gradient_products(graph: LogicalGraph, alike: Sequence[int]) -> dict[int, int]:
    """By the row of each parameter that the compiler takes `gradient: factors` for: the kind of the row that
    makes its gradient. alike: kinds of rows.

    A sum over all dims but one is that of a bias; others are of weights that a view repeats, whose gradient
    was made before it is summed.
    """
    return dict(_products(graph, alike))


def _products(graph: LogicalGraph, alike: Sequence[int]) -> Iterator[tuple[int, int]]:
    for info in graph.params.values():
        if not info.trainable or info.grad is None:
            continue
        row = product_of(graph, info.grad)
        if has_factors(row) and (len(info.shape) == 1 or not is_sum(row)):
            yield info.row, alike[row.id]
