"""HexiScale's configuration: `hetero_configs`, `layer_partitions` and per-pipeline batches, as flags or JSON.

Launcher and trainer name the per-pipeline lists differently, and pad them differently. The names
that a configuration uses tell whose rule holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...base.limits import MOST_DEVICES, MOST_MICRO_BATCHES
from ..check import check, raise_if_any
from ..strategy import PipelineSpec, ScheduleKind, StageSpec, Strategy
from .expanded import Choices, DeviceSlot, Expanded
from .flags import own_name, read_flags
from .format_values import FormatValues, is_integer
from .stage_layers import layer_ranges

FIX = "give hetero_configs and layer_partitions of the same shape; docs/strategy.md lists the arguments"
SUBJECT = "a HexiScale configuration"
ZERO_TYPES = {"zero2": 2, "zero3": 3}
PER_PIPELINE = "one list per pipeline with an integer per stage"

ARGUMENTS = (
    "hetero_configs",
    "layer_partitions",
    "global_bsz_size",
    "global_batch_size",
    "chunks",
    "micro_batch_num",
    "pp_layouts",
    "devices_id",
    "total_layer_num",
    "layer_num",
    "accum_iter",
    "run_iter",
    "pipeline_type",
    "default_dp_type",
    "all_hetero_configs_path",
)

Counts = list[list[int]]


@dataclass(frozen=True, slots=True)
class _Program:
    """One of the two programs that read a configuration, and its names of the per-pipeline lists."""

    name: str
    batches: str
    chunks: str
    cuts: bool


TRAINER = _Program("trainer", "global_bsz_size", "chunks", cuts=False)
LAUNCHER = _Program("launcher", "global_batch_size", "micro_batch_num", cuts=True)


def looks_like_flags(text: str) -> bool:
    """Whether a text is a command line with HexiScale's arguments."""
    return "--hetero_configs" in text or "--hetero-configs" in text


def read_configuration(text: str, at: str = "") -> dict[str, object]:
    """The arguments of a HexiScale command line."""
    values = FormatValues()
    flags = read_flags(text, ARGUMENTS, values)
    raise_if_any(values.problems, at, FIX, SUBJECT)
    return flags


def expand_hexiscale(content: Mapping[str, object], choices: Choices, at: str = "") -> Expanded:
    """The strategy of a configuration. A pipeline's batch is cut into micro-batches as it cuts tensors."""
    values = FormatValues()
    given = {own_name(key): value for key, value in content.items()}
    notes = [f"{key} says nothing about the strategy" for key in given if _passed_over(key, values)]
    _check_path(given, values)
    degrees = values.count_lists("hetero_configs", given.get("hetero_configs"), PER_PIPELINE)
    layers = values.count_lists("layer_partitions", given.get("layer_partitions"), PER_PIPELINE)
    for index, stages in enumerate(degrees):
        if not stages:
            values.bad(f"hetero_configs[{index}]", "[]: a pipeline has at least one stage")
    _check_shape("layer_partitions", layers, degrees, values)
    _check_layers(layers, given, choices, values)
    ranks = _ranks(given, degrees, values)
    program = _program(given, values)
    sizes = _micro_batches(given, program, degrees, choices, values, notes)
    schedule = _schedule(given, values, notes)
    accumulation = _accumulation(given, values)
    places = tuple(_places(given, degrees, ranks, values))
    raise_if_any(values.problems, at, FIX, SUBJECT)
    pipelines = [
        PipelineSpec(
            tuple(StageSpec(tuple(held), ends) for held, ends in zip(row, layer_ranges(counts), strict=True)),
            batch,
        )
        for row, counts, batch in zip(ranks, layers, sizes, strict=True)
    ]
    zero = ZERO_TYPES.get(str(given.get("default_dp_type")), 0)
    strategy = Strategy(tuple(pipelines), accumulation, schedule, zero=zero)
    check(strategy, at=at)
    return Expanded(strategy, places=places, notes=tuple(notes))


def _passed_over(key: str, values: FormatValues) -> bool:
    return key not in ARGUMENTS and values.unknown(key, ARGUMENTS)


def _check_path(given: Mapping[str, object], values: FormatValues) -> None:
    """The lists of a file, or written out: HexiScale takes one of them."""
    if "all_hetero_configs_path" in given:
        values.bad("all_hetero_configs_path", f"{given['all_hetero_configs_path']!r}: give that file itself")


