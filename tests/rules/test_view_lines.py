"""Lines of views: the letters that a call's shapes choose name the same elements on both sides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod

import pytest
import torch

from hspmd_compiler.ir.graph import Ref, Row
from hspmd_compiler.rules.call_rule import CallRule, bind
from hspmd_compiler.rules.op_rule import Dims
from hspmd_compiler.verify.rules.rule_check import equals_whole, ways_of
from hspmd_compiler.verify.rules.split_operands import Operand, StageMesh, random_layout
from hspmd_compiler.verify.rules.split_operator import OperandSketch, check

VIEW = "aten.view.default"
Sizes = tuple[int, ...]


def two_shapes(rng: random.Random) -> tuple[Sizes, Sizes]:
    """Two ways to group the same factors; sometimes in another order, so that dims share none."""
    factors = [rng.randint(2, 5) for _ in range(rng.randint(1, 4))]
    others = rng.sample(factors, len(factors)) if rng.random() < 0.4 else factors
    return _grouped(rng, factors), _grouped(rng, others)


def _grouped(rng: random.Random, factors: Sequence[int]) -> Sizes:
    made = [1]
    for factor in factors:
        if rng.random() < 0.6:
            made.append(1)
        made[-1] *= factor
    return tuple(made)


def viewed(source: Sizes, target: Sizes) -> CallRule:
    return bind(Row(1, VIEW, (Ref(0), target), {}, target, torch.float64), [source])


@pytest.mark.parametrize("seed", range(60))
def test_a_letter_is_the_same_elements_before_and_behind(seed: int) -> None:
    source, target = two_shapes(random.Random(seed))
    call = viewed(source, target)
    read, written = call.operands[0], call.results[0]
    assert written is not None
    elements = torch.arange(prod(source))
    for dims, shape in ((read, source), (written, target)):
        assert tuple(call.size(names) for names in dims) == shape
    for name in call.sizes.keys() - call.whole:
        kept = [_first_of(call, dims, name, elements) for dims in (read, written)]
        assert kept[0].equal(kept[1]), f"{name} in {call.rule.text()}"


def _first_of(call: CallRule, dims: Dims, name: str, elements: torch.Tensor) -> torch.Tensor:
    """The elements of a letter's first place."""
    letters = [each for names in dims for each in names]
    return elements.view([call.sizes[each] for each in letters]).select(letters.index(name), 0).flatten()


def test_dims_that_share_no_factor_are_whole_and_others_are_not() -> None:
    assert viewed((2, 6, 4), (2, 4, 6)).rule.text().startswith("d0 (d1 d2) d5 -> d0 (d1 d3) d4, whole=")
    assert viewed((8, 1, 12), (8, 3, 4)).rule.text().startswith("d0 () (d1 d2) -> d0 d1 d2, linear=")


@pytest.mark.parametrize("seed", range(12))
def test_every_way_of_a_view_equals_it_whole(seed: int) -> None:
    number = 0
    while True:
        sketch, row = _sketched(seed)
        check(sketch)
        ways = ways_of(sketch, row)
        if number >= len(ways):
            assert number > 0
            return
        equals_whole(*_sketched(seed), ways[number])
        number += 1


def _sketched(seed: int) -> tuple[OperandSketch, Row]:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    source, target = two_shapes(rng)
    sketch = OperandSketch(StageMesh(rng.choice((2, 3))))
    operand = Operand(source, lambda shape: torch.randn(shape, dtype=torch.float64), sample=None)
    given = sketch.operand(operand, random_layout(rng, operand, sketch.mesh, False))
    made = sketch.call("aten.reshape.default", (given, target))
    return sketch, sketch.rows[made.id]
