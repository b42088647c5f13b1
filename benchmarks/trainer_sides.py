"""The trainers that `trainers.py` puts beside a program: eager PyTorch, DDP, FSDP2, DTensor, pipelining.

Each makes its model of whole weights and takes the global batch, of which it trains its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
import trainer_models as models
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

LR = 1e-3
Batch = dict[str, Tensor]
State = dict[str, Tensor]
Step = Callable[[Batch], Tensor]
"""Trains on a global batch; the loss of what this rank has run."""


def optimizer_of(params: Iterable[nn.Parameter], fused: bool = True) -> torch.optim.Optimizer:
    """AdamW; kernels take either parameters in shards or plain ones."""
    held = list(params)
    kinds = ([p for p in held if isinstance(p, DTensor)], [p for p in held if not isinstance(p, DTensor)])
    groups = [{"params": each} for each in kinds if each]
    return torch.optim.AdamW(groups, lr=LR, weight_decay=0.0, fused=fused or None)


def whole(kind: str, state: State) -> nn.Module:
    """The model with these weights."""
    model = models.Trained(kind)
    model.load_state_dict(state)
    return model


def training(model: nn.Module, rows: Callable[[Batch], Batch], fused: bool = True) -> Step:
    """Forward, backward and update by autograd."""
    optimizer = optimizer_of(model.parameters(), fused)

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(**rows(batch))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def every(batch: Batch) -> Batch:
    """Rows of a rank that runs them all."""
    return batch


def own(batch: Batch) -> Batch:
    """Rows of one of several equal ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return {name: value.chunk(ranks)[rank] for name, value in batch.items()}


def eager(kind: str, state: State) -> Step:
    """PyTorch as most write it."""
    return training(whole(kind, state), every, fused=False)


def eager_fused(kind: str, state: State) -> Step:
    """The same with the fused optimizer."""
    return training(whole(kind, state), every)


def ddp(kind: str, state: State) -> Step:
    """DistributedDataParallel; gradients are views of its buckets."""
    return training(DistributedDataParallel(whole(kind, state), gradient_as_bucket_view=True), own)


def fsdp2(kind: str, state: State) -> Step:
    """Each layer a group, and what is left."""
    model = whole(kind, state)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return training(model, own)


def tensor_parallel(kind: str, state: State) -> Step:
    """Megatron's cut of each layer, by DTensor."""
    model = whole(kind, state)
    columns, rows = ColwiseParallel, RowwiseParallel
    of_wide = {"up": columns(), "down": rows()}
    if kind == "mlp":
        plan = of_wide
    else:
        plan = {"q": columns(), "k": columns(), "v": columns(), "o": rows()}
        plan |= {f"wide.{name}": style for name, style in of_wide.items()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        parallelize_module(layer, mesh, {**plan})
    return training(model, every)


def pipelining(kind: str, state: State, micro_batches: int) -> Step:
    """1F1B on stages of as many layers each; the loss is the last stage's."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = models.LAYERS // ranks
    part = models.stage(kind, rank * each, (rank + 1) * each, state)
    stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=models.loss_of)
    optimizer = optimizer_of(part.parameters())

    def step(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        inputs = (batch["x"],) if rank == 0 else ()
        if rank == ranks - 1:
            schedule.step(*inputs, target=batch["y"], losses=losses, return_outputs=False)
        else:
            schedule.step(*inputs, return_outputs=False)
        optimizer.step()
        return torch.stack([loss.detach() for loss in losses]).mean() if losses else torch.zeros(())

    return step
