"""Several strategies in one directory: what is read is what was written, and no damage goes unnoticed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.artifact.bundle import folder_of, listing_from_json, read_bundle
from hspmd_compiler.artifact.bundle_paths import is_bundle, is_in_bundle
from hspmd_compiler.artifact.check_switch import check_switch_plan, first_overlap
from hspmd_compiler.artifact.json_text import parse, to_text
from hspmd_compiler.artifact.manifest import TORCH_BELOW, TORCH_LOW, with_own_hash
from hspmd_compiler.artifact.store import Artifact, load
from hspmd_compiler.artifact.switch_file import plan_from, plan_text
from hspmd_compiler.artifact.write import write
from hspmd_compiler.artifact.write_bundle import BundleContent, write_bundle
from hspmd_compiler.base.codec import encode
from hspmd_compiler.base.comm_plan import Box
from hspmd_compiler.errors import ArtifactError
from hspmd_compiler.options import OptimizerConfig, Precision
from hspmd_compiler.program.switch_plan import Move, SwitchPlan, SwitchScope
from tests.artifact import sample
from tests.artifact.naive_switch import naive_plan
from tests.artifact.test_hostile import VALUES, places
from tests.artifact.test_store import contents

Expect = Callable[[str, str], None]
WORLD = (3, 4, 5, 7, 9)


def moved() -> Artifact:
    """The sample on other devices."""
    made = sample.artifact()
    ranks = [replace(own, device=(9, 3, 4, 5)[own.rank]) for own in made.program.ranks]
    return replace(made, program=replace(made.program, ranks=ranks))


def content() -> BundleContent:
    artifacts = {"first": sample.artifact(), "second.v2": moved()}
    placed = {
        name: {WORLD.index(own.device): own for own in of.program.ranks} for name, of in artifacts.items()
    }
    pairs = [("first", "second.v2"), ("second.v2", "first")]
    return BundleContent(artifacts, [naive_plan(*pair, *(placed[name] for name in pair)) for pair in pairs])


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundle") / "out"
    write_bundle(directory, content())
    return directory


@pytest.fixture
def written(tmp_path: Path, once: Path) -> Path:
    shutil.copytree(once, tmp_path / "out")
    return tmp_path / "out"


LISTING = json.dumps(
    {
        "format": "hspmd-bundle",
        "schema": 2,
        "torch": [TORCH_LOW, TORCH_BELOW],
        "devices": [3, 4],
        "home": "b",
        "loss": {"kind": "labels", "labels": {"key": "y", "ignored": -100, "first": 0}, "why": ""},
        "strategies": [
            {"name": "a", "folder": "a", "devices": [4, 3]},
            {"name": "b", "folder": "b", "devices": [3]},
        ],
        "plans": [{"source": "a", "target": "b", "scope": "grads", "file": "switch/a--b.grads.json"}],
        "model_fingerprint": "0" * 64,
        "files": {
            name: {"size": 1, "sha256": "0" * 64}
            for name in ("a/manifest.json", "b/manifest.json", "switch/a--b.grads.json")
        },
    }
)


def test_comes_back_the_same(once: Path) -> None:
    made, bundle = content(), read_bundle(once)
    assert is_bundle(once) and not is_bundle(once / "first")
    assert list(bundle.strategies) == ["first", "second.v2"]
    assert bundle.devices == WORLD
    assert bundle.world_rank_of("first") == (1, 2, 3, 4)
    assert bundle.world_rank_of("second.v2") == (4, 0, 1, 2)
    assert (bundle.rank_at("second.v2", 4), bundle.rank_at("second.v2", 3)) == (0, None)
    for name, artifact in made.artifacts.items():
        assert bundle.artifact(name).program == artifact.program
        assert bundle.artifact(name, 2).program == load(once / name, 2).program
    assert [bundle.plan(each.source, each.target) for each in made.plans] == list(made.plans)


def test_the_same_bytes_every_time(tmp_path: Path, once: Path) -> None:
    write_bundle(tmp_path / "again", content())
    assert contents(once) == contents(tmp_path / "again")
    assert sorted(path for path in contents(once) if path.count("/") == 0 or path.startswith("switch")) == [
        "bundle.json",
        "switch/first--second.v2.state.json",
        "switch/second.v2--first.state.json",
    ]


def test_a_bundle_takes_the_place_of_an_artifact_and_the_other_way_round(tmp_path: Path) -> None:
    write(tmp_path / "out", sample.artifact())
    write_bundle(tmp_path / "out", content())
    assert is_bundle(tmp_path / "out")
    write(tmp_path / "out", sample.artifact())
    assert not is_bundle(tmp_path / "out")


@pytest.mark.parametrize(
    "path",
    ["bundle.json", "first/manifest.json", "switch/first--second.v2.state.json", "second.v2/ranks/1.json"],
)
@pytest.mark.parametrize("damage", ["a changed byte", "cut off", "gone", "a folder"])
def test_damage_is_noticed(written: Path, path: str, damage: str) -> None:
    file = written / path
    held = file.read_bytes()
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    elif damage != "gone":
        middle = len(held) // 2
        file.write_bytes(held[:-2] if damage == "cut off" else held[:middle] + b"7" + held[middle + 1 :])
        if file.read_bytes() == held:
            file.write_bytes(held[:middle] + b"8" + held[middle + 1 :])
    with pytest.raises(ArtifactError):
        bundle = read_bundle(written)
        bundle.plan("first", "second.v2")
        bundle.artifact("second.v2")


def rewritten(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The listing of a bundle as somebody would write it who knows how."""
    body = json.loads((directory / "bundle.json").read_text())
    del body["sha256"]
    change(body)
    (directory / "bundle.json").write_text(to_text(with_own_hash(body), 2))


