"""Whether strategies of one bundle train the same: parameters, types, optimizer, precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from ..base.codec import shown
from ..base.name_groups import shortened
from ..errors import ArtifactError
from .manifest import parameters_of
from .store import Artifact

ParamFacts = dict[str, tuple[object, ...]]
FACTS = ("type", "shape", "is trained", "is a buffer", "is saved")


def check_alike(artifacts: Mapping[str, Artifact]) -> None:
    """Raises one error that names all that differs between the strategies, each beside the first."""
    (first, one), *others = artifacts.items()
    rows = []
    for name, other in others:
        pair = _Pair(first, one, name, other)
        rows += [*pair.options(), *shortened([*pair.parameters(), *pair.ties()])]
    if rows:
        raise ArtifactError(
            "strategies of one bundle train different things",
            details=rows,
            rule="a switch goes on with the same parameters, types, optimizer, precision and devices",
            fix="compile them into artifacts of their own, or from the same model with the same options",
        )


class _Pair:
    """Two strategies, the second beside the first."""

    def __init__(self, first: str, one: Artifact, second: str, other: Artifact) -> None:
        self._names = first, second
        self._both = one, other

    def options(self) -> Iterator[tuple[str, str]]:
        """What of the optimizer, the kinds of devices and the precision differs."""
        one, other = (artifact.manifest for artifact in self._both)
        used, now = one.optimizer.to_json(), other.optimizer.to_json()
        for key in sorted(used.keys() | now.keys()):
            if used.get(key) != now.get(key):
                yield f"optimizer {key}", self._beside(shown(used.get(key)), shown(now.get(key)))
        for device, was, is_ in self._kinds():
            yield f"device {device}", "is " + self._beside(was, is_)
        if one.precision is not other.precision:
            yield "precision", self._beside(one.precision.value, other.precision.value)

    def parameters(self) -> Iterator[tuple[str, str]]:
        """Parameters and buffers that differ, or are in one of the two only."""
        first, second = self._names
        ours, theirs = (_parameters(artifact) for artifact in self._both)
        yield from ((name, f"in {first} only") for name in ours if name not in theirs)
        yield from ((name, f"in {second} only") for name in theirs if name not in ours)
        for name in (name for name in ours if name in theirs and ours[name] != theirs[name]):
            facts = zip(FACTS, ours[name], theirs[name], strict=True)
            told = (
                f"{fact} {self._beside(shown(was), shown(is_))}" for fact, was, is_ in facts if was != is_
            )
            yield name, "; ".join(told)

    def ties(self) -> Iterator[tuple[str, str]]:
        """Names that are of one parameter in one of the two only."""
        one, other = (artifact.program.aliases for artifact in self._both)
        for name in sorted(one.keys() | other.keys()):
            if one.get(name) != other.get(name):
                yield name, "is " + self._beside(one.get(name, "its own"), other.get(name, "its own"))

    def _kinds(self) -> Iterator[tuple[int, str, str]]:
        """Devices that are of another kind in the second."""
        one, other = ({own.device: own.device_kind for own in of.program.ranks} for of in self._both)
        yield from (
            (device, kind, other[device]) for device, kind in one.items() if other.get(device, kind) != kind
        )

    def _beside(self, one: str, other: str) -> str:
        return f"{one} in {self._names[0]}, {other} in {self._names[1]}"


def _parameters(artifact: Artifact) -> ParamFacts:
    rows = cast("list[list[object]]", parameters_of(artifact.program)["parameters"])
    return {str(name): tuple(rest) for name, *rest in rows}
