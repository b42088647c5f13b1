"""One attention of a sequence over unequal members, both passes, in each form: bytes, seconds, memory.

    python benchmarks/sequences.py [--tokens 1024,4096] [--cut balanced] [--steps N] [--json OUT]

Four local ranks over gloo: a member of tensor parallelism 2 with half of the tokens, and two of one rank.
`ring, one by one` is the ring whose transfers begin when they are waited for. `peak`: what the process that
held most held at a time, beyond its operands.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor

from hspmd_compiler.base.comm_plan import CommStep
from hspmd_compiler.base.context import ContextCut, ContextForm, member_runs, row_pieces
from hspmd_compiler.program.codegen import SegmentFunction, compile_segment
from hspmd_compiler.program.context.forms import (
    AttentionKind,
    ContextGroup,
    ContextMember,
    Numbering,
    Operands,
)
from hspmd_compiler.program.context.prices import form_steps, step_volumes
from hspmd_compiler.program.context.rows import attention_rows
from hspmd_compiler.program.program import InputKind, OutputKind, Segment, SegmentInput, SegmentOutput, Value
from hspmd_compiler.program.requests import comm_request
from hspmd_compiler.runtime.members import ProgramMembers
from hspmd_compiler.runtime.start.processes import run_ranks
from hspmd_compiler.runtime.start.rank_process import Emit, LocalRank
from hspmd_compiler.runtime.start.rendezvous import listen, use_loopback
from hspmd_compiler.runtime.torch_transport import TorchDist

HEADS, KV_HEADS, WIDTH = 8, 2, 64
DEGREES, SHARES = (2, 1, 1), (2, 1, 1)
RANKS = tuple(range(sum(DEGREES)))
TIMEOUT = timedelta(minutes=5)
KB, MB = 1 << 10, 1 << 20
FORMS = (
    (ContextForm.RING, True),
    (ContextForm.RING, False),
    (ContextForm.GATHER, True),
    (ContextForm.HEADS, True),
)
"""(form, whether transfers start before they are waited for)."""


def group_of(tokens: int, cut: ContextCut) -> ContextGroup:
    """The members, their heads even among their ranks."""
    lengths = [tokens * share // sum(SHARES) for share in SHARES]
    lengths[0] += tokens - sum(lengths)
    kind = AttentionKind(HEADS // KV_HEADS, WIDTH, WIDTH)
    ranks, members = iter(RANKS), []
    for degree, runs in zip(DEGREES, member_runs(row_pieces(lengths, cut), len(lengths)), strict=True):
        places = [
            tuple((total * at // degree, total * (at + 1) // degree) for at in range(degree))
            for total in (HEADS, KV_HEADS)
        ]
        members.append(ContextMember(tuple(next(ranks) for _ in range(degree)), *places, runs))
    return ContextGroup(tuple(members), kind)


class RankAttention:
    """One rank's part of both passes."""

    def __init__(self, rank: int, form: ContextForm, group: ContextGroup, starts: bool) -> None:
        self._member = next(at for at, member in enumerate(group.members) if rank in member.ranks)
        self._place = group.members[self._member].ranks.index(rank)
        self._passes = [self._compiled(form, group, backward, starts) for backward in (False, True)]
        member = group.members[self._member]
        torch.manual_seed(rank)
        heads, kv_heads = (own[self._place] for own in (member.heads, member.kv_heads))
        sizes = [(1, high - low, member.tokens, WIDTH) for low, high in (heads, kv_heads, kv_heads, heads)]
        self._given = [torch.randn(size) for size in sizes]

    def _compiled(
        self, form: ContextForm, group: ContextGroup, backward: bool, starts: bool
    ) -> tuple[SegmentFunction, Sequence[CommStep]]:
        values = [Value(number) for number in range(6 if backward else 3)]
        q, k, v, *rest = values
        fresh = map(Value, count(len(values)))
        operands = Operands(q, k, v, None, *rest)
        rows = attention_rows(
            form, group, self._member, operands, Numbering(lambda: next(fresh), 0, 0, backward * 64)
        )
        inputs = [SegmentInput(InputKind.MICRO, value) for value in values]
        outputs = [SegmentOutput(OutputKind.MICRO, value) for value in rows.outputs]
        segment = Segment("attention", inputs, rows.rows, outputs)
        run = compile_segment(segment, rows.literals[self._place], starts=starts)
        return run, rows.steps[self._place]

    def step(self, transport: TorchDist) -> None:
        """Forward and backward."""
        q, k, v, grad = self._given
        out, lse = self._run(0, [q, k, v], transport)
        self._run(1, [q, k, v, grad, out, lse], transport)

    def _run(self, which: int, inputs: Sequence[Tensor], transport: TorchDist) -> tuple[Tensor, ...]:
        function, steps = self._passes[which]
        run, answer = function(*inputs), None
        try:
            while True:
                slot, value, overwrite = run.send(answer)  # type: ignore[arg-type]
                answer = transport.answer(comm_request(steps[slot], value, overwrite))
        except StopIteration as end:
            outputs: tuple[Tensor, ...] = end.value
            return outputs