LISTINGS: dict[str, Callable[[dict[str, Any]], object]] = {
    "of another format": lambda body: body.update(format="hspmd-artifact"),
    "of another schema": lambda body: body.update(schema=1),
    "for another torch": lambda body: body.update(torch=["1.0", "1.1"]),
    "with a folder outside": lambda body: body["strategies"][0].update(name="..", folder=".."),
    "with another folder": lambda body: body["strategies"][0].update(folder="second.v2"),
    "with a name twice": lambda body: body["strategies"][1].update(name="FIRST", folder="FIRST"),
    "with other devices": lambda body: body.update(devices=[3, 4, 5, 7]),
    "with a device twice": lambda body: body["strategies"][0].update(devices=[4, 5, 7, 7]),
    "with an unknown home": lambda body: body.update(home="third"),
    "with a home without its loss": lambda body: body.update(home="first"),
    "with a loss of no kind": lambda body: body.update(
        home="first", loss={"kind": None, "labels": None, "why": ""}
    ),
    "with a plan of one strategy": lambda body: body["plans"][0].update(target="first"),
    "with a plan outside": lambda body: body["plans"][0].update(file="switch/../first/init.json"),
    "with an unknown file": lambda body: body["files"].update({"more.json": {"size": 1, "sha256": "0" * 64}}),
    "with no strategies": lambda body: body.update(strategies=[], plans=[], files={}, devices=[]),
}


def test_a_listing_is_checked(written: Path, expect: Expect) -> None:
    held = (written / "bundle.json").read_bytes()
    told = []
    for name, change in LISTINGS.items():
        (written / "bundle.json").write_bytes(held)
        rewritten(written, change)
        with pytest.raises(ArtifactError) as found:
            read_bundle(written)
        told.append(f"{name}\n{found.value}\n")
    expect("cli/bundle_listings", "\n".join(told))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_changed_listing_is_read_or_refused(data: st.DataObject) -> None:
    body = json.loads(LISTING)
    assert listing_from_json(with_own_hash(body)).home == "b"
    container, key = data.draw(st.sampled_from(places(body)))
    container[key] = data.draw(VALUES)
    with suppress(ArtifactError):
        body = parse(json.dumps(body).encode(), "bundle.json")
        assert isinstance(body, dict)
        read = listing_from_json(with_own_hash(body))
        names = [each.name for each in read.strategies]
        assert len(set(names)) == len(names) and set(names) >= {each.source for each in read.plans}
        assert all(is_in_bundle(path) for path in read.files)


def test_a_number_that_is_too_large_is_refused(written: Path) -> None:
    """JSON that Python reads as infinite, which no hash can be made of."""
    text = (written / "bundle.json").read_text()
    (written / "bundle.json").write_text(text.replace('"schema": 2,', '"schema": 1e999,'))
    with pytest.raises(ArtifactError, match=r"bundle\.json is not JSON"):
        read_bundle(written)


