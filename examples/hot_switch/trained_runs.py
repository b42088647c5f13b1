"""Real processes: one training in parts, by length, and ones that pad all sequences to the longest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

from long_tail import sequences
from published_runs import BucketStrategy
from torch import Tensor

from hspmd_compiler.runtime.batches.buckets import BucketFill, LengthBucket
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import StartOptions, launch

Emit = Callable[[Mapping[str, object]], None]


@dataclass(slots=True)
class TrainedRun:
    """Of each step its loss and seconds. spent: seconds of the last step by what was done, on rank 0.

    tokens: of all parts of all steps, with padding.
    """

    name: str
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    parts: int = 0

    @property
    def step_s(self) -> float:
        """The median step, without the first where there are others."""
        own = sorted(self.seconds[1:] or self.seconds)
        return own[len(own) // 2]

    def to_json(self) -> dict[str, object]:
        """For scripts."""
        return {**asdict(self), "step_s": self.step_s}

    def take(self, record: Mapping[str, object]) -> None:
        """Note a step that rank 0 tells of."""
        self.losses.append(float(str(record["loss"])))
        self.seconds.append(float(str(record["seconds"])))
        self.tokens += int(str(record["tokens"]))
        self.parts += int(str(record["parts"]))
        spent = record.get("spent")
        self.spent = dict(spent) if isinstance(spent, dict) else {}


@dataclass(frozen=True, slots=True)
class Task:
    """What each run trains on. longest: tokens of the longest sequence."""

    steps: int
    count: int
    longest: int
    seed: int = 0

    def batch(self, step: int) -> list[Tensor]:
        """The sequences of a step."""
        return sequences(step, self.count, self.longest, self.seed)


def train_hot(directory: Path, strategies: Sequence[BucketStrategy], task: Task) -> TrainedRun:
    """Each bucket under its own strategy, updated once a step."""
    buckets = [each.bucket() for each in strategies]
    home = strategies[0].name

    def job(engine: Engine, emit: Emit) -> None:
        for step in range(task.steps):
            parts = BucketFill().divided(task.batch(step), buckets)
            start = perf_counter()
            loss = engine.hot_step(parts)
            spent = perf_counter() - start
            tokens = sum(part.batch["input_ids"].numel() for part in parts)
            told = {"loss": loss, "seconds": spent, "tokens": tokens, "parts": len(parts)}
            emit(told | {"spent": dict(engine.hot.seconds if engine.hot else {})})

    return _launched("buckets", directory, job, StartOptions(seed=task.seed, strategy=home))


def train_whole(name: str, directory: Path, task: Task) -> TrainedRun:
    """One strategy on all sequences, padded to the longest."""
    bucket = LengthBucket(name, task.longest, task.count)

    def job(engine: Engine, emit: Emit) -> None:
        for step in range(task.steps):
            (part,) = BucketFill().divided(task.batch(step), [bucket])
            start = perf_counter()
            loss = engine.step(part.batch)
            tokens = part.batch["input_ids"].numel()
            emit({"loss": loss, "seconds": perf_counter() - start, "tokens": tokens, "parts": 1})

    return _launched(name, directory, job, StartOptions(seed=task.seed))


def _launched(
    name: str, directory: Path, job: Callable[[Engine, Emit], None], options: StartOptions
) -> TrainedRun:
    run = TrainedRun(name)
    launch(directory, job, options, on_record=run.take)
    return run