def measured(form: ContextForm, starts: bool, group: ContextGroup, steps: int) -> dict[str, float]:
    """Medians over steps, of the rank that takes longest; peak of the one that holds most."""
    records: list[Mapping[str, float]] = []
    with listen() as listener:
        port = listener.getsockname()[1]

        def body(local: LocalRank, emit: Emit) -> None:
            torch.set_num_threads(1)
            use_loopback()
            own = os.dup(listener.fileno()) if local.rank == 0 else None
            store = dist.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", port, len(RANKS), local.rank == 0, TIMEOUT, False, master_listen_fd=own
            )
            dist.init_process_group(
                "gloo", store=store, rank=local.rank, world_size=len(RANKS), timeout=TIMEOUT
            )
            transport = TorchDist(torch.device("cpu"), [RANKS], TIMEOUT, ProgramMembers.all_of(len(RANKS)))
            attention = RankAttention(local.rank, form, group, starts)
            RankAttention(local.rank, form, group_of(len(RANKS), ContextCut.BALANCED), starts).step(transport)
            before, times = _held(), []
            for _ in range(steps + 1):
                dist.barrier()
                cpu_s, wall_s = process_time(), perf_counter()
                attention.step(transport)
                times.append((perf_counter() - wall_s, process_time() - cpu_s))
            wall_s, cpu_s = (median(each[at] for each in times[1:]) for at in (0, 1))
            emit({"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": (_held() - before) * KB / MB})
            dist.barrier()
            dist.destroy_process_group()

        run_ranks(RANKS, body, records.append)
    return {name: max(record[name] for record in records) for name in ("wall_s", "cpu_s", "peak_mb")}


def _held() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def moved_mb(form: ContextForm, group: ContextGroup) -> float:
    """Of both passes, between ranks."""
    steps = [each for backward in (False, True) for each in form_steps(form, group, backward).values()]
    return sum(sum(step_volumes(each).values()) for each in steps) / MB


def main() -> int:
    parser = ArgumentParser()
    parser.add_argument("--tokens", default="1024,2048,4096,8192")
    parser.add_argument("--cut", default=ContextCut.BALANCED.value, choices=[cut.value for cut in ContextCut])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    table = Table("tokens", "form", "MB moved", "s, slowest rank", "CPU s of it", "peak MB")
    for tokens in map(int, options.tokens.split(",")):
        group = group_of(tokens, ContextCut(options.cut))
        for form, starts in FORMS:
            name = form.value if starts else f"{form.value}, one by one"
            row = measured(form, starts, group, options.steps)
            found.append({"tokens": tokens, "form": name, "moved_mb": moved_mb(form, group), **row})
            figures = (found[-1][key] for key in ("moved_mb", "wall_s", "cpu_s", "peak_mb"))
            table.add_row(str(tokens), name, *(f"{figure:.3f}" for figure in figures))
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
