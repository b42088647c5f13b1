from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import VerifyError
from hspmd_compiler.program.arrays import TorchArrays
from hspmd_compiler.program.execute import run_step
from hspmd_compiler.program.program import Program
from hspmd_compiler.program.requests import AllReduce, StepRun
from hspmd_compiler.program.segments import Observation
from hspmd_compiler.program.sized.micro_batches import micro_batches
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.verify.eager import eager_model, eager_step
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor, loss_difference
from hspmd_compiler.verify.lockstep.blocked import RankRun
from hspmd_compiler.verify.lockstep.lockstep import Lockstep
from hspmd_compiler.verify.values import Rank, simulate, start_ranks
from hspmd_compiler.verify.widen import widen_program

from ..fit import check_fit
from .hand_made import BATCH, OUT, WIDE_IN, Mlp, pipeline, tensor_and_data_parallel

RATE = 0.1


def sgd(ranks: Sequence[Rank]) -> None:
    for rank in ranks:
        for name, gradient in rank.state.synced.items():
            rank.state.params[name] = rank.state.params[name] - RATE * gradient


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    return [{"x": torch.randn(BATCH, WIDE_IN), "target": torch.randn(BATCH, OUT)} for _ in range(count)]


@pytest.mark.parametrize("make", [tensor_and_data_parallel, pipeline])
@pytest.mark.parametrize(("wide", "tolerance"), [(True, 1e-12), (False, 1e-5)])
def test_three_steps_equal_one_device(make: Callable[[], Program], wide: bool, tolerance: float) -> None:
    torch.manual_seed(0)
    state = {name: value.detach().clone() for name, value in Mlp().named_parameters()}
    data = batches(3)
    program = widen_program(make()) if wide else make()
    cast = torch.float64 if wide else torch.float32
    wide_data = [{key: value.to(cast) for key, value in batch.items()} for batch in data]
    found = simulate(program, state, wide_data, sgd)
    model = eager_model(Mlp, state, wide)
    for step, batch in enumerate(data):
        reference = eager_step(model, batch, wide)
        check_equal([loss_difference(found.losses[step], reference.loss)], tolerance, "loss")
        floor = gradient_floor(reference.grads)
        check_equal(differences(found.grads[step], reference.grads, floor), tolerance, "gradients")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad  # type: ignore[operator]
    final = {name: value.detach() for name, value in model.named_parameters()}
    check_equal(differences(found.params, final, RATE), tolerance, "parameters")


def test_an_observer_sees_each_row_of_each_rank_and_changes_nothing() -> None:
    state = {name: value.detach() for name, value in Mlp().named_parameters()}
    seen: list[Observation] = []
    watched = simulate(tensor_and_data_parallel(), state, batches(1), observe=seen.append)
    plain = simulate(tensor_and_data_parallel(), state, batches(1))
    assert watched.losses == plain.losses
    assert len(seen) == 5 * (11 + 7)
    assert {item.rank for item in seen} == {0, 1, 2}


def test_copies_that_differ_are_named() -> None:
    state = {name: value.detach() for name, value in Mlp().named_parameters()}

    def uneven(ranks: Sequence[Rank]) -> None:
        ranks[2].state.params["w1"] = ranks[2].state.params["w1"] + 1

    with pytest.raises(VerifyError, match="w1: copies of"):
        simulate(tensor_and_data_parallel(), state, batches(1), uneven)


def test_missing_parameters_are_named() -> None:
    with pytest.raises(VerifyError, match="w1, w2"):
        simulate(pipeline(), {}, batches(1))


def test_a_rank_without_micro_batches_gets_its_gradients() -> None:
    torch.manual_seed(0)
    state = {name: value.detach().clone() for name, value in Mlp().named_parameters()}
    program = tensor_and_data_parallel()
    idle = replace(program.ranks[2], rows=[], instructions=program.ranks[2].instructions[2:])
    program = replace(program, ranks=[*program.ranks[:2], idle])
    batch = batches(1)[0]
    found = simulate(program, state, [batch])
    reference = eager_step(eager_model(Mlp, state, False), {key: x[:3] for key, x in batch.items()}, False)
    check_equal([loss_difference(found.losses[0], reference.loss)], 1e-6, "loss")
    check_equal(differences(found.grads[0], reference.grads, 0.0), 1e-5, "gradients")
    check_fit(program)


def test_differences_are_judged_by_scale_and_floor() -> None:
    reference = {"large": torch.tensor([100.0, 1.0]), "small": torch.tensor([1e-9]), "none": torch.empty(0)}
    actual = {"large": torch.tensor([100.0, 1.001]), "small": torch.tensor([2e-9]), "none": torch.empty(0)}
    found = differences(actual, reference, 1e-3)
    assert [item.name for item in found] == ["large", "small", "none"]
    assert found[0].within(1.1e-5) and not found[0].within(0.9e-5)
    assert not differences({"x": torch.tensor([torch.nan])}, {"x": torch.tensor([1.0])}, 0.0)[0].within(1.0)
    with pytest.raises(VerifyError, match="large"):
        check_equal(found, 1e-6, "gradients")
    with pytest.raises(VerifyError, match="only in the reference"):
        differences({}, reference, 0.0)


def test_a_reference_that_is_no_number_is_told_as_such() -> None:
    lost = {"x": torch.tensor([torch.nan, 1.0])}
    with pytest.raises(VerifyError) as found:
        check_equal(differences(lost, lost, 0.0), 1e-10, "gradients")
    assert "not finite" in found.value.fix


def test_memory_that_may_be_overwritten_is() -> None:
    """A wrong permission to reduce in place would change numbers here, as it would between processes."""
    torch.manual_seed(0)
    state = {name: value.detach().clone() for name, value in Mlp().named_parameters()}
    program = tensor_and_data_parallel()
    ranks = start_ranks(program, state)
    operands: list[torch.Tensor] = []
    runs = [_watched(rank, batches(1)[0], operands) for rank in ranks]
    Lockstep(runs).run()
    first, second = operands[:2]  # the first output of ranks 0 and 1, summed in place
    assert torch.equal(first, second)


def _watched(
    rank: Rank, batch: dict[str, torch.Tensor], operands: list[torch.Tensor]
) -> RankRun[torch.Tensor]:
    def steps() -> StepRun[torch.Tensor]:
        rows = micro_batches(rank.plan, batch)
        run = run_step(rank.plan, rank.state, rows, rank.segments, TorchArrays())
        answer = None
        try:
            while True:
                request = run.send(answer)
                if isinstance(request, AllReduce):
                    assert request.may_overwrite
                    operands.append(request.value)
                answer = yield request
        except StopIteration as end:
            return end.value

    return RankRun(rank.plan, rank.state, TorchArrays(), steps())


class Keeping(nn.Module):
    """Leaves what it computed for others to read."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.out(x)
        return self.last.square().mean()


def test_a_model_that_was_called_before() -> None:
    model = Keeping()
    model(torch.ones(1, 4)).backward()
    model.zero_grad()
    stages = (StageSpec((0, 1), (0, 1)),)
    program = hspmd.compile(
        model, {"x": torch.ones(1, 4)}, strategy=Strategy((PipelineSpec(stages, (2, 1)),))
    )
    program.verify(values=True)
