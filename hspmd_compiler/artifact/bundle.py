"""A bundle, read: several strategies of one model, and the plans of switches between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ..base.codec import Json, damaged, decode
from ..base.limits import MOST_DEVICES
from ..base.typed import AtLeast, Place
from ..errors import ArtifactError
from ..program.switch_plan import SwitchPlan, SwitchScope
from .bundle_paths import (
    BUNDLE,
    FORMAT,
    NAME_RULE,
    is_bundle,
    is_in_bundle,
    is_name,
    manifest_file,
    plan_file,
)
from .checked_files import MANIFEST_LIMIT, CheckedFiles, check_directory, read_limited
from .json_text import parse
from .manifest import FileEntry, check_torch, fingerprint_parameters, without_own_hash
from .proved_loss import ProvedLoss
from .store import FILE_LIMIT, Artifact, ArtifactHead, load, load_head
from .switch_file import plan_from

SCHEMA = 2
"""Since 2 it says what the loss is, where there is a home."""

BundleProblem = tuple[Place, object, str]


@dataclass(frozen=True, slots=True)
class BundleStrategy:
    """A strategy of a bundle. folder: its artifact. devices: by the rank of its own programs."""

    name: str
    folder: str
    devices: tuple[Annotated[int, AtLeast(0)], ...]


@dataclass(frozen=True, slots=True)
class BundlePlan:
    """A switch plan of a bundle, and its file."""

    source: str
    target: str
    scope: SwitchScope
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleListing:
    """What `bundle.json` holds.

    devices: of all strategies, ascending; a world rank is an index of it. home: where the optimizer's state
    stays in steps of two layouts. loss: what it is over samples, with a home. model_fingerprint: of the
    parameters, as every strategy trains them. files: manifests of the artifacts, which list the rest, and
    plans.
    """

    format: str
    schema: int
    torch: tuple[str, str]
    devices: tuple[Annotated[int, AtLeast(0)], ...]
    home: str | None
    loss: ProvedLoss | None
    strategies: tuple[BundleStrategy, ...]
    plans: tuple[BundlePlan, ...]
    model_fingerprint: str
    files: dict[str, FileEntry]


@dataclass(frozen=True, slots=True)
class Bundle:
    """Strategies of one model by name, and plans; each file is checked when it is read."""

    directory: Path
    listing: BundleListing

    @property
    def strategies(self) -> dict[str, Path]:
        """The artifact's folder of each strategy, in the order in which they were given."""
        return {each.name: self.directory / each.folder for each in self.listing.strategies}

    @property
    def devices(self) -> tuple[int, ...]:
        """Of all strategies, ascending: the device of each world rank."""
        return self.listing.devices

    @property
    def home(self) -> str | None:
        """The strategy that keeps the optimizer's state in steps of two layouts."""
        return self.listing.home

    @property
    def loss(self) -> ProvedLoss | None:
        """What the loss is over samples, where there is a home."""
        return self.listing.loss

    def devices_of(self, name: str) -> tuple[int, ...]:
        """The devices of a strategy by the rank of its programs."""
        for each in self.listing.strategies:
            if each.name == name:
                return each.devices
        raise no_strategy(name, self.strategies)

    def world_rank_of(self, name: str) -> tuple[int, ...]:
        """The world ranks of a strategy by the rank of its programs."""
        index = {device: rank for rank, device in enumerate(self.devices)}
        return tuple(index[device] for device in self.devices_of(name))

    def rank_at(self, name: str, world_rank: int) -> int | None:
        """The strategy's own rank that runs on a world rank; None: it doesn't use that one."""
        members = self.world_rank_of(name)
        return members.index(world_rank) if world_rank in members else None

    def artifact(self, name: str, rank: int | None = None, *, with_graph: bool = True) -> Artifact:
        """The artifact of a strategy, or of it what one of its own ranks needs; as `store.load`."""
        devices = self.devices_of(name)
        self._files().checked(manifest_file(name))
        found = load(self.strategies[name], rank, with_graph=with_graph)
        program = found.program
        if program.world_size != len(devices) or any(
            own.device != devices[own.rank] for own in program.ranks
        ):
            wanted = f"the devices of {name}, one for each of its ranks"
            raise damaged(BUNDLE, [(("strategies",), list(devices), wanted)])
        if rank is None and found.manifest.rank is None:
            self._check_parameters(name, found)
        return found

    def head(self, name: str) -> ArtifactHead:
        """What a strategy's artifact says of all of its ranks."""
        self.devices_of(name)
        self._files().checked(manifest_file(name))
        return load_head(self.strategies[name])

    def _check_parameters(self, name: str, found: Artifact) -> None:
        if fingerprint_parameters(found.program) != self.listing.model_fingerprint:
            raise ArtifactError(
                f"{BUNDLE} names another model than {name} holds",
                at=f"{BUNDLE}: model_fingerprint",
                rule="all strategies of a bundle train the same parameters",
                fix="compile again",
            )

    def plan(self, source: str, target: str, scope: SwitchScope = SwitchScope.STATE) -> SwitchPlan:
        """The plan of a switch, read and checked."""
        before, after = (frozenset(self.world_rank_of(name)) for name in (source, target))
        file = plan_file(source, target, scope)
        if file not in self.listing.files:
            known = [(each.source, each.target, each.scope) for each in self.listing.plans]
            raise no_plan(source, target, scope, known)
        content = read_limited(self._files().checked(file), file, FILE_LIMIT)
        plan = plan_from(content, file, before, after)
        if (plan.source, plan.target, plan.scope) != (source, target, scope):
            named = [plan.source, plan.target, plan.scope.value]
            wanted = f"the plan of a switch from {source} to {target} of scope {scope.value}"
            raise damaged(file, [((), named, wanted)])
        return plan

    def _files(self) -> CheckedFiles:
        return CheckedFiles(self.directory, self.listing.files, BUNDLE, is_in_bundle)


