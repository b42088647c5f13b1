"""What receives that are posted before their turn are worth: steps of one engine, in turns, over a slow link.

    unshare -n sh -c 'ip link set lo up
        tc qdisc add dev lo root tbf rate 1gbit burst 256kb latency 400ms
        python benchmarks/receives_ahead.py'

Two ranks, a stage each, 1F1B; passes sleep for what they lack of `--forward`, so that a busy machine says the
same. Each round takes one step with every number of receives ahead; the medians of
their seconds are printed, and the median of what each is to none ahead in the same round.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.program.messages.early_receives import early_receives
from hspmd_compiler.program.program import Op
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.runtime.timing.step_timer import StepTimer

AHEAD = (0, 1, 2)
UNCOUNTED = 2


class Stack(nn.Module):
    """Linear layers and a loss."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return nn.functional.mse_loss(x, y)


def main() -> int:
    parser = ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=16384, help="of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=6)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--forward", type=float, default=0.06, help="seconds at least; backward takes twice")
    args = parser.parse_args()
    half = args.layers // 2
    stages = [{"devices": [at], "layers": half} for at in range(2)]
    sizes = [args.rows] * args.micro_batches
    batch = {key: torch.randn(sum(sizes), args.width) for key in "xy"}

    def job(engine: Engine, emit: Emit) -> None:
        torch.set_num_threads(1)
        plan = engine.active._plan
        assert plan is not None
        passes = {Op.FORWARD: args.forward, Op.BACKWARD: 2 * args.forward}
        instructions = plan.program.instructions
        least = {at: (passes[each.op],) for at, each in enumerate(instructions) if each.op in passes}
        engine.timing = StepTimer(engine.transport.device, least)
        early = {ahead: early_receives(instructions, ahead) for ahead in AHEAD}
        taken: dict[int, list[float]] = {ahead: [] for ahead in AHEAD}
        for _ in range(args.rounds + UNCOUNTED):
            for ahead in AHEAD:
                engine.active._plan = replace(plan, early=early[ahead])
                start = perf_counter()
                engine.step(batch)
                taken[ahead].append(perf_counter() - start)
        if engine.rank == 0:
            emit({str(ahead): seconds[UNCOUNTED:] for ahead, seconds in taken.items()})

    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "artifact"
        small = {key: value[: args.micro_batches * args.rows] for key, value in batch.items()}
        strategy = {"pipelines": [{"stages": stages, "micro_batches": sizes}]}
        hspmd.compile(lambda: (Stack(args.width, args.layers), small), strategy=strategy).save(to)
        records: list[dict[str, object]] = []
        launch(to, job, StartOptions(), on_record=lambda record: records.append(dict(record)))
    found = next(record for record in records if "0" in record)
    taken = {ahead: list(map(float, json.loads(json.dumps(found[str(ahead)])))) for ahead in AHEAD}
    for ahead, seconds in taken.items():
        share = median(one / none for one, none in zip(seconds, taken[0], strict=True))
        print(f"{ahead} ahead: {median(seconds):.3f} s a step, {share:.3f} of none ahead")
    return 0


if __name__ == "__main__":
    sys.exit(main())
