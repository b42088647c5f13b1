"""A strategy as a drawing: a row per pipeline, in it a box per stage."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ..base.context import ContextCut
from ..pages.units import sizes_text
from ..strategy.context_spec import ContextChoice
from ..strategy.formats.expanded import Expanded
from ..strategy.strategy import PipelineSpec, SizesSpec, StageSpec, Strategy

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel

WIDTH = 100  # columns where there is no terminal
SHARE = "share of a step"
DEVICES_A_LINE = 24  # columns of a box's list of devices


def draw(name: str, expanded: Expanded) -> None:
    """Draws on standard output. name: the strategy's id in its file."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    with console.capture() as capture:
        _draw_on(console, name, expanded)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _draw_on(console: Console, name: str, expanded: Expanded) -> None:
    from rich.columns import Columns

    for line in _headlines(name, expanded):
        console.print(line, markup=False)
    for index, pipeline in enumerate(expanded.strategy.pipelines):
        title = f"pipeline {index}{_member_text(expanded.strategy, index)}"
        boxes = [_box(number, stage, pipeline, expanded) for number, stage in enumerate(pipeline.stages)]
        console.print()
        console.print(title, markup=False, style="bold")
        console.print(Columns(boxes))
    if expanded.notes:
        console.print()
    for note in expanded.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


def _headlines(name: str, expanded: Expanded) -> Iterator[str]:
    strategy = expanded.strategy
    yield f"strategy {name or strategy.name}".rstrip()
    yield (
        f"{strategy.world_size} devices, {strategy.num_layers} layers, schedule {strategy.schedule_name}, "
        + (
            f"sizes {sized_text(strategy.sizes)}"
            if strategy.sizes
            else f"global batch {strategy.global_batch}"
        )
        + (f" in {strategy.accumulation} slices" if strategy.accumulation > 1 and not strategy.sizes else "")
        + (", sequence parallel" if strategy.sequence_parallel else "")
        + (f", ZeRO-{strategy.zero}" if strategy.zero else "")
        + (f", {len(strategy.overrides)} overrides" if strategy.overrides else "")
        + (f", {len(strategy.layouts)} layouts of activations" if strategy.layouts else "")
    )


def sized_text(sizes: SizesSpec) -> str:
    """The range that steps choose micro-batches in."""
    low, high = sizes.range
    return f"{low:,} to {high:,} {'tokens' if sizes.tokens else 'samples'} a micro-batch"


def _member_text(strategy: Strategy, pipeline: int) -> str:
    """Which of a sequence's owners a pipeline is; empty where it runs whole ones."""
    spec = strategy.context_of(pipeline)
    if spec is None:
        return ""
    group, member = strategy.context.index(spec), spec.pipelines.index(pipeline)
    cut = "" if spec.cut is ContextCut.CONTIGUOUS else f", {spec.cut.value}"
    length = spec.lengths[member] if spec.lengths else 0
    what = f"share {length} of {sum(spec.lengths)}" if strategy.sizes else f"{length} tokens"
    share = f", {what}{cut}" if spec.lengths else cut
    form = "" if spec.form is ContextChoice.AUTO else f", {spec.form.value}"
    padding = f", {spec.padding} of padding" if spec.padding else ""
    return f", group {group}: context-parallel member {member} of {len(spec.pipelines)}{share}{padding}{form}"


def _box(number: int, stage: StageSpec, pipeline: PipelineSpec, expanded: Expanded) -> Panel:
    from rich.panel import Panel
    from rich.text import Text

    low, high = stage.layers
    rows = [
        ("devices", wrapped(device_text(stage.devices))),
        ("TP", str(stage.tp)),
        ("layers", f"{low}-{high - 1} ({high - low})" if high - low > 1 else f"{low}"),
        _taken(pipeline, expanded.strategy),
        *([] if stage.shares is None else [("shares", " ".join(map(str, stage.shares)))]),
        *([] if stage.zero_shares is None else [("ZeRO shares", " ".join(map(str, stage.zero_shares)))]),
        *([] if stage.experts is None else [("experts", " ".join(map(str, stage.experts)))]),
        *_recompute(stage, pipeline),
        *_places(stage, expanded),
    ]
    lines = [f"{name} {text}".replace("\n", "\n" + " " * (len(name) + 1)) for name, text in rows]
    return Panel(Text("\n".join(lines)), title=f"stage {number}", expand=False)


def _taken(pipeline: PipelineSpec, strategy: Strategy) -> tuple[str, str]:
    """The pipeline's micro-batches, or, where each step chooses them, its share of a step."""
    if strategy.sizes is None:
        return "micro-batches", sizes_text(pipeline.micro_batches)
    return SHARE, share_text(pipeline, strategy)


def share_text(pipeline: PipelineSpec, strategy: Strategy) -> str:
    """How much of a step a pipeline takes, itself or with those that share its rows."""
    return f"{pipeline.batch_size} of {strategy.slice_size}"


def _recompute(stage: StageSpec, pipeline: PipelineSpec) -> Iterator[tuple[str, str]]:
    """The stage's part of each range of layers that is computed again in backward."""
    for item in pipeline.recompute:
        low, high = max(item.layers[0], stage.layers[0]), min(item.layers[1], stage.layers[1])
        if low < high:
            layers = f"{low}-{high - 1}" if high - low > 1 else f"{low}"
            every = f", {item.every} at a time" if item.every > 1 else ""
            yield "recompute", f"{item.kind.value} {layers}{every}"


def _places(stage: StageSpec, expanded: Expanded) -> Iterator[tuple[str, str]]:
    """The machines that a stage's devices sit on, where the format says them."""
    places = {place.device: place for place in expanded.places}
    held = [places[device] for device in stage.devices if device in places]
    for machine, group in groupby(held, key=lambda place: place.machine):
        yield f"machine {machine}", "GPU " + device_text(tuple(place.local for place in group))


def device_text(devices: Sequence[int]) -> str:
    """Devices in order, ascending runs of three and more as low-high."""
    runs = [list(run) for _, run in groupby(enumerate(devices), key=lambda item: item[1] - item[0])]
    texts = []
    for run in runs:
        numbers = [device for _, device in run]
        texts += [f"{numbers[0]}-{numbers[-1]}"] if len(numbers) > 2 else [str(device) for device in numbers]
    return " ".join(texts)


def wrapped(text: str) -> str:
    """A text of words in lines that fit a box."""
    return textwrap.fill(text, DEVICES_A_LINE, break_long_words=False, break_on_hyphens=False)
