"""What an artifact says about itself: versions, origin, optimizer, and a hash of every file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from typing import Annotated

from ..base.codec import Json, decode, encode
from ..base.typed import AtLeast, Converted, Unfit, ValueRule
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


@dataclass(frozen=True, slots=True)
class Manifest:
    """model: what `models` needs to build the model again, as JSON. device_kinds: per rank.

    model_fingerprint covers what was traced: every operator with its arguments and shapes, every parameter's
    name, shape and dtype, what is tied; so that two strategies with one global batch agree on it.
    rank: the only rank that is there, None for a whole artifact. files: by path inside the artifact, empty
    until it is written.
    """

    model: object
    optimizer: OptimizerConfig
    device_kinds: tuple[str, ...]
    model_fingerprint: str
    strategy_fingerprint: str
    precision: Precision = Precision.MODEL
    torch: tuple[str, str] = (TORCH_LOW, TORCH_BELOW)
    rank: int | None = None
    files: tuple[tuple[str, FileEntry], ...] = ()

    def entry(self, path: str) -> FileEntry | None:
        """The entry of one file."""
        return dict(self.files).get(path)

    def with_files(self, files: dict[str, FileEntry], rank: int | None) -> Manifest:
        """This manifest for the files that were written."""
        return replace(self, files=tuple(sorted(files.items())), rank=rank)


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
        model=model,
        optimizer=optimizer,
        device_kinds=tuple(own.device_kind for own in program.ranks),
        model_fingerprint=fingerprint_model(graph, program),
        strategy_fingerprint=fingerprint(strategy),
        precision=precision,
    )


def fingerprint_model(graph: object, program: Program) -> str:
    """A hash that two artifacts share exactly if they train the same parameters by the same operators.

    graph: as JSON; user lines and module paths say where an operator comes from, not what is computed.
    """
    shards: dict[str, Shard] = {shard.name: shard for own in program.ranks for shard in own.shards}
    parameters = [
        [name, shard.dtype, list(shard.whole_shape), shard.trainable, shard.is_buffer, shard.persistent]
        for name, shard in sorted(shards.items())
    ]
    computed = (
        {key: item for key, item in graph.items() if key not in PLACES} if isinstance(graph, dict) else graph
    )
    if isinstance(computed, dict) and isinstance(computed.get("rows"), list):
        computed = computed | {"rows": [_without_place(row) for row in computed["rows"]]}
    return fingerprint({"graph": computed, "parameters": parameters, "aliases": encode(program.aliases)})


def _without_place(row: object) -> object:
    if not isinstance(row, list):
        return row
    return [item for index, item in enumerate(row) if index not in PLACE_COLUMNS]


def _optimizer(options: object) -> OptimizerConfig:
    try:
        return OptimizerConfig.from_json(options)
    except HspmdError as error:
        told = "; ".join(text for _, text in error.details)
        raise Unfit(f"the options of an optimizer ({told})", options) from error


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """What the manifest's file holds, but the hash of all of it. See Manifest."""

    format: str
    schema: int
    torch: tuple[str, str]
    rank: Annotated[int, AtLeast(0)] | None
    model_fingerprint: str
    strategy_fingerprint: str
    device_kinds: tuple[str, ...]
    model: object
    optimizer: Annotated[object, Converted(_optimizer)]
    precision: Precision
    files: dict[str, FileEntry]


def manifest_to_json(manifest: Manifest) -> dict[str, Json]:
    """The manifest as its file holds it, closed by a hash of all the rest of it."""
    named = {item.name: getattr(manifest, item.name) for item in fields(manifest)}
    named |= {"optimizer": manifest.optimizer.to_json(), "files": dict(manifest.files)}
    body = encode(ManifestFile(format=FORMAT, schema=SCHEMA, **named))
    assert isinstance(body, dict)
    return body | {OWN_HASH: fingerprint(body)}


def manifest_from_json(value: Json, file: str) -> Manifest:
    """Reads what `manifest_to_json` writes; first of all it must be ours, and of this version."""
    body = dict(value) if isinstance(value, dict) else {}
    check_format(body, file)
    if body.pop(OWN_HASH, None) != fingerprint(body):
        raise ArtifactError(
            f"{file} was changed after it was compiled",
            rule=f"its last entry, {OWN_HASH}, is the hash of all the others",
            fix="copy the artifact again, or compile again",
        )
    held = decode(ManifestFile, body, file)
    check_torch(*held.torch)
    named = {item.name: getattr(held, item.name) for item in fields(Manifest)}
    return Manifest(**named | {"files": tuple(sorted(held.files.items()))})


def check_format(value: Mapping[str, object], file: str) -> None:
    """Refuses a manifest that is not ours, or of another schema, before anything else is read."""
    if value.get("format") != FORMAT:
        raise ArtifactError(
            f"{file} is not the manifest of an artifact",
            details=[("format", repr(value.get("format"))), ("wanted", repr(FORMAT))],
            fix="name the directory that `hspmd compile -o` wrote",
        )
    if value.get("schema") != SCHEMA or isinstance(value.get("schema"), bool):
        raise ArtifactError(
            "the artifact has another schema version",
            details=[("artifact", repr(value.get("schema"))), ("here", str(SCHEMA))],
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
