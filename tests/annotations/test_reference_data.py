"""Annotations against the reference's data: coordinates, which states relate how, and rows of parameters."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import prod

from hspmd_compiler.annotations import (
    DUPLICATE,
    PARTIAL,
    Annotation,
    DeviceGroup,
    DistributedStates,
)

from .layout_key import layout_key
from .reference_unions import KEYS, reference, states_of, zero_pattern

SHAPE = (8, 8)


def rows_of(name: str) -> list[dict[str, object]]:
    found = reference(name)["rows"]
    assert isinstance(found, list)
    return found


def on(states: DistributedStates) -> Annotation:
    return Annotation((DeviceGroup(tuple(range(states.size))),), (states,))


def test_coordinates() -> None:
    for row in rows_of("golden_ds_index.json"):
        states = states_of(row)
        regions = on(states).regions(SHAPE)
        shards = sorted(set(regions.values()))
        for place, given in enumerate(row["state_index"]):  # type: ignore[arg-type]
            wanted = {KEYS.get(int(key), int(key)): value for key, value in given.items()}
            assert states.coordinates(place) == wanted
            assert shards.index(regions[place]) == row["dup_group_index"][place]  # type: ignore[index]


def relations(source: DistributedStates, target: DistributedStates) -> set[str]:
    """What the annotations' own pieces say about a pair, by the reference's names."""
    before, after = on(source), on(target)
    if layout_key(before, SHAPE) == layout_key(after, SHAPE):
        return {"equal"}
    found = set()
    kept = source.factor(PARTIAL) == target.factor(PARTIAL)
    if kept and (not before.is_partial or before.addends() == after.addends()) and _inside(after, before):
        found.add("local")
    if kept and (not before.is_partial or before.addends() == after.addends()) and _inside(before, after):
        found.add("gathered")
    if source.factor(PARTIAL) > 1 and target.factor(PARTIAL) == 1:
        found.add("reduced")
    return found


def _inside(small: Annotation, large: Annotation) -> bool:
    """Whether each device holds in one what it holds in the other, and more."""
    outer = large.intervals(SHAPE)
    return all(
        all(
            any(first <= low and high <= end for first, end in other)
            for own, other in zip(dims, outer[device], strict=True)
            for low, high in own
        )
        for device, dims in small.intervals(SHAPE).items()
    )


IMPLIED = {
    "equal": "equal",
    "scatter": "local",
    "split": "local",
    "allgather": "gathered",
    "allreduce": "reduced",
    "reducescatter": "reduced",
}


def test_predicates() -> None:
    """Where a predicate of the reference holds, our pieces say so too, or it counted parts alone."""
    found: Counter[bool] = Counter()
    for row in rows_of("golden_ds_predicates.json"):
        source, target = states_of(row["src"]), states_of(row["dst"])  # type: ignore[arg-type]
        ours = relations(source, target)
        assert ("equal" in ours) == (row["equal"] is True)
        for name, wanted in IMPLIED.items():
            if row[name] is True:
                found[wanted in ours] += 1
                assert wanted in ours or counts_only(name, wanted, source, target), (
                    f"{name}: {source} to {target}"
                )
    assert found


def counts_only(name: str, wanted: str, source: DistributedStates, target: DistributedStates) -> bool:
    """Whether a predicate holds by numbers of parts, while the pieces lie elsewhere.

    Of a scatter and an all-gather it is the order of the parts: <Dx2 S0x2> to <S0x4> is one as <S0x2 Dx2> to
    <S0x4> is. A split takes any dim for any other: <S0x2 Dx2> to <S1x2 S0x2>, where devices need rows that
    they don't hold.
    """
    if name == "split":
        grown = [
            key for key in target.order if isinstance(key, int) and target.factor(key) > source.factor(key)
        ]
        return source.factor(DUPLICATE) == prod(target.factor(key) // source.factor(key) for key in grown)
    return name in ("scatter", "allgather") and any(
        wanted in relations(DistributedStates(one), DistributedStates(two))
        for one in permutations(source.placements)
        for two in permutations(target.placements)
    )


def test_rows_of_parameters() -> None:
    """The compute layout, and the rows that ZeRO leaves, of published strategies at their own sizes.

    A text or nothing in place of rows says that HSPMD's ZeRO does not cut this weight.
    """
    cases = reference("golden_param_layout.json")["cases"]
    checked: Counter[str] = Counter()
    for weights in cases.values():  # type: ignore[attr-defined]
        for weight in weights.values():
            for kind, given in (("nozero", weight["nozero"]), ("zero", weight["zero"])):
                if isinstance(given, dict):
                    _check_rows(kind, weight["nozero"], given, tuple(weight["global_shape"]))
                    checked[kind] += 1
    assert checked["nozero"]


def _check_rows(
    kind: str, plain: dict[str, list[list[int]]], given: dict[str, list[list[int]]], shape: tuple[int, ...]
) -> None:
    groups = _pipelines(plain, shape[0])
    degrees = [len(group) for group in groups]
    whole = all(rows == [[0, shape[0]]] for rows in plain.values())
    key = DUPLICATE if whole else 0
    states = tuple(DistributedStates.of({key: degree} if degree > 1 else {}) for degree in degrees)
    own = Annotation(groups, states, DUPLICATE if len(groups) > 1 else None)
    if kind == "zero":
        own = zero_pattern(groups, degrees, shape[0])
    found = own.intervals(shape)
    assert {str(device): [list(rows) for rows in dims[0]] for device, dims in found.items()} == given


def _pipelines(plain: dict[str, list[list[int]]], length: int) -> tuple[DeviceGroup, ...]:
    """Devices in their order; a new group starts where the rows start again from 0."""
    groups: list[list[int]] = []
    for device, rows in plain.items():
        if not groups or rows[0][0] == 0:
            groups.append([])
        groups[-1].append(int(device))
    return tuple(DeviceGroup(tuple(group)) for group in groups)
