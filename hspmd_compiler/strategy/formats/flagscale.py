"""FlagScale's heterogeneous configuration: process meshes of [tp, cp, ep, dp, pp], one after another.

A mesh holds `pp` stages of `dp` copies of `tp` devices, and the stages of all meshes make one
pipeline of the model. Meshes may differ in dp, and the batch is then shared out anew between them.
Copies that need each other's experts (ep) lie in one stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd

from ...base.limits import MOST_DEVICES, MOST_MICRO_BATCHES
from ..check import check, raise_if_any
from ..strategy import PipelineSpec, StageSpec, Strategy
from .expanded import Choices, Expanded, context_groups
from .format_values import FormatValues, is_list
from .stage_layers import layer_ranges

FIX = "give hetero_process_meshes as [tp, cp, ep, dp, pp] per mesh, and hetero_pipeline_layer_split"
SUBJECT = "a FlagScale configuration"
MESHES = "hetero_process_meshes"
SPLIT = "hetero_pipeline_layer_split"
TYPES = "hetero_device_types"
EXPERT_TP = "expert_tensor_parallel_size_per_process_mesh"
WIDTH = 5


@dataclass(frozen=True, slots=True)
class Mesh:
    """One process mesh. first: its first rank."""

    tp: int
    cp: int
    ep: int
    dp: int
    pp: int
    first: int

    @property
    def stage_size(self) -> int:
        """Devices of one stage."""
        return self.tp * self.cp * self.dp

    @property
    def independent(self) -> int:
        """Copies that need no expert of another one."""
        return self.dp // gcd(self.dp, self.ep)

    def devices(self, stage: int, group: int, groups: int, member: int) -> tuple[int, ...]:
        """The devices of a stage in one of the equal groups of its copies, of one context-parallel member.

        Ranks count tp, then cp, then dp, then stages.
        """
        copies = self.dp // groups
        low = self.first + stage * self.stage_size
        starts = [
            low + (copy * self.cp + member) * self.tp for copy in range(group * copies, (group + 1) * copies)
        ]
        return tuple(start + rank for start in starts for rank in range(self.tp))


def find_hetero(content: object) -> Mapping[str, object] | None:
    """The object with the process meshes, wherever it stands in a configuration."""
    if not isinstance(content, Mapping):
        return None
    if MESHES in content:
        return content
    found = (find_hetero(value) for value in content.values())
    return next((hetero for hetero in found if hetero is not None), None)


def expand_flagscale(content: Mapping[str, object], choices: Choices, at: str = "") -> Expanded:
    """The strategy of a configuration: as many pipelines as every mesh's dp can be cut into."""
    values = FormatValues()
    hetero = find_hetero(content) or {}
    meshes = _meshes(hetero, values)
    counts = _numbers(SPLIT, hetero, values)
    _check_split(counts, meshes, _find(content, "num_layers"), choices, values)
    split = hetero.get(EXPERT_TP)
    if is_list(split) and any(degree != 1 for degree in split):
        rule = "an expert is whole on its device, 1 for each mesh"
        values.bad(EXPERT_TP, f"{split}: experts in tensor parallelism, {rule}")
    if hetero.get("standalone_embedding_stage") is True:
        values.bad("standalone_embedding_stage", "true: a stage without layers comes later, false only")
    types = hetero.get(TYPES)
    if is_list(types) and len(types) != len(meshes) and not values.broken(MESHES):
        values.bad(TYPES, f"{len(types)} types: one per process mesh, here {len(meshes)}")
    values.within(MESHES, "devices", sum(mesh.stage_size * mesh.pp for mesh in meshes), MOST_DEVICES)
    groups = gcd(*(mesh.independent for mesh in meshes))
    sizes = _micro_batches(content, meshes, groups, choices, values)
    raise_if_any(values.problems, at, FIX, SUBJECT)
    members = meshes[0].cp
    pipelines = [
        _pipeline(meshes, counts, group, groups, member, sizes)
        for group in range(groups)
        for member in range(members)
    ]
    sequence_parallel = _find(content, "sequence_parallel") is True
    zero = 1 if _find(content, "use_distributed_optimizer") is True else 0
    context = context_groups([members] * groups)
    strategy = Strategy(tuple(pipelines), sequence_parallel=sequence_parallel, zero=zero, context=context)
    check(strategy, at=at)
    return Expanded(strategy, notes=tuple(_notes(content, meshes, groups, types)))


