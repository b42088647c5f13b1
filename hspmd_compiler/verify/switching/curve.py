"""Training that switches after every step, beside the eager model that never does, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.table import Table
from torch import Tensor

from ...base.log import task
from ...options import OptimizerConfig
from ...program.program import Program
from ...program.switch_plan import SwitchPlan
from ...runtime.optimizer import ShardOptimizer
from ...runtime.switching.held import HeldState, StateLayout
from ..eager import eager_model, whole_state
from ..equality import without_numbers
from ..reference import Reference
from ..saved import model_state, saved_state
from ..training import BothSides, EagerUpdate, ShardUpdate, StepDifferences, compare_saved, worst
from ..values import ranks_from, start_ranks
from ..widen import widen_program
from .strategies import ProvenStrategies, tour
from .together import carry_together
from .wholes import gathered, resliced

Batch = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class CurveStep:
    """A step under a strategy, and how state came there: by a plan, or gathered and cut again."""

    strategy: str
    by_plan: bool
    differences: StepDifferences


@dataclass(frozen=True, slots=True)
class CurveReport:
    """Steps that were equal, in their order."""

    steps: tuple[CurveStep, ...]

    def to_json(self) -> list[dict[str, object]]:
        """For scripts."""
        return [
            {
                "strategy": each.strategy,
                "by_plan": each.by_plan,
                "loss": each.differences.loss.error,
                "gradients": worst(each.differences.grads),
                "parameters": worst(each.differences.params),
            }
            for each in self.steps
        ]

    def rendered(self) -> Table:
        """For people."""
        table = Table(
            title="a switch after every step, beside the eager model, float64, relative differences"
        )
        for name in ("step", "strategy", "state came by", "loss", "gradients", "parameters"):
            table.add_column(name, justify="left" if name in ("strategy", "state came by") else "right")
        for number, each in enumerate(self.steps, 1):
            one = each.differences
            errors = (one.loss.error, worst(one.grads), worst(one.params))
            came = "the start" if number == 1 else "the plan" if each.by_plan else "gathering all"
            table.add_row(str(number), each.strategy, came, *(f"{error:.2g}" for error in errors))
        return table


@dataclass(slots=True)
class CurveProof:
    """One run over all plans. references, batches: by strategy; a reference is the same model each time."""

    strategies: ProvenStrategies
    references: Mapping[str, Reference]
    batches: Mapping[str, Sequence[Batch]]
    config: OptimizerConfig
    is_one_model: bool
    _steps: list[CurveStep] = field(default_factory=list)
    _programs: dict[str, Program] = field(default_factory=dict)

    def prove(self, plans: Sequence[SwitchPlan]) -> CurveReport:
        """A step, a switch, a step, and so on; a VerifyError at the first number that is not equal."""
        here, sides = "", None
        legs = list(tour(plans))
        with task("compare a curve with switches", len(legs)) as progress:
            for plan, follows in legs:
                if sides is None:
                    here, sides = plan.source, self._started(plan.source)
                    self._step(here, sides, False)
                elif not follows:
                    sides = self._switched(sides, here, plan.source, None)
                    here = plan.source
                sides = self._switched(sides, here, plan.target, plan)
                here = plan.target
                self._step(here, sides, self._can_carry(here))
                progress.advance()
        if sides is not None:
            self._compare_saved(here, sides)
        return CurveReport(tuple(self._steps))

    def _step(self, name: str, sides: BothSides, by_plan: bool) -> None:
        batches, number = self.batches[name], len(self._steps) + 1
        differences = sides.step(number, batches[(number - 1) % len(batches)])
        self._steps.append(CurveStep(name, by_plan, differences))

    def _started(self, name: str) -> BothSides:
        reference = self.references[name]
        model = eager_model(reference.build, reference.state, widen=True)
        ranks = start_ranks(self._wide(name), reference.state)
        unset = without_numbers(reference.state)
        return BothSides(
            self.config, model, ranks, EagerUpdate(self.config, model), ShardUpdate(self.config), unset
        )

    def _switched(self, sides: BothSides, source: str, target: str, plan: SwitchPlan | None) -> BothSides:
        """Both sides under another strategy. Without a plan: all gathered, and cut again."""
        held = self._carried(sides, source, target, plan)
        placed = self.strategies.placed(target)
        ranks = ranks_from(self._wide(target), {own.rank: held[rank].state for rank, own in placed.items()})
        update = ShardUpdate(self.config)
        for rank, own in placed.items():
            optimizer = update.optimizers[own.rank] = ShardOptimizer(self.config)
            optimizer.steps, optimizer.state = len(self._steps), held[rank].moments
        sides = replace(sides, ranks=ranks, shards=update)
        return sides if self.is_one_model else self._with_model_of(target, sides)

    def _carried(
        self, sides: BothSides, source: str, target: str, plan: SwitchPlan | None
    ) -> dict[int, HeldState]:
        world = range(len(self.strategies.world))
        wide = {own.device: own for own in self._wide(target).ranks}
        after = {rank: wide.get(self.strategies.world[rank]) for rank in world}
        moments = {rank: own.state for rank, own in sides.shards.optimizers.items()}
        if plan is None or not self._can_carry(target):
            wholes = gathered(sides.ranks, moments)
            return {rank: resliced(wholes, after[rank]) for rank in world}
        before = {rank: HeldState(StateLayout()) for rank in world}
        for each in sides.ranks:
            rank = self.strategies.world.index(each.plan.program.device)
            own = each.plan.program.rank
            layout = StateLayout.of(each.plan.program)
            before[rank] = HeldState(layout, each.state, moments.get(own, {}))
        layouts = {rank: StateLayout.of(after[rank]) for rank in world}
        return carry_together(plan, before, layouts)[0]

    def _can_carry(self, name: str) -> bool:
        """Whether the plan is one of the widened program, too: it has no copies in a type of their own."""
        programs = self.strategies.programs[name].ranks
        return not any(shard.compute for own in programs for shard in own.shards)

    def _with_model_of(self, name: str, sides: BothSides) -> BothSides:
        """The eager side in the model that a strategy was compiled from, which has the same parameters."""
        state = {key: value.detach() for key, value in whole_state(sides.model).items()}
        model = eager_model(self.references[name].build, state, widen=True)
        update = EagerUpdate(self.config, model)
        update.go_on_from(sides.eager)
        return replace(sides, model=model, eager=update)

    def _compare_saved(self, name: str, sides: BothSides) -> None:
        saved = saved_state(self._wide(name), sides.ranks)
        compare_saved(saved, model_state(sides.model), self.config, sides.unset)

    def _wide(self, name: str) -> Program:
        if name not in self._programs:
            self._programs[name] = widen_program(self.strategies.programs[name])
        return self._programs[name]
