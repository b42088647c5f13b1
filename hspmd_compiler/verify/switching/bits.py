"""A switch of all ranks in the types of training: the bits of gathering everything and cutting it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...base.log import task
from ...options import OptimizerConfig
from ...program.boxes import slices
from ...program.execute import RankState
from ...program.state.state_elements import is_run, needed, pairs
from ...program.switch_plan import GRAD, SwitchPlan, SwitchScope
from ...runtime.shards import owned_grads
from ...runtime.switching.held import HeldState, StateLayout, TensorKey
from ...runtime.switching.stages import without_moments
from ..training import ShardUpdate
from ..values import Rank, lockstep_step, ranks_from, start_ranks
from .strategies import ProvenStrategies
from .together import SwitchTraffic, carry_together
from .wholes import Wholes, check_same_bits, gathered, place, resliced

Batch = Mapping[str, Tensor]
HeldByRank = dict[int, HeldState]


@dataclass(frozen=True, slots=True)
class BitsReport:
    """Tensors of all ranks that were the same, and what was handed over for that."""

    tensors: int
    messages: int
    moved_bytes: int


@dataclass(slots=True)
class BitsProof:
    """Every plan after a step under its source. state: whole parameters and buffers. batches: by strategy."""

    strategies: ProvenStrategies
    state: Mapping[str, Tensor]
    batches: Mapping[str, Batch]
    config: OptimizerConfig

    def prove(self, plans: Sequence[SwitchPlan]) -> dict[tuple[str, str, SwitchScope], BitsReport]:
        """A VerifyError at the first plan that changes a bit."""
        found: dict[tuple[str, str, SwitchScope], BitsReport] = {}
        of_state = [plan for plan in plans if plan.scope is not SwitchScope.GRADS]
        back = {plan.source: plan for plan in plans if plan.scope is SwitchScope.GRADS}
        with task("compare bits", len(plans)) as progress:
            for source in dict.fromkeys(plan.source for plan in of_state):
                trained = _Trained.after_a_step(self, source)
                for plan in (each for each in of_state if each.source == source):
                    key = (plan.source, plan.target, plan.scope)
                    found[key], there = self._switched(plan, trained)
                    progress.advance()
                    if plan.scope is SwitchScope.PARAMS and plan.target in back:
                        home = back[plan.target]
                        found[home.source, home.target, home.scope] = self._gradients(home, there)
                        progress.advance()
        return found

    def _switched(self, plan: SwitchPlan, trained: _Trained) -> tuple[BitsReport, HeldByRank]:
        """All state, or what a step's segments read."""
        title = f"the switch {plan.source}:{plan.target} ({plan.scope.value})"
        if plan.scope is SwitchScope.STATE:
            self._carried(f"{title} before the first step", without_moments(plan), trained.start)
        return self._carried(title, plan, trained.end)

    def _carried(self, title: str, plan: SwitchPlan, at: _Moment) -> tuple[BitsReport, HeldByRank]:
        layouts = self.strategies.layouts(plan.target)
        found, traffic = carry_together(plan, at.held(), layouts)
        placed = self.strategies.placed(plan.target)
        wanted = {rank: resliced(at.wholes, placed.get(rank)) for rank in layouts}
        keys = {rank: _keys(plan, layouts[rank], wanted[rank]) for rank in layouts}
        return _report(check_same_bits(title, found, wanted, keys), traffic), found

    def _gradients(self, plan: SwitchPlan, there: HeldByRank) -> BitsReport:
        """Gradients of a step under the source, from parameters that came from the target."""
        placed = self.strategies.placed(plan.source)
        states = {own.rank: there[rank].state for rank, own in placed.items()}
        ranks = ranks_from(self.strategies.programs[plan.source], states)
        lockstep_step(ranks, self.batches[plan.source], None, 1)
        grads: dict[str, Tensor] = {}
        for rank in ranks:
            shards = {shard.name: shard for shard in rank.plan.program.shards}
            for name, row in owned_grads(shards.values(), rank.state.synced).items():
                place(grads, shards[name], row)
        layouts = self.strategies.layouts(plan.target)
        before = _held(
            self.strategies, plan.source, {rank.plan.program.rank: rank.state for rank in ranks}, {}
        )
        found, traffic = carry_together(plan, before, layouts)
        wanted = {rank: _cut_grads(grads, layout) for rank, layout in layouts.items()}
        keys = {rank: [(name, GRAD) for name in of.state.synced] for rank, of in wanted.items()}
        title = f"the way back of gradients {plan.source}:{plan.target}"
        return _report(check_same_bits(title, found, wanted, keys), traffic)


