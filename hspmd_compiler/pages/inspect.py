"""An artifact for people and scripts: its ranks, one rank's program, one tensor, its communication."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterator, Mapping

from ..artifact.manifest import Manifest
from ..artifact.store import Artifact
from ..base.comm_plan import Box, CommStep, GradBucket
from ..base.dtypes import BYTES
from ..errors import ArtifactError
from ..program.check_segment import comm_slots
from ..program.exchange_plan import moved_volumes
from ..program.program import ClassProgram, InputKind, Op, OutputKind, RankProgram, Shard
from ..program.program_text import comm_text, instruction_lines, segment_lines
from .memory_page import RANKS, memory_tables
from .sections import Cell, Listing, Section, Table
from .training_page import decay_table, narrow_warning, optimizer_text

GRADIENT = "gradient"
FIRST = "global batch, inputs, rows and instructions are of that size; each step chooses its own"
NAMES_SHOWN = 5
FOLDS = (("rank", "device", "tp"), ("pipeline", "rows"))
"""Ranks of a stage, then stages of pipelines that do the same."""


def overview(artifact: Artifact, size: int | None = None) -> list[Section]:
    """What was compiled, and a line per rank. size: of a micro-batch, where any may be run."""
    manifest, program = artifact.manifest, artifact.program
    warning = narrow_warning(program)
    facts: list[tuple[Cell, ...]] = [
        ("model", model_text(manifest)),
        ("model fingerprint", manifest.model_fingerprint[:16]),
        ("strategy fingerprint", manifest.strategy_fingerprint[:16]),
        ("torch", f">={manifest.torch[0]},<{manifest.torch[1]}"),
        ("global batch", program.batch),
        *([] if program.sizes is None else [("sizes", program.sizes.text), ("first compile", FIRST)]),
        *((f"input {name}", f"{dtype} {list(shape)}") for name, (shape, dtype) in program.inputs.items()),
        *((f"input {name}", "ones, which nothing reads") for name in program.left_out),
        ("optimizer", optimizer_text(manifest.optimizer)),
        ("precision", manifest.precision.value),
        *([] if warning is None else [("warning", warning)]),
        ("groups", len(program.groups)),
        ("weights", "in the artifact" if artifact.weights else "from the recorded initialisation"),
    ]
    columns = (
        "rank",
        "device",
        "kind",
        "pipeline",
        "stage",
        "tp",
        "class",
        "rows",
        "param bytes",
        "instructions",
    )
    shards = {id(shard): shard for own in program.ranks for shard in own.shards if not shard.is_buffer}
    sizes = {number: shard_bytes(shard) for number, shard in shards.items()}
    ranks = tuple(_rank_row(own, sizes) for own in program.ranks)
    return [
        Table("artifact", "artifact", ("fact", "value"), tuple(facts)),
        Table("ranks", f"{len(ranks)} of {program.world_size} ranks", columns, ranks, FOLDS),
        *([decay_table(program, manifest.optimizer)] if manifest.optimizer.weight_decay else []),
        *memory_tables(artifact, size),
    ]


def _rank_row(own: RankProgram, sizes: Mapping[int, int]) -> tuple[Cell, ...]:
    held = sum(sizes.get(id(shard), 0) for shard in own.shards)
    stage = own.stage_text if own.segment_stages else own.stage
    place = (own.rank, own.device, own.device_kind, own.pipeline, stage, own.coordinate)
    rows = " ".join(f"{low}:{high}" for low, high in own.rows)
    return (*place, own.class_name, rows, held, len(own.instructions))


def model_text(manifest: Manifest) -> str:
    """What the model is called."""
    model = manifest.model
    return str(model["name"]) if isinstance(model, dict) and "name" in model else "a live model"


def shard_bytes(shard: Shard) -> int:
    """Memory of a shard."""
    return math.prod(shard.shape) * BYTES[shard.dtype]


def rank_page(artifact: Artifact, rank: int) -> list[Section]:
    """One rank: its segments as code, what it stores, and its instructions."""
    own = artifact.rank_program(rank)
    shared = artifact.program.classes[own.class_name]
    code = "\n\n".join("\n".join(segment_lines(segment, own)) for segment in shared.segments)
    place = (
        f"rank {rank}: device {own.device}, pipeline {own.pipeline}, stage {own.stage_text},"
        f" tp {own.coordinate}"
    )
    return [
        Listing("segments", f"{place}; class {own.class_name}", tuple(code.splitlines())),
        Table("shards", "stored", ("name", "dtype", "shape", "of"), tuple(_shard_rows(own))),
        Listing("instructions", "instructions", tuple(instruction_lines(own, shared))),
    ]


def _shard_rows(own: RankProgram) -> Iterator[tuple[Cell, ...]]:
    for shard in own.shards:
        yield shard.name, shard.dtype, str(list(shard.shape)), str(list(shard.whole_shape))


def tensor_page(artifact: Artifact, name: str) -> list[Section]:
    """The life of one parameter or buffer: where its pieces lie, who reads it, how its gradient is summed."""
    canonical = artifact.program.aliases.get(name, name)
    holders = [
        (own, shard) for own in artifact.program.ranks for shard in own.shards if shard.name == canonical
    ]
    if not holders:
        raise _unknown_tensor(artifact, name)
    first = holders[0][1]
    title = f"{name}: {first.dtype} {list(first.whole_shape)}, viewed as {list(first.whole_view)}"
    title += f", tied to {canonical}" if name != canonical else ""
    pieces = tuple(_piece_row(own, shard) for own, shard in holders)
    used = tuple(row for own, _ in holders for row in _use_rows(artifact, own, canonical))
    return [
        Table("shards", title, ("rank", "shape", "boxes of the whole", "owned elements"), pieces, RANKS),
        Table("uses", "read and made by", ("rank", "segment", "as", "value"), used, RANKS),
        Table(
            "gradient",
            "gradient",
            ("bucket", "ranks", "elements", "bytes"),
            tuple(_sums(artifact, canonical)),
        ),
    ]


def _unknown_tensor(artifact: Artifact, name: str) -> ArtifactError:
    held = {shard.name for own in artifact.program.ranks for shard in own.shards}
    names = sorted(held | set(artifact.program.aliases))
    near = difflib.get_close_matches(name, names, n=NAMES_SHOWN) or names[:NAMES_SHOWN]
    return ArtifactError(
        f"the artifact has no parameter or buffer {name!r}",
        details=[("names", ", ".join(near) + (", ..." if len(near) < len(names) else ""))],
        fix="give the name as in the model's state_dict",
    )


def _piece_row(own: RankProgram, shard: Shard) -> tuple[Cell, ...]:
    boxes = " ".join(box_text(whole) for whole, _ in shard.boxes)
    owned = sum(math.prod(high - low for low, high in whole) for whole, _ in shard.owned)
    return own.rank, str(list(shard.shape)), boxes or "nothing", owned


def box_text(box: Box) -> str:
    """`[0:4,0:8]`."""
    return "[" + ",".join(f"{low}:{high}" for low, high in box) + "]"


def _use_rows(artifact: Artifact, own: RankProgram, name: str) -> Iterator[tuple[Cell, ...]]:
    for segment in artifact.program.classes[own.class_name].segments:
        for item in segment.inputs:
            if item.kind in (InputKind.PARAM, InputKind.STORED) and item.name == name:
                yield own.rank, segment.name, item.kind.value, f"v{item.value.id}"
        for made in segment.outputs:
            if made.kind in (OutputKind.GRAD, OutputKind.BUFFER) and made.name == name:
                yield own.rank, segment.name, made.kind.value, f"v{made.value.id}"


def _sums(artifact: Artifact, name: str) -> Iterator[tuple[Cell, ...]]:
    for bucket in _buckets(artifact):
        length = sum(piece.length for piece in bucket.given if piece.param == name)
        if length:
            yield bucket.id, str(list(bucket.group)), length, length * BYTES[bucket.dtype]


def _buckets(artifact: Artifact) -> list[GradBucket]:
    """Every gradient bucket once, as the first member that gives to it sees it."""
    first: dict[int, GradBucket] = {}
    for own in artifact.program.ranks:
        for bucket in own.grad_buckets:
            if bucket.id not in first or not first[bucket.id].given:
                first[bucket.id] = bucket
    return [first[id] for id in sorted(first)]


def comm_page(artifact: Artifact) -> list[Section]:
    """Communication of one step. The size of an all-reduce inside a segment is measured by `verify`."""
    kinds: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for own in artifact.program.ranks:
        for step, times in _executions(own, artifact.program.classes[own.class_name]):
            kinds[step.kind.value] += times * _counts_here(own.rank, step)
            peers = {peer: size for peer, size in moved_volumes(step).items() if peer != own.rank}
            sent[step.kind.value] += times * sum(peers.values()) * BYTES[step.dtype]
    rows: list[tuple[Cell, ...]] = [(kind, kinds[kind], sent[kind] or "") for kind in sorted(kinds)]
    for bucket in _buckets(artifact):
        if len(bucket.group) > 1 and bucket.slot < 0:  # the others are counted by their steps
            kinds[GRADIENT] += 1
            sent[GRADIENT] += (
                sum(piece.length for piece in bucket.pieces) * BYTES[bucket.dtype] * len(bucket.group)
            )
    rows += [(GRADIENT, kinds[GRADIENT], sent[GRADIENT])] if kinds[GRADIENT] else []
    return [
        Table(
            "kinds",
            "per step; `hspmd verify` measures the all-reduces inside segments",
            ("kind", "count", "bytes sent"),
            tuple(rows),
        ),
        Table(
            "steps",
            "communication of each rank",
            ("rank", "times", "what"),
            tuple(_step_rows(artifact)),
            RANKS,
        ),
        Listing("groups", "groups", tuple(str(list(group)) for group in artifact.program.groups)),
    ]


def _counts_here(rank: int, step: CommStep) -> bool:
    """Whether `step` is counted at this rank: each once, at its first member."""
    return rank == step.group[0]


def _step_rows(artifact: Artifact) -> Iterator[tuple[Cell, ...]]:
    for own in artifact.program.ranks:
        times: Counter[str] = Counter()
        for step, executions in _executions(own, artifact.program.classes[own.class_name]):
            times[comm_text(step)] += executions
        reduced = own.times()
        for bucket in own.grad_buckets:
            names = ", ".join(dict.fromkeys(piece.param for piece in bucket.pieces))
            text = f"gradient bucket {bucket.id} over {list(bucket.group)}: {names}"
            times[text] += reduced.get(bucket.id, 1)
        yield from ((own.rank, count, text) for text, count in times.items())


def _executions(own: RankProgram, shared: ClassProgram) -> Iterator[tuple[CommStep, int]]:
    """(step, how often the rank runs it in one training step), in the order of the slots."""
    comms: Counter[int] = Counter()
    transfers: Counter[int] = Counter()
    for instruction in own.instructions:
        if instruction.segment >= 0:
            comms.update(comm_slots(shared.segments[instruction.segment]))
        elif instruction.op is Op.STEP_REDUCE:
            comms[instruction.slot] += 1
        elif instruction.op in (Op.SEND, Op.RECV):
            transfers[instruction.slot] += 1
    reduced = own.times()
    comms.update({bucket.slot: reduced[bucket.id] for bucket in own.grad_buckets if bucket.slot >= 0})
    comms.update(bucket.slot for bucket in own.param_buckets if bucket.slot >= 0)
    yield from ((own.comms[slot], times) for slot, times in sorted(comms.items()))
    yield from ((own.transfers[slot], times) for slot, times in sorted(transfers.items()))
