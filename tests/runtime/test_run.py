"""A hand-made program through real gloo processes, against eager torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hspmd_compiler.errors import ArtifactError, HspmdError, RankLost, RunError
from hspmd_compiler.options import OptimizerConfig, OptimizerName
from hspmd_compiler.runtime.batches.data import FactoryData
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.saved.weights_file import save
from hspmd_compiler.runtime.shards import cut_shard
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.processes import run_ranks
from hspmd_compiler.runtime.start.rank_process import Emit, LocalRank
from hspmd_compiler.runtime.start.rendezvous import Timeouts, use_loopback
from hspmd_compiler.runtime.train import train

from . import hand_made
from .hand_made import own_rows

ADAMW = OptimizerConfig(lr=0.05, weight_decay=0.1, no_decay=("shift",), max_grad_norm=0.7)
SGD = OptimizerConfig(name=OptimizerName.SGD, lr=0.1, momentum=0.9)
QUICK = StartOptions(seed=3, timeouts=Timeouts(timedelta(seconds=20), timedelta(seconds=20)))
STEPS = 3


def eager(config: OptimizerConfig, steps: int) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Losses, gradient norms and final parameters of torch itself."""
    params = {name: tensor.requires_grad_() for name, tensor in hand_made.initial(3).items()}
    groups = [{"params": [param], "weight_decay": config.decay_of(name)} for name, param in params.items()]
    if config.name is OptimizerName.ADAMW:
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=config.lr)
    else:
        optimizer = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    losses, norms = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss = hand_made.loss_of(params, hand_made.batch(step))
        loss.backward()
        if config.max_grad_norm is not None:
            norms.append(float(torch.nn.utils.clip_grad_norm_(params.values(), config.max_grad_norm)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms, {name: param.detach() for name, param in params.items()}


def batches(epoch: int) -> Iterator[dict[str, torch.Tensor]]:
    return (hand_made.batch(seed + 10 * epoch) for seed in range(STEPS))


def close(one: torch.Tensor, two: torch.Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("config", [ADAMW, SGD], ids=["adamw clipped", "sgd"])
@pytest.mark.parametrize("local", [False, True], ids=["global", "local"])
def test_trains_like_one_process(tmp_path: Path, config: OptimizerConfig, local: bool) -> None:
    directory = hand_made.save(tmp_path / "artifact", config)
    out = tmp_path / "out.safetensors"

    def job(engine: Engine, emit: Emit) -> None:
        emit({"places": engine.places})
        for step in range(STEPS):
            data = hand_made.batch(step)
            if local:
                data = {key: rows for key, rows in own_rows(data, engine.rows).items() if key in engine.keys}
            emit({"loss": engine.step(data, local=local), "norm": engine.grad_norm})
        state, grads = engine.state_dict(), engine.grads(everywhere=False)
        assert set(state) == {*hand_made.SHAPES, "head"}
        assert set(grads) == (set() if engine.rank else {"shift", "w1", "w2", "head"})
        engine.load_state_dict(state)
        again = engine.state_dict()
        assert all(torch.equal(state[name], again[name]) for name in state)
        save(engine, out)

    records: list[dict[str, object]] = []
    launch(directory, job, QUICK, on_record=lambda record: records.append(dict(record)))
    losses, norms, params = eager(config, STEPS)
    assert len(records[0]["places"]) == 3  # type: ignore[arg-type]
    assert [record["loss"] for record in records[1:]] == pytest.approx(losses, rel=1e-13)
    if norms:
        assert [record["norm"] for record in records[1:]] == pytest.approx(norms, rel=1e-13)
    saved = load_file(out)
    assert set(saved) == {*params, "head"}
    for name, expected in params.items():
        close(saved[name], expected)
    assert torch.equal(saved["frozen"], hand_made.initial(3)["frozen"])
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.safetensors"]


def test_training_loop_and_changed_learning_rate(tmp_path: Path) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)

    def job(engine: Engine, emit: Emit) -> None:
        data = FactoryData(batches, engine.shape)

        def on_step(record: object) -> None:
            emit(
                {name: getattr(record, name) for name in ("step", "epoch", "loss", "lr", "samples", "tokens")}
            )
            engine.lr = 0.05

        assert train(engine, data, steps=3, epochs=2, on_step=on_step) == 3
        assert train(engine, data, steps=1, on_step=on_step) == 1
        assert train(engine, data, epochs=2, on_step=on_step) == 2
        assert train(engine, data, steps=0) == 0
        with pytest.raises(RunError, match="whole batch"):
            train(engine, FactoryData(lambda: iter([]), engine.shape), steps=1)

    records: list[dict[str, object]] = []
    launch(directory, job, QUICK, on_record=lambda record: records.append(dict(record)))
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["epoch"] for record in records] == [0, 0, 0, 1, 1, 1]
    assert [record["lr"] for record in records] == [0.1, *[0.05] * 5]
    assert (records[0]["samples"], records[0]["tokens"]) == (5, None)


def test_starts_from_a_file(tmp_path: Path) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)
    params = {name: tensor + 1 for name, tensor in hand_made.initial(0).items()}
    given = {**params, "head": params["w2"]}
    del given["w2"]
    save_file(given, tmp_path / "init.safetensors")

    def job(engine: Engine, emit: Emit) -> None:
        emit({"loss": engine.step(hand_made.batch(0))})

    records: list[dict[str, object]] = []
    options = StartOptions(weights=tmp_path / "init.safetensors", timeouts=QUICK.timeouts)
    launch(directory, job, options, on_record=lambda record: records.append(dict(record)))
    assert records[0]["loss"] == pytest.approx(
        float(hand_made.loss_of(params, hand_made.batch(0))), rel=1e-13
    )


