"""A rank's step as an fx graph: alone like the executor, and three of them together like eager."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx

import hspmd_compiler as hspmd
from hspmd_compiler.errors import RunError
from hspmd_compiler.models.models import ModelSource, load_model
from hspmd_compiler.program.fx.to_fx import rank_module
from hspmd_compiler.program.program import ZERO_GRADS, Program
from hspmd_compiler.program.trained import as_local
from hspmd_compiler.runtime.start.processes import run_ranks
from hspmd_compiler.runtime.start.rank_process import Emit, LocalRank
from hspmd_compiler.runtime.start.rendezvous import listen, use_loopback
from hspmd_compiler.runtime.torch_transport import of_process_group
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.trace.tracer import trace
from hspmd_compiler.verify.eager import EagerResult, eager_step, whole_state
from hspmd_compiler.verify.equality import check_equal, differences, gradient_floor
from hspmd_compiler.verify.shards import join_shards
from hspmd_compiler.verify.single_device import single_device_program
from hspmd_compiler.verify.values import simulate

from .rank_arguments import rank_arguments

Batch = dict[str, Tensor]
SAMPLES, SEQ, VOCAB = 3, 8, 50
ALONE = Strategy((PipelineSpec((StageSpec((0,), (0, 2)),), (SAMPLES,)),))
ALONE_TWICE = Strategy((PipelineSpec((StageSpec((0,), (0, 2)),), (2, 1)),))
STAGES = Strategy((PipelineSpec((StageSpec((0, 1), (0, 1)), StageSpec((2,), (1, 2))), (2, 1)),))
PIPELINES = Strategy(
    (PipelineSpec((StageSpec((0, 1), (0, 2)),), (1, 1)), PipelineSpec((StageSpec((2,), (0, 2)),), (1,))),
    sequence_parallel=True,
)
ALIKE = Strategy(tuple(PipelineSpec((StageSpec((device,), (0, 2)),), (1,)) for device in range(3)))
TOLERANCE = 1e-5
NARROW = 3e-2
"""Of bfloat16, which has 8 bits."""


def source(name: str) -> ModelSource:
    sizes = {"layers": "2", "heads": "4", "hidden": "32", "seq": str(SEQ), "vocab": str(VOCAB)}
    return load_model(name, sizes)


def model_and_batch(name: str) -> tuple[torch.nn.Module, Batch]:
    torch.manual_seed(0)
    model = source(name).build()[0]
    ids = torch.randint(VOCAB, (SAMPLES, SEQ))
    labels = ids.clone()
    labels[1, 3:] = -100
    return model, {"input_ids": ids, "labels": labels}


@pytest.mark.parametrize(("name", "strategy"), [("gpt2-tiny", ALONE), ("llama-tiny", ALONE_TWICE)])
def test_a_compiled_rank_equals_the_executor_bit_for_bit(name: str, strategy: Strategy) -> None:
    program = hspmd.compile(source(name), strategy=strategy)
    model, batch = model_and_batch(name)
    arguments = rank_arguments(program.artifact.program, 0, whole_state(model), batch)
    found = program.fx(0)(*arguments)
    executed = simulate(program.artifact.program, whole_state(model), [batch])
    assert found["loss"].item() == executed.losses[0]
    assert all(torch.equal(found["grads"][key], value) for key, value in executed.grads[0].items())
    expected = eager_step(model, batch, widen=False)
    found_all = differences(found["grads"], expected.grads, gradient_floor(expected.grads))
    check_equal(found_all, TOLERANCE, "gradients")


def test_the_graph_is_readable_and_can_be_rewritten() -> None:
    module = hspmd.compile(source("llama-tiny"), strategy=STAGES).fx(0)
    text = str(module.graph)
    assert "%model_embed_tokens_weight" in text and "%input_ids_1" in text
    assert "torch.ops.aten.mm.default" in text and "fx_comm.all_reduce" in text and "fx_comm.send" in text
    before = len(module.graph.nodes)
    module.graph.eliminate_dead_code()
    sends = [node for node in module.graph.nodes if node.op == "call_function" and "send" in node.name]
    assert len(sends) == 3 and len(module.graph.nodes) <= before
    copied = fx.GraphModule(module, module.graph)
    assert "fx_comm" in copied.code


def test_several_ranks_need_a_process_group() -> None:
    program = hspmd.compile(source("llama-tiny"), strategy=STAGES).artifact.program
    model, batch = model_and_batch("llama-tiny")
    with pytest.raises(RunError, match="one of 3 ranks"):
        rank_module(program, 0, of_process_group)(*rank_arguments(program, 0, whole_state(model), batch))


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("gpt2-tiny", STAGES),
        ("llama-tiny", replace(PIPELINES, bucket_bytes=5000)),
        ("gpt2-tiny", replace(ALIKE, zero=3)),
        pytest.param("gpt2-tiny", replace(PIPELINES, zero=1), marks=pytest.mark.slow),
        pytest.param("llama-tiny", replace(PIPELINES, zero=2), marks=pytest.mark.slow),
        pytest.param("llama-tiny", replace(PIPELINES, zero=3), marks=pytest.mark.slow),
    ],
    ids=["stages", "pipelines", "zero 3 inside", "zero 1", "zero 2", "zero 3"],
)
def test_three_processes_equal_eager(name: str, strategy: Strategy, tmp_path: Path) -> None:
    program = hspmd.compile(source(name), strategy=strategy).artifact.program
    model, batch = model_and_batch(name)
    run_three(program, whole_state(model), batch, tmp_path)
    compare(program, tmp_path, eager_step(model, batch, widen=False))


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 3])
def test_bfloat16_equals_the_executor(zero: int, tmp_path: Path) -> None:
    """Local copies are read in bfloat16; what is summed over ranks is float32. How many threads share a sum
    decides how bfloat16 rounds it, and each of the three has one only."""
    strategy = replace(ALIKE, zero=zero)
    program = hspmd.compile(source("gpt2-tiny"), strategy=strategy, precision="bfloat16").artifact.program
    model, batch = model_and_batch("gpt2-tiny")
    run_three(program, whole_state(model), batch, tmp_path)
    executed = simulate(program, whole_state(model), [batch])
    compare(program, tmp_path, EagerResult(executed.losses[0], executed.grads[0]), NARROW)


def run_three(program: Program, state: Mapping[str, Tensor], batch: Batch, folder: Path) -> None:
    """Two steps on three gloo ranks; each rank writes what the second gave."""
    with listen() as listener:
        port = listener.getsockname()[1]

        def body(local: LocalRank, emit: Emit) -> None:
            torch.set_num_threads(1)
            use_loopback()
            own = os.dup(listener.fileno()) if local.rank == 0 else None
            wait = timedelta(seconds=30)
            store = dist.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", port, 3, local.rank == 0, wait, False, master_listen_fd=own
            )
            dist.init_process_group("gloo", store=store, rank=local.rank, world_size=3, timeout=wait)
            module = rank_module(program, local.rank, of_process_group)
            arguments = rank_arguments(program, local.rank, state, batch)
            module(*arguments)
            torch.save(module(*arguments), folder / f"{local.rank}.pt")
            dist.barrier()
            dist.destroy_process_group()

        run_ranks((0, 1, 2), body, lambda record: None)


def compare(program: Program, folder: Path, expected: EagerResult, tolerance: float = TOLERANCE) -> None:
    found = [torch.load(folder / f"{own.rank}.pt") for own in program.ranks]
    losses = {result["loss"].item() for result in found}
    assert len(losses) == 1 and abs(losses.pop() - expected.loss) <= tolerance * abs(expected.loss)
    held: dict[str, list[tuple[int, object, Tensor]]] = {}
    for own, result in zip(program.ranks, found, strict=True):
        shards = {shard.name: shard for shard in own.shards}
        for name, grad in result["grads"].items():
            shard = shards[name]
            if shard.zero >= ZERO_GRADS:
                shard, grad = replace(shard, boxes=shard.owned), as_local(shard, grad)
            held.setdefault(name, []).append((own.rank, shard, grad))
    grads = {name: join_shards(name, parts) for name, parts in held.items()}  # type: ignore[arg-type]
    check_equal(differences(grads, expected.grads, gradient_floor(expected.grads)), tolerance, "gradients")


class Counting(torch.nn.Module):
    """A buffer that each step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1)
        return (x * self.weight).square().mean()


def test_changed_buffers_are_given_back() -> None:
    example = {"x": torch.randn(2, 4)}
    program = single_device_program(trace(Counting(), example, batch=2))
    found = rank_module(program, 0)(*rank_arguments(program, 0, whole_state(Counting()), example))
    assert {name: value.item() for name, value in found["buffers"].items()} == {"seen": 1.0}
