"""The directory of an artifact, read: nothing is believed before its size and hash agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..base.codec import SHOWN, Json, damaged, decode
from ..base.collection import without_collection
from ..base.log import task
from ..errors import ArtifactError
from ..program.check import check
from ..program.program import ClassProgram, Program, RankProgram
from ..program.sized.size_range import SizeRange
from . import paths
from .bundle_paths import is_bundle
from .checked_files import MANIFEST_LIMIT, CheckedFiles, check_directory, read_limited
from .decode_shared import SharingReader
from .json_text import fingerprint, parse
from .manifest import Manifest, fingerprint_model, manifest_from_json

FILE_LIMIT = 1 << 32


@dataclass(frozen=True, slots=True)
class ProgramHead:
    """What `program.json` holds: the fields of Program that belong to no class and no rank."""

    world_size: int
    batch: int
    inputs: dict[str, tuple[tuple[int, ...], str]]
    aliases: dict[str, str]
    groups: list[tuple[int, ...]]
    sizes: SizeRange | None = None
    left_out: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> ProgramHead:
        """The head of a program."""
        return cls(
            program.world_size,
            program.batch,
            program.inputs,
            program.aliases,
            program.groups,
            program.sizes,
            program.left_out,
        )


@dataclass(frozen=True, slots=True)
class ArtifactHead:
    """What an artifact says of all of its ranks. cluster: as in Artifact."""

    manifest: Manifest
    program: ProgramHead
    cluster: object


@dataclass(slots=True)
class Artifact:
    """A compiled strategy of one model. graph and layouts are None where only one rank was written.

    The JSON values belong to the module that made them: `strategy`, `graph` (logical graph),
    `layouts` (of its values, per pipeline), `init` (initialiser calls), `cluster` (by whose links ways of
    communication were chosen, if any was given). weights: the file, if any.
    """

    manifest: Manifest
    program: Program
    strategy: object
    init: object
    graph: object = None
    layouts: object = None
    cluster: object = None
    weights: Path | None = None

    def rank_program(self, rank: int) -> RankProgram:
        """The program of one rank; `program.ranks` holds only those that were loaded."""
        for own in self.program.ranks:
            if own.rank == rank:
                return own
        raise no_rank(rank, [own.rank for own in self.program.ranks])

    def of_rank(self, rank: int | None) -> Artifact:
        """What of it is written for one rank; all of it for None."""
        if rank is None:
            return self
        return replace(self, program=replace(self.program, ranks=[self.rank_program(rank)]))


def load(
    directory: str | Path, rank: int | None = None, *, with_graph: bool = True, with_weights: bool = True
) -> Artifact:
    """Reads an artifact, or of it only what one rank needs; every file that is read is checked first.

    with_graph: the logical graph and the layouts of its values too, where all ranks are read. with_weights:
    the file of weights too, if there is one: all of it is read for the check.
    """
    try:
        return _loaded(directory, rank, with_graph, with_weights)
    except RecursionError as error:
        raise ArtifactError(
            "a file of the artifact is nested too deep",
            details=[("directory", str(directory))],
            fix="compile again with this version of hspmd_compiler",
        ) from error


def load_head(directory: str | Path) -> ArtifactHead:
    """What stands in an artifact beside its ranks, checked as `load` checks it."""
    files = Files(Path(directory))
    cluster = files.json(paths.CLUSTER) if paths.CLUSTER in files.manifest.files else None
    return ArtifactHead(files.manifest, _read_head(files), cluster)


def _loaded(directory: str | Path, rank: int | None, with_graph: bool, with_weights: bool) -> Artifact:
    files = Files(Path(directory))
    sharing = SharingReader()
    present = paths.ranks_of(files.manifest.files)
    if rank is not None and rank not in present:
        raise no_rank(rank, present)
    wanted = present if rank is None else [rank]
    with without_collection(), task("read the artifact", len(wanted)) as progress:
        ranks = []
        for each in wanted:
            ranks.append(_read_rank(files, sharing, each))
            progress.advance()
        program = _read_program(files, ranks)
        check(program)
    whole = with_graph and rank is None and files.manifest.rank is None
    graph = files.json(paths.GRAPH) if whole else None
    strategy = files.json(paths.STRATEGY)
    if whole:
        _check_named("model_fingerprint", files.manifest.model_fingerprint, fingerprint_model(graph, program))
    _check_named("strategy_fingerprint", files.manifest.strategy_fingerprint, fingerprint(strategy))
    return Artifact(
        manifest=files.manifest,
        program=program,
        strategy=strategy,
        init=files.json(paths.INIT),
        graph=graph,
        layouts=files.json(paths.LAYOUTS) if whole else None,
        cluster=files.json(paths.CLUSTER) if whole and paths.CLUSTER in files.manifest.files else None,
        weights=files.checked(paths.WEIGHTS)
        if with_weights and paths.WEIGHTS in files.manifest.files
        else None,
    )


def _check_named(name: str, written: str, found: str) -> None:
    """A fingerprint of the manifest is that of what the artifact holds."""
    if written != found:
        raise ArtifactError(
            f"{paths.MANIFEST} names another {name.partition('_')[0]} than the artifact holds",
            at=f"{paths.MANIFEST}: {name}",
            details=[("written", written[:SHOWN]), ("found", found)],
            rule="the model's is that of graph.json and all parameters, the strategy's that of strategy.json",
            fix="compile again",
        )


def _read_rank(files: Files, sharing: SharingReader, rank: int) -> RankProgram:
    path = paths.rank_file(rank)
    content = files.json(path)
    own = sharing.decode(RankProgram, content, path, files.table)
    kinds = files.manifest.device_kinds
    if own.rank != rank or rank >= len(kinds) or own.device_kind != kinds[rank]:
        wanted = f"the program of rank {rank}, of the device kind that the manifest has for it"
        raise damaged(path, [((), content, wanted)])
    return own


def _read_head(files: Files) -> ProgramHead:
    content = files.json(paths.PROGRAM)
    head = decode(ProgramHead, content, paths.PROGRAM)
    if head.world_size != len(files.manifest.device_kinds):
        wanted = "a world_size that is the number of the manifest's device_kinds"
        raise damaged(paths.PROGRAM, [((), content, wanted)])
    return head


def _read_program(files: Files, ranks: list[RankProgram]) -> Program:
    head = _read_head(files)
    classes = {}
    for name in sorted({own.class_name for own in ranks}):
        path = paths.class_file(name)
        held = files.json(path)
        classes[name] = decode(ClassProgram, held, path)
        if classes[name].name != name:
            raise damaged(path, [((), held, f"the class program {name}")])
    return Program(
        head.world_size,
        head.batch,
        head.inputs,
        head.aliases,
        classes=classes,
        ranks=ranks,
        groups=head.groups,
        sizes=head.sizes,
        left_out=head.left_out,
    )


class Files(CheckedFiles):
    """The files of one artifact, each checked against the manifest when it is read."""

    def __init__(self, directory: Path) -> None:
        self.manifest = read_manifest(directory)
        super().__init__(directory, self.manifest.files, paths.MANIFEST, paths.is_ours)

    def json(self, path: str) -> Json:
        """The content of a JSON file."""
        return parse(read_limited(self.checked(path), path, FILE_LIMIT), path)

    def table(self, number: int) -> tuple[str, Json]:
        """The file of a list that several ranks have, and its content."""
        path = paths.table_file(number)
        return path, self.json(path)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of an artifact, checked against its own hash."""
    check_directory(directory)
    if is_bundle(directory):
        raise ArtifactError(
            f"{directory} holds several strategies",
            rule="this needs one of them",
            fix=f"name the folder of one, {directory}/NAME; `hspmd inspect {directory}` shows the names",
        )
    content = read_limited(directory / paths.MANIFEST, paths.MANIFEST, MANIFEST_LIMIT)
    return manifest_from_json(parse(content, paths.MANIFEST), paths.MANIFEST)


def no_rank(rank: int, present: Sequence[int]) -> ArtifactError:
    """The error for a rank that an artifact, or a strategy, doesn't have."""
    return ArtifactError(
        f"the artifact has no program for rank {rank}",
        details=[("ranks", ", ".join(map(str, present)) or "none")],
        rule="a rank is the index of a device among the used ones; `compile --rank R` writes only rank R",
        fix="start as many ranks as the strategy has devices, or compile for this rank too",
    )
