"""A compiled program as one process works on it: what its rank runs, takes of a batch, and trains."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor

from ..errors import InternalError, RunError
from ..options import PLAIN, Arithmetic
from ..program.arrays import TorchArrays
from ..program.codegen import SegmentCache
from ..program.compiled.making import segment_maker
from ..program.context.row_piece import PADDING, RowPiece
from ..program.execute import RankPlan, RankState, SegmentRunner, Walk, plan_rank, run_step
from ..program.kernels.random_kernels import step_keys
from ..program.program import OF_BATCH, ZERO_PARAMS, ClassProgram, Op, Program, RankProgram, Shard
from ..program.requests import Request, StepRun
from ..program.segments import CompiledSegments
from ..program.sized.documents import documents_key, documents_read, refuse_cut_documents
from ..program.sized.micro_batches import as_read
from ..program.sized.sized_run import SizedRun
from ..program.sized.step_plan import StepPlan
from ..program.state.state_elements import gradients_of
from .batches.batch_check import BatchCheck
from .batches.data import Batch, BatchShape
from .transport import Transport

Requests: TypeAlias = Generator[Request[Tensor], Tensor | None, None]
"""A part of a step, which leaves what it found in the rank's state."""
NOTHING = ClassProgram("", [])
"""The local code of a process that a program doesn't use."""