def refused(directory: Path, options: StartOptions = QUICK, **more: object) -> HspmdError:
    def job(engine: Engine, emit: Emit) -> None:
        engine.step(hand_made.batch(0))

    with pytest.raises(HspmdError) as caught:
        launch(directory, job, options, **more)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    return caught.value


def test_wrong_weights_are_told_at_once(tmp_path: Path) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)
    save_file({"w1": torch.zeros(4, 5), "w9": torch.zeros(1)}, tmp_path / "init.safetensors")
    error = refused(directory, StartOptions(weights=tmp_path / "init.safetensors", timeouts=QUICK.timeouts))
    assert {name for name, _ in error.details} >= {"shift", "w1", "w2", "frozen", "w9"}


def test_tensors_of_another_kind_are_not_converted() -> None:
    shard = hand_made.program().ranks[0].shards[0]
    whole = torch.zeros(shard.whole_shape)
    assert cut_shard(shard, whole, torch.device("cpu")).dtype == torch.float64
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(RunError, match=f"{shard.name} is given as"):
            cut_shard(shard, whole.to(dtype), torch.device("cpu"))


def test_an_initialisation_of_another_shape(tmp_path: Path) -> None:
    """As many elements in another shape would be cut in another order."""
    directory = hand_made.save(tmp_path / "artifact", SGD, shapes={"w1": (6, 4)})
    error = refused(directory)
    assert error.what == "the artifact's initialisation makes another w1"
    assert ("made", "float64[6, 4]") in error.details and ("program", "float64[4, 6]") in error.details


def test_wrong_device_kind(tmp_path: Path) -> None:
    if torch.cuda.device_count() >= 3:
        pytest.skip("has the devices")
    error = refused(hand_made.save(tmp_path / "artifact", SGD, kind="cuda"))
    assert "rank 2" in error.text() and "compiled for cuda" in error.text()


def test_bad_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)
    assert "rank 7" in refused(directory, ranks=[0, 7]).text()
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert "MASTER_ADDR" in refused(directory, ranks=[0, 1]).text()
    assert isinstance(refused(tmp_path / "nothing"), ArtifactError)


def test_wrong_world_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    error = refused(directory)
    assert isinstance(error, RunError) and "2 ranks started, the program has 3" in error.what


def test_a_rank_that_never_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)
    monkeypatch.setenv("MASTER_PORT", str(free_port))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    options = StartOptions(timeouts=Timeouts(timedelta(seconds=2), timedelta(seconds=2)))
    with pytest.raises(RankLost) as caught:
        launch(directory, lambda engine, emit: None, options, [0, 2])
    error = caught.value
    assert ("rank 1", "did not start within 2 s") in error.details and error.exit_code == 1


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_killing_a_rank_ends_all(tmp_path: Path, victim: int) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)

    def job(engine: Engine, emit: Emit) -> None:
        for step in range(10_000):
            if step == 5 and engine.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            engine.step(hand_made.batch(step))

    start = time.monotonic()
    with pytest.raises(RankLost, match=rf"rank {victim} \(pid \d+\) died with signal 9") as caught:
        launch(directory, job, QUICK)
    assert time.monotonic() - start < 10 and caught.value.exit_code == 1


