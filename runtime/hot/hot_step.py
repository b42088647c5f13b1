"""A step in parts, each under its own strategy; the optimizer's state stays at home.

For each strategy in turn: parameters flow out from home, its program runs its parts up to their synchronised
gradients, and the weighted sum of these flows back, to be added where the optimizer's state is. Home's own
parts come last. Then home updates, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, cast

import torch

from ...base.by_key import by_key
from ...errors import RunError
from ...program.execute import RankState
from ...program.switch_plan import SwitchPlan, SwitchScope
from ..active import ActiveProgram
from ..batches.data import Batch
from ..members import ProgramMembers
from ..step_checks import checking
from ..strategies import Strategies
from ..switching.carry import carry
from ..switching.held import HeldState, StateLayout
from .gradient_sum import WIDE, GradientSum
from .parts import WeighedPart
from .refusals import (
    PartRefusal,
    check_places,
    draws_from_the_first,
    reasons,
    refuse,
    sums_of,
)

if TYPE_CHECKING:
    from ..engine import Engine

OUT, COMPUTE, BACK, UPDATE = "parameters out", "compute", "gradients back", "update"
COUNTED_IN = (torch.float32, torch.float64)
"""Types in which a program's count of labels is exact."""
ReadyPart = tuple[WeighedPart, list[Batch]]
"""A part, and this rank's micro-batches of it."""


@dataclass(frozen=True, slots=True)
class HotStrategy:
    """A strategy that runs parts of a step. members: the processes that it uses.

    out, back: plans of its parameters and gradients; None for the strategy at home.
    """

    name: str
    active: ActiveProgram
    members: ProgramMembers
    out: SwitchPlan | None = None
    back: SwitchPlan | None = None

    @property
    def layout(self) -> StateLayout:
        """Where this process keeps what the strategy needs; gradients as they are added up."""
        layout = StateLayout.of(None if self.active.is_idle else self.active.own)
        wide = {name: WIDE.get(dtype, dtype) for name, dtype in layout.gradients.items()}
        return replace(layout, gradients=wide)


