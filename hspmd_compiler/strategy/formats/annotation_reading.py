"""Reads HSPMD's annotation JSON: a pipeline's stages are the runs of blocks that one group holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...base.limits import MOST_LAYERS
from ..check import raise_if_any
from ..strategy import PipelineSpec, StageSpec, Strategy
from .expanded import AnnotationStyle, Choices, Expanded
from .format_values import FormatValues
from .recompute import GRANULARITIES, PublishedRecompute

FIX = "give the JSON that HSPMD's or HotSPa's generator writes; docs/strategy.md says what is read of it"
SUBJECT = "an annotation JSON"
GROUPS = "device_group_union"
SPLIT_KEY = {"qkv": "1", "dense": "0", "dense_h_to_4h": "1", "dense_4h_to_h": "0", "lm_head": "1", "wte": "0"}
ALIKE = "context-parallel pipelines look like data-parallel ones here: all count as the latter"
FIRST = ("input", "wte", "wpe")

Stages = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Module:
    """The groups of one module, and per pipeline its devices; no stages where nothing is split."""

    path: str
    groups: list[list[int]]
    stages: Stages


@dataclass(frozen=True, slots=True)
class _Block:
    """The blocks that one entry of `blocks` stands for, and the devices of each pipeline."""

    path: str
    numbers: range
    groups: list[list[int]]
    stages: Stages


def looks_like_annotation(content: object) -> bool:
    """Whether its input or another key names device groups, or a model's blocks."""
    if not isinstance(content, Mapping):
        return False
    return any(
        isinstance(value, Mapping) and ("blocks" in value or GROUPS in value) for value in content.values()
    )


def read_annotation(content: Mapping[str, object], choices: Choices, at: str = "") -> Expanded:
    """The strategy that an annotation JSON spreads its modules by."""
    values = FormatValues()
    name = next(
        (key for key, value in content.items() if isinstance(value, Mapping) and "blocks" in value), ""
    )
    if not name:
        values.bad("llama", "missing: the model's key, such as llama or gpt, has its blocks")
    model = values.mapping(name, content.get(name, {}))
    blocks = [
        _block(f"{name}.blocks.{key}", values.mapping(f"{name}.blocks.{key}", value), values)
        for key, value in values.mapping(f"{name}.blocks", model.get("blocks", {})).items()
    ]
    raise_if_any(values.problems, at, FIX, SUBJECT)
    ordered = sorted((block for block in blocks if block is not None), key=lambda block: block.numbers.start)
    _check_order(ordered, f"{name}.blocks", values)
    raise_if_any(values.problems, at, FIX, SUBJECT)
    _check_ends(content, name, ordered, values)
    count = ordered[-1].numbers.stop
    if choices.num_layers not in (None, count):
        values.bad(f"{name}.blocks", f"{count} blocks: the model has {choices.num_layers}")
    pipelines = _pipelines(ordered, values)
    raise_if_any(values.problems, at, FIX, SUBJECT)
    return _expanded(content, [choices.pipeline(stages) for stages in pipelines], len(ordered[0].groups))


def _block(path: str, form: Mapping[str, object], values: FormatValues) -> _Block | None:
    """One entry of `blocks`; its modules are on the same groups, cut alike."""
    ends = values.counts(f"{path}.range", form.get("range"), 0)
    if ends and (len(ends) > 2 or ends[0] > ends[-1]):
        values.bad(f"{path}.range", f"{ends}: [block], or [first, last]")
    values.within(f"{path}.range", "as a block", max(ends, default=0), MOST_LAYERS)
    modules = [_module(inner, entry, values) for inner, entry in _entries(path, form)]
    if not modules:
        values.bad(path, "no module below names its device groups")
    if values.broken(path):
        return None
    cut = next((module for module in modules if module.stages), None)
    if cut is None:
        values.bad(path, "no module is split, so that nothing tells tensor parallelism from copies")
        return None
    for module in modules:
        _check_alike(module, cut, values)
    return _Block(path, range(ends[0], ends[-1] + 1), cut.groups, cut.stages)


def _check_alike(module: _Module, cut: _Module, values: FormatValues) -> None:
    if module.groups != cut.groups:
        values.bad(f"{module.path}.{GROUPS}", f"{module.groups}: {cut.path} has {cut.groups}")
    elif module.stages and module.stages != cut.stages:
        degrees = [len(stage) for stage in cut.stages]
        values.bad(f"{module.path}.split", f"degrees {[*map(len, module.stages)]}: {cut.path} has {degrees}")


