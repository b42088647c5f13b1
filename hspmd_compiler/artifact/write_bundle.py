"""A bundle, written: an artifact for each strategy, the plans, and the listing; whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.codec import encode, shown
from ..base.log import task
from ..errors import ArtifactError
from ..program.switch_plan import SwitchPlan
from .alike import check_alike
from .bundle import (
    SCHEMA,
    Bundle,
    BundleListing,
    BundlePlan,
    BundleStrategy,
    listing_from_json,
    read_bundle,
)
from .bundle_paths import BUNDLE, FORMAT, NAME_RULE, is_name, manifest_file, plan_file
from .json_text import to_text
from .manifest import TORCH_BELOW, TORCH_LOW, FileEntry, fingerprint_parameters, with_own_hash
from .proved_loss import ProvedLoss
from .store import Artifact
from .switch_file import plan_text
from .write import entry_of, fresh_directory, put, write

if TYPE_CHECKING:
    from torch import Tensor

LISTING_DEPTH = 2


@dataclass(slots=True)
class BundleContent:
    """A bundle that is not written yet. home, loss: of steps of two layouts, if there are such."""

    artifacts: Mapping[str, Artifact]
    plans: Sequence[SwitchPlan] = ()
    home: str | None = None
    weights: Mapping[str, Tensor] | None = field(default=None)
    loss: ProvedLoss | None = None


def write_bundle(directory: str | Path, content: BundleContent, *, force: bool = False) -> Bundle:
    """Writes a bundle and returns it as it is read. What is there already: as `write`."""
    check_names(list(content.artifacts))
    check_alike(content.artifacts)
    target = Path(directory).resolve()
    with task("write the bundle"), fresh_directory(target, force) as fresh:
        for name, artifact in content.artifacts.items():
            write(fresh / name, artifact, weights=content.weights)
        files = {manifest_file(name): entry_of(fresh / manifest_file(name)) for name in content.artifacts}
        for plan in content.plans:
            path = plan_file(plan.source, plan.target, plan.scope)
            files[path] = put(fresh, path, plan_text(plan).encode())
        body = encode(_listing(content, files))
        assert isinstance(body, dict), "the form of a dataclass"
        closed = with_own_hash(body)
        listing_from_json(closed)
        put(fresh, BUNDLE, to_text(closed, LISTING_DEPTH).encode())
    return read_bundle(target)


def _listing(content: BundleContent, files: dict[str, FileEntry]) -> BundleListing:
    devices = {
        name: tuple(own.device for own in artifact.program.ranks)
        for name, artifact in content.artifacts.items()
    }
    plans = ((plan.source, plan.target, plan.scope) for plan in content.plans)
    return BundleListing(
        format=FORMAT,
        schema=SCHEMA,
        torch=(TORCH_LOW, TORCH_BELOW),
        devices=tuple(sorted({device for of in devices.values() for device in of})),
        home=content.home,
        loss=content.loss,
        strategies=tuple(BundleStrategy(name, name, of) for name, of in devices.items()),
        plans=tuple(BundlePlan(*each, plan_file(*each)) for each in plans),
        model_fingerprint=fingerprint_parameters(next(iter(content.artifacts.values())).program),
        files=dict(sorted(files.items())),
    )


def check_names(names: Sequence[str]) -> None:
    """Refuses names that folders of a bundle can't have, or that are of two strategies."""
    lower = [name.lower() for name in names]
    bad = [
        (shown(name), "no name of a folder" if name else "a name is missing")
        for name in names
        if not is_name(name)
    ]
    bad += [
        (shown(name), "the name of more than one strategy")
        for name, as_folder in dict.fromkeys(zip(names, lower, strict=True))
        if is_name(name) and lower.count(as_folder) > 1
    ]
    if bad:
        raise ArtifactError(
            "strategies of a bundle can't have these names",
            details=bad,
            rule=f"each has a folder of its own: {NAME_RULE}",
            fix="rename the files, or name them: hspmd.compile_bundle(model, strategies={'A': ...})",
        )
