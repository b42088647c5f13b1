"""bfloat16 beside float32 masters: exact when widened, and close to eager's own bfloat16 step."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.compiler import trace_graph
from hspmd_compiler.cost_models.steps.stored_bytes import stored_bytes
from hspmd_compiler.errors import TraceError
from hspmd_compiler.ir.graph import LogicalGraph
from hspmd_compiler.options import OptimizerConfig, Precision
from hspmd_compiler.program.check import check
from hspmd_compiler.program.program import InputKind, OutputKind, Program
from hspmd_compiler.strategy.strategy import Strategy
from hspmd_compiler.verify.eager import eager_step
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor, loss_difference
from hspmd_compiler.verify.values import simulate
from hspmd_compiler.verify.widen import widen_program

from ..fit import check_fit
from .test_end_to_end import ADAMW, EXACT, SGD, LocalOptimizers, batches, compare, initial, reference, start
from .test_zero_training import CASES
from .training_cases import BATCH, STRATEGIES, SUBJECTS, program_for

CLOSE = 3e-2
"""bfloat16 has 8 bits: a sum in another order differs by some of its last ones. Against the largest element
of each tensor, gradients of five steps differ by less."""
STEPS = 5


@cache
def narrow_graph(subject: str) -> LogicalGraph:
    made = SUBJECTS[subject]
    return trace_graph(made.build(), made.batch(0), BATCH, precision=Precision.BFLOAT16).graph


def narrow(subject: str, strategy: Strategy) -> Program:
    program = program_for(narrow_graph(subject), strategy)
    check(program)
    check_fit(program)
    return program


class Narrow:
    """Eager training in bfloat16 with float32 masters, as one writes it by hand."""

    def __init__(self, subject: str) -> None:
        self.masters = {name: value.clone() for name, value in initial(subject).items()}
        self.model = SUBJECTS[subject].build()
        for parameter in self.model.parameters():
            parameter.data = parameter.data.bfloat16()
        self.params = dict(self.model.named_parameters())
        held = [self.masters[name] for name in self.params]
        self.optimizer = torch.optim.SGD(held, lr=SGD.lr)

    def step(self, batch: dict[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
        with torch.no_grad():
            for name, parameter in self.params.items():
                parameter.copy_(self.masters[name])
        rows = {key: x.bfloat16() if x.is_floating_point() else x for key, x in batch.items()}
        result = eager_step(self.model, rows, widen=False)
        for name, grad in result.grads.items():
            self.masters[name].grad = grad.float()
        self.optimizer.step()
        return result.loss, {name: grad.float() for name, grad in result.grads.items()}


@pytest.mark.parametrize(
    ("subject", "strategy"),
    [
        ("llama", STRATEGIES["mixed"]),
        ("gpt2", replace(CASES["dp2-pp2"], zero=3)),
        ("mlp-ce", replace(CASES["dp3"], zero=1)),
        pytest.param("gpt2", replace(CASES["sp"], zero=3), marks=pytest.mark.slow),
        pytest.param("gpt2", replace(CASES["sp"], zero=2), marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else f"zero {value.zero}",
)
def test_widened_it_is_exact(subject: str, strategy: Strategy) -> None:
    """The same program with every type double trains as the model does in double."""
    wide = widen_program(narrow(subject, strategy))
    found = simulate(wide, start(subject, True), batches(subject, True), LocalOptimizers(ADAMW))
    compare(found, reference(subject, True), EXACT, ADAMW.lr)


@pytest.mark.parametrize(
    ("subject", "strategy"),
    [
        ("llama", STRATEGIES["mixed"]),
        ("gpt2", replace(CASES["dp2-pp2"], zero=3)),
        ("mlp-mse", replace(STRATEGIES["accumulation"], zero=2)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"zero {value.zero}",
)
def test_it_trains_like_eager_in_bfloat16(subject: str, strategy: Strategy) -> None:
    program = narrow(subject, strategy)
    made = [SUBJECTS[subject].batch(step) for step in range(STEPS)]
    found = simulate(program, initial(subject), made, LocalOptimizers(SGD))
    eager = Narrow(subject)
    for step, batch in enumerate(made):
        loss, grads = eager.step(batch)
        check_equal([loss_difference(found.losses[step], loss)], CLOSE, f"loss of step {step}")
        wanted = {name: grads[name] for name in found.grads[step]}
        floor = gradient_floor(wanted)
        check_equal(differences(found.grads[step], wanted, floor), CLOSE, f"gradients of step {step}")
    masters = {name: eager.masters[name].detach() for name in found.params}
    check_equal(differences(found.params, masters, SGD.lr), CLOSE, "masters")
    assert {value.dtype for value in found.params.values() if value.is_floating_point()} == {torch.float32}


def test_gradients_are_summed_in_float32() -> None:
    """Over micro-batches, pipelines, and in the update, whatever segments make."""
    program = narrow("llama", STRATEGIES["mixed"])
    found = simulate(program, initial("llama"), [SUBJECTS["llama"].batch(0)])
    assert {grad.dtype for grad in found.grads[0].values()} == {torch.float32}
    assert {bucket.dtype for rank in program.ranks for bucket in rank.grad_buckets} == {"float32"}


class Counter(nn.Module):
    """Adds up 300 gradients of 1: more than bfloat16 can count."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum()