def _check_shape(key: str, rows: Counts, degrees: Counts, values: FormatValues) -> None:
    """A list has a row per pipeline, and in it an entry per stage, as hetero_configs has."""
    if values.broken(key) or values.broken("hetero_configs"):
        return
    if len(rows) != len(degrees):
        values.bad(key, f"{len(rows)} pipelines: hetero_configs has {len(degrees)}")
    for index, (row, stages) in enumerate(zip(rows, degrees, strict=False)):
        if len(row) != len(stages):
            values.bad(
                f"{key}[{index}]", f"{row}: {len(row)} stages, hetero_configs[{index}] has {len(stages)}"
            )


def _check_layers(
    layers: Counts, given: Mapping[str, object], choices: Choices, values: FormatValues
) -> None:
    """Every row sums to the number of layers: the given one, else that of the first row."""
    name = "total_layer_num" if "total_layer_num" in given else "layer_num"
    total = values.count(name, given.get(name))
    if choices.num_layers is not None:
        name, total = "--layers", choices.num_layers
    for index, row in enumerate(layers):
        wanted, owner = (sum(layers[0]), "layer_partitions[0]") if total is None else (total, name)
        if sum(row) != wanted:
            shown = " + ".join(map(str, row))
            values.bad(f"layer_partitions[{index}]", f"{shown} = {sum(row)} blocks: {owner} has {wanted}")


def _ranks(given: Mapping[str, object], degrees: Counts, values: FormatValues) -> list[Counts]:
    """Ranks of every stage: pp_layouts, each stage's sorted, else counted by pipeline, stage, position."""
    layouts = _nested("pp_layouts", given.get("pp_layouts"), degrees, "ranks", values)
    if layouts is not None:
        return _checked_layouts(layouts, values)
    ranks: list[Counts] = []
    if not values.within("hetero_configs", "devices", sum(map(sum, degrees)), MOST_DEVICES):
        return []
    first = 0
    for stages in degrees:
        ranks.append([])
        for degree in stages:
            ranks[-1].append(list(range(first, first + degree)))
            first += degree
    return ranks


def _checked_layouts(layouts: list[Counts], values: FormatValues) -> list[Counts]:
    """Each rank of the world stands once."""
    named = [rank for stages in layouts for ranks in stages for rank in ranks]
    for rank in sorted(rank for rank, count in Counter(named).items() if count > 1):
        values.bad("pp_layouts", f"{rank}: a rank stands in one stage, once")
    for rank in sorted(set(range(len(named))) - set(named)):
        values.bad("pp_layouts", f"rank {rank} is missing: the world has {len(named)}, counted from 0")
    return [[sorted(ranks) for ranks in stages] for stages in layouts]


def _nested(key: str, value: object, degrees: Counts, what: str, values: FormatValues) -> list[Counts] | None:
    """A three-level list shaped as hetero_configs: as many entries per stage as its degree."""
    if value is None or values.broken("hetero_configs"):
        return None
    rows = value if isinstance(value, list | tuple) else []
    wanted = f"per pipeline and stage, a list of {what}"
    read = [values.count_lists(f"{key}[{index}]", row, wanted, 0) for index, row in enumerate(rows)]
    if not rows:
        values.bad(key, f"{value!r}: {wanted}")
    if values.broken(key):
        return None
    _check_shape(key, [[len(stage) for stage in row] for row in read], degrees, values)
    for index, (row, stages) in enumerate(zip(read, degrees, strict=False)):
        for stage, (entries, degree) in enumerate(zip(row, stages, strict=False)):
            if len(entries) != degree:
                where = f"hetero_configs[{index}][{stage}] is {degree}"
                values.bad(f"{key}[{index}][{stage}]", f"{entries}: {len(entries)} {what}, {where}")
    return None if values.broken(key) else read


def _program(given: Mapping[str, object], values: FormatValues) -> _Program:
    trainer = [name for name in (TRAINER.batches, TRAINER.chunks) if name in given]
    launcher = [name for name in (LAUNCHER.batches, LAUNCHER.chunks) if name in given]
    if trainer and launcher:
        rule = f"{launcher[0]} is the launcher's name: both pad differently, name both lists alike"
        values.bad(trainer[0], f"the trainer's name, {rule}")
    return LAUNCHER if launcher else TRAINER


