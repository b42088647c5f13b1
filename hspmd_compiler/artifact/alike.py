"""Whether strategies of one bundle train the same: parameters, types, optimizer, precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from ..base.codec import shown
from ..errors import ArtifactError
from .manifest import parameters_of
from .store import Artifact

SHOWN_ROWS = 20

Rows = Iterator[tuple[str, str]]
ParamFacts = dict[str, tuple[object, ...]]
USES = ("type", "shape", "is trained", "is a buffer", "is saved")


def check_alike(artifacts: Mapping[str, Artifact]) -> None:
    """Raises one error that names all that differs between the strategies, each beside the first."""
    (first, one), *others = artifacts.items()
    rows = [row for name, other in others for row in _differences(first, one, name, other)]
    if not rows:
        return
    left = len(rows) - SHOWN_ROWS
    raise ArtifactError(
        "strategies of one bundle train different things",
        details=[*rows[:SHOWN_ROWS], *([("...", f"{left} more")] if left > 0 else [])],
        rule="a switch goes on with the same parameters, types, optimizer and precision",
        fix="compile them into artifacts of their own, or from the same model with the same options",
    )


def _differences(first: str, one: Artifact, name: str, other: Artifact) -> Rows:
    ours, theirs = _parameters(one), _parameters(other)
    for where, absent in ((first, theirs), (name, ours)):
        here = ours if where == first else theirs
        yield from ((each, f"in {where} only") for each in here if each not in absent)
    for each in sorted(ours.keys() & theirs.keys()):
        changed = [
            f"{use} {shown(was)} in {first}, {shown(now)} in {name}"
            for use, was, now in zip(USES, ours[each], theirs[each], strict=True)
            if was != now
        ]
        yield from ((each, text) for text in changed)
    tied, retied = one.program.aliases, other.program.aliases
    for each in sorted(tied.keys() | retied.keys()):
        if tied.get(each) != retied.get(each):
            yield (
                each,
                f"is {tied.get(each, 'of its own')} in {first}, {retied.get(each, 'of its own')} in {name}",
            )
    yield from _options(first, one, name, other)


def _parameters(artifact: Artifact) -> ParamFacts:
    rows = cast("list[list[object]]", parameters_of(artifact.program)["parameters"])
    return {str(name): tuple(rest) for name, *rest in rows}


def _options(first: str, one: Artifact, name: str, other: Artifact) -> Rows:
    used, now = one.manifest.optimizer.to_json(), other.manifest.optimizer.to_json()
    if used != now:
        for key in sorted(used.keys() | now.keys()):
            if used.get(key) != now.get(key):
                yield (
                    f"optimizer {key}",
                    f"{shown(used.get(key))} in {first}, {shown(now.get(key))} in {name}",
                )
    if one.manifest.precision is not other.manifest.precision:
        yield (
            "precision",
            f"{one.manifest.precision.value} in {first}, {other.manifest.precision.value} in {name}",
        )
