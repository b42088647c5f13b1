"""Every strategy trains every model exactly like one eager call on the whole batch, all ranks in lockstep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.program.program import Op
from hspmd_compiler.program.trained import put_back, trainables
from hspmd_compiler.runtime.optimizer import ShardOptimizer
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.verify.eager import eager_model, eager_step, whole_state
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor, loss_difference
from hspmd_compiler.verify.values import Rank, Simulation, simulate
from hspmd_compiler.verify.widen import widen_program

from ..fit import check_fit
from .training_cases import (
    BATCH,
    LAYERS,
    STRATEGIES,
    SUBJECTS,
    gpt2,
    graph_of,
    llama,
    program_for,
    program_of,
    tokens,
    traced,
)

STEPS = 5
ADAMW = OptimizerConfig(lr=1e-3, weight_decay=0.1)
SGD = OptimizerConfig(name=OptimizerName.SGD, lr=0.1)
EXACT, SINGLE = 1e-10, 1e-5

LESS = {
    "gpt2": ("empty", "mixed", "pp", "sp-heads3111"),
    "llama-kv1": ("heads3111", "tp32", "mixed"),
    "gpt2-dropout": ("mixed", "sp"),
    "mlp-mse": ("empty", "tp41", "micro", "gpipe"),
    "mlp-ce": ("heads3111", "mixed", "pp", "accumulation"),
}
"""Strategies of the quick run, by model; all of them where a model is not named."""

CASES = [
    pytest.param(
        subject,
        strategy,
        marks=() if strategy in LESS.get(subject, STRATEGIES) else pytest.mark.slow,
        id=f"{subject} {strategy}",
    )
    for subject in SUBJECTS
    for strategy in STRATEGIES
]


@dataclass(frozen=True)
class Reference:
    """Eager training: losses per step, first gradients, parameters at the end."""

    losses: list[float]
    grads: dict[str, Tensor]
    params: dict[str, Tensor]


@cache
def initial(subject: str) -> dict[str, Tensor]:
    """The values that both sides start from."""
    torch.manual_seed(0)
    return {name: value.detach().clone() for name, value in whole_state(SUBJECTS[subject].build()).items()}


def start(subject: str, wide: bool) -> dict[str, Tensor]:
    state = initial(subject)
    return {k: v.double() if wide and v.is_floating_point() else v for k, v in state.items()}


def batches(subject: str, wide: bool) -> list[dict[str, Tensor]]:
    made = [SUBJECTS[subject].batch(step) for step in range(STEPS)]
    return [{k: v.double() if wide and v.is_floating_point() else v for k, v in b.items()} for b in made]


@cache
def reference(subject: str, wide: bool) -> Reference:
    """STEPS steps of the unmodified model on the whole batch."""
    model = eager_model(SUBJECTS[subject].build, start(subject, wide), wide)
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(model.parameters(), lr=ADAMW.lr, weight_decay=ADAMW.weight_decay)
        if wide
        else torch.optim.SGD(model.parameters(), lr=SGD.lr)
    )
    results = []
    for step, batch in enumerate(batches(subject, wide)):
        results.append(eager_step(model, batch, wide, step))
        optimizer.step()
    params = {name: value.detach() for name, value in model.named_parameters()}
    return Reference([result.loss for result in results], results[0].grads, params)


class LocalOptimizers:
    """One optimizer per rank, on the shards that the rank holds."""

    def __init__(self, config: OptimizerConfig) -> None:
        self.config = config
        self.held: dict[int, ShardOptimizer] = {}

    def __call__(self, ranks: Sequence[Rank]) -> None:
        for rank in ranks:
            number = rank.plan.program.rank
            optimizer = self.held.setdefault(number, ShardOptimizer(self.config))
            trained = trainables(rank.plan.shards.values(), rank.state)
            values = {each.shard.name: each.value for each in trained}
            optimizer.update(values, {each.shard.name: each.grad for each in trained}, self.config.lr)
            put_back(trained, rank.state)


def compare(found: Simulation, wanted: Reference, tolerance: float, lr: float) -> None:
    """The bar of equality, for losses, first gradients and final parameters."""
    losses = [loss_difference(*pair) for pair in zip(found.losses, wanted.losses, strict=True)]
    check_equal(losses, tolerance, "losses")
    floor = gradient_floor(wanted.grads)
    check_equal(differences(found.grads[0], wanted.grads, floor), tolerance, "gradients")
    params = {name: found.params[name] for name in wanted.params}
    check_equal(differences(params, wanted.params, lr), tolerance, "parameters")


@pytest.mark.parametrize(("subject", "strategy"), CASES)
def test_float64_is_exact(subject: str, strategy: str) -> None:
    program = widen_program(program_of(subject, strategy))
    found = simulate(program, start(subject, True), batches(subject, True), LocalOptimizers(ADAMW))
    compare(found, reference(subject, True), EXACT, ADAMW.lr)


@pytest.mark.parametrize(
    ("subject", "strategy"),
    [
        case
        if case.values in (("llama", "mixed"), ("gpt2-dropout", "mixed"))
        else pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_float32_is_close(subject: str, strategy: str) -> None:
    program = program_of(subject, strategy)
    found = simulate(program, start(subject, False), batches(subject, False), LocalOptimizers(SGD))
    compare(found, reference(subject, False), SINGLE, SGD.lr)


@pytest.mark.parametrize("subject", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_collectives_per_layer(subject: str, sequence_parallel: bool) -> None:
    """Two all-reduces each way, or two all-gathers and two reduce-scatters each way, as Megatron has."""
    counts = [collectives(subject, layers, sequence_parallel) for layers in (1, 2)]
    more = {key: counts[1][key] - counts[0][key] for key in counts[0] | counts[1]}
    kinds = ("all_gather", "reduce_scatter") if sequence_parallel else ("all_reduce",)
    wanted = {(op, kind): 2 for op in ("forward", "backward") for kind in kinds}
    assert {key: count for key, count in more.items() if count} == wanted


def collectives(subject: str, layers: int, sequence_parallel: bool) -> Counter[tuple[str, str]]:
    """Matched collectives inside the stage by phase and kind."""
    stage = StageSpec((0, 1), (0, layers))
    strategy = Strategy((PipelineSpec((stage,), (BATCH,)),), sequence_parallel=sequence_parallel)
    events = check_fit(program_for(of_depth(subject, layers), strategy)).events
    phases = {Op.FORWARD.value: "forward", Op.BACKWARD.value: "backward"}
    return Counter((phases[event.op], event.kind) for event in events if event.op in phases)


@cache
def of_depth(subject: str, layers: int) -> LogicalGraph:
    """The model with some number of layers."""
    if layers == LAYERS:
        return graph_of(subject)
    model = llama(3, layers) if subject == "llama" else gpt2(layers)
    return traced(model, tokens(0), BATCH)
