"""What a rank's fx graph takes, cut from whole tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hspmd_compiler.program.execute import plan_rank
from hspmd_compiler.program.kernels.random_kernels import step_keys
from hspmd_compiler.program.literals import torch_dtype
from hspmd_compiler.program.program import ZERO_PARAMS, Program
from hspmd_compiler.program.sized.micro_batches import micro_batches
from hspmd_compiler.runtime.shards import cut_shard


def rank_arguments(
    program: Program,
    rank: int,
    params: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    seed: int = 0,
    step: int = 0,
) -> list[Tensor]:
    """What `rank_module` takes. seed, step: of dropout, as `Engine.seed` and `Engine.steps`."""
    plan = plan_rank(program, rank)
    by_name = {program.aliases.get(key, key): value for key, value in params.items()}
    shards = []
    for name, shard in plan.shards.items():
        local = cut_shard(shard, by_name[name].detach(), torch.device("cpu"))
        shards.append(local if shard.zero >= ZERO_PARAMS else local.to(torch_dtype(shard.local_dtype)))
    rows = micro_batches(plan, batch)
    keys = step_keys(plan.program.rows, seed, step) if plan.shared.draws else []
    return [*shards, *(of[key] for of in rows for key in program.inputs), *keys]