class HotSteps:
    """Steps of an engine whose optimizer's state stays where it is: at home. Every rank makes it.

    activated: a strategy's program on this process. seconds: of the last step, by what was done.
    """

    def __init__(
        self, engine: Engine, strategies: Strategies, activated: Callable[[str], ActiveProgram]
    ) -> None:
        self.home = engine.strategy
        self.seconds: dict[str, float] = {}
        self._engine = engine
        self._strategies = strategies
        self._activated = activated
        self._known: dict[str, HotStrategy] = {}
        self._miscounted: list[tuple[str, str]] = []
        self._placeless: frozenset[str] = frozenset()
        self._refuse()

    def _refuse(self) -> None:
        """RunError on every rank where any has a program that can't be run on a part of a batch."""
        held = {name: self._activated(name) for name in self._strategies.programs}
        used = {name: active for name, active in held.items() if not active.is_idle}
        found = [each for active in used.values() for each in reasons(active.own, active.shared)]
        placeless = [
            name
            for name, active in used.items()
            if draws_from_the_first(active.own, active.shared, active.shape.batch)
        ]
        told = cast(
            list[tuple[list[str], list[PartRefusal]]],
            self._engine.transport.gather_objects((placeless, found)),
        )
        self._placeless = frozenset(name for of, _ in told for name in of)
        refuse(each for _, of in told for each in of)

    def _strategy(self, name: str) -> HotStrategy:
        """A strategy with its plans, which are read when it is first used."""
        if name not in self._known:
            of = self._strategies.named(name)
            plans: list[SwitchPlan] = []
            if name != self.home:
                plans.append(self._strategies.plan(self.home, name, SwitchScope.PARAMS))
                plans.append(self._strategies.plan(name, self.home, SwitchScope.GRADS))
            self._known[name] = HotStrategy(name, self._activated(name), of.members, *plans)
        return self._known[name]

    @torch.no_grad()
    def step(self, parts: Sequence[WeighedPart]) -> float:
        """Train on all parts and return the loss of the step, the same on every rank.

        RunError on every rank, before anything is updated, where ranks were given different parts.
        """
        check_places(parts, self._placeless)
        self.seconds = dict.fromkeys((OUT, COMPUTE, BACK, UPDATE), 0.0)
        self._engine.transaction.begin()
        self._check_order(parts)
        batches = self._checked(parts)
        ready = zip(parts, batches, strict=True)
        by_strategy = by_key((part.strategy, (part, batch)) for part, batch in ready)
        total, loss = GradientSum(), 0.0
        try:
            for name in sorted(by_strategy, key=lambda name: name == self.home):
                run = self._gradients if name == self.home else self._away
                loss += run(self._strategy(name), by_strategy[name], total)
            with self._timed(UPDATE):
                self._update(total)
        finally:
            self._engine.transport.serve(self._strategy(self.home).members)
        return loss

    def _update(self, total: GradientSum) -> None:
        """The update of home, from the sum of all parts; who has passed the vote can take it alone."""
        engine, home = self._engine, self._strategy(self.home)
        self._serve(home)
        home.active.state.synced = total.total
        engine.transaction.make_ready()
        self._vote()
        if home.active.is_idle:
            engine.update()
        else:
            engine.drive(home.active.update(engine.timing.finished))
        engine.transport.finish_sends()
        engine.transaction.end()

    def _serve(self, own: HotStrategy) -> None:
        self._engine.transport.finish_sends()
        self._engine.transport.serve(own.members)

    def _check_order(self, parts: Sequence[WeighedPart]) -> None:
        """RunError on every rank where ranks have other strategies in their parts, or in another order."""
        engine = self._engine
        check = self._strategy(self.home).active.batches
        order = {"strategies of the parts": ", ".join(part.strategy for part in parts)}
        said = check.addend({}, False, order)
        addend = torch.tensor(said, dtype=torch.float64, device=engine.transport.device)
        total = float(engine.transport.sum_over_ranks(addend))
        check.check(total, {}, False, engine.steps + 1, order)

    def _checked(self, parts: Sequence[WeighedPart]) -> list[list[Batch]]:
        """This rank's micro-batches of each part, before anything moves."""
        return [self._strategy(part.strategy).active.of_global(part.batch) for part in parts]

    def _away(self, own: HotStrategy, parts: Sequence[ReadyPart], total: GradientSum) -> float:
        """Parts of another strategy: its parameters come, the sum of its gradients goes."""
        assert own.out is not None and own.back is not None, "only home has no plans"
        home = self._strategy(self.home)
        mover = self._engine.transport
        with self._timed(OUT):
            held = HeldState(home.layout, home.active.state)
            at_once = self._strategies.round_bytes
            own.active.state = carry(
                own.out, mover.rank, held, own.layout, mover, at_once, keep_source=True
            ).state
        summed = GradientSum()
        loss = self._gradients(own, parts, summed)
        own.active.state = RankState({})
        with self._timed(BACK):
            held = HeldState(own.layout, RankState({}, synced=summed.total))
            total.add(carry(own.back, mover.rank, held, home.layout, mover, at_once).state.synced)
        return loss

    def _gradients(self, own: HotStrategy, parts: Sequence[ReadyPart], total: GradientSum) -> float:
        """Add the weighted gradients of parts; their weighted loss."""
        loss = 0.0
        self._serve(own)
        for part, batch in parts:
            with self._timed(COMPUTE):
                loss += part.weight * self._loss(own, part, batch)
                total.add(own.active.state.synced, part.weight)
        return loss

    def _loss(self, own: HotStrategy, part: WeighedPart, batch: list[Batch]) -> float:
        """Run a part up to its gradients; its loss."""
        engine, active = self._engine, own.active
        settings = {
            **engine.settings,
            "strategy": own.name,
            "weight": repr(part.weight),
            "samples before": str(part.first),
        }
        check = checking(engine.transport, active.batches, part.batch, False, engine.steps + 1, settings)
        with check as checks:
            if active.is_idle:
                nothing = torch.zeros((), dtype=torch.float64, device=engine.transport.device)
                return float(checks.sum_of(nothing))
            run = active.gradients(batch, engine.seed, engine.steps, part.first, engine.timing.finished)
            engine.drive(run, checks)
        engine.transport.finish_sends()
        self._note_counts(own, part)
        assert active.state.loss is not None, "a step sums its loss"
        return float(active.state.loss)

    def _note_counts(self, own: HotStrategy, part: WeighedPart) -> None:
        """Note where the program divides by another number of labels than the part weighs."""
        if part.labels is None:
            return
        for number in sorted(sums_of(own.active.shared)):
            total = own.active.state.steps[number]
            if total.dtype in COUNTED_IN and bool(total.ne(part.labels).any()):
                found = f"{total.item():.10g}" if total.numel() == 1 else "several sums"
                said = f"its loss is the mean over {found} labels, it weighs as {part.labels}"
                self._miscounted.append((own.name, said))

    def _vote(self) -> None:
        """The last meeting of the step; RunError on every rank where one has noted a wrong count."""
        transport, vote, noted = self._engine.transport, self._engine.transaction.vote, self._miscounted
        self._miscounted = []
        said = torch.tensor([float(len(noted)), float(vote.enter())], device=transport.device)
        wrong, paused = transport.sum_over_ranks(said).tolist()
        if wrong:
            self._engine.transaction.abandon()
            told = cast(list[list[tuple[str, str]]], transport.gather_objects(noted))
            raise RunError(
                "parts of the step weigh other than their loss says",
                details=sorted({each for noted in told for each in noted}),
                rule="a part weighs as many labels as its loss is the mean over",
                fix="say which labels count, CountedLabels(key=..., ignored=..., first=...), or give weights",
            )
        vote.passed(bool(paused))

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = perf_counter()
        yield
        self.seconds[what] += perf_counter() - start
