"""Training steps of all ranks beside the eager model's: losses, gradients, parameters, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from ..base.by_key import by_key
from ..base.log import task
from ..base.number_ranges import number_ranges
from ..options import OptimizerConfig, OptimizerName
from ..pages.training_page import optimizer_text
from ..program.program import Program
from ..runtime.gradient_norm import global_norm, sum_of_squares
from ..runtime.optimizer import ShardOptimizer
from ..runtime.shards import owned_grads
from ..runtime.update import update_shards
from .assemble import gap
from .eager import eager_model, eager_step, whole_state
from .equality import (
    Difference,
    as_double,
    check_equal,
    difference_table,
    differences,
    gradient_floor,
    loss_difference,
    without_numbers,
)
from .not_finite import check_finite
from .reference import Reference
from .saved import check_names, model_state, saved_state
from .shards import holds
from .values import Rank, lockstep_step, start_ranks, whole_grads, whole_params
from .widen import widen_program, widened

TOLERANCE = 1e-10
NORM = "norm"


@dataclass(frozen=True, slots=True)
class StepDifferences:
    """One step, worst tensors first."""

    loss: Difference
    grads: list[Difference]
    params: list[Difference]


@dataclass(frozen=True, slots=True)
class ValuesReport:
    """Steps that were equal: every loss, gradient and updated parameter, and what is saved after them.

    start: what was compared of the first values.
    """

    config: OptimizerConfig
    steps: tuple[StepDifferences, ...]
    start: str = ""

    def to_json(self) -> dict[str, object]:
        """For scripts."""
        return {
            "equal": True,
            "tolerance": TOLERANCE,
            "optimizer": self.config.name.value,
            "options": self.config.to_json(),
            "start": self.start,
            "tensors": len(self.steps[0].params),
            "steps": [
                {
                    "loss": step.loss.error,
                    "gradients": worst(step.grads),
                    "parameters": worst(step.params),
                }
                for step in self.steps
            ],
        }

    def rendered(self) -> RenderableType:
        """For people."""
        last = self.steps[-1]
        count = len(self.steps)
        return Group(
            self._by_step(),
            difference_table(self.steps[0].grads, "largest differences of gradients, step 1"),
            difference_table(last.params, f"largest differences of parameters, step {count}"),
            Text(
                f"equal: loss, {len(last.grads)} gradients and {len(last.params)} parameters and buffers "
                f"in each of {count} {self.config.name.value} steps, and what is saved, within {TOLERANCE:g}"
                + (f"; {self.start}" if self.start else "")
            ),
            Text(f"optimizer: {optimizer_text(self.config)}"),
        )

    def _by_step(self) -> Table:
        table = Table(title="all ranks beside the eager model, float64, relative differences")
        for name in ("step", "loss", "gradients", "parameters"):
            table.add_column(name, justify="right")
        for number, step in enumerate(self.steps, 1):
            errors = (step.loss.error, worst(step.grads), worst(step.params))
            table.add_row(str(number), *(f"{error:.2g}" for error in errors))
        return table


def compare_training(
    program: Program,
    reference: Reference,
    batches: Sequence[Mapping[str, Tensor]],
    config: OptimizerConfig,
) -> ValuesReport:
    """One step per global batch on both sides; a VerifyError at the first tensor that is not equal."""
    model = eager_model(reference.build, reference.state, widen=True)
    program = widen_program(program)
    ranks = start_ranks(program, reference.state)
    unset = without_numbers(reference.state)
    sides = BothSides(config, model, ranks, EagerUpdate(config, model), ShardUpdate(config), unset)
    steps = []
    with task("compare values", len(batches)) as progress:
        for number, batch in enumerate(batches, 1):
            steps.append(sides.step(number, batch))
            progress.advance()
    compare_saved(saved_state(program, ranks), model_state(model), config, unset)
    return ValuesReport(config, tuple(steps))


def compare_saved(
    found: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    config: OptimizerConfig,
    unset: Mapping[str, Tensor],
) -> None:
    """What a run would save after the last step is the model's own state dict."""
    check_names(found, wanted)
    check_equal(differences(found, wanted, config.lr, unset), TOLERANCE, "what is saved after the last step")