def read_bundle(directory: str | Path) -> Bundle:
    """The listing of a bundle, checked; manifests of its artifacts are those that it lists."""
    path = Path(directory)
    check_directory(path)
    if not is_bundle(path):
        raise ArtifactError(
            f"{directory} is no bundle",
            rule=f"a bundle of several strategies has a {BUNDLE}",
            fix="compile several: hspmd compile MODEL --strategy A.yaml --strategy B.yaml -o DIR",
        )
    value = parse(read_limited(path / BUNDLE, BUNDLE, MANIFEST_LIMIT), BUNDLE)
    bundle = Bundle(path, listing_from_json(value))
    for name in bundle.strategies:
        bundle._files().checked(manifest_file(name))
    return bundle


def listing_from_json(value: Json) -> BundleListing:
    """What `bundle.json` says; first of all it must be ours, and of this version."""
    listing = decode(BundleListing, without_own_hash(value, BUNDLE, FORMAT, SCHEMA), BUNDLE)
    check_torch(*listing.torch)
    problems = [*_problems_of_strategies(listing), *_problems_of_plans(listing)]
    if problems:
        raise damaged(BUNDLE, problems)
    return replace(listing, files=dict(sorted(listing.files.items())))


def _problems_of_strategies(listing: BundleListing) -> Iterator[BundleProblem]:
    names = [each.name.lower() for each in listing.strategies]
    if not names:
        yield ("strategies",), [], "at least one strategy"
    for index, each in enumerate(listing.strategies):
        place = ("strategies", index)
        if not is_name(each.name):
            yield (*place, "name"), each.name, NAME_RULE
        elif names.count(each.name.lower()) > 1:
            yield (*place, "name"), each.name, "a name of its own, also where case doesn't count"
        if each.folder != each.name:
            yield (*place, "folder"), each.folder, "the name of the strategy"
        if not each.devices or len(set(each.devices)) != len(each.devices):
            yield (*place, "devices"), list(each.devices), "devices, each once"
    used = sorted({device for each in listing.strategies for device in each.devices})
    if list(listing.devices) != used or len(used) > MOST_DEVICES:
        yield ("devices",), list(listing.devices), "the devices of all strategies, ascending"
    if listing.home is not None and listing.home not in {each.name for each in listing.strategies}:
        yield ("home",), listing.home, "the name of a strategy"
    if (listing.home is None) != (listing.loss is None):
        yield ("loss",), None if listing.loss is None else str(listing.loss), "the loss, with a home alone"
    elif listing.loss is not None and not listing.loss.is_whole:
        yield ("loss",), str(listing.loss), "a kind, with labels where it counts them; or why there is none"


def _problems_of_plans(listing: BundleListing) -> Iterator[BundleProblem]:
    known = {each.name for each in listing.strategies}
    for index, each in enumerate(listing.plans):
        place = ("plans", index)
        if each.source not in known or each.target not in known or each.source == each.target:
            yield place, [each.source, each.target], "the names of two strategies"
        elif each.file != plan_file(each.source, each.target, each.scope):
            yield (*place, "file"), each.file, plan_file(each.source, each.target, each.scope)
    files = [*(manifest_file(name) for name in known), *(each.file for each in listing.plans)]
    if sorted(files) != sorted(listing.files):
        yield ("files",), sorted(listing.files), "the manifest of each strategy, and each plan once"


def no_strategy(name: str, known: Iterable[str]) -> ArtifactError:
    """The error for a name that no strategy of a bundle has."""
    return ArtifactError(
        f"the bundle has no strategy {name!r}",
        details=[("strategies", ", ".join(known))],
        rule="a strategy has the name of its file, without the ending, or the one that it was given",
        fix="name one of these; `hspmd inspect DIR` shows them",
    )


def no_plan(
    source: str, target: str, scope: SwitchScope, known: Iterable[tuple[str, str, SwitchScope]]
) -> ArtifactError:
    """The error for a switch that a bundle has no plan of."""
    of_scope = [f"{before}:{after}" for before, after, each in known if each is scope]
    if scope is SwitchScope.STATE:
        fix = f"compile again with --switch {source}:{target}, or without --switch, for all of them"
    else:
        fix = f"compile again with --home {source if scope is SwitchScope.PARAMS else target}"
    return ArtifactError(
        f"the bundle has no plan from {source} to {target} (scope {scope.value})",
        details=[("plans", ", ".join(of_scope) or "none of this scope")],
        rule="a switch needs its compiled plan",
        fix=fix,
    )


def folder_of(directory: str | Path, name: str | None) -> Path:
    """The artifact's folder that is meant: a named strategy's of a bundle, or the directory itself."""
    path = Path(directory)
    if not is_bundle(path):
        if name is None:
            return path
        raise ArtifactError(
            f"{directory} holds one strategy, which needs no name",
            details=[("name", repr(name))],
            rule="only a bundle of several strategies has names for them",
            fix="leave the name out",
        )
    bundle = read_bundle(path)
    if name is None:
        raise several(path, list(bundle.strategies))
    bundle.devices_of(name)
    return bundle.strategies[name]


def several(directory: Path, names: Sequence[str]) -> ArtifactError:
    """The error where one strategy is wanted and a bundle is given."""
    return ArtifactError(
        f"{directory} holds several strategies",
        details=[("strategies", ", ".join(names))],
        rule="this needs one of them",
        fix=f"--strategy-name {names[0]}, or the folder {directory / names[0]}",
    )
