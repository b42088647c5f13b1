"""A rule by brute force: the operator whole against the operator split, in every way that its value names."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...errors import DeduceError, HspmdError
from ...ir.graph import Ref, Row
from ...layout.layout import Axis, Layout, placement
from ...rules.alternatives import alternatives
from ...rules.call_rule import Alternative, call_of, tensors
from .rule_calls import DrawnCall, drawn_calls
from .split_operands import Operand, StageMesh, random_layout
from .split_operator import OperandSketch, check, deduced

RANKS = (2, 3)
SHARES = (2, 1, 1)
CALLS = 12


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check did. greedy: splits that the rule chose itself; ways: choices that it was given.

    problem: the first difference or refusal, None where all were exact.
    """

    greedy: int
    ways: int
    problem: str | None = None


def check_rule(op: str, calls: int = CALLS, seed: int = 0) -> Checked:
    """Split in random layouts and in every way; stops at the first that is not the whole operator."""
    greedy = ways = 0
    for number, call in enumerate(drawn_calls(op, calls, seed)):
        try:
            sketch, row = sketched(call, seed + number)
            check(sketch)
            greedy += 1
            for way in ways_of(sketch, row):
                equals_whole(*sketched(call, seed + number), way)
                ways += 1
        except (HspmdError, AssertionError) as error:
            return Checked(greedy, ways, _told(call, error))
    return Checked(greedy, ways)


def _told(call: DrawnCall, error: Exception) -> str:
    text = error.what if isinstance(error, HspmdError) else str(error).partition("\n")[0]
    return f"called with {', '.join(map(str, call.arguments))}: {text}"


def sketched(call: DrawnCall, seed: int) -> tuple[OperandSketch, Row]:
    """The call on operands that two or three ranks hold in random layouts; the same for a seed."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    sketch = OperandSketch(StageMesh(rng.choice(RANKS)), rng=random.Random(seed))

    def take(operand: Operand) -> Ref:
        return sketch.operand(operand, random_layout(rng, operand, sketch.mesh, split_batch=False))

    made = sketch.call(call.op, call.on(take))
    row = sketch.rows[made.id]
    for index in range(len(row.outs or ())):
        sketch.pick(made, index)
    return sketch, row


def ways_of(sketch: OperandSketch, row: Row) -> tuple[Alternative, ...]:
    """The alternatives of a row; none beside a sum over the batch, or where samples can't meet."""
    try:
        _, values = deduced(sketch)
    except DeduceError:
        return ()
    layouts = [values[ref.id].layout for ref in tensors(row) if ref is not None]
    if any(Axis.BATCH in layout.partial for layout in layouts):
        return ()
    return alternatives(call_of(sketch.rows, row), layouts, SHARES[: sketch.mesh.ranks])


def equals_whole(sketch: OperandSketch, row: Row, way: Alternative) -> None:
    """Executes a way: values are the whole operator's, results lie as it says. Raises AssertionError."""
    sketch.choices = {row.id: way}
    check(sketch)
    for place, layout in made_layouts(sketch, row):
        wanted = way.results[place]
        assert wanted is not None and placement(layout) is placement(wanted), (
            f"cut {way.letter!r}: result {place} lies in {layout}, not in {wanted}"
        )


def made_layouts(sketch: OperandSketch, row: Row) -> Iterator[tuple[int, Layout]]:
    """(number, layout) of the results that later rows take."""
    _, values = deduced(sketch)
    if row.outs is None:
        yield 0, values[row.id].layout
    for pick in sketch.rows:
        if pick.op == "getitem" and pick.args[0] == Ref(row.id):
            yield int(pick.args[1]), values[pick.id].layout  # type: ignore[call-overload]
