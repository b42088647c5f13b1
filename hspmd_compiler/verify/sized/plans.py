"""Plans of steps, and their batches, by which a program for micro-batches of any size is proved.

Both ends of the range, and sizes between them that no compile saw, pipelines with nothing to do among them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from ...ir.graph import LogicalGraph
from ...program.program import Program
from ...program.sized.plan_check import in_order
from ...program.sized.shared_rows import own_runs
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Count, MicroSizes
from ...program.sized.spread import spread_rows
from ...program.sized.step_plan import StepPlan
from ..random_batch import draw_batch

Batch = Mapping[str, Tensor]
MOST_OPERATIONS = 2e10
"""Of a micro-batch at the long end, by its tokens and the model's parameters: some seconds."""
MOST = 2048
"""Tokens that a micro-batch has at most: masks are of their square."""
ROWS = 7
"""Rows, or micro-batches of samples, of a random step at most."""


@dataclass(frozen=True, slots=True)
class ProofPlan:
    """A step that is proved. lengths: of the rows of tokens in the order of the step; of samples none."""

    plan: StepPlan
    lengths: tuple[int, ...] = ()


def proof_plans(program: Program, seed: int) -> list[ProofPlan]:
    """The short end, a random step, the long end with one micro-batch alone, and another random step."""
    sizes = program.sizes
    assert sizes is not None, "a program for micro-batches of any size"
    drawn, top = random.Random(seed), longest(program)
    count = len(sizes.stages)
    if sizes.unit is Count.SAMPLES:
        idle = [()] * (count - 1)
        return [
            _of_samples([(sizes.low,)] * count),
            _of_samples([_sizes(drawn, sizes.low, top, 3) for _ in range(count)]),
            _of_samples([(top,), *idle]),
            _of_samples([*idle, _sizes(drawn, sizes.low, top, ROWS)]),
        ]
    return [
        _of_rows((sizes.low,) * (count + 1), sizes),
        _of_rows(_sizes(drawn, sizes.low, top, ROWS, count), sizes, drawn),
        _of_rows((top,), sizes),
        _of_rows(_sizes(drawn, sizes.low, top, ROWS, count), sizes, drawn),
    ]


def longest(program: Program) -> int:
    """The greatest size of the range whose numbers are computed here in seconds."""
    sizes = program.sizes
    assert sizes is not None, "a program for micro-batches of any size"
    shapes = {shard.name: shard.whole_shape for own in program.ranks for shard in own.shards}
    one = 1
    if sizes.unit is Count.SAMPLES:
        one = max((shape[1] for shape, _ in program.inputs.values() if len(shape) > 1), default=1) or 1
    per_token = 6 * max(sum(map(prod, shapes.values())), 1)
    most = min(MOST, int(MOST_OPERATIONS / per_token)) // one
    return max(min(sizes.high, most), sizes.low)


def batches_of(
    graph: LogicalGraph, examples: Batch | None, steps: Sequence[ProofPlan], unit: Count
) -> list[dict[str, Tensor]]:
    """A random batch for each step; in the last one no target is left out."""
    generator = torch.Generator().manual_seed(len(steps))
    last = steps[-1]
    return [batch_of(graph, examples, step, unit, generator, step is not last) for step in steps]


def of_graph(graph: LogicalGraph, examples: Batch | None) -> Batch | None:
    """Example inputs with rows as long as those that the graph was traced with."""
    lengths = {info.shape[1] for info in graph.inputs.values() if len(info.shape) > 1}
    return examples_of(examples, lengths.pop()) if len(lengths) == 1 else examples


def batch_of(
    graph: LogicalGraph,
    examples: Batch | None,
    step: ProofPlan,
    unit: Count,
    generator: torch.Generator,
    ignoring: bool,
) -> dict[str, Tensor]:
    """A random batch of a step: of samples, or of rows of tokens laid one behind the other, [1, N]."""
    if unit is Count.SAMPLES:
        return _drawn(graph, examples, step.plan.total(unit), None, generator, ignoring)
    drawn = _drawn(graph, examples, len(step.lengths), max(step.lengths), generator, ignoring)
    return {
        name: torch.cat([rows[at, :length] for at, length in enumerate(step.lengths)])[None]
        for name, rows in drawn.items()
    }


def examples_of(examples: Batch | None, tokens: int) -> Batch | None:
    """Example inputs with rows of so many tokens: repeated, or cut."""
    if examples is None:
        return None
    return {
        name: value[:, torch.arange(tokens) % value.shape[1]]
        if value.dim() > 1 and value.shape[1] and not value.is_meta
        else value
        for name, value in examples.items()
    }


def _drawn(
    graph: LogicalGraph,
    examples: Batch | None,
    count: int,
    tokens: int | None,
    generator: torch.Generator,
    ignoring: bool,
) -> dict[str, Tensor]:
    inputs = {
        name: replace(info, shape=(count, *(info.shape[1:] if tokens is None else (tokens, *info.shape[2:]))))
        for name, info in graph.inputs.items()
    }
    sized = replace(graph, inputs=inputs, batch=count)
    fitting = examples if tokens is None else examples_of(examples, tokens)
    return {name: each.values for name, each in draw_batch(sized, fitting, generator, ignoring).items()}


def _sizes(drawn: random.Random, low: int, top: int, most: int, least: int = 1) -> tuple[int, ...]:
    """Some sizes of a range, short ones as often as long ones."""
    count = drawn.randint(least, max(most, least))
    return tuple(min(top, round(low * (top / low) ** drawn.random())) for _ in range(count))


def _of_samples(pipelines: Sequence[Sequence[int]]) -> ProofPlan:
    micros = [[MicroSizes(size) for size in own] for own in pipelines]
    return ProofPlan(in_order(micros, Count.SAMPLES))


def _of_rows(lengths: tuple[int, ...], sizes: SizeRange, drawn: random.Random | None = None) -> ProofPlan:
    """drawn: cuts the tokens of a micro-batch anywhere, where all stages that cut them do it alike, and rows
    that pipelines share."""
    plan = spread_rows(lengths, sizes)
    if drawn is not None:
        plan = _shared_anew(plan, sizes, drawn)
    if drawn is not None and len(sizes.degrees) == 1:
        cut = [
            tuple(replace(micro, cuts=(_cut(drawn, micro.tokens, sizes.degrees[0]),)) for micro in own)
            for own in plan.pipelines
        ]
        plan = StepPlan(tuple(cut))
    return ProofPlan(plan, lengths)


def _shared_anew(plan: StepPlan, sizes: SizeRange, drawn: random.Random) -> StepPlan:
    """The plan with rows that pipelines share cut anywhere; some members may get nothing."""
    pipelines = [list(own) for own in plan.pipelines]
    for group in sizes.groups:
        for place, micro in enumerate(plan.pipelines[group[0]]):
            ring = _cut(drawn, sum(micro.ring), sizes.pieces_of(group[0]))
            for member, pipeline in enumerate(group):
                runs = own_runs(replace(micro, ring=ring), member, len(group))
                tokens = sum(high - low for low, high in runs)
                pipelines[pipeline][place] = replace(micro, ring=ring, tokens=tokens)
    return StepPlan(tuple(map(tuple, pipelines)))


def _cut(drawn: random.Random, tokens: int, parts: int) -> tuple[int, ...]:
    ends = [0, *sorted(drawn.randint(0, tokens) for _ in range(parts - 1)), tokens]
    return tuple(high - low for low, high in pairwise(ends))
