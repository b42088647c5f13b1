"""Floating-point operations by letters: without a product, one per element of the largest tensor."""

from __future__ import annotations

import random
from math import prod

import pytest
import torch
from torch import Tensor, nn

from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.cost_models.operator_classes import OperatorClass, class_of, is_heavy
from hspmd_compiler.ir.graph import Ref
from hspmd_compiler.layout.layout import whole
from hspmd_compiler.passes.deduction.placement import GraphFacts
from hspmd_compiler.rules.call_rule import bind, tensors
from hspmd_compiler.rules.op_rule import OP_RULES
from hspmd_compiler.synthesizer.space.cuts import CutBook
from hspmd_compiler.synthesizer.space.works import WorkBook
from hspmd_compiler.verify.rules.split_operands import Operand, StageMesh
from hspmd_compiler.verify.rules.split_operator import OperandSketch

from .test_rules_brute_force import BY_OP, QUICK_OPS

COUNTED = sorted(
    op
    for op in QUICK_OPS & OP_RULES.keys()
    if not is_heavy(class_of(op)) and class_of(op) is not OperatorClass.INDEX
)
"""Of operators whose time follows their flops, and of look-ups, letters are products."""


@pytest.mark.parametrize("op", COUNTED)
def test_no_letter_counts_twice(op: str) -> None:
    """Each call that the brute force knows, whole."""
    for case in BY_OP[op]:
        torch.manual_seed(0)
        sketch = OperandSketch(StageMesh(1, ()), rng=random.Random(0))

        def take(operand: Operand, sketch: OperandSketch = sketch) -> Ref:
            return sketch.operand(operand, whole(operand.shape))

        case.build(sketch, take)
        for row in sketch.rows:
            if row.op == op:
                given = [None if ref is None else tuple(sketch.wholes[ref.id].shape) for ref in tensors(row)]  # type: ignore[attr-defined]
                made = [row.shape] if row.outs is None else [meta and meta[0] for meta in row.outs]
                call = bind(row, given)
                largest = max(prod(shape) for shape in (*given, *made) if shape is not None)
                assert call.flops() <= call.rule.flops * largest, (call.sizes, given)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.pool = nn.Conv2d(3, 64, 1), nn.BatchNorm2d(64), nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.norm(self.conv(x))).sum()


def test_a_search_counts_norms_and_poolings_once() -> None:
    """Backward of a batch norm over 64 channels is no product of channels with channels, nor a pooling's of
    its space before with that behind."""
    graph = trace_graph(Normed(), {"x": torch.zeros(2, 3, 8, 8)}, 2).graph
    works = WorkBook.of(CutBook.of(graph, GraphFacts.of(graph)))
    image = 2 * 64 * 8 * 8
    flops = {row.op.split(".")[1]: works.work(row).flops for row in graph.rows if "." in row.op}
    assert flops["native_batch_norm_backward"] == 12 * image
    assert flops["max_pool2d_with_indices_backward"] == image
