"""Steps of unlike sizes by one process for each rank, over gloo, beside eager on each whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch

from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.program import Program
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.shards import cut_shard
from hspmd_compiler.runtime.start.launch import fork_here
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.start.rendezvous import RankPlace, Timeouts, connect
from hspmd_compiler.runtime.start.roll_call import Report, agreed_shortcuts, shortcuts_of
from hspmd_compiler.runtime.strategies import StrategyProgram
from hspmd_compiler.verify.widen import widen_program

from .trained_steps import Given, StepEnd, Tensors

PATIENCE = timedelta(seconds=60)


def train_in_processes(
    program: Program,
    state: Tensors,
    steps: Sequence[Given],
    config: OptimizerConfig,
    kept: Path,
    widens: bool = True,
    takes_shortcuts: bool = False,
) -> tuple[list[StepEnd], Tensors]:
    """As `train_in_threads`. kept: a folder where ranks leave what they found.

    takes_shortcuts: as other backends do, where all ranks agree.
    """
    run = widen_program(program) if widens else program

    def rank(place: RankPlace, emit: Emit) -> None:
        torch.set_default_dtype(torch.float64 if widens else torch.float32)
        only = StrategyProgram.only(run, place.rank)
        connected = connect(place, {"": only}, {}, Timeouts(PATIENCE, PATIENCE))
        if takes_shortcuts:
            told = connected.transport.gather_objects(shortcuts_of(run.ranks[place.rank]))
            agreed = agreed_shortcuts([report_of(cast(Mapping[str, str], each)) for each in told])
            assert agreed
            only.members.shortcuts = frozenset(map(int, agreed))
        shards = run.ranks[place.rank].shards
        params = {each.name: cut_shard(each, state[each.name], torch.device("cpu")) for each in shards}
        engine = Engine(run, config, connected.transport, params)
        ends = []
        for plan, batch in steps:
            loss = engine.step(batch, plan)
            ends.append(StepEnd(loss, engine.grad_norm, engine.grads()))
        torch.save((ends, engine.state_dict()), kept / f"{place.rank}.pt")
        connected.transport.sum_over_ranks(torch.zeros(()))
        connected.transport.close()

    fork_here(run.world_size, rank, 1, lambda record: None)
    found = [torch.load(kept / f"{each}.pt", weights_only=False) for each in range(run.world_size)]
    assert all([end.loss for end in ends] == [end.loss for end in found[0][0]] for ends, _ in found)
    ends, params = found[0]
    return ends, params


def report_of(shortcuts: Mapping[str, str]) -> Report:
    return Report(0, "", 0, "", "", {}, shortcuts, {}, {})
