"""What an artifact says about itself: versions, origin, optimizer, and a hash of every file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from typing import Annotated

from ..base.codec import Json, decode, encode
from ..base.typed import As, AtLeast, Unfit, ValueRule
from ..errors import ArtifactError, HspmdError
from ..options import OptimizerConfig, Precision
from ..program.program import Program, Shard
from .json_text import fingerprint

FORMAT = "hspmd-artifact"
SCHEMA = 2
OWN_HASH = "sha256"
TORCH_LOW, TORCH_BELOW = "2.11", "2.15"

PLACES, PLACE_COLUMNS = frozenset({"modules", "lines"}), frozenset({6, 9})
"""Of a graph as JSON: its tables of texts, and where a row names an entry of them."""

HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and sha256 of one file."""

    size: Annotated[int, AtLeast(0)]
    sha256: Annotated[str, ValueRule(lambda text: HASH.fullmatch(text) is not None, "64 hex digits")]


def _optimizer(options: object) -> OptimizerConfig:
    try:
        return OptimizerConfig.from_json(options)
    except HspmdError as error:
        told = "; ".join(text for _, text in error.details)
        raise Unfit(f"the options of an optimizer ({told})", options) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What its file holds, in that order, but the hash of all of it; every field stands there.

    format, schema: of the file. torch: versions that the programs fit, from the first to below the second.
    rank: the only rank that is there, None for a whole artifact.
    model_fingerprint covers what was traced: every operator with its arguments and shapes, every parameter's
    name, shape and dtype, what is tied; so that two strategies with one global batch agree on it.
    device_kinds: per rank. model: what `models` needs to build the model again, as JSON. files: by path
    inside the artifact, empty until it is written.
    """

    format: str
    schema: int
    torch: tuple[str, str]
    rank: Annotated[int, AtLeast(0)] | None
    model_fingerprint: str
    strategy_fingerprint: str
    device_kinds: tuple[str, ...]
    model: object
    optimizer: Annotated[OptimizerConfig, As(object, _optimizer)]
    precision: Precision
    files: dict[str, FileEntry]

    def with_files(self, files: Mapping[str, FileEntry], rank: int | None) -> Manifest:
        """This manifest for the files that were written."""
        return replace(self, files=dict(sorted(files.items())), rank=rank)


def describe(
    model: object,
    graph: object,
    optimizer: OptimizerConfig,
    program: Program,
    strategy: object,
    precision: Precision = Precision.MODEL,
) -> Manifest:
    """The manifest of a freshly compiled program; `files` is filled by writing it."""
    return Manifest(
        format=FORMAT,
        schema=SCHEMA,
        torch=(TORCH_LOW, TORCH_BELOW),
        rank=None,
        model_fingerprint=fingerprint_model(graph, program),
        strategy_fingerprint=fingerprint(strategy),
        device_kinds=tuple(own.device_kind for own in program.ranks),
        model=model,
        optimizer=optimizer,
        precision=precision,
        files={},
    )


def fingerprint_model(graph: object, program: Program) -> str:
    """A hash that two artifacts share exactly if they train the same parameters by the same operators.

    graph: as JSON; user lines and module paths say where an operator comes from, not what is computed.
    """
    computed = (
        {key: item for key, item in graph.items() if key not in PLACES} if isinstance(graph, dict) else graph
    )
    if isinstance(computed, dict) and isinstance(computed.get("rows"), list):
        computed = computed | {"rows": [_without_place(row) for row in computed["rows"]]}
    return fingerprint({"graph": computed} | parameters_of(program))


def fingerprint_parameters(program: Program) -> str:
    """A hash that two programs share exactly if they train the same parameters, on whatever inputs."""
    return fingerprint(parameters_of(program))


def parameters_of(program: Program) -> dict[str, Json]:
    """Name, type, shape and use of every parameter and buffer, and which names are of one."""
    shards: dict[str, Shard] = {shard.name: shard for own in program.ranks for shard in own.shards}
    held: list[Json] = [
        [name, shard.dtype, list(shard.whole_shape), shard.trainable, shard.is_buffer, shard.persistent]
        for name, shard in sorted(shards.items())
    ]
    return {"parameters": held, "aliases": encode(program.aliases)}


def _without_place(row: object) -> object:
    if not isinstance(row, list):
        return row
    return [item for index, item in enumerate(row) if index not in PLACE_COLUMNS]


def manifest_to_json(manifest: Manifest) -> dict[str, Json]:
    """The manifest as its file holds it, closed by a hash of all the rest of it."""
    written = {item.name: getattr(manifest, item.name) for item in fields(manifest)}
    body = encode(written | {"optimizer": manifest.optimizer.to_json()})
    assert isinstance(body, dict)
    return with_own_hash(body)


def manifest_from_json(value: Json, file: str) -> Manifest:
    """Reads what `manifest_to_json` writes; first of all it must be ours, and of this version."""
    body = without_own_hash(value, file, FORMAT, SCHEMA)
    manifest = decode(Manifest, body, file)
    check_torch(*manifest.torch)
    return replace(manifest, files=dict(sorted(manifest.files.items())))


def with_own_hash(body: dict[str, Json]) -> dict[str, Json]:
    """A listing closed by a hash of all the rest of it."""
    return body | {OWN_HASH: fingerprint(body)}


def without_own_hash(value: Json, file: str, form: str, schema: int) -> dict[str, Json]:
    """A listing of that format and schema, as it was written, without its hash."""
    body = dict(value) if isinstance(value, dict) else {}
    check_format(body, file, form, schema)
    if body.pop(OWN_HASH, None) != fingerprint(body):
        raise ArtifactError(
            f"{file} was changed after it was compiled",
            rule=f"its last entry, {OWN_HASH}, is the hash of all the others",
            fix="copy the artifact again, or compile again",
        )
    return body


def check_format(value: Mapping[str, object], file: str, form: str = FORMAT, schema: int = SCHEMA) -> None:
    """Refuses a manifest that is not ours, or of another schema, before anything else is read."""
    if value.get("format") != form:
        raise ArtifactError(
            f"{file} is not the manifest of an artifact",
            details=[("format", repr(value.get("format"))), ("wanted", repr(form))],
            fix="name the directory that `hspmd compile -o` wrote",
        )
    if value.get("schema") != schema or isinstance(value.get("schema"), bool):
        raise ArtifactError(
            "the artifact has another schema version",
            details=[("artifact", repr(value.get("schema"))), ("here", str(schema))],
            rule="an artifact is read by the version of hspmd_compiler that has its schema",
            fix="compile again with this version",
        )


def check_torch(low: str, below: str, found: str | None = None) -> None:
    """Refuses a torch (by default the installed one) outside [low, below)."""
    here = version("torch") if found is None else found
    if not version_key(low) <= version_key(here) < version_key(below):
        raise ArtifactError(
            "the artifact does not fit the installed version of torch",
            details=[("torch", here), ("wanted", f">={low},<{below}")],
            rule="operators are those of the torch that the model was traced with",
            fix=f"install torch>={low},<{below}, or compile again with torch {here}",
        )


def version_key(text: str) -> tuple[int, ...]:
    """The release part of a version, for comparing: `2.13.0+cpu` is (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])
