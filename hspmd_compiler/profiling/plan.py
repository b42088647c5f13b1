"""What is measured: which layers, sizes and groups of ranks, and how often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..base.devices import DeviceKind
from ..program.program import Program
from .layer_models import LayerKind, LayerModel
from .one_rank import compiled
from .trials import TRIALS, Trial

QUICK_TRIALS = 2
KIB, MIB = 1 << 10, 1 << 20
MOST_SHAPES = 6
"""Numbers of members of a group that are measured: more only of large worlds, and powers of two of them."""


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """models: with the sizes of their micro-batches. message_bytes, collective_bytes: ascending.

    trials: trainings that show what ranks hold beyond their tensors, where this process starts them.
    """

    kind: DeviceKind
    models: Mapping[LayerModel, tuple[int, ...]]
    repeats: int
    message_bytes: tuple[int, ...]
    collective_bytes: tuple[int, ...]
    trials: tuple[Trial, ...] = ()

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types that are measured."""
        return tuple(dict.fromkeys(model.dtype for model in self.models))

    def programs(self) -> dict[LayerModel, Program]:
        """Each model's program of one device."""
        return {model: compiled(model, sizes, self.kind) for model, sizes in self.models.items()}

    def shared_work(self) -> Program:
        """What ranks compute alone and at once: the largest model, in micro-batches of its middle size."""
        model = max(self.models, key=lambda model: (model.width, model.length, -model.layers))
        sizes = self.models[model]
        return compiled(model, (sizes[len(sizes) // 2],) * 2, self.kind)


def plan_for(kind: DeviceKind, quick: bool, most_message_bytes: int) -> ProfilePlan:
    """The plan for a kind of device. most_message_bytes: that fit into its memory."""
    largest = min(most_message_bytes, (16 if quick else 256) * MIB)
    sizes = tuple(4 * KIB << shift for shift in range(0, 17, 2) if 4 * KIB << shift <= largest)
    collective = tuple(size for size in (4 * KIB, 128 * KIB, 2 * MIB, 16 * MIB) if size <= largest)
    on_cpu = kind is DeviceKind.CPU
    models = _cpu_models(quick) if on_cpu else _cuda_models(quick)
    trials = TRIALS[: QUICK_TRIALS if quick else None] if on_cpu else ()
    return ProfilePlan(kind, models, 5 if quick else 7, sizes, collective[: 3 if quick else 4], trials)


def _cpu_models(quick: bool) -> dict[LayerModel, tuple[int, ...]]:
    shapes = [(LayerKind.DECODER, 256, 64), (LayerKind.ENCODER, 192, 64)]
    models: dict[LayerModel, tuple[int, ...]]
    models = {LayerModel(*shape, layers): (1, 2, 4, 8) for shape in shapes for layers in (2, 4)}
    if not quick:
        models[LayerModel(LayerKind.DECODER, 512, 128, 2)] = (1, 2, 4)
        models[LayerModel(LayerKind.ENCODER, 384, 64, 2)] = (2, 8)
    return models


def _cuda_models(quick: bool) -> dict[LayerModel, tuple[int, ...]]:
    shapes = [(LayerKind.DECODER, 1024, 512), (LayerKind.ENCODER, 768, 256)]
    if not quick:
        shapes.append((LayerKind.DECODER, 4096, 2048))
    return {
        LayerModel(*shape, layers, dtype): (1, 2, 4, 8)
        for shape in shapes
        for layers in (2, 4)
        for dtype in ("float32", "bfloat16")
    }


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A group that collectives are measured in."""

    ranks: tuple[int, ...]
    place: str


ONE_NODE, ACROSS = "one_node", "across"


def group_shapes(hosts: Sequence[int]) -> list[GroupShape]:
    """Groups of the first ranks of a host, and of ranks spread over all. hosts: of each rank."""
    by_host: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    largest = max(by_host.values(), key=len)
    found = [GroupShape(tuple(largest[:count]), ONE_NODE) for count in _counts(len(largest))]
    if len(by_host) > 1:
        spread = list(_in_turn(list(by_host.values())))
        found += [GroupShape(tuple(sorted(spread[:count])), ACROSS) for count in _counts(len(spread))]
    return found


def pairs_of(hosts: Sequence[int], across: bool) -> list[tuple[int, int]]:
    """Pairs of different ranks, of one host or of two, that can all talk at once."""
    free, found = list(range(len(hosts))), []
    while free:
        first = free.pop(0)
        other = next((rank for rank in free if (hosts[rank] != hosts[first]) is across), None)
        if other is not None:
            free.remove(other)
            found.append((first, other))
    return found


def _counts(most: int) -> Iterator[int]:
    counts = list(range(2, most + 1))
    if len(counts) > MOST_SHAPES:
        counts = sorted({most, *(1 << shift for shift in range(1, most.bit_length()))} - {1})
    yield from counts


def _in_turn(groups: Sequence[list[int]]) -> Iterator[int]:
    """One rank of each host, then the next of each."""
    for place in range(max(map(len, groups))):
        yield from (group[place] for group in groups if place < len(group))