def elsewhere(action: Callable[[], None]) -> int:
    """The id of a process that runs `action`, as another host's launcher would."""
    pid = os.fork()
    if not pid:
        try:
            with suppress(HspmdError):
                action()
        finally:
            os._exit(0)
    return pid


@pytest.mark.parametrize("how", ["killed", "failed"])
def test_launchers_of_two_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int, how: str
) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)
    monkeypatch.setenv("MASTER_PORT", str(free_port))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # put back afterwards
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    use_loopback()

    def job(engine: Engine, emit: Emit) -> None:
        for step in range(10_000):
            if step == 5 and engine.rank == 2:
                if how == "failed":
                    raise KeyError("broken data")
                os.kill(os.getpid(), signal.SIGKILL)
            engine.step(hand_made.batch(step))

    other = elsewhere(lambda: launch(directory, job, QUICK, [2]))
    start = time.monotonic()
    with pytest.raises(RunError) as caught:
        launch(directory, job, QUICK, [0, 1])
    assert time.monotonic() - start < 20
    os.waitpid(other, 0)
    assert "rank 2" in dict(caught.value.details)["cause"]


def test_a_failing_rank_is_named(tmp_path: Path) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)

    def job(engine: Engine, emit: Emit) -> None:
        engine.step(hand_made.batch(0))
        if engine.rank == 1:
            raise KeyError("broken data")
        engine.step(hand_made.batch(0))

    with pytest.raises(RunError, match=r"rank 1 \(pid \d+\) failed: KeyError: 'broken data'") as caught:
        launch(directory, job, QUICK)
    assert caught.value.exit_code == 1


def test_a_batch_that_does_not_fit(tmp_path: Path) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)

    def job(engine: Engine, emit: Emit) -> None:
        engine.step({"x": torch.zeros(4, 4), "mask": torch.zeros(5)})

    with pytest.raises(RunError) as caught:
        launch(directory, job, QUICK)
    wrong = dict(caught.value.details)
    assert wrong["target"] == "missing" and wrong["x"] == "float32[4, 4], wanted float64[5, 4]"
    assert "no such input" in wrong["mask"]


SCRIPT = """
import os, signal, sys
sys.path[:0] = [{root!r}]
from datetime import timedelta
from tests.runtime import hand_made
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rendezvous import Timeouts

def job(engine, emit):
    for step in range(100_000):
        if step == {steps} + 1 and {victim} == engine.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        emit({{"loss": engine.step(hand_made.batch(step))}})

def show(record):
    print("record", record["loss"], flush=True)

launch({directory!r}, job, StartOptions(seed=3), on_record=show)
"""


@pytest.mark.slow
def test_under_torchrun_a_killed_rank_ends_all(tmp_path: Path) -> None:
    directory = hand_made.save(tmp_path / "artifact", SGD)
    script = tmp_path / "train.py"
    root = str(Path(__file__).resolve().parents[2])
    script.write_text(SCRIPT.format(root=root, directory=str(directory), victim=1, steps=STEPS))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--standalone", script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "exitcode  : -9" in done.stderr, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("record")]
    assert losses[:STEPS] == pytest.approx(eager(SGD, STEPS)[0], rel=1e-13)


def test_one_rank_by_the_environment(tmp_path: Path, free_port: int) -> None:
    """What torchrun does, without its start-up time."""
    directory = hand_made.save(tmp_path / "artifact", SGD)

    def job(engine: Engine, emit: Emit) -> None:
        for step in range(STEPS):
            emit({"rank": engine.rank, "loss": engine.step(hand_made.batch(step))})

    def body(local: LocalRank, emit: Emit) -> None:
        use_loopback()
        os.environ.update(RANK=str(local.rank), WORLD_SIZE="3", LOCAL_RANK=str(local.rank))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port))
        launch(directory, job, QUICK, on_record=emit)

    records: list[dict[str, object]] = []
    run_ranks(range(3), body, lambda record: records.append(dict(record)))
    assert {record["rank"] for record in records} == {0}
    assert [record["loss"] for record in records] == pytest.approx(eager(SGD, STEPS)[0], rel=1e-13)