def _micro_batches(
    given: Mapping[str, object],
    program: _Program,
    degrees: Counts,
    choices: Choices,
    values: FormatValues,
    notes: list[str],
) -> list[tuple[int, ...]]:
    """Per pipeline, the sizes of its micro-batches."""
    batches = _one_or_more(program.batches, given, values)
    chunks = _one_or_more(program.chunks, given, values)
    if batches and (choices.micro_batch_size is not None or choices.micro_batches is not None):
        values.bad(program.batches, "says what --micro-batch-size and --micro-batches say: give one of them")
    for key, before, after in zip(
        (program.batches, program.chunks),
        (batches, chunks),
        (padded := fit(batches, chunks, len(degrees), program.cuts)),
        strict=True,
    ):
        _check_fit(key, before, after, len(degrees), program, values)
        if before != after:
            done = "padded" if len(before) < len(after) else "cut"
            notes.append(f"{key} is {done} as the {program.name} does: {after}")
    batches, chunks = padded
    counts = chunks or [choices.micro_batches or len(stages) for stages in degrees]
    few = values.within(program.chunks, "micro-batches", max(counts, default=0), MOST_MICRO_BATCHES)
    if not few or not all(counts):
        return []
    sizes = batches or [count * choices.size for count in counts]
    cut = [tuple(chunk_sizes(size, count)) for size, count in zip(sizes, counts, strict=False)]
    notes += _ragged(cut, counts)
    return cut


def _check_fit(
    key: str, before: list[int], after: list[int], pipelines: int, program: _Program, values: FormatValues
) -> None:
    """After padding, a list that is given has one entry per pipeline."""
    if after and len(after) != pipelines:
        rule = f"the {program.name} pads both lists by the gap of {program.batches}, and cuts neither"
        rule = f"the {program.name} pads and cuts both lists by {program.batches}" if program.cuts else rule
        values.bad(key, f"{before}: {len(after)} entries once padded, for {pipelines} pipelines; {rule}")


def fit(batches: list[int], chunks: list[int], pipelines: int, cuts: bool) -> tuple[list[int], list[int]]:
    """Both lists for so many pipelines. The gap is the batch list's alone, and both repeat their last.

    cuts: the launcher's rule for lists that are too long; the trainer leaves them, and refuses them.
    """
    gap = pipelines - len(batches or chunks)
    if gap > 0:
        return [*batches, *batches[-1:] * gap], [*chunks, *chunks[-1:] * gap]
    return (batches[:pipelines], chunks[:pipelines]) if cuts else (batches, chunks)


def chunk_sizes(size: int, count: int) -> Iterator[int]:
    """A batch cut into chunks as large as the first, of ceil(size / count), the last one smaller."""
    piece = -(-size // count)
    for low in range(0, size, piece):
        yield min(piece, size - low)


def _ragged(cut: list[tuple[int, ...]], counts: list[int]) -> Iterator[str]:
    for index, (pieces, count) in enumerate(zip(cut, counts, strict=False)):
        if len(pieces) != count or len(set(pieces)) > 1:
            rule = "HexiScale takes all for as large as the first, here they may differ"
            yield f"pipeline {index}: {sum(pieces)} samples in {count} chunks are {list(pieces)}; {rule}"


def _one_or_more(key: str, given: Mapping[str, object], values: FormatValues) -> list[int]:
    """One integer or several; empty where there is none."""
    value = given.get(key)
    if value is None:
        return []
    return values.counts(key, [value] if is_integer(value) else value)


def _schedule(given: Mapping[str, object], values: FormatValues, notes: list[str]) -> ScheduleKind:
    if "pipeline_type" not in given:
        notes.append("pipeline_type is not given: 1F1B, HexiScale's own default is Gpipe")
        return ScheduleKind.ONE_F_ONE_B
    name = str(given["pipeline_type"]).lower()
    for kind in ScheduleKind:
        if kind.value == name:
            return kind
    values.bad("pipeline_type", f"{given['pipeline_type']!r}: Gpipe or 1F1B")
    return ScheduleKind.ONE_F_ONE_B


def _accumulation(given: Mapping[str, object], values: FormatValues) -> int:
    accumulation = values.count("accum_iter", given.get("accum_iter")) or 1
    runs = values.count("run_iter", given.get("run_iter"))
    if runs is not None and runs < accumulation:
        values.bad("run_iter", f"{runs}: at least accum_iter, {accumulation}")
    return accumulation


def _places(
    given: Mapping[str, object], degrees: Counts, ranks: list[Counts], values: FormatValues
) -> Iterator[DeviceSlot]:
    """devices_id: the machine of every rank; on it, ranks count up in the order of ranks."""
    machines = _nested("devices_id", given.get("devices_id"), degrees, "machine indices", values)
    if machines is None or values.broken("pp_layouts"):
        return
    hosts = {
        rank: machine
        for held, named in zip(ranks, machines, strict=True)
        for stage, indices in zip(held, named, strict=True)
        for rank, machine in zip(stage, indices, strict=True)
    }
    placed: dict[int, int] = {}
    for rank, machine in sorted(hosts.items()):
        yield DeviceSlot(rank, machine, placed.get(machine, 0))
        placed[machine] = placed.get(machine, 0) + 1
