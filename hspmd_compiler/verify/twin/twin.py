"""The value proof of a program that is too large to run: a twin of it in smaller sizes is run instead.

The twin is compiled from the same model and strategy with fewer numbers in every size and with two
pipelines of each kind. What is proved: the twin trains like the eager model; the whole program is
the twin's, row by row, with sizes that correspond; pipelines that were left out are relabelings of kept
ones. What is assumed: that an operator computes the same function in every size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from rich.console import Group, RenderableType
from rich.text import Text

from ...artifact.store import Artifact
from ...base.devices import DeviceKind, family_of
from ...base.log import task
from ...compiler import compile_model
from ...cost_models.links import ClusterCost
from ...errors import ArtifactError
from ...models.builtin_models import BUILTIN, GptSize, LlamaSize
from ...models.models import SourceKind, load_model, rebuild
from ...program.program import Program
from ...strategy.form import strategy_from
from ...strategy.strategy import PipelineSpec, Strategy
from ..artifact import VerifyReport, verify_artifact
from ..reference import check_size
from .same_code import Comparison, check_copies
from .size_map import Pair, SizeMap, reduced, split_pairs
from .twin_cost import TwinCost, cost_of, machines_of

HEAD_DIM = 4
"""Of the twin: rotary positions need an even half of it."""
UNITS = {"ffn": 3, "vocab": 5, "seq": 2}
"""Pieces of the twin's split sizes have so many elements at least, another number for each size."""
PRICED = 4
"""Times that such pieces are longer where ways are chosen by prices: shorter ones are more unequal."""
COPIES = 2
"""Pipelines that are kept of each kind: with two, sums over copies are there."""


@dataclass(frozen=True, slots=True)
class TwinReport:
    """The twin's own report, and what the whole program has in common with it."""

    report: VerifyReport
    sizes: Mapping[str, Pair]
    ranks: Pair
    pipelines: Pair
    classes: int
    rows: int

    def to_json(self) -> dict[str, object]:
        """For scripts."""
        return {
            "sizes": {name: list(pair) for name, pair in self.sizes.items()},
            "ranks": list(self.ranks),
            "pipelines": list(self.pipelines),
            "classes": self.classes,
            "rows": self.rows,
            "twin": self.report.to_json(),
        }

    def rendered(self) -> RenderableType:
        """For people: what is proved, and what is not."""
        sizes = ", ".join(f"{name} {whole:,} -> {twin:,}" for name, (whole, twin) in self.sizes.items())
        return Group(
            self.report.rendered(),
            Text(
                f"twin: {sizes}; {self.pipelines[0]} pipelines -> {self.pipelines[1]}, "
                f"{self.ranks[0]:,} ranks -> {self.ranks[1]:,}\n"
                f"proved: the twin trains like the eager model (above); {self.classes} class programs of "
                f"{self.rows:,} rows are the twin's, row by row, with sizes that correspond; every rank's "
                "communication, pieces and instructions are those of its place in the twin, and pipelines "
                "left out are relabelings of kept ones\n"
                "not proved: that operators compute the same function in every size (assumed), and what "
                "rounding, memory and time are at the whole size"
            ),
        )


def verify_twin(artifact: Artifact) -> TwinReport:
    """Prove a program by its twin; an ArtifactError where there is none, a VerifyError where it differs."""
    if artifact.program.sizes is not None:
        raise ArtifactError(
            "the artifact is for micro-batches of any size, and has no twin",
            rule="a twin is compared with a program of one size",
            fix="--values proves it at sizes of its range that are computed in seconds",
        )
    strategy = strategy_from(artifact.strategy)
    name, size = _size_of(artifact)
    _check_strategy(strategy)
    cost = cost_of(artifact, strategy)
    small, kept = _fewer(with_same_buckets(strategy, artifact.program), cost)
    with task("compile the twin"):
        twin_size = _smaller(size, math.lcm(*_degrees(strategy)), 1 if cost is None else PRICED)
        growth = size.hidden * size.seq / (twin_size.hidden * twin_size.seq)
        twin_cost = None if cost is None else TwinCost.of(cost, strategy, small, growth)
        twin = _compiled(name, twin_size, small, artifact, twin_cost)
    with task("compare with the twin"):
        check_copies(artifact.program, kept)
        sizes = _sizes(size, twin_size)
        ranks = _rank_map(artifact.program, twin.program, kept)
        pairs = _pairs(sizes, strategy, small)
        Comparison(artifact.program, twin.program, ranks, SizeMap(pairs)).run()
    classes = artifact.program.classes.values()
    return TwinReport(
        verify_artifact(twin, values=True),
        {key: pair for key, pair in sizes.items() if pair[0] != pair[1]},
        (strategy.world_size, small.world_size),
        (len(strategy.pipelines), len(small.pipelines)),
        len(classes),
        sum(len(segment.rows) for shared in classes for segment in shared.segments),
    )


def _size_of(artifact: Artifact) -> tuple[str, LlamaSize | GptSize]:
    """The built-in name and numbers of the model."""
    described: Mapping[str, object] = (
        artifact.manifest.model if isinstance(artifact.manifest.model, dict) else {}
    )
    kind, name, args = (described.get(key) for key in ("kind", "name", "args"))
    size = BUILTIN.get(str(name))
    if kind != SourceKind.BUILTIN.value or not isinstance(size, (LlamaSize, GptSize)):
        raise ArtifactError(
            f"there is no twin of the model {name}",
            rule="a twin is made of the built-in Llama and GPT models, whose sizes are arguments",
            fix="verify a smaller model of your own with `--values`",
        )
    given = args if isinstance(args, dict) else {}
    check_size(artifact.program, rebuild(described))
    return str(name), _changed(size, {key: int(text) for key, text in given.items()})