def widened_batch(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inputs in double precision."""
    return {key: widened(value) for key, value in batch.items()}


@dataclass(frozen=True, slots=True)
class BothSides:
    """The eager model and all ranks, from one step to the next.

    unset: what of the state had no number before the first step.
    """

    config: OptimizerConfig
    model: nn.Module
    ranks: list[Rank]
    eager: EagerUpdate
    shards: ShardUpdate
    unset: Mapping[str, Tensor]

    def step(self, number: int, batch: Mapping[str, Tensor]) -> StepDifferences:
        """A step of each: the loss and the gradients, then what the update makes of them."""
        expected = eager_step(self.model, batch, widen=True, step=number - 1)
        check_finite(expected, number, whole_state(self.model))
        loss, _ = lockstep_step(self.ranks, widened_batch(batch), self.shards, number - 1)
        one = _equal_losses(number, loss, expected.loss)
        made = whole_grads(self.ranks, self.shards.kept)
        floor = gradient_floor(expected.grads)
        grads = self._equal(f"gradients of step {number}", made, expected.grads, floor)
        norm = self.eager(made)
        if norm is not None:
            both = differences({NORM: torch.tensor(self.shards.norm)}, {NORM: torch.tensor(norm)}, 0.0)
            check_equal(both, TOLERANCE, f"norm of the gradients of step {number}")
        after, held = whole_params(self.ranks), whole_state(self.model)
        wanted = {name: held[name].detach() for name in after}
        params = self._equal(f"parameters of step {number}", after, wanted, self.config.lr, self.unset)
        return StepDifferences(one, grads, params)

    def _equal(
        self,
        what: str,
        found: Mapping[str, Tensor],
        wanted: Mapping[str, Tensor],
        floor: float,
        unset: Mapping[str, Tensor] | None = None,
    ) -> list[Difference]:
        between = differences(found, wanted, floor, unset)
        check_equal(between, TOLERANCE, what, lambda name: _sides(name, self.ranks, found, wanted))
        return between


def _equal_losses(number: int, found: float, wanted: float) -> Difference:
    one = loss_difference(found, wanted)
    both = [("all ranks", repr(found)), ("eager", repr(wanted))]
    check_equal([one], TOLERANCE, f"loss of step {number}", lambda _: both)
    return one


def _sides(
    name: str, ranks: Sequence[Rank], found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> list[tuple[str, str]]:
    """What the ranks that hold it, and eager, have at the element that differs most."""
    gaps = gap(as_double(found[name]), as_double(wanted[name])).nan_to_num(nan=math.inf)
    flat = int(gaps.argmax())
    holders = [rank.plan.program.rank for rank in ranks if holds(rank.plan.shards.get(name), flat)]
    index = [int(i) for i in torch.unravel_index(torch.tensor(flat), gaps.shape)] if gaps.dim() else []
    return [
        ("tensor", f"{name}, element {index}"),
        (f"rank {number_ranges(sorted(holders))}", repr(found[name].flatten()[flat].item())),
        ("eager", repr(wanted[name].flatten()[flat].item())),
    ]


def worst(found: Sequence[Difference]) -> float:
    """The largest of some differences."""
    return max((difference.error for difference in found), default=0.0)


class EagerUpdate:
    """torch's own clipping and optimizer on the whole model, with the gradients that the ranks have.

    These equal eager's by then. AdamW divides a gradient by its own size, so that one which is zero but for
    rounding would move a parameter here and there by as much as the learning rate.
    """

    def __init__(self, config: OptimizerConfig, model: nn.Module) -> None:
        self._config = config
        self._params = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._optimizer = torch_optimizer(config, self._params)
        self._step = 0

    def __call__(self, grads: Mapping[str, Tensor] = MappingProxyType({})) -> float | None:
        """Update from whole gradients by name, else from those on the parameters; their norm if asked for."""
        for name, parameter in self._params:
            if name in grads:
                parameter.grad = grads[name].to(parameter.dtype).clone()
        norm = None
        if self._config.max_grad_norm is not None:
            norm = float(nn.utils.clip_grad_norm_([p for _, p in self._params], self._config.max_grad_norm))
        step_optimizer(self._optimizer, self._config.lr_at(self._step))
        self._step += 1
        return norm

    def go_on_from(self, other: EagerUpdate) -> None:
        """Take over the moments and the step of an update of the same parameters of another model."""
        self._step = other._step
        if self._optimizer is not None and other._optimizer is not None:
            self._optimizer.load_state_dict(other._optimizer.state_dict())


@dataclass(slots=True)
class ShardUpdate:
    """What `run` does at the end of a step, on all ranks; see `values.Optimizer`.

    kept, norm: gradients of each rank in the last step, before they were clipped, and their norm; None
    where they are not clipped.
    """

    config: OptimizerConfig
    kept: list[dict[str, Tensor]] | None = None
    norm: float | None = None
    optimizers: dict[int, ShardOptimizer] = field(default_factory=dict)

    def __call__(self, ranks: Sequence[Rank]) -> None:
        """Every rank clips and updates its own shards; each element counts once in the norm."""
        if self.config.max_grad_norm is not None:
            self.kept = [{name: grad.clone() for name, grad in rank.state.synced.items()} for rank in ranks]
        self.norm = self._norm(ranks)
        for rank in ranks:
            number = rank.plan.program.rank
            optimizer = self.optimizers.setdefault(number, ShardOptimizer(self.config))
            update_shards(
                rank.plan.program.shards, rank.state, optimizer, self.norm, self.config.lr_at(optimizer.steps)
            )

    def _norm(self, ranks: Sequence[Rank]) -> float | None:
        if self.config.max_grad_norm is None:
            return None
        owned = [owned_grads(rank.plan.program.shards, rank.state.synced) for rank in ranks]
        squares = torch.stack([sum_of_squares(each, torch.device("cpu")) for each in owned])
        return global_norm({}, torch.device("cpu"), lambda none: none + squares.sum())


def torch_optimizer(
    config: OptimizerConfig, named: Iterable[tuple[str, Tensor]]
) -> torch.optim.Optimizer | None:
    """torch.optim's own, parameters grouped by weight decay; None without parameters."""
    by_decay = by_key((config.decay_of(name), tensor) for name, tensor in named)
    groups = [{"params": tensors, "weight_decay": decay} for decay, tensors in by_decay.items()]
    if not groups:
        return None
    if config.name is OptimizerName.ADAMW:
        return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)


def step_optimizer(optimizer: torch.optim.Optimizer | None, lr: float) -> None:
    """One update with this learning rate."""
    if optimizer is None:
        return
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
