"""Timelines for tests: 1F1B over two pipelines of unequal stages, by a tiny simulation of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hspmd_compiler.base.timeline import MemoryPoint, Span, SpanKind, Timeline

EXPECTED = Path(__file__).parent / "expected"
SENDING_S = 0.004
UPDATE_S, GRADIENT_S = 0.01, 0.05
ACTIVATION = 64 << 20
PARAMETERS = 512 << 20


def pinned(folder: str, name: str, text: str) -> None:
    """Compare with the text on disk."""
    path = EXPECTED / folder / f"{name}.txt"
    assert path.is_file(), f"no {path}; it would hold:\n{text}"
    assert text == path.read_text(encoding="utf-8").removesuffix("\n"), text


@dataclass
class _Stage:
    """A rank that waits for what its neighbours send. forward_s: of a micro-batch; backward takes twice."""

    rank: int
    forward_s: float
    now_s: float = 0.0
    held: int = PARAMETERS
    spans: list[Span] = field(default_factory=list)
    memory: list[MemoryPoint] = field(default_factory=list)

    def does(self, kind: SpanKind, seconds: float, **rest: object) -> None:
        span = Span(self.rank, self.now_s, round(self.now_s + seconds, 9), kind, **rest)  # type: ignore[arg-type]
        self.spans.append(span)
        self.now_s = span.end_s

    def until(self, time_s: float, **rest: object) -> None:
        if time_s > self.now_s:
            self.does(SpanKind.WAIT, time_s - self.now_s, **rest)

    def holds(self, more: int) -> None:
        self.held += more
        self.memory.append(MemoryPoint(self.rank, self.now_s, self.held))


def actions(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """1F1B of one stage."""
    ahead = min(stages - stage, micro_batches)
    order = [("F", mb) for mb in range(ahead)]
    for mb in range(micro_batches):
        order.append(("B", mb))
        order += [("F", ahead + mb)] if ahead + mb < micro_batches else []
    return order


def one_pipeline(first_rank: int, forwards_s: tuple[float, ...], micro_batches: int) -> list[_Stage]:
    stages = [_Stage(first_rank + number, forward_s) for number, forward_s in enumerate(forwards_s)]
    todo = [actions(number, len(stages), micro_batches) for number in range(len(stages))]
    positions, ready = [0] * len(stages), {("F", 0, mb): 0.0 for mb in range(micro_batches)}
    ready |= {("B", len(stages) - 1, mb): 0.0 for mb in range(micro_batches)}
    while any(todo):
        for number in range(len(stages)):
            while todo[number] and (todo[number][0][0], number, todo[number][0][1]) in ready:
                what, mb = todo[number].pop(0)
                _run(stages, number, what, mb, positions, ready)
    return stages


def _run(
    stages: list[_Stage],
    number: int,
    what: str,
    mb: int,
    positions: list[int],
    ready: dict[tuple[str, int, int], float],
) -> None:
    stage, forward = stages[number], what == "F"
    source, target = (number - 1, number + 1) if forward else (number + 1, number - 1)
    if 0 <= source < len(stages):
        place = {"position": positions[number], "mb": mb, "group": (stages[source].rank,)}
        stage.until(ready[what, number, mb], label="RECV", **place)
        stage.does(SpanKind.RECV, SENDING_S / 2, size_bytes=ACTIVATION, **place)
        positions[number] += 1
    kind = SpanKind.FORWARD if forward else SpanKind.BACKWARD
    stage.does(kind, stage.forward_s * (1 if forward else 2), position=positions[number], mb=mb)
    stage.holds(ACTIVATION if forward else -ACTIVATION)
    positions[number] += 1
    if 0 <= target < len(stages):
        group = (stages[target].rank,)
        place = {"position": positions[number], "mb": mb, "group": group, "size_bytes": ACTIVATION}
        stage.does(SpanKind.SEND, SENDING_S, **place)
        positions[number] += 1
        ready[what, target, mb] = stage.now_s


def two_pipelines(
    source: str,
    slower: Mapping[int, float] | None = None,
    micro_batches: int = 4,
    forwards_s: tuple[tuple[float, ...], ...] = ((0.02, 0.03), (0.05, 0.04, 0.02)),
) -> Timeline:
    """A step of some pipelines with gradients summed over all ranks. slower: factors of computing by rank."""
    factors = slower or {}
    stages: list[_Stage] = []
    labels: dict[int, str] = {}
    for pipeline, times in enumerate(forwards_s):
        first = len(stages)
        scaled = tuple(each * factors.get(first + number, 1.0) for number, each in enumerate(times))
        stages += one_pipeline(first, scaled, micro_batches)
        device = "A100" if pipeline == 0 else "RTX 3090"
        for number in range(len(times)):
            rank = first + number
            labels[rank] = f"rank {rank}: {device}, pipeline {pipeline} stage {number}"
    last = max(stage.now_s for stage in stages)
    everyone = tuple(range(len(stages)))
    for stage in stages:
        stage.until(last, position=100, group=everyone, label="GRAD_SYNC")
        stage.does(SpanKind.GRADIENT, GRADIENT_S, position=100, group=everyone, size_bytes=PARAMETERS)
        stage.does(SpanKind.UPDATE, UPDATE_S, position=101)
    spans = tuple(span for stage in stages for span in stage.spans)
    return Timeline(source, spans, tuple(point for stage in stages for point in stage.memory), labels)


def with_tensor_parallel(timeline: Timeline, tp: int) -> Timeline:
    """The same where each rank is `tp` ranks that do the same."""

    def copies(rank: int) -> range:
        return range(rank * tp, rank * tp + tp)

    spans = (
        replace(span, rank=rank, group=tuple(peer * tp + rank % tp for peer in span.group))
        for span in timeline.spans
        for rank in copies(span.rank)
    )
    memory = (replace(point, rank=rank) for point in timeline.memory for rank in copies(point.rank))
    labels = {
        rank: text.replace(f"rank {old}:", f"rank {rank}:")
        for old, text in timeline.labels.items()
        for rank in copies(old)
    }
    return Timeline(timeline.source, tuple(spans), tuple(memory), labels)