def _meshes(hetero: Mapping[str, object], values: FormatValues) -> list[Mesh]:
    """The meshes of the flat list; ranks follow from one to the next."""
    numbers = _numbers(MESHES, hetero, values)
    if len(numbers) % WIDTH:
        values.bad(MESHES, f"{len(numbers)} numbers: groups of five, [tp, cp, ep, dp, pp] per mesh")
        return []
    meshes: list[Mesh] = []
    for low in range(0, len(numbers), WIDTH):
        first = meshes[-1].first + meshes[-1].stage_size * meshes[-1].pp if meshes else 0
        tp, cp, ep, dp, pp = numbers[low : low + WIDTH]
        meshes.append(Mesh(tp, cp, ep, dp, pp, first))
        if tp * dp % ep:
            rule = f"experts are shared out over tp * dp, here {tp} * {dp}, or a divisor of it"
            values.bad(f"{MESHES}[{low + 2}]", f"ep {ep} of mesh {low // WIDTH}: {rule}")
        if cp != meshes[0].cp:
            rule = f"mesh 0 has cp {meshes[0].cp}, meshes of unequal cp come later"
            values.bad(f"{MESHES}[{low + 1}]", f"cp {cp} of mesh {low // WIDTH}: {rule}")
    return meshes


def _numbers(key: str, hetero: Mapping[str, object], values: FormatValues) -> list[int]:
    """A list of integers; an auto-tuner's search space is refused by name."""
    items = hetero.get(key)
    searched = [item for item in items if isinstance(item, str | list)] if is_list(items) else []
    if searched or items == "auto":
        values.bad(key, f"{items!r}: an auto-tuner's search space, give the numbers of one choice")
        return []
    return values.counts(key, items)


def _check_split(
    counts: list[int], meshes: list[Mesh], num_layers: object, choices: Choices, values: FormatValues
) -> None:
    """A number of layers for each stage of all meshes; together the model's."""
    if values.broken(SPLIT) or values.broken(MESHES):
        return
    stages = sum(mesh.pp for mesh in meshes)
    if len(counts) != stages:
        shown = " + ".join(str(mesh.pp) for mesh in meshes)
        values.bad(SPLIT, f"{len(counts)} stages: the meshes' pp are {shown} = {stages}")
    total = choices.num_layers or values.count("num_layers", num_layers)
    if total is not None and sum(counts) != total:
        values.bad(SPLIT, f"{' + '.join(map(str, counts))} = {sum(counts)} layers: the model has {total}")


def _micro_batches(
    content: object, meshes: list[Mesh], groups: int, choices: Choices, values: FormatValues
) -> tuple[int, ...]:
    """Micro-batches of one pipeline: micro_batch_size on each copy of mesh 0, until the global batch."""
    written = values.count("micro_batch_size", _find(content, "micro_batch_size"))
    total = values.count("global_batch_size", _find(content, "global_batch_size"))
    if not meshes or values.broken("micro_batch_size") or values.broken("global_batch_size"):
        return ()
    size = choices.micro_batch_size or written or 1
    whole = size * meshes[0].dp
    count = choices.micro_batches or sum(mesh.pp for mesh in meshes)
    if total is not None and choices.micro_batches is None:
        count, rest = divmod(total, whole)
        if rest or not count:
            rule = f"no multiple of micro_batch_size {size} * dp {meshes[0].dp} of mesh 0"
            values.bad("global_batch_size", f"{total}: {rule}")
    if not values.within("global_batch_size", "micro-batches", count, MOST_MICRO_BATCHES):
        return ()
    return (whole // groups,) * count


def _pipeline(
    meshes: list[Mesh], counts: list[int], group: int, groups: int, member: int, sizes: tuple[int, ...]
) -> PipelineSpec:
    held = [
        (mesh.devices(stage, group, groups, member), mesh.ep) for mesh in meshes for stage in range(mesh.pp)
    ]
    stages = [
        StageSpec(devices, ends, experts=(1,) * len(devices) if ep > 1 else None)
        for (devices, ep), ends in zip(held, layer_ranges(counts), strict=True)
    ]
    return PipelineSpec(tuple(stages), sizes)


def _notes(content: object, meshes: list[Mesh], groups: int, types: object) -> Iterator[str]:
    for index, mesh in enumerate(meshes):
        last = mesh.first + mesh.stage_size * mesh.pp - 1
        if is_list(types):
            yield f"mesh {index}: ranks {mesh.first} to {last} are of type {types[index]}"
        if mesh.dp > groups:
            copies = mesh.dp // groups
            done = f"a stage's {copies} copies become tensor parallelism of degree {mesh.tp * copies}"
            yield f"mesh {index}: dp is {mesh.dp}, all meshes have {groups} in common, so {done}"
        if mesh.ep > 1:
            devices = mesh.tp * mesh.dp // groups
            yield f"mesh {index}: ep is {mesh.ep}; the {devices} devices of a stage share out its experts"
    if _find(content, "recompute_granularity") is not None:
        yield "recompute is passed over"


def _find(content: object, key: str) -> object:
    """The value of a key, wherever it stands in a configuration."""
    if not isinstance(content, Mapping):
        return None
    if key in content:
        return content[key]
    return next((found for value in content.values() if (found := _find(value, key)) is not None), None)