def test_devices_and_model_are_those_of_the_artifact(written: Path) -> None:
    held = (written / "bundle.json").read_bytes()
    rewritten(written, lambda body: body["strategies"][0].update(devices=[5, 4, 7, 9]))
    with pytest.raises(ArtifactError, match="what its place asks for"):
        read_bundle(written).artifact("first", 0)
    (written / "bundle.json").write_bytes(held)
    rewritten(written, lambda body: body.update(model_fingerprint="0" * 64))
    with pytest.raises(ArtifactError, match="names another model than first holds"):
        read_bundle(written).artifact("first")


def test_a_plan_of_others_is_refused(written: Path) -> None:
    switch = written / "switch"
    body = json.loads((written / "bundle.json").read_text())
    there, back = "switch/first--second.v2.state.json", "switch/second.v2--first.state.json"
    os.replace(switch / Path(there).name, switch / Path(back).name)
    rewritten(written, lambda to: to["files"].update({back: body["files"][there]}))
    with pytest.raises(ArtifactError, match="class 0"):
        read_bundle(written).plan("second.v2", "first")


def test_what_is_not_there_is_told(once: Path, expect: Expect) -> None:
    bundle = read_bundle(once)
    asked: dict[str, Callable[[], object]] = {
        "unknown strategy": lambda: bundle.plan("first", "third"),
        "no such plan": lambda: bundle.plan("first", "second.v2", SwitchScope.PARAMS),
        "no such plan of state": lambda: replace(
            bundle, listing=replace(bundle.listing, files={}, plans=())
        ).plan("first", "second.v2"),
        "a bundle where one is wanted": lambda: folder_of(once, None),
        "a name for one": lambda: folder_of(once / "first", "second"),
        "an unknown name": lambda: folder_of(once, "third"),
        "a bundle as an artifact": lambda: load(once),
        "an artifact as a bundle": lambda: read_bundle(once / "first"),
        "nothing": lambda: read_bundle(once / "nothing"),
    }
    told = []
    for name, ask in asked.items():
        with pytest.raises(ArtifactError) as found:
            ask()
        told.append(f"{name}\n{str(found.value).replace(str(once), 'DIR')}\n")
    assert folder_of(once, "first") == once / "first"
    expect("cli/bundle_missing", "\n".join(told))


def test_strategies_must_be_alike(tmp_path: Path, expect: Expect) -> None:
    made = content()
    other = moved()
    renamed = [
        replace(own, device_kind="cuda", shards=[replace(shard, dtype="float64") for shard in own.shards])
        for own in other.program.ranks
    ]
    manifest = replace(
        other.manifest,
        optimizer=OptimizerConfig.of({"name": "sgd", "lr": 0.5}),
        precision=Precision.BFLOAT16,
    )
    program = replace(other.program, ranks=renamed, aliases={"tied": "w2"})
    artifacts = {**made.artifacts, "third": replace(other, manifest=manifest, program=program)}
    with pytest.raises(ArtifactError) as found:
        write_bundle(tmp_path / "out", BundleContent(artifacts))
    expect("cli/bundle_not_alike", str(found.value))
    assert not (tmp_path / "out").exists()


def test_names_are_folders(tmp_path: Path, expect: Expect) -> None:
    made = sample.artifact()
    names = ["a/b", "..", "", "a--b", "switch", "big", "BIG", ".hidden", "ok.v2", "end.", "x" * 200]
    with pytest.raises(ArtifactError) as found:
        write_bundle(tmp_path / "out", BundleContent(dict.fromkeys(names, made)))
    expect("cli/bundle_names", str(found.value))


# Plans

PLAN = content().plans[0]
BEFORE, AFTER = (1, 2, 3, 4), (0, 1, 2, 4)