def test_a_count_beyond_the_narrow_type() -> None:
    """Three hundred micro-batches: a sum in bfloat16 would stop at 256."""
    count = 300
    strategy = {"pipelines": [{"stages": [{"devices": [0], "layers": 1}], "micro_batches": [1]}]}
    program = hspmd.compile(
        lambda: (Counter(), {"x": torch.ones(1, 1)}),
        strategy={**strategy, "accumulation": count},
        precision="bfloat16",
    )
    found = simulate(
        program.artifact.program,
        {"weight": torch.ones(1)},
        [{"x": torch.ones(count, 1)}],
        LocalOptimizers(SGD),
    )
    assert float(found.grads[0]["weight"]) == count
    assert float(found.params["weight"]) == 1 - SGD.lr * count


def test_masters_are_stored_once_under_zero() -> None:
    """Two bytes for each copy that is read, four for the master, eight for its moments."""
    adamw = OptimizerConfig()
    elements = sum(info.shape.numel() for info in _tensors(narrow_graph("mlp-ce")))
    for zero, copies in ((0, 3), (1, 1), (2, 1), (3, 1)):
        program = narrow("mlp-ce", replace(CASES["dp3"], zero=zero))
        held = [stored_bytes(rank, adamw) for rank in program.ranks]
        read = 0 if zero == 3 else 3
        assert sum(each.parameters for each in held) == elements * (2 * read + 4 * copies)
        assert sum(each.state for each in held) == elements * 8 * copies


def _tensors(graph: LogicalGraph) -> list[Tensor]:
    return [torch.empty(info.shape, device="meta") for info in graph.params.values()]


def test_saved_weights_are_the_masters() -> None:
    """The type that is trained is the model's; inputs are given in the model's type too."""
    program = narrow("mlp-mse", STRATEGIES["tp3"])
    assert {shard.dtype for rank in program.ranks for shard in rank.shards} == {"float32"}
    assert {shard.compute for rank in program.ranks for shard in rank.shards} == {"bfloat16"}
    assert program.inputs["x"][1] == "float32"
    kinds = {item.kind for shared in program.classes.values() for s in shared.segments for item in s.inputs}
    assert InputKind.STORED not in kinds
    outputs = {
        item.kind for shared in program.classes.values() for s in shared.segments for item in s.outputs
    }
    assert OutputKind.GRAD in outputs


def test_a_whole_compile_verifies() -> None:
    """Through the API: in double against eager, values and every row."""
    made = SUBJECTS["mlp-ce"]
    program = hspmd.compile(
        made.build(), made.batch(0), strategy=replace(CASES["dp2"], zero=3), precision="bfloat16"
    )
    assert program.artifact.manifest.precision is Precision.BFLOAT16
    program.verify(values=True, rows=True)


class Statistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return (x * self.seen.detach() + self.norm.weight).sum()


def test_running_statistics_are_refused() -> None:
    with pytest.raises(TraceError) as caught:
        trace_graph(Statistics(), {"x": torch.ones(2, 4)}, 4, precision=Precision.BFLOAT16)
    assert "narrowed" in str(caught.value) and "seen" in str(caught.value)