def _entries(path: str, form: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """(key path, entry) of each module at or below that has a type or device groups."""
    if GROUPS in form or "type" in form:
        yield path, form
        return
    for key, inner in form.items():
        if isinstance(inner, Mapping):
            yield from _entries(f"{path}.{key}" if path else key, inner)


def _module(path: str, form: Mapping[str, object], values: FormatValues) -> _Module:
    """A module's groups, its factors checked. Data is split over pipelines, a parameter inside them."""
    groups = values.count_lists(f"{path}.{GROUPS}", form.get(GROUPS), "a list of device groups", 0)
    dup = values.counts(f"{path}.dup", form.get("dup"))
    split, is_split = _split(path, form, len(groups), values)
    for key, factors in ((f"{path}.dup", dup), (f"{path}.split", split)):
        if factors and groups and len(factors) != len(groups):
            values.bad(key, f"{factors}: one factor per device group, here {len(groups)}")
    if not groups or not dup or not split or values.broken(path):
        return _Module(path, groups, ())
    degrees, copies = (dup, split) if form.get("type") == "placeholder" else (split, dup)
    _check_factors(path, groups, degrees, copies, is_split, values)
    return _Module(path, groups, _stages(groups, degrees[0]) if is_split else ())


def _split(path: str, form: Mapping[str, object], count: int, values: FormatValues) -> tuple[list[int], bool]:
    """Parts per group, and whether the entry splits at all."""
    split = values.mapping(f"{path}.split", form.get("split"))
    if not split:
        return [1] * count, False
    key = str(next(iter(split)))
    wanted = SPLIT_KEY.get(path.rpartition(".")[2], key)
    if len(split) > 1 or key != wanted:
        values.bad(f"{path}.split", f"{dict(split)}: split on the key {wanted!r} alone")
    return values.counts(f"{path}.split.{key}", split.get(key)), True


def _check_factors(
    path: str,
    groups: list[list[int]],
    degrees: list[int],
    copies: list[int],
    is_split: bool,
    values: FormatValues,
) -> None:
    """Devices stand once; a group's factors multiply to its devices times the number of groups."""
    named = [device for group in groups for device in group]
    for device in sorted(device for device, count in Counter(named).items() if count > 1):
        values.bad(f"{path}.{GROUPS}", f"{device}: a device stands in one group, once")
    for index, (group, degree, count) in enumerate(zip(groups, degrees, copies, strict=True)):
        if degree * count != len(group) * len(groups):
            rule = f"dup times split is groups times devices, {len(groups)} * {len(group)}"
            values.bad(f"{path}.dup[{index}]", f"{count} * {degree}: {rule}")
        elif len(groups) > 1 and is_split and count != len(groups):
            values.bad(f"{path}.dup[{index}]", f"{count}: one copy per group, here {len(groups)}")


def _stages(groups: list[list[int]], degree: int) -> Stages:
    """Several groups are one pipeline's each; a single one is cut into pipelines of `degree` devices."""
    if len(groups) > 1:
        return tuple(map(tuple, groups))
    return tuple(tuple(groups[0][low : low + degree]) for low in range(0, len(groups[0]), degree))


def _check_order(blocks: list[_Block], path: str, values: FormatValues) -> None:
    """All blocks stand once, from 0 on, with the same number of pipelines."""
    end = 0
    for block in blocks:
        if block.numbers.start != end:
            name = "stands twice" if block.numbers.start < end else "is missing"
            values.bad(f"{block.path}.range", f"block {min(end, block.numbers.start)} {name}")
        end = max(end, block.numbers.stop)
        if len(block.stages) != len(blocks[0].stages):
            rule = f"{blocks[0].path} has {len(blocks[0].stages)}"
            values.bad(f"{block.path}", f"{len(block.stages)} pipelines: {rule}")
    if not blocks:
        values.bad(path, "empty: a model has at least one block")


def _check_ends(content: Mapping[str, object], name: str, blocks: list[_Block], values: FormatValues) -> None:
    """Input and embeddings are with the first block, what follows the blocks with the last one."""
    outside = {
        key: {inner: form for inner, form in value.items() if inner != "blocks"} if key == name else value
        for key, value in content.items()
        if isinstance(value, Mapping)
    }
    for path, form in _entries("", outside):
        module = _module(path, form, values)
        block = blocks[0] if path.rpartition(".")[2] in FIRST else blocks[-1]
        if not values.broken(path) and module.groups != block.groups:
            values.bad(f"{path}.{GROUPS}", f"{module.groups}: {block.path} has {block.groups}")


def _pipelines(blocks: list[_Block], values: FormatValues) -> list[list[StageSpec]]:
    """Per pipeline its stages: a new one wherever the devices change."""
    owners: dict[int, tuple[int, int]] = {}
    pipelines: list[list[StageSpec]] = [[] for _ in blocks[0].stages]
    for block in blocks:
        for index, devices in enumerate(block.stages):
            stages = pipelines[index]
            low = block.numbers.start
            if stages and stages[-1].devices == devices:
                stages[-1] = StageSpec(devices, (stages[-1].layers[0], block.numbers.stop))
                continue
            stages.append(StageSpec(devices, (low, block.numbers.stop)))
            here = (index, len(stages) - 1)
            taken = [device for device in devices if owners.setdefault(device, here) != here]
            if taken:
                rule = (
                    "other blocks, or another pipeline, had them before; a stage's blocks follow each other"
                )
                values.bad(f"{block.path}", f"devices {taken} of pipeline {index}: {rule}")
    return pipelines


def _expanded(content: Mapping[str, object], pipelines: list[PipelineSpec], unions: int) -> Expanded:
    devices = content.get("devices")
    style = AnnotationStyle.UNION if unions > 1 else AnnotationStyle.ONE_GROUP
    if "recompute_granularity" not in content:
        style = AnnotationStyle.LAYER_RANGES
    recompute = _recompute(content, len(pipelines))
    return Expanded(
        Strategy(
            tuple(pipelines) if recompute is None else recompute.applied(pipelines),
            zero=1 if content.get("zero") is True else 0,
        ),
        recompute=recompute,
        style=style,
        num_gpus=len(devices) if isinstance(devices, Sequence) else None,
        notes=(ALIKE,) if len(pipelines) > 1 else (),
    )


def _recompute(content: Mapping[str, object], pipelines: int) -> PublishedRecompute | None:
    """Granularity and named blocks; what a method recomputes stands in each block, and isn't read."""
    granularity = content.get("recompute_granularity")
    blocks = content.get("recompute_layer_idxs_list")
    if not isinstance(granularity, list) or not isinstance(blocks, list) or not any(granularity):
        return None
    if (
        len(granularity) != pipelines
        or len(blocks) != pipelines
        or not {*granularity} <= {None, *GRANULARITIES}
    ):
        return None
    return PublishedRecompute(
        tuple(granularity), (None,) * pipelines, (None,) * pipelines, tuple(tuple(one) for one in blocks)
    )