def test_a_plan_comes_back() -> None:
    assert plan_from(plan_text(PLAN).encode(), "plan", BEFORE, AFTER) == PLAN


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_plan_is_read_or_refused(data: st.DataObject) -> None:
    """What is read delivers every element once, whatever was changed."""
    written: Any = deepcopy(encode(PLAN))
    container, key = data.draw(st.sampled_from(places(written)))
    container[key] = data.draw(VALUES)
    with suppress(ArtifactError):
        delivered(plan_from(json.dumps(written).encode(), "plan", BEFORE, AFTER))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_moves_are_noticed(data: st.DataObject) -> None:
    index = data.draw(st.sampled_from([at for at, each in enumerate(PLAN.classes) if each.moves]))
    of = PLAN.classes[index]
    size = of.moves[0].high
    moves = st.builds(
        Move,
        st.sampled_from(range(5)),
        st.sampled_from(range(5)),
        st.sampled_from(range(size)),
        st.sampled_from(range(1, size + 1)),
        st.booleans(),
    )
    changed = replace(of, moves=tuple(data.draw(st.lists(moves | st.sampled_from(of.moves), max_size=4))))
    plan = replace(PLAN, classes=(*PLAN.classes[:index], changed, *PLAN.classes[index + 1 :]))
    try:
        delivered(plan)
    except AssertionError:
        with pytest.raises(ArtifactError):
            check_switch_plan(plan, "plan", BEFORE, AFTER)
    else:
        check_switch_plan(plan, "plan", BEFORE, AFTER)


def delivered(plan: SwitchPlan) -> None:
    """Carries out the moves of each class with sets of elements."""
    for of in plan.classes:
        boxes = [box for part in of.parts for box in part.boxes]
        size = sum(len(list(cells(box))) for box in boxes)
        held = {rank: set(range(size)) for rank in of.holders}
        came: dict[int, list[int]] = {rank: [] for rank in of.needers if rank not in of.holders}
        for move in sorted(of.moves, key=lambda move: move.is_relay):
            elements = set(range(move.low, move.high))
            assert elements and move.target in came and move.source != move.target
            if move.is_relay:
                first = [each for each in of.moves if each.target == move.source and not each.is_relay]
                had = {element for each in first for element in range(each.low, each.high)}
                assert move.source in came and elements <= had
            else:
                assert elements <= held.get(move.source, set())
            came[move.target] += sorted(elements)
        assert all(sorted(got) == list(range(size)) for got in came.values())


def cells(box: Box) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for low, high in box:
        found = [(*cell, at) for cell in found for at in range(low, high)]
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(*[st.tuples(st.integers(0, 3), st.integers(1, 2))] * 2), max_size=6))
def test_boxes_that_overlap_are_found(drawn: list[tuple[tuple[int, int], ...]]) -> None:
    boxes = [tuple((low, low + length) for low, length in each) for each in drawn]
    every = [cell for box in boxes for cell in cells(box)]
    assert (first_overlap(boxes) is None) == (len(every) == len(set(every)))


BROKEN: dict[str, Callable[[SwitchPlan], SwitchPlan]] = {
    "an element twice": lambda plan: replace(plan, classes=(*plan.classes, plan.classes[0])),
    "unknown ranks": lambda plan: with_class(plan, holders=(1, 8), needers=(3, 0)),
    "a box outside": lambda plan: with_class(
        plan, parts=(replace(plan.classes[0].parts[0], boxes=(((0, 9), (0, 4)), ((2, 2), (0, 1)))),)
    ),
    "no kind": lambda plan: with_class(plan, kinds=(), element_bytes=0),
    "nobody holds it": lambda plan: with_class(plan, holders=(), moves=()),
    "not all of it": lambda plan: with_class(
        plan, moves=tuple(replace(move, high=move.high - 1) for move in plan.classes[0].moves)
    ),
    "a relay of nothing": lambda plan: with_class(
        plan,
        moves=tuple(replace(move, source=4 - move.target, is_relay=True) for move in plan.classes[0].moves),
    ),
}


def with_class(plan: SwitchPlan, **changes: Any) -> SwitchPlan:
    return replace(plan, classes=(replace(plan.classes[0], **changes), *plan.classes[1:]))


def test_a_broken_plan_says_what_is_wrong(expect: Expect) -> None:
    told = []
    for name, change in BROKEN.items():
        with pytest.raises(ArtifactError) as found:
            check_switch_plan(change(PLAN), "switch/first--second.v2.state.json", BEFORE, AFTER)
        told.append(f"{name}\n{found.value}\n")
    expect("cli/bundle_plans", "\n".join(told))


def test_elements_that_nobody_holds_may_be_left_out() -> None:
    plan = with_class(PLAN, holders=(), moves=())
    check_switch_plan(plan, "plan", BEFORE, AFTER, orphans=True)
