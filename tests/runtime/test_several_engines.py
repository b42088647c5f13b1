"""Several engines in a process, and engines beside a process group of the user's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import RunError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.processes import run_ranks
from hspmd_compiler.runtime.start.rank_process import Emit, LocalRank
from hspmd_compiler.runtime.start.rendezvous import NEEDED, listen, use_loopback

from . import hand_made

SGD = OptimizerConfig(name=OptimizerName.SGD, lr=0.1)
WAIT_S = 60.0
RANKS = 3


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return hand_made.save(tmp_path / "artifact", SGD)


def expected(steps: int) -> list[float]:
    """Losses of one process, from the initial parameters of seed 0."""
    params = {name: tensor.requires_grad_() for name, tensor in hand_made.initial(0).items()}
    optimizer = torch.optim.SGD(params.values(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = hand_made.loss_of(params, hand_made.batch(step))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def opened(artifact: Path) -> Engine:
    return hspmd.load(artifact, timeout=WAIT_S, start_timeout=WAIT_S)


def trained(engine: Engine) -> float:
    return engine.step(hand_made.batch(engine.steps))


def on_processes(count: int, check: Callable[[int], None]) -> None:
    """Run `check(rank)` in as many processes, with the environment that torchrun gives."""
    with listen() as listener:
        port = listener.getsockname()[1]

    def body(local: LocalRank, emit: Emit) -> None:
        torch.set_num_threads(1)
        use_loopback()
        given = (local.rank, count, "127.0.0.1", port)
        os.environ.update(zip(NEEDED, map(str, given), strict=True))
        check(local.rank)

    run_ranks(range(count), body, lambda record: None)


def without_environment() -> None:
    for name in NEEDED:
        os.environ.pop(name)


def test_one_after_another_and_side_by_side(artifact: Path) -> None:
    wanted = pytest.approx(expected(3), rel=1e-12)

    def check(rank: int) -> None:
        first = opened(artifact)
        losses = [trained(first)]
        second, third = opened(artifact), opened(artifact)
        of_second = [trained(second)]
        losses.append(trained(first))
        of_third = [trained(third), trained(third)]
        of_second.append(trained(second))
        losses.append(trained(first))
        first.close()
        of_second.append(trained(second))
        of_third.append(trained(third))
        assert losses == of_second == of_third == wanted
        with pytest.raises(RunError, match="step is called behind the end of this engine"):
            trained(first)
        second.close()
        third.close()
        assert not dist.is_initialized()
        fourth = opened(artifact)
        assert [trained(fourth) for _ in range(3)] == wanted
        fourth.close()

    on_processes(RANKS, check)


def test_a_block_closes_its_engine_and_tells_others_what_ended_it(artifact: Path) -> None:
    def check(rank: int) -> None:
        with opened(artifact) as engine:
            assert [trained(engine)] == pytest.approx(expected(1), rel=1e-12)
        assert not dist.is_initialized()
        told = "no such file" if rank == 1 else "ValueError: no such file"
        with pytest.raises(ValueError if rank == 1 else RunError, match=told), opened(artifact) as again:
            if rank == 1:
                raise ValueError("no such file")
            trained(again)
        with pytest.raises(RunError, match="step is called behind the end of this engine"):
            trained(again)
        assert not dist.is_initialized()

    on_processes(RANKS, check)


def test_on_a_group_of_the_users_own(artifact: Path, tmp_path: Path) -> None:
    """Its messages under way, its tags and its store are not met, and it stays up behind the engine."""
    wanted = pytest.approx(expected(3), rel=1e-12)

    def check(rank: int) -> None:
        without_environment()
        store = dist.FileStore(str(tmp_path / "store"), RANKS)  # type: ignore[attr-defined]
        wait = timedelta(seconds=WAIT_S)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=wait)
        mine = {tag: torch.full((3,), float(tag)) for tag in range(12)}
        sends = [dist.isend(row, 2, tag=tag) for tag, row in mine.items()] if rank == 0 else []
        engine = opened(artifact)
        other = opened(artifact)
        losses = [(trained(engine), trained(other)) for _ in range(3)]
        assert [one for one, _ in losses] == [two for _, two in losses] == wanted
        engine.close()
        if rank == 2:
            for tag, row in mine.items():
                came = torch.zeros(3)
                dist.recv(came, 0, tag=tag)
                assert torch.equal(came, row)
        for work in sends:
            assert work is not None
            work.wait()
        total = torch.ones(())
        dist.all_reduce(total)
        assert float(total) == RANKS
        again = opened(artifact)
        assert [trained(again) for _ in range(3)] == wanted
        dist.barrier()
        dist.destroy_process_group()
        with pytest.raises(RunError, match="step is called behind the end of this engine"):
            trained(again)
        again.close()
        other.close()

    on_processes(RANKS, check)


def test_a_group_of_other_ranks_is_told(artifact: Path) -> None:
    def check(rank: int) -> None:
        dist.init_process_group("gloo")
        with pytest.raises(RunError, match="2 ranks started, the program has 3"):
            opened(artifact)
        dist.barrier()
        dist.destroy_process_group()

    on_processes(2, check)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).square().mean()


def test_programs_of_one_rank_need_no_environment(tmp_path: Path) -> None:
    strategy = {"pipelines": [{"stages": [{"devices": [0], "layers": 1}], "micro_batches": [2]}]}
    hspmd.compile(Small(), {"x": torch.zeros(2, 4)}, strategy=strategy).save(tmp_path / "one")

    def check(rank: int) -> None:
        without_environment()
        engines = [opened(tmp_path / "one") for _ in range(3)]
        batch = {"x": torch.ones(2, 4)}
        assert len({engine.step(batch) for engine in engines}) == 1
        for engine in engines:
            engine.close()
        assert opened(tmp_path / "one").step(batch) > 0

    on_processes(1, check)


def test_a_process_forked_behind_an_engine_opens_its_own(artifact: Path) -> None:
    """It leaves its parent's store alone: the threads that serve it are not in a forked process."""
    wanted = pytest.approx(expected(1), rel=1e-12)

    def train(rank: int) -> None:
        engine = opened(artifact)
        assert [trained(engine)] == wanted
        engine.close()

    def check(rank: int) -> None:
        train(rank)
        on_processes(RANKS, train)

    on_processes(RANKS, check)
