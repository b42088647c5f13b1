"""HSPMD's KEY=VALUE lines, as in its launch scripts, to a Strategy. Nothing is executed.

Rank slots: pipelines lie one after another, every stage takes TP consecutive slots, slots in
UNUSED_RANK stay empty and lower their stage's degree, and RANK_TO_DEVICE_MAPPING (null: identity)
says which device sits in a slot.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ...base.limits import MOST_DEVICES, MOST_MICRO_BATCHES
from ..check import check, raise_if_any
from ..strategy import PipelineSpec, StageSpec, Strategy
from .expanded import AnnotationStyle, Choices, Expanded, context_groups
from .launch_values import MODEL_AND_RUN_KEYS, LaunchValues
from .recompute import read_recompute
from .shell_values import ShellValues, read_assignments
from .stage_layers import equal_stages

FIRST_LINE = re.compile(r"\s*(export\s+)?[A-Z][A-Z0-9_]*=")
FIX = "give the lines of one case; docs/strategy.md lists the keys and their rules"

Counts = list[list[int]]
NO_CHOICES = Choices()


def looks_like_lines(text: str) -> bool:
    """Whether the first line that says something is KEY=VALUE."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return FIRST_LINE.match(next(lines, "")) is not None


def read_lines(text: str, choices: Choices = NO_CHOICES, at: str = "") -> Expanded:
    """The strategy of KEY=VALUE lines.

    choices say what the lines may too: NUM_LAYERS, needed with HETERO=false; MICRO_BATCH_SIZE;
    MICRO_BATCH_NUM_LIST.
    """
    return read_values(LaunchValues(read_assignments(text)), choices, at)


def read_values(values: LaunchValues, choices: Choices, at: str = "") -> Expanded:
    """The strategy of a launch script's values, as `read_lines` has it."""
    size, layers = choices.micro_batch_size, choices.num_layers
    size = values.integer("MICRO_BATCH_SIZE", 1) if size is None else size
    layers = values.count("NUM_LAYERS", values.of("NUM_LAYERS")) if layers is None else layers
    homogeneous = not values.flag("HETERO", "LAYERS_NUM_LIST" in values.shell.values)
    degrees = _context_degrees(values, homogeneous)
    if homogeneous:
        pipelines = _homogeneous_pipelines(values, layers, degrees)
    else:
        pipelines = _hetero_pipelines(values, layers, degrees)
    counts = _micro_batch_counts(values, pipelines, degrees, choices.micro_batches)
    recompute = read_recompute(values, len(pipelines))
    raise_if_any(values.problems, at, FIX)
    specs = [PipelineSpec(stages, (size,) * count) for stages, count in zip(pipelines, counts, strict=True)]
    lengths = values.integers("SEQ_LEN_LIST", 0) or ()
    pipelines_made = tuple(specs) if recompute is None else recompute.applied(specs)
    strategy = Strategy(pipelines_made, context=context_groups(degrees, lengths))
    check(strategy, at=at)
    return Expanded(
        strategy,
        recompute=recompute,
        style=AnnotationStyle.ONE_GROUP if homogeneous else AnnotationStyle.UNION,
        num_gpus=values.count("NUM_GPUS", values.of("NUM_GPUS")),
        notes=tuple(_notes(values.shell, strategy)),
    )