@dataclass(frozen=True, slots=True)
class _Moment:
    """What all ranks of a strategy hold between steps, and the same as whole tensors."""

    strategies: ProvenStrategies
    name: str
    states: Mapping[int, RankState[Tensor]]
    moments: Mapping[int, Mapping[str, Mapping[str, Tensor]]]
    wholes: Wholes

    @classmethod
    def of(
        cls, strategies: ProvenStrategies, name: str, ranks: Sequence[Rank], update: ShardUpdate
    ) -> _Moment:
        states = {rank.plan.program.rank: _copied(rank.state) for rank in ranks}
        moments = {
            rank: {of: dict(each) for of, each in own.state.items()}
            for rank, own in update.optimizers.items()
        }
        return cls(strategies, name, states, moments, gathered(ranks, moments))

    def held(self) -> HeldByRank:
        """By world rank; a switch lets go of what it holds, and not of this."""
        states = {rank: _copied(state) for rank, state in self.states.items()}
        return _held(self.strategies, self.name, states, self.moments)


@dataclass(frozen=True, slots=True)
class _Trained:
    """A strategy before its first step and behind it."""

    start: _Moment
    end: _Moment

    @classmethod
    def after_a_step(cls, proof: BitsProof, name: str) -> _Trained:
        ranks = start_ranks(proof.strategies.programs[name], proof.state)
        update = ShardUpdate(proof.config)
        start = _Moment.of(proof.strategies, name, ranks, update)
        start = replace(start, states={rank: _cloned(state) for rank, state in start.states.items()})
        lockstep_step(ranks, proof.batches[name], update)
        return cls(start, _Moment.of(proof.strategies, name, ranks, update))


def _held(
    strategies: ProvenStrategies,
    name: str,
    states: Mapping[int, RankState[Tensor]],
    moments: Mapping[int, Mapping[str, Mapping[str, Tensor]]],
) -> HeldByRank:
    """All world ranks, those that the strategy doesn't use with nothing."""
    found: HeldByRank = {}
    for rank in range(len(strategies.world)):
        own = strategies.at(name, rank)
        found[rank] = HeldState(StateLayout.of(own))
        if own is not None:
            found[rank].state = states[own.rank]
            found[rank].moments = {of: dict(each) for of, each in moments.get(own.rank, {}).items()}
    return found


def _copied(state: RankState[Tensor]) -> RankState[Tensor]:
    """The same tensors, to be let go of one by one."""
    return RankState(dict(state.params), stored=dict(state.stored), synced=dict(state.synced))


def _cloned(state: RankState[Tensor]) -> RankState[Tensor]:
    """Tensors that a step does not change."""
    return RankState(
        {name: value.clone() for name, value in state.params.items()},
        stored={name: value.clone() for name, value in state.stored.items()},
    )


def _keys(plan: SwitchPlan, layout: StateLayout, wanted: HeldState) -> list[TensorKey]:
    if plan.scope is SwitchScope.STATE:
        return list(wanted.tensor_keys())
    return [key for key, _ in layout.needs(plan.scope, ())]


def _cut_grads(grads: Mapping[str, Tensor], layout: StateLayout) -> HeldState:
    made = HeldState(layout)
    for (name, kind), _ in layout.needs(SwitchScope.GRADS, ()):
        shard = layout.shards[name]
        view = grads[name].view(shard.whole_view)
        boxes = pairs(shard, needed(shard, kind, SwitchScope.GRADS, layout.gradients))
        empty = torch.zeros(0, dtype=layout.dtype((name, kind)))
        if is_run(shard, kind):
            made.state.synced[name] = torch.cat([empty, *(view[slices(box)].reshape(-1) for box, _ in boxes)])
            continue
        local = empty.new_zeros(shard.shape)
        for whole, box in boxes:
            local.view(shard.view)[slices(box)] = view[slices(whole)]
        made.state.synced[name] = local
    return made


def _report(tensors: int, traffic: SwitchTraffic) -> BitsReport:
    return BitsReport(tensors, traffic.messages, traffic.moved_bytes)