class ActiveProgram:
    """A program and the rank of it that runs here; it may be kept while another one is run.

    rank: None where the program doesn't use this process, which then takes no rows and holds nothing.
    state: what the rank holds, taken over. shape: what a batch must look like. rows: of the global batch
    that the rank takes, [low, high) per micro-batch. keys: inputs that its program reads. batches: compares
    what all ranks are given. sizes: of micro-batches that it takes, which each step chooses; None where it
    has its own. arithmetic: how it computes.
    """

    def __init__(
        self,
        program: Program,
        rank: int | None,
        transport: Transport,
        state: RankState[Tensor],
        arithmetic: Arithmetic = PLAIN,
    ) -> None:
        self.program = program
        self.rank = rank
        self.state = state
        self.sizes = program.sizes
        self.shape = BatchShape.of(program)
        self._device = transport.device
        self._arrays = TorchArrays(str(transport.device))
        self._plan: RankPlan | None = None if rank is None else plan_rank(program, rank)
        self._segments: SegmentRunner[Tensor] | None = None
        self._sized: SizedRun | None = None
        if self._plan is not None and self.sizes is not None:
            self._segments = self._sized = SizedRun(
                program, self._plan.program, str(transport.device), starts=True
            )
        elif self._plan is not None:
            device = str(transport.device)
            cache = SegmentCache(
                device, True, segment_maker(arithmetic.torch_compile, arithmetic.cuda_graphs, device)
            )
            self._segments = CompiledSegments(self._plan, cache)
        self.rows: list[tuple[int, int]] = [] if self._plan is None else self._plan.program.rows
        self._all_rows = sorted({rows for own in program.ranks for rows in own.rows})
        self.keys = inputs_read(self.shared)
        self._documents = documents_read(self.shared)
        self.batches = BatchCheck(transport, self._readers(), self.keys)

    def _readers(self) -> list[tuple[int, int]]:
        """What ranks have alike that take the same rows; where these change, the number of their pipeline, or
        of the first of those that share rows."""
        if self._plan is None or self.sizes is None:
            return self.rows
        first = self.sizes.group_of(self._plan.program.pipeline)[0]
        return [(first, first + 1)]

    def choose(self, plan: StepPlan) -> None:
        """Take the micro-batches of a step: batches have their sizes from now on."""
        if self.sizes is None:
            raise InternalError("a program of one size has no choice")
        self.shape = replace(self.shape, batch=plan.total(self.sizes.unit))
        self._all_rows = plan.rows(self.sizes.unit)
        if self._sized is not None:
            self._plan = self._sized.plan_for(plan)
            self.rows = self._plan.program.rows

    @property
    def is_idle(self) -> bool:
        """Whether the program doesn't use this process."""
        return self._plan is None

    @property
    def own(self) -> RankProgram:
        """What is this rank's own; there is none where the process is idle."""
        if self._plan is None:
            raise InternalError("the program has no rank for this process")
        return self._plan.program

    @property
    def piece(self) -> RowPiece | None:
        """The tokens of its samples that this rank runs, None: all of them."""
        return None if self._plan is None else self._plan.program.piece

    @property
    def shared(self) -> ClassProgram:
        """The local code that this rank shares with others."""
        return NOTHING if self._plan is None else self._plan.shared

    @property
    def shards(self) -> list[Shard]:
        """Where this rank's shards lie in the whole tensors."""
        return [] if self._plan is None else self._plan.program.shards

    @property
    def updated(self) -> frozenset[str]:
        """Parameters that a step updates on this rank: those that get a gradient."""
        return frozenset(() if self._plan is None else gradients_of(self._plan.program))

    def run(
        self, micro_batches: list[Batch], seed: int, step: int, finished: Callable[[int], None]
    ) -> StepRun[Tensor]:
        """One step of the rank, as `run_step` has it. seed, step: what masks are drawn from."""
        assert self._plan is not None and self._segments is not None, "a process that is idle runs no step"
        self.state.keys = step_keys(self.own.drawn_rows, seed, step)
        return run_step(self._plan, self.state, micro_batches, self._segments, self._arrays, finished)

    def gradients(
        self, micro_batches: list[Batch], seed: int, step: int, first: int, finished: Callable[[int], None]
    ) -> Requests:
        """A step up to its update. first: samples of the step that come before the batch."""
        rows = [(first + low, first + high) for low, high in self.rows]
        self.state.keys = step_keys(rows, seed, step)
        return self._walk(micro_batches, finished).gradients()

    def update(self, finished: Callable[[int], None]) -> Requests:
        """What is left of a step, whose synchronised gradients are there."""
        return self._walk([], finished).update()

    def _walk(self, micro_batches: list[Batch], finished: Callable[[int], None]) -> Walk[Tensor]:
        assert self._plan is not None and self._segments is not None, "a process that is idle runs no step"
        return Walk(self._plan, self.state, micro_batches, self._segments, self._arrays, finished)

    @property
    def gathers(self) -> bool:
        """Whether local copies come from other ranks behind the update."""
        ops = [] if self._plan is None else [each.op for each in self._plan.program.instructions]
        return Op.OPTIMIZER in ops and Op.PARAM_GATHER in ops[ops.index(Op.OPTIMIZER) :]

    def abandon(self) -> None:
        """Forget what a step that came to no end has left: it can be taken anew then."""
        state = self.state
        values = (state.micro, state.steps, state.grads, state.synced, state.buffers)
        for left in (*values, state.owned_grads, state.started, state.flats):  # sums may be under way there
            left.clear()
        state.loss = None
        for shard in self.shards:
            if shard.zero >= ZERO_PARAMS:
                state.params.pop(shard.name, None)

    def of_global(self, batch: Mapping[str, Tensor]) -> list[Batch]:
        """This rank's micro-batches of a global batch, checked."""
        self.shape.check(batch)
        self._check_padding(batch)
        self._check_documents(batch, self._all_rows, whole=True)
        return [
            self._placed(mb, {key: self._rows(batch[key], low, high) for key in self.keys})
            for mb, (low, high) in enumerate(self.rows)
        ]

    def _rows(self, value: Tensor, low: int, high: int) -> Tensor:
        return value.narrow(self.shape.dim, low, high - low)

    def _check_padding(self, batch: Mapping[str, Tensor]) -> None:
        if self.piece is None:
            return
        wrong = [text for rows in self.rows for text in self.piece.unblank(batch, rows)]
        if wrong:
            raise RunError("padding of samples counts", details=wrong, rule=PADDING)

    def of_local(self, batch: Mapping[str, Tensor]) -> list[Batch]:
        """The same of a batch that has this rank's rows only."""
        shape = self.shape.of_rows(self.rows, self.keys)
        wrong = shape.clashes(batch, shape.batch)
        if wrong:
            raise RunError(
                f"a local batch doesn't fit rank {self.rank}",
                details=wrong,
                rule=f"rank {self.rank} takes {shape.batch} {shape.unit} a step, those of rows {self.rows}",
            )
        shape.refuse_masking(batch)
        sizes, dim = [high - low for low, high in self.rows], self.shape.dim
        ends = [*accumulate(sizes)]
        rows = [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        self._check_documents(batch, rows, whole=False)
        parts = {key: torch.split(batch[key], sizes, dim) for key in self.keys}
        return [self._placed(mb, {key: parts[key][mb] for key in self.keys}) for mb in range(len(sizes))]

    def _check_documents(
        self, batch: Mapping[str, Tensor], rows: Sequence[tuple[int, int]], whole: bool
    ) -> None:
        """rows: of tokens, where a sample is one; whole: they are those of all ranks."""
        for name in self._documents:
            if self.shape.dim:
                refuse_cut_documents(name, [batch[name][0, low:high] for low, high in rows], whole)
            else:
                refuse_cut_documents(name, batch[name].unbind())

    def _placed(self, mb: int, micro_batch: Batch) -> Batch:
        """What of a micro-batch the rank reads, on its device; where documents begin stays on the host."""
        on_host = frozenset(map(documents_key, self._documents))
        every = as_read(micro_batch, self._documents, self.own.piece_of(mb))
        return {key: it if key in on_host else it.to(self._device) for key, it in every.items()}


def inputs_read(shared: ClassProgram) -> frozenset[str]:
    """Batch keys that a class program reads."""
    inputs = (item for segment in shared.segments for item in segment.inputs)
    return frozenset(item.name for item in inputs if item.kind in OF_BATCH)