def _hetero_pipelines(
    values: LaunchValues, num_layers: int | None, degrees: list[int]
) -> list[tuple[StageSpec, ...]]:
    """One stage per layer count, on its used slots' devices. Rules are judged where lists were read."""
    counts = values.integer_lists("LAYERS_NUM_LIST") or []
    tp = values.integer("TP")
    readable = bool(counts) and not values.broken("LAYERS_NUM_LIST") and not values.broken("TP")
    if not counts and not values.broken("LAYERS_NUM_LIST"):
        values.bad("LAYERS_NUM_LIST", "missing: this key is required with HETERO=true")
    if degrees and counts and len(counts) != sum(degrees):
        rule = f"one list per pipeline, here {sum(degrees)}, the sum of CP_LIST"
        values.bad("LAYERS_NUM_LIST", f"{_length(counts, sum(degrees))}: {rule}")
    if readable:
        _check_layers(values, counts, num_layers)
    _check_sequence_lengths(values, len(counts))
    unused = values.integers("UNUSED_RANK", 0) or []
    mapping = values.devices_of_slots("RANK_TO_DEVICE_MAPPING")
    if not readable:
        return []
    slots = tp * sum(map(len, counts))
    if not values.within("TP", "devices of all stages", slots, MOST_DEVICES):
        return []
    _check_unused(values, unused, slots)
    used = sorted(set(range(slots)) - set(unused))
    mapping = {slot: slot for slot in used} if mapping is None else mapping
    _check_mapping(values, mapping, used, slots)
    return _stages(values, counts, tp, {slot: mapping[slot] for slot in used if slot in mapping})


def _context_degrees(values: LaunchValues, homogeneous: bool) -> list[int]:
    """CP_LIST, one degree per data-parallel group; CP, one for all, with HETERO=false."""
    dp = values.integer("DP")
    degrees = values.integers("CP_LIST", 1)
    common = values.integer("CP", 1) if homogeneous else 1
    if values.broken("DP") or values.broken("CP_LIST"):
        return []
    if not values.within("DP", "data-parallel groups", dp, MOST_DEVICES):
        return []
    degrees = [common] * dp if degrees is None else degrees
    if len(degrees) != dp:
        values.bad("CP_LIST", f"{_length(degrees, dp)}: one degree per data-parallel group, DP is {dp}")
    if homogeneous and "CP" in values.shell.values and set(degrees) != {common}:
        values.bad("CP_LIST", f"{degrees}: with HETERO=false all are CP, {common}")
    return degrees


def _check_layers(values: LaunchValues, counts: Counts, num_layers: int | None) -> None:
    """Every pipeline's counts add up to the model's layers, or to those of the first."""
    wanted = sum(counts[0]) if num_layers is None else num_layers
    owner = "LAYERS_NUM_LIST[0] has" if num_layers is None else "the model has"
    for index, layers in enumerate(counts):
        path = f"LAYERS_NUM_LIST[{index}]"
        if not layers:
            values.bad(path, "empty: a pipeline has at least one stage")
        elif sum(layers) != wanted:
            total = " + ".join(map(str, layers)) + (f" = {sum(layers)}" if len(layers) > 1 else "")
            values.bad(path, f"{total} layers: {owner} {wanted}")


def _check_sequence_lengths(values: LaunchValues, pipelines: int) -> None:
    """One length per pipeline."""
    lengths = values.integers("SEQ_LEN_LIST", 0)
    if lengths is None or values.broken("SEQ_LEN_LIST"):
        return
    if len(lengths) != pipelines:
        rule = f"one length per pipeline, here {pipelines}"
        values.bad("SEQ_LEN_LIST", f"{_length(lengths, pipelines)}: {rule}")


def _check_unused(values: LaunchValues, unused: list[int], slots: int) -> None:
    """UNUSED_RANK names slots of the stages, each once."""
    for slot, times in sorted(Counter(unused).items()):
        if slot >= slots:
            values.bad("UNUSED_RANK", f"{slot}: the stages have the slots 0 to {slots - 1}")
        if times > 1:
            values.bad("UNUSED_RANK", f"{slot}: a slot stands in the list once")


def _check_mapping(values: LaunchValues, mapping: dict[int, int], used: list[int], slots: int) -> None:
    """Every used slot has a device of its own; no slot is beyond the stages."""
    key = "RANK_TO_DEVICE_MAPPING"
    if values.broken(key):
        return
    owners: dict[int, int] = {}
    for slot in used:
        if slot not in mapping:
            values.bad(key, f"slot {slot} is missing: every used slot has a device")
        elif mapping[slot] in owners:
            other = owners[mapping[slot]]
            values.bad(f"{key}[{slot}]", f"{mapping[slot]}: a device is used once, slot {other} has it too")
        else:
            owners[mapping[slot]] = slot
    for slot in mapping:
        if slot >= slots:
            values.bad(f"{key}[{slot}]", f"{mapping[slot]}: the stages have the slots 0 to {slots - 1}")


