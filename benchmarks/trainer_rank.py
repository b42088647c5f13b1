"""One rank of a pair of `trainers.py`: steps of both sides in turns in one process group, or of one side."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
import trainer_models as models
from trainer_cases import CASES, Case, Loss

OURS, THEIRS = "ours", "theirs"
WARM_UP = 3
ALONE_STEPS = 6

Step = Callable[[models.Batch], float]


@dataclass(frozen=True, slots=True)
class Taken:
    """Of one step on one rank. sent_bytes: over all links of this machine, or of its own network."""

    wall_s: float
    cpu_s: float
    sent_bytes: int
    loss: float


def main() -> None:
    """Runs what the first argument says, and writes what it took."""
    given = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    case = CASES[given["case"]]
    if given["side"] == "both":
        found = in_turns(case, Path(given["folder"]), given["turns"], given["compiled"])
    else:
        found = alone(case, Path(given["folder"]), given["side"])
    rank = os.environ["RANK"]
    Path(given["out"], f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def in_turns(
    case: Case, folder: Path, turns: int, compiled: bool = False
) -> dict[str, list[dict[str, float]]]:
    """Pairs of steps; what runs second finds warmer caches, so each side does in half of them."""
    sides = both(case, folder, compiled)
    taken: dict[str, list[Taken]] = {name: [] for name in sides}
    for turn in range(WARM_UP + turns):
        batch = models.batch(case.model, case.batch, turn)
        for name in [*sides] if turn % 2 == 0 else [*sides][::-1]:
            taken[name].append(timed(partial(sides[name], batch)))
    return {name: [asdict(each) for each in of[WARM_UP:]] for name, of in taken.items()}


def both(case: Case, folder: Path, compiled: bool = False) -> dict[str, Step]:
    """Ours meets the others first, and its weights are those of both."""
    import hspmd_compiler as hspmd

    engine = hspmd.load(folder, torch_compile=compiled)
    theirs = case.trainer(engine.state_dict())
    joined = partial(whole_loss, case.loss)
    return {OURS: engine.step, THEIRS: lambda batch: joined(theirs(batch))}


def alone(case: Case, folder: Path, side: str) -> dict[str, int]:
    """Most memory of a side, above what the process had before there was a model."""
    import_module("pydantic.type_adapter")  # reads programs; what is imported is no part of a model
    import hspmd_compiler as hspmd
    import hspmd_compiler.runtime.start.opening
    import hspmd_compiler.verify.shape.fit

    dist.init_process_group("gloo")
    dist.barrier()
    before = resident_bytes("VmRSS")
    if side == OURS:
        step: Step = hspmd.load(folder).step
    else:
        theirs = case.trainer(models.Trained(case.model).state_dict())
        step = lambda batch: float(theirs(batch))  # noqa: E731
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    for turn in range(ALONE_STEPS):
        step(models.batch(case.model, case.batch, turn))
    return {"peak_bytes": resident_bytes("VmHWM") - before}


def timed(step: Callable[[], float]) -> Taken:
    """One step, begun by all ranks together."""
    dist.barrier()
    sent, wall, cpu = sent_bytes(), time.perf_counter(), time.process_time()
    loss = step()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    dist.barrier()
    return Taken(wall, cpu, sent_bytes() - sent, loss)


def whole_loss(kind: Loss, loss: torch.Tensor) -> float:
    """That of the global batch, as a program's step gives it on every rank."""
    if dist.get_world_size() > 1 and kind is not Loss.SAME:
        dist.all_reduce(loss)
        loss = loss / (dist.get_world_size() if kind is Loss.MEAN else 1)
    return float(loss)


def sent_bytes() -> int:
    """Over every link so far."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[8]) for line in lines)


def resident_bytes(what: str) -> int:
    """Of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


if __name__ == "__main__":
    main()
