"""What a step costs more on the host at sizes that were never seen before: a 7B, 32 layers, by shape.

    python benchmarks/sized_step.py

One rank of each class of 32 unequal ones: all that is made for a step's sizes before, or while, it runs.
That is its plan's check and digest, its instructions, the sizes in its code, its steps of communication in
numbers and how each goes over the transport. Exit code 1 where a new step costs more than the bound beside
one of the same sizes.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from hspmd_compiler.base.collection import without_collection
from hspmd_compiler.base.comm_plan import CommKind
from hspmd_compiler.passes.compile_state import Example
from hspmd_compiler.passes.pipeline import planning, tracing
from hspmd_compiler.passes.sized.probes import probes_of, range_of
from hspmd_compiler.passes.sized.unify import unify
from hspmd_compiler.program.exchange_plan import ExchangePlan
from hspmd_compiler.program.execute import RankPlan
from hspmd_compiler.program.lifetimes import COMPUTE_OPS
from hspmd_compiler.program.program import COMM, Op, Program
from hspmd_compiler.program.sized.plan_check import check_plan
from hspmd_compiler.program.sized.plan_file import plan_digest
from hspmd_compiler.program.sized.sized_run import SizedRun
from hspmd_compiler.program.sized.sizes import Count
from hspmd_compiler.program.sized.spread import spread_rows
from hspmd_compiler.program.sized.step_plan import StepPlan
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

BOUND_S = 0.005
LAYERS, HIDDEN, WIDE, HEADS, VOCAB = 32, 4096, 11008, 32, 32000
MOST_TOKENS = 4096
DEGREES = (8, 4, 4, 2, 2)
STEPS, MICRO_BATCHES = 20, 80


class Packed(nn.Module):
    """Rows of packed documents, whose labels are those of the next token already."""

    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(
            hidden_size=HIDDEN,
            intermediate_size=WIDE,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            vocab_size=VOCAB,
            max_position_embeddings=MOST_TOKENS,
            use_cache=False,
        )
        self.llama = LlamaForCausalLM(config)

    def forward(self, input_ids: Tensor, labels: Tensor, position_ids: Tensor) -> Tensor:
        logits = self.llama(input_ids=input_ids, position_ids=position_ids).logits
        return nn.functional.cross_entropy(logits.view(-1, VOCAB), labels.view(-1))


def main() -> int:
    """Measure, and print a table."""
    torch.set_num_threads(1)
    program = compiled(strategy())
    table = Table(title=f"host time of a step's sizes, ms, median of {STEPS} steps of {MICRO_BATCHES} rows")
    for name in ("rank", "stage", "seen before", "new sizes", "new counts too", "more"):
        table.add_column(name, justify="right")
    worst = 0.0
    for own in {own.class_name: own for own in program.ranks}.values():
        seen, new, counts = measured(program, own.rank)
        worst = max(worst, new - seen, counts - seen)
        times = [f"{each * 1e3:.2f}" for each in (seen, new, counts, max(new, counts) - seen)]
        table.add_row(str(own.rank), f"{own.pipeline}.{own.stage}", *times)
    Console().print(table)
    return int(worst > BOUND_S)


def strategy() -> Strategy:
    """Five pipelines on 32 ranks, of degrees 8, 4, 4, 2 and 2; all but the first in two stages."""
    pipelines, first = [], 0
    for degree, stages in zip(DEGREES, (1, 2, 2, 2, 2), strict=True):
        cut = [(at * LAYERS // stages, (at + 1) * LAYERS // stages) for at in range(stages)]
        ranks = [tuple(range(first + at * degree, first + (at + 1) * degree)) for at in range(stages)]
        made = [StageSpec(devices, layers) for devices, layers in zip(ranks, cut, strict=True)]
        pipelines.append(PipelineSpec(tuple(made), (1,)))
        first += degree * stages
    return Strategy(tuple(pipelines), sequence_parallel=True)


def compiled(strategy: Strategy) -> Program:
    """The program of all sizes, of a model without values."""
    probes = probes_of(strategy, Count.TOKENS, 1, MOST_TOKENS)
    with torch.device("meta"):
        model = Packed()
    made = []
    with without_collection():
        for probe in probes:
            batch = {
                name: torch.zeros(2, probe.tokens, dtype=torch.int64)
                for name in ("input_ids", "labels", "position_ids")
            }
            traced = tracing().run(Example(model, batch, probe.strategy.global_batch))
            made.append(planning(probe.strategy, cuts=probe.cuts).run(traced).program)
        return unify(made, range_of(strategy, Count.TOKENS, 1, MOST_TOKENS, probes))


def measured(program: Program, rank: int) -> tuple[float, float, float]:
    """Seconds of a step of sizes that were seen, of new ones, and of new ones in other numbers."""
    run = SizedRun(program, program.ranks[rank])
    draw = random.Random(rank)
    slots = [
        [row.args[1] for row in segment.rows if row.op == COMM]
        for segment in program.classes[program.ranks[rank].class_name].segments
    ]
    known: dict[int, object] = {}

    def prepare(plan: StepPlan) -> float:
        start = time.process_time()
        assert program.sizes is not None
        check_plan(plan, program.sizes)
        plan_digest(plan)
        made = run.plan_for(plan)
        walk(made, run, slots, known)
        return time.process_time() - start

    prepare(plan_of(program, draw, MICRO_BATCHES))
    seen, new, counts = [], [], []
    for step in range(STEPS):
        plan = plan_of(program, draw, MICRO_BATCHES)
        other = plan_of(program, draw, MICRO_BATCHES + 1 + step)
        new.append(prepare(plan))
        seen.append(prepare(plan))
        counts.append(prepare(other))
    return statistics.median(seen), statistics.median(new), statistics.median(counts)


def plan_of(program: Program, draw: random.Random, rows: int) -> StepPlan:
    """Rows of lengths that no other step has; packed to about the same size, as planners do."""
    assert program.sizes is not None
    return spread_rows([draw.randrange(MOST_TOKENS // 2, MOST_TOKENS) for _ in range(rows)], program.sizes)


def walk(made: RankPlan, run: SizedRun, slots: Sequence[Sequence[object]], known: dict[int, object]) -> None:
    """Ask for all that the step's instructions ask for, as the executor and the transport do."""
    for each in made.program.instructions:
        steps = []
        if each.op in COMPUTE_OPS:
            run.arguments(each.segment, each.mb)
            steps = [made.comm(int(str(slot)), each.mb) for slot in slots[each.segment]]
        elif each.op in (Op.SEND, Op.RECV):
            steps = [made.transfer(each.slot, each.mb)]
        for step in steps:
            if step.kind is not CommKind.ALL_REDUCE and id(step) not in known:
                known[id(step)] = (step, ExchangePlan.of(step))


if __name__ == "__main__":
    sys.exit(main())