def _stages(
    values: LaunchValues, counts: Counts, tp: int, devices: dict[int, int]
) -> list[tuple[StageSpec, ...]]:
    """Each stage on the devices that sit in its TP slots."""
    pipelines = []
    base = 0
    for index, layers in enumerate(counts):
        stages = []
        for number, count in enumerate(layers):
            held = tuple(devices[slot] for slot in range(base, base + tp) if slot in devices)
            if not held and not values.broken("RANK_TO_DEVICE_MAPPING"):
                where = f"slots {base} to {base + tp - 1} of pipeline {index}, stage {number}"
                values.bad("UNUSED_RANK", f"{where}: a stage keeps at least one slot")
            low = sum(layers[:number])
            stages.append(StageSpec(held, (low, low + count)))
            base += tp
        pipelines.append(tuple(stages))
    return pipelines


def _homogeneous_pipelines(
    values: LaunchValues, num_layers: int | None, degrees: list[int]
) -> list[tuple[StageSpec, ...]]:
    """DP * CP equal pipelines of PP stages; a stage's devices are consecutive, pipeline by pipeline."""
    tp, pp = (values.integer(key) for key in ("TP", "PP"))
    for key in ("LAYERS_NUM_LIST", "UNUSED_RANK", "RANK_TO_DEVICE_MAPPING", "SEQ_LEN_LIST"):
        if key in values.shell.values:
            values.bad(key, "needs HETERO=true: with HETERO=false all stages are equal")
    if num_layers is None:
        values.bad("NUM_LAYERS", "missing: HETERO=false needs the model's number of layers")
    elif num_layers % pp:
        values.bad("PP", f"{pp}: {num_layers} layers do not divide evenly into {pp} stages")
    total = sum(degrees)
    values.within("DP", "devices of all stages", total * tp * pp, MOST_DEVICES)
    if values.problems or num_layers is None:
        return []
    return [tuple(equal_stages(group, total, tp, pp, num_layers // pp)) for group in range(total)]


def _micro_batch_counts(
    values: LaunchValues, pipelines: list[tuple[StageSpec, ...]], degrees: list[int], given: int | None
) -> list[int]:
    """Micro-batches per pipeline. Pipelines of one context-parallel group run the same ones."""
    counts = values.integers("MICRO_BATCH_NUM_LIST", 1)
    if given is not None or counts is None:
        return [len(stages) if given is None else given for stages in pipelines]
    groups = values.integer("DP", 1)
    if len(counts) != groups and not values.broken("DP") and not values.broken("MICRO_BATCH_NUM_LIST"):
        rule = f"one count per data-parallel group, DP is {groups}"
        values.bad("MICRO_BATCH_NUM_LIST", f"{_length(counts, groups)}: {rule}")
    for index, count in enumerate(counts):
        values.within(f"MICRO_BATCH_NUM_LIST[{index}]", "micro-batches", count, MOST_MICRO_BATCHES)
    if values.broken("MICRO_BATCH_NUM_LIST") or not values.within(
        "CP_LIST", "members", sum(degrees), MOST_DEVICES
    ):
        return []
    return [count for count, degree in zip(counts, degrees, strict=False) for _ in range(degree)]


def _length(items: list[int] | Counts, wanted: int) -> str:
    return f"list too {'long' if len(items) > wanted else 'short'}, {len(items)} entries"


def _notes(shell: ShellValues, strategy: Strategy) -> Iterator[str]:
    gpus = shell.values.get("NUM_GPUS")
    if gpus is not None and gpus.text != str(strategy.world_size):
        yield f"NUM_GPUS={gpus.text} is not checked: the stages use {strategy.world_size} devices"
    for key in shell.repeated:
        yield f"{key} is set more than once: the last value, in line {shell.values[key].line}, counts"
    for key in MODEL_AND_RUN_KEYS:
        if key in shell.values:
            yield f"{key} says nothing about the strategy"
