"""HotSPa's published runs by name: buckets of sequence lengths, and the strategy that runs each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path

from hspmd_compiler.errors import OptionError
from hspmd_compiler.runtime.batches.buckets import LengthBucket
from hspmd_compiler.strategy.formats.expanded import Choices
from hspmd_compiler.strategy.formats.hotspa import bucket_of_strategy, hotspa_entries
from hspmd_compiler.strategy.strategy import Strategy

PUBLISHED = Path(__file__).with_name("published.json")
ZERO = 1
"""What the original stores once: the state of the optimizer."""


@dataclass(frozen=True, slots=True)
class BucketStrategy:
    """A strategy, and the longest sequence that it runs."""

    name: str
    strategy: Strategy
    longest: int

    def bucket(self) -> LengthBucket:
        """As batches are made for it."""
        return LengthBucket(self.name, self.longest, self.strategy.global_batch)


@dataclass(frozen=True, slots=True)
class HotRun:
    """One training run. bounds: of lengths, as published. degrees: (dp, tp, pp) of each strategy."""

    name: str
    size: str
    layers: int
    gpus: int
    bounds: tuple[int, ...]
    degrees: tuple[tuple[int, int, int], ...]

    def strategies(self, layers: int, shrink: int = 1) -> list[BucketStrategy]:
        """By descending length, the home of the optimizer's state first; a micro-batch for each stage.

        A micro-batch of shorter sequences has more of them, of half the tokens of the longest at most.
        shrink: what lengths are divided by.
        """
        found = []
        for bucket, length in enumerate(self.bounds[:-1]):
            index = bucket_of_strategy(bucket, len(self.degrees))
            size = max(1, self.bounds[0] // length // 2)
            plan = self._expanded(Choices(micro_batch_size=size, num_layers=layers), layers)[index]
            found.append(BucketStrategy(self.title(index), plan, length // shrink))
        return found

    def title(self, index: int) -> str:
        """What a strategy is called: its degrees."""
        dp, tp, pp = self.degrees[index]
        return f"dp{dp}-tp{tp}-pp{pp}"

    def whole(self, layers: int, samples: int) -> list[tuple[str, Strategy]]:
        """Each strategy alone on as many samples: two micro-batches for each stage."""
        each = lcm(*(dp * pp * 2 for dp, _, pp in self.degrees))
        if samples % each:
            raise OptionError(
                f"{samples} sequences can't be shared out by every strategy of {self.name}",
                rule=f"pipelines take two equal micro-batches for each stage: together a multiple of {each}",
                fix=f"--sequences {each}",
            )
        found = []
        for index, (dp, _, pp) in enumerate(self.degrees):
            choices = Choices(samples // (dp * pp * 2), pp * 2, layers)
            found.append((self.title(index), self._expanded(choices, layers)[index]))
        return found

    def _expanded(self, choices: Choices, layers: int) -> list[Strategy]:
        form = {
            "id": self.name,
            "num_gpus": self.gpus,
            "layers": layers,
            "bucket_sizes": list(self.bounds),
            "strategies": [list(each) for each in self.degrees],
        }
        entries = hotspa_entries(form, choices, str(PUBLISHED))
        return [replace(entry.expand().strategy, zero=ZERO, name="") for entry in entries]


def read_runs(path: Path = PUBLISHED) -> dict[str, HotRun]:
    """All runs of a file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(content, list), "a list of runs"
    runs = [
        HotRun(
            item["id"],
            item["model"]["size"],
            item["model"]["layers"],
            item["num_gpus"],
            tuple(item["bucket_sizes"]),
            tuple((dp, tp, pp) for dp, tp, pp in item["strategies"]),
        )
        for item in content
    ]
    return {run.name: run for run in runs}


def named(runs: dict[str, HotRun], name: str) -> HotRun:
    """One of them."""
    if name not in runs:
        raise OptionError(
            f"there is no run {name}",
            details=[("runs", ", ".join(runs))],
            rule="a run has the name that it has in published.json",
            fix="--list shows them",
        )
    return runs[name]


def longest(strategies: Sequence[BucketStrategy]) -> int:
    """The longest sequence that any of them runs."""
    return max(each.longest for each in strategies)