def _changed(size: LlamaSize | GptSize, numbers: Mapping[str, int]) -> LlamaSize | GptSize:
    changed: LlamaSize | GptSize = replace(size, **numbers)  # type: ignore[arg-type]
    return changed


def _check_strategy(strategy: Strategy) -> None:
    bad = []
    if strategy.overrides:
        bad.append(("overrides", "may name sizes of the model"))
    if strategy.layouts:
        bad.append(("layouts", "may name sizes of the model"))
    if strategy.context:
        bad.append(("context", "its lengths are those of the model's samples"))
    if strategy.zero:
        bad.append(("zero", "splits flat elements, whose boundaries do not scale with the sizes"))
    if any(stage.shares is not None for item in strategy.pipelines for stage in item.stages):
        bad.append(("shares", "their boundaries are not shown to scale with the sizes"))
    if bad:
        raise ArtifactError(
            "there is no twin under this strategy",
            details=bad,
            rule="boundaries of even splits keep their order in every size; others are not proved",
            fix="verify a smaller model with `--values`",
        )


def _degrees(strategy: Strategy) -> set[int]:
    return {stage.tp for item in strategy.pipelines for stage in item.stages}


def with_same_buckets(strategy: Strategy, program: Program) -> Strategy:
    """The strategy with the parameters of each wave as sizes have chosen them."""
    found: dict[int, dict[str, None]] = {}
    for own in program.ranks:
        for bucket in own.grad_buckets:
            if bucket.wave >= 0:
                names = (piece.param for piece in bucket.pieces)
                found.setdefault(bucket.wave, {}).update(dict.fromkeys(names))
    waves = tuple(tuple(names) for _, names in sorted(found.items()))
    return replace(strategy, same_buckets=waves, bucket_bytes=None if waves else 0)


def _fewer(strategy: Strategy, cost: ClusterCost | None) -> tuple[Strategy, dict[int, int]]:
    """Two pipelines of each kind, and for every pipeline the one that stands for it."""
    kinds: dict[object, list[int]] = {}
    stands: dict[int, int] = {}
    for number, item in enumerate(strategy.pipelines):
        where = None if cost is None else machines_of(cost, strategy, item)
        kept = kinds.setdefault((_kind(strategy, item), where), [])
        if len(kept) < COPIES:
            kept.append(number)
        stands[number] = number if number in kept else kept[0]
    chosen = sorted(number for kept in kinds.values() for number in kept)
    used = {device for number in chosen for device in strategy.pipelines[number].devices}
    return (
        replace(
            strategy,
            pipelines=tuple(strategy.pipelines[number] for number in chosen),
            device_kinds=tuple(pair for pair in strategy.device_kinds if pair[0] in used),
        ),
        stands,
    )


def _kind(strategy: Strategy, item: PipelineSpec) -> object:
    """Equal for pipelines that differ in devices only."""
    kinds = dict(strategy.device_kinds)
    stages = tuple(
        (stage.layers, tuple(kinds.get(device) for device in stage.devices)) for stage in item.stages
    )
    return (stages, item.lanes, replace(item, stages=()))


def _smaller(size: LlamaSize | GptSize, parts: int, pieces: int) -> LlamaSize | GptSize:
    """pieces: times that pieces of split sizes are longer than they have to be."""
    numbers = {"hidden": size.heads * min(HEAD_DIM, size.hidden // size.heads)}
    numbers |= {
        name: reduced(getattr(size, name), parts, units * pieces)
        for name, units in UNITS.items()
        if hasattr(size, name)
    }
    return _changed(size, numbers)


def _compiled(
    name: str, size: LlamaSize | GptSize, strategy: Strategy, artifact: Artifact, cost: TwinCost | None
) -> Artifact:
    arguments = {
        item.name: str(getattr(size, item.name)) for item in fields(size) if getattr(size, item.name)
    }
    device = DeviceKind(family_of(artifact.manifest.device_kinds[0]))
    optimizer, precision = artifact.manifest.optimizer, artifact.manifest.precision
    source = load_model(name, arguments)
    return compile_model(source, None, strategy, optimizer, device, precision=precision, cost=cost).artifact


def _sizes(whole: LlamaSize | GptSize, twin: LlamaSize | GptSize) -> dict[str, Pair]:
    return {item.name: (getattr(whole, item.name), getattr(twin, item.name)) for item in fields(whole)}


def _rank_map(whole: Program, twin: Program, kept: Mapping[int, int]) -> dict[int, int]:
    """Rank of the twin to the rank of the same place in the whole program."""
    standing = sorted(number for number, stands in kept.items() if number == stands)
    places = {(own.pipeline, own.stage, own.coordinate): own.rank for own in whole.ranks}
    return {own.rank: places[standing[own.pipeline], own.stage, own.coordinate] for own in twin.ranks}


def _pairs(sizes: Mapping[str, Pair], strategy: Strategy, small: Strategy) -> list[Pair]:
    """Numbers that correspond: sizes, the head's and its half, the batch, and boundaries of even splits."""
    (hidden, low_hidden), (heads, _) = sizes["hidden"], sizes["heads"]
    pairs = [*sizes.values(), (strategy.global_batch, small.global_batch)]
    pairs += [(hidden // heads // part, low_hidden // heads // part) for part in (1, 2)]
    for name in UNITS.keys() & sizes.keys():
        pairs += split_pairs(*sizes[name], _degrees(strategy) | {1})
    length, short = sizes["seq"]
    return [*pairs, (length + 1, short + 1)]  # labels are shifted by one position
