"""One rank of a compiled program: takes batches, trains its shards, goes on under other programs."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Self

import torch
from torch import Tensor

from ..artifact.proved_loss import LossKind
from ..base.log import logger
from ..errors import HspmdError
from ..options import PLAIN, Arithmetic, OptimizerConfig
from ..program.execute import RankState
from ..program.kernels.index_check import outside_error
from ..program.program import ClassProgram, Program, RankProgram, Shard
from ..program.requests import ExchangeStart, LossReduce, OptimizerStep, ReduceStart, Request
from ..program.sized.plan_check import check_plan
from ..program.sized.step_plan import StepPlan
from ..program.switch_plan import SwitchPlan
from ..program.trained import started, trained_value
from .active import ActiveProgram
from .agreed_plan import agree, missing_plan, needless_plan
from .batches.buckets import CountedLabels
from .batches.data import Batch, BatchShape
from .hot.hot_step import HotSteps
from .hot.parts import StepPart, weighed
from .optimizer import ShardOptimizer
from .step_checks import StepChecks, checking
from .strategies import Strategies, StrategyProgram, SwitchRecord
from .switching.carry import carry
from .switching.held import HeldState, StateLayout
from .switching.stages import without_moments
from .timing.step_timer import Untimed
from .transaction import Transaction
from .transport import Transport
from .whole_state import WholeState


class Engine(WholeState):
    """A rank's program, ready to step. Ranks must call the same methods in the same order.

    params: what `fill_shard` gives of parameters and buffers, by name, or a whole state; taken over. lr: the
    base learning rate, which the schedule scales; it may be set between steps. grad_norm: of the last step,
    None where the optimizer has no `max_grad_norm`. seed: of dropout, with `steps` and the place of each
    element; it may be set between steps. places: host and device of each rank, and held_before: bytes that
    this one held before its parameters, where a launcher knows. timing: told what a step does; it may be set
    between steps. strategies: those that it can switch between, if there are several. strategy: the one
    under which it takes steps. active: its program, and what this rank holds of it. hot: what `hot_step` has
    made ready. transaction: the end of each step. arithmetic: how it computes.
    """

    def __init__(
        self,
        program: Program,
        optimizer: OptimizerConfig,
        transport: Transport,
        params: dict[str, Tensor] | HeldState,
        strategies: Strategies | None = None,
        strategy: str = "",
        arithmetic: Arithmetic = PLAIN,
    ) -> None:
        self.transport = transport
        self.arithmetic = arithmetic
        self.optimizer = ShardOptimizer(optimizer, arithmetic.deterministic)
        self.lr = optimizer.lr
        self.seed = 0
        self.grad_norm: float | None = None
        self.places: tuple[str, ...] = ()
        self.held_before = 0
        self.timing = Untimed()
        self.transaction = Transaction(self)
        self._switchable = strategies or Strategies({"": StrategyProgram.only(program, transport.rank)})
        self._known: dict[str, ActiveProgram] = {}
        self.hot: HotSteps | None = None
        self.strategy = strategy
        self.active = self._activated(strategy, self._switchable.named(strategy))
        if self.rank == 0 and self.active.sizes and (arithmetic.torch_compile or arithmetic.cuda_graphs):
            logger.warning("sizes change with every step: the program runs as it stands, not compiled")
        if isinstance(params, HeldState):
            self.active.state, self.optimizer.state = params.state, params.moments
        else:
            self.active.state = started(self.active.shards, params)

    @property
    def strategies(self) -> tuple[str, ...]:
        """Names of the strategies that it can switch between; "" is the only one of an artifact."""
        return tuple(self._switchable.programs)

    @property
    def program(self) -> Program:
        """The program that is run."""
        return self.active.program

    @property
    def shape(self) -> BatchShape:
        """What a batch must look like."""
        return self.active.shape

    @property
    def keys(self) -> frozenset[str]:
        """Inputs that this rank's program reads."""
        return self.active.keys

    @property
    def rank(self) -> int:
        """This process's rank in the run; a strategy that leaves processes idle numbers its own ranks."""
        return self.transport.rank

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Rows of the global batch that this rank takes, [low, high) per micro-batch."""
        return self.active.rows

    @property
    def rank_program(self) -> RankProgram:
        """What is this rank's own."""
        return self.active.own

    @property
    def class_program(self) -> ClassProgram:
        """The local code that this rank shares with others."""
        return self.active.shared

    @property
    def params(self) -> Mapping[str, Tensor]:
        """What this rank trains and saves of parameters and buffers: local shards, or rows of elements."""
        return {shard.name: trained_value(shard, self.active.state) for shard in self.shards}

    @property
    def shards(self) -> list[Shard]:
        """Where this rank's shards lie in the whole tensors."""
        return self.active.shards

    @property
    def updated(self) -> frozenset[str]:
        """Parameters that a step updates on this rank: those that get a gradient."""
        return self.active.updated

    @property
    def steps(self) -> int:
        """Optimizer steps taken."""
        return self.optimizer.steps

    @property
    def current_lr(self) -> float:
        """The learning rate of the next step: base times schedule."""
        return self.optimizer.config.lr_at(self.steps, self.lr)

    @torch.no_grad()
    def step(self, batch: Mapping[str, Tensor], plan: StepPlan | None = None, local: bool = False) -> float:
        """Train on one batch and return its loss, the same on every rank.

        batch: the global batch; with `local` only this rank's rows (`rows`, one micro-batch after
        the other) of the inputs it reads (`keys`). plan: of a program whose sizes each step chooses, the
        micro-batches of this one; of packed tokens the batch is one row then, in which they lie. RunError on
        every rank, before anything is updated, where ranks were given different batches or plans, or an index
        lies outside of its table.
        """
        call = "step(local=True)" if local else "step"
        if plan is not None or self.active.sizes is not None:
            with self.transport.call(f"plan of a {call}", meets=False):
                self.choose(plan)
        micro_batches = self.active.of_local(batch) if local else self.active.of_global(batch)
        with (
            self.transport.call(call, meets=False),
            checking(
                self.transport,
                self.active.batches,
                batch,
                local,
                self.steps + 1,
                self.settings,
                self.transaction.vote,
            ) as checks,
        ):
            return self._run(micro_batches, checks)

    def choose(self, plan: StepPlan | None) -> None:
        """Take the sizes of a step, which all ranks must choose alike: nothing is exchanged before that."""
        sizes = self.active.sizes
        if sizes is None:
            raise needless_plan()
        problem: HspmdError | None = None
        try:
            if plan is None:
                raise missing_plan(sizes)
            check_plan(plan, sizes)
            self.active.choose(plan)
        except HspmdError as error:
            problem = error
        agree(plan, problem, self.active.batches, self.transport, self.steps + 1)

    @torch.no_grad()
    def hot_step(
        self,
        parts: Sequence[StepPart],
        kind: LossKind | None = None,
        counted: CountedLabels | None = None,
    ) -> float:
        """Train on global batches of several strategies at once, and return the loss of all of them.

        Parameters flow to each strategy and gradients back; the update is that of `strategy`, whose state of
        the optimizer stays. Parts without weights weigh by what the loss was proved to be;
        kind, counted: what you take it to be, which is refused where it is another.
        """
        weighed_parts = weighed(parts, self._switchable.loss, kind, counted)
        with self.transport.call("hot_step", meets=False):
            if self.hot is None or self.hot.home != self.strategy:
                known = self._switchable
                self.hot = HotSteps(self, known, lambda name: self._activated(name, known.named(name)))
            return self.hot.step(weighed_parts)

    def close(self) -> None:
        """Leave the other ranks, behind the last call; the end of the process does so, too.

        What this engine has made of process groups is taken down, but no group of the user's own.
        """
        self.transport.close()

    def __enter__(self) -> Self:
        """`with hspmd.load(...) as engine:` closes it behind the block; others hear of its error."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.transport.tell_end(f"{type(error).__name__}: {error}")
        self.close()

    @property
    def settings(self) -> dict[str, str]:
        """What all ranks must take a step with alike."""
        return {"lr": repr(self.current_lr), "seed": str(self.seed), "steps": str(self.steps)}

    def switch_to(self, name: str) -> SwitchRecord:
        """Go on under another strategy: the state moves, bit for bit, and no rank starts anew.

        Every rank calls this between steps, also one that either strategy leaves idle. Gradients of the last
        step are let go. RunError, with nothing moved, where there is no such strategy, or no plan.
        """
        target = self._switchable.named(name)
        source, start = self.strategy, perf_counter()
        moved = 0
        if name != source:
            plan = self._switchable.plan(source, name)
            with self.transport.call(f"switch_to({name})"), torch.no_grad():
                moved = self.adopt(name, target, plan if self.steps else without_moments(plan))
        return SwitchRecord(self.steps + 1, source, name, moved, perf_counter() - start)

    def adopt(self, name: str, target: StrategyProgram, plan: SwitchPlan, keep_source: bool = False) -> int:
        """Carry the state to a program, and go on with that; the bytes that moved between ranks.

        keep_source: what was held before is left whole, for who has kept it, at the cost of its memory.
        """
        self.transport.finish_sends()
        active, sent = self._activated(name, target), [0]
        held = carry(
            plan,
            self.rank,
            self.held(),
            StateLayout.of(target.own),
            self.transport,
            self._switchable.round_bytes,
            keep_source,
            lambda size: sent.append(size),
        )
        self.transport.serve(target.members)
        self.active.state = RankState({})
        self.strategy, self.active = name, active
        active.state, self.optimizer.state = held.state, held.moments
        total = torch.tensor(float(sum(sent)), dtype=torch.float64, device=self.transport.device)
        return int(self.transport.sum_over_ranks(total))

    def held(self) -> HeldState:
        """The state that this rank has, as a switch takes it."""
        own = None if self.active.is_idle else self.active.own
        return HeldState(StateLayout.of(own), self.active.state, self.optimizer.state)

    def _activated(self, name: str, target: StrategyProgram) -> ActiveProgram:
        """The program ready to run; one that was run before is so still."""
        known = self._known.get(name)
        if known is None or known.program is not target.program:
            rank = None if target.own is None else target.own.rank
            known = self._known[name] = ActiveProgram(
                target.program, rank, self.transport, RankState({}), self.arithmetic
            )
        return known

    def _idle(self, checks: StepChecks) -> float:
        """What a step asks of a process that the program doesn't use."""
        self.transaction.make_ready()
        loss = checks.sum_of(torch.zeros((), dtype=torch.float64, device=self.transport.device))
        self.update()
        return float(loss)

    def _run(self, micro_batches: list[Batch], checks: StepChecks) -> float:
        self.transaction.begin()
        if self.active.is_idle:
            return self._idle(checks)
        run = self.active.run(micro_batches, self.seed, self.steps, self.timing.finished)
        self.timing.begins()
        loss = self.drive(run, checks)
        self.transport.finish_sends()
        self.transaction.end()
        assert loss is not None, "a step ends with its loss"
        return float(loss)

    def drive(
        self,
        run: Generator[Request[Tensor], Tensor | None, Tensor | None],
        checks: StepChecks | None = None,
    ) -> Tensor | None:
        """Answer a step, or a part of one, to its end; what it ends with."""
        answer: Tensor | None = None
        try:
            while True:
                request = run.send(answer)
                answer = None
                if isinstance(request, OptimizerStep):
                    self.update()
                elif isinstance(request, ExchangeStart):  # waits for nobody: nothing to time
                    answer = self.transport.answer(request)
                elif isinstance(request, ReduceStart):
                    self.timing.starts(request)
                    answer = self.transport.answer(request)
                else:
                    if isinstance(request, LossReduce) and checks is not None and checks.vote is not None:
                        self.transaction.make_ready()
                    asked = partial(self._answer, request, checks)
                    answer = self.timing.exchanges(request, asked)
                    del asked
                del request
        except StopIteration as end:
            ended: Tensor | None = end.value
            return ended
        except IndexError as error:  # from an operator that refuses such an index itself
            raise outside_error([("an index", str(error), "")]) from error

    def _answer(self, request: Request[Tensor], checks: StepChecks | None) -> Tensor | None:
        if isinstance(request, LossReduce) and checks is not None:
            return checks.sum_of(request.value)
        return self.transport.answer(request)

    def update(self) -> None:
        """Clip, then update the shards from the synchronised gradients."""
        self.transaction.update()
