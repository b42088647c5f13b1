"""Artifacts on disk: the same bytes every time, whole or not at all, and no damage goes unnoticed."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hspmd_compiler.artifact import write as writing
from hspmd_compiler.artifact.json_text import fingerprint
from hspmd_compiler.artifact.manifest import TORCH_BELOW, TORCH_LOW, check_torch, fingerprint_model
from hspmd_compiler.artifact.store import Artifact, load
from hspmd_compiler.artifact.write import write
from hspmd_compiler.base.codec import encode
from hspmd_compiler.errors import ArtifactError, InternalError
from tests.artifact import sample

ROOT = Path(__file__).resolve().parents[2]


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write(tmp_path / "out", sample.artifact())
    return tmp_path / "out"


def test_comes_back_the_same(written: Path) -> None:
    made, back = sample.artifact(), load(written)
    assert back.program == made.program
    assert (back.strategy, back.init, back.graph, back.layouts) == (
        made.strategy,
        made.init,
        made.graph,
        made.layouts,
    )
    assert replace(back.manifest, files={}) == made.manifest
    assert back.weights is None


def test_the_same_bytes_every_time(tmp_path: Path, written: Path) -> None:
    write(tmp_path / "elsewhere" / "again", sample.artifact())
    write(tmp_path / "copy", load(written))
    assert contents(written) == contents(tmp_path / "elsewhere" / "again") == contents(tmp_path / "copy")


def test_files(written: Path) -> None:
    assert sorted(contents(written)) == [
        "classes/p0-s0.json",
        "classes/p0-s1.json",
        "classes/p1-s0-tp2.json",
        "graph.json",
        "init.json",
        "layouts.json",
        "manifest.json",
        "program.json",
        "ranks/0.json",
        "ranks/1.json",
        "ranks/2.json",
        "ranks/3.json",
        "strategy.json",
    ]
    rows = (written / "classes/p0-s0.json").read_text().splitlines()
    assert '    {"out":2,"op":"aten.mm.default","args":[{"v":0},{"v":1}],"logical":2}' in rows
    assert (
        '  {"op":"SEND","mb":1,"value":2,"slot":0,"tag":1},'
        in (written / "ranks/0.json").read_text().splitlines()
    )


def test_nothing_of_the_machine_is_inside(written: Path) -> None:
    everything = b"".join(contents(written).values())
    assert str(written.parent).encode() not in everything
    assert str(ROOT).encode() not in everything


def test_one_rank_needs_no_other_file(tmp_path: Path, written: Path) -> None:
    made = write(tmp_path / "part", sample.artifact(), rank=2)
    write(tmp_path / "whole", made)
    assert contents(tmp_path / "whole") == contents(written)
    assert sorted(contents(tmp_path / "part")) == [
        "classes/p1-s0-tp2.json",
        "init.json",
        "manifest.json",
        "program.json",
        "ranks/2.json",
        "strategy.json",
    ]
    part, whole = load(tmp_path / "part", rank=2), load(written, rank=2)
    assert part.program == whole.program
    assert part.rank_program(2) == sample.program().ranks[2]
    assert part.manifest.rank == 2
    assert part.manifest.model_fingerprint == load(written).manifest.model_fingerprint
    assert [own.rank for own in load(tmp_path / "part").program.ranks] == [2]
    with pytest.raises(ArtifactError, match="no program for rank 1"):
        load(tmp_path / "part", rank=1)


def test_weights_are_kept(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    weights = {"w2": torch.arange(32.0).view(4, 8).t(), "w1": torch.ones(8, 4)}
    made = write(tmp_path / "out", sample.artifact(), weights=weights)
    write(tmp_path / "copy", load(tmp_path / "out"))
    write(tmp_path / "without", made)
    assert "weights.safetensors" not in contents(tmp_path / "without")
    assert contents(tmp_path / "out") == contents(tmp_path / "copy")
    back = load(tmp_path / "out", rank=0).weights
    assert back is not None
    torch.testing.assert_close(load_file(back), weights)


def test_weights_need_be_neither_copied_nor_read(tmp_path: Path) -> None:
    """What is written for a moment links to them; who needs none of them doesn't read them all."""
    write(tmp_path / "out", sample.artifact(), weights={"w1": torch.ones(8, 4), "w2": torch.ones(8, 4)})
    write(tmp_path / "linked", load(tmp_path / "out"), links_weights=True)
    assert (tmp_path / "linked" / "weights.safetensors").is_symlink()
    assert contents(tmp_path / "out") == contents(tmp_path / "linked")
    assert load(tmp_path / "linked").weights == tmp_path / "linked" / "weights.safetensors"
    (tmp_path / "out" / "weights.safetensors").write_text("changed")
    assert load(tmp_path / "linked", rank=0, with_weights=False).weights is None
    with pytest.raises(ArtifactError, match="was changed"):
        load(tmp_path / "linked", rank=0)


def test_an_artifact_is_replaced_and_nothing_else(tmp_path: Path, written: Path) -> None:
    (written / "ranks/9.json").write_text("stale")
    write(written, sample.artifact())
    assert "ranks/9.json" not in contents(written)
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", sample.artifact())

    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    for target, found in ((other, "a directory of other things"), (other / "thesis.txt", "a file")):
        with pytest.raises(ArtifactError, match="is not an artifact") as caught:
            write(target, sample.artifact())
        assert caught.value.details == (("found", found),)
    with pytest.raises(ArtifactError, match="is not an artifact"):
        write(other / "thesis.txt", sample.artifact(), force=True)
    assert contents(other) == {"thesis.txt": b"mine"}
    write(other, sample.artifact(), force=True)
    assert contents(other) == contents(written)


def test_nothing_is_left_of_a_write_that_fails(
    tmp_path: Path, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(tmp_path)
    with pytest.raises(InternalError):
        write(written, replace(sample.artifact(), graph={"loss": float("nan")}))
    assert contents(tmp_path) == before

    def full(*_: object) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "put", full)
    with pytest.raises(ArtifactError, match="can't be written"):
        write(written, sample.artifact())
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def changed(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_every_changed_byte_is_noticed(written: Path) -> None:
    for path, content in contents(written).items():
        for at in range(0, len(content), max(1, len(content) // 7)):
            (written / path).write_bytes(changed(content, at))
            if path == "manifest.json" and content[at : at + 1].isspace():
                continue  # white space of the manifest says nothing
            with pytest.raises(ArtifactError):
                load(written)
        (written / path).write_bytes(content)
    load(written)


def test_every_missing_file_is_noticed(written: Path) -> None:
    for path, content in contents(written).items():
        (written / path).unlink()
        with pytest.raises(ArtifactError, match=f"no file {path}"):
            load(written)
        (written / path).write_bytes(content)


def rewrite_manifest(directory: Path, change: dict[str, Any]) -> None:
    """A manifest that somebody wrote on purpose: its own hash is right."""
    file = directory / "manifest.json"
    body = json.loads(file.read_text()) | change
    del body["sha256"]
    file.write_text(json.dumps(body | {"sha256": fingerprint(body)}))


MANIFESTS = [
    ({"format": "other"}, "is not the manifest of an artifact"),
    ({"schema": 1}, "another schema version"),
    ({"schema": True}, "another schema version"),
    ({"torch": ["99.0", "99.1"]}, "does not fit the installed version of torch"),
    ({"torch": ["2.13"]}, "a list of 2"),
    ({"rank": -1}, "at least 0"),
    ({"surprise": 1}, "manifest.json: surprise"),
    ({"optimizer": {"lr": -1.0}}, "the options of an optimizer"),
    ({"files": {}}, "the artifact has no program.json"),
    ({"files": {"program.json": {"size": 1, "sha256": "x"}}}, "64 hex digits"),
    ({"device_kinds": ["cpu"]}, "of the device kind that the manifest has for it"),
]


@pytest.mark.parametrize(("change", "text"), MANIFESTS)
def test_a_manifest_that_does_not_fit_is_refused(written: Path, change: dict[str, Any], text: str) -> None:
    rewrite_manifest(written, change)
    with pytest.raises(ArtifactError) as caught:
        load(written)
    assert text in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_manifest_cannot_lead_out_of_the_directory(written: Path) -> None:
    (written.parent / "secret.json").write_text("{}")
    entry = json.loads((written / "manifest.json").read_text())["files"]["program.json"]
    files = json.loads((written / "manifest.json").read_text())["files"]
    rewrite_manifest(written, {"files": files | {"classes/../../secret.json": entry}})
    own = json.loads((written / "ranks/0.json").read_text())
    own["class_name"] = "../../secret"
    (written / "ranks/0.json").write_text(json.dumps(own))
    with pytest.raises(ArtifactError):
        load(written)


def test_there_must_be_an_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no artifact at"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtifactError, match=r"no file manifest\.json"):
        load(tmp_path / "empty")


@pytest.mark.parametrize(
    ("found", "fits"),
    [("2.11.0", True), ("2.13.0+cpu", True), ("2.14.1", True), ("2.15.0", False), ("2.9", False)],
)
def test_range_of_torch(found: str, fits: bool) -> None:
    if fits:
        check_torch(TORCH_LOW, TORCH_BELOW, found)
        return
    with pytest.raises(ArtifactError, match="installed version of torch"):
        check_torch(TORCH_LOW, TORCH_BELOW, found)


def test_range_of_torch_is_the_one_of_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        dependencies = tomllib.load(file)["project"]["dependencies"]
    assert f"torch>={TORCH_LOW},<{TORCH_BELOW}" in dependencies


def test_model_fingerprint_is_the_same_for_every_strategy() -> None:
    program = sample.program()
    alone = replace(program, ranks=program.ranks[2:3])
    right = fingerprint_model(sample.GRAPH, program)
    assert fingerprint_model(sample.GRAPH, alone) == right
    assert fingerprint_model(sample.GRAPH | {"lines": ["own_model.py:3"]}, program) == right
    assert fingerprint_model({"rows": [["x", "placeholder"], ["y", "aten.mul.Tensor"]]}, program) != right


@pytest.mark.parametrize("name", ["model_fingerprint", "strategy_fingerprint"])
def test_a_fingerprint_is_compared_with_what_is_there(tmp_path: Path, name: str) -> None:
    made = sample.artifact()
    write(tmp_path / "out", replace(made, manifest=replace(made.manifest, **{name: "0" * 64})))
    with pytest.raises(ArtifactError, match=f"manifest.json: {name}"):
        load(tmp_path / "out")


def test_a_large_artifact_is_read_in_seconds(tmp_path: Path) -> None:
    """Reading is linear: a class of 20,000 rows takes no more than a few seconds on a busy machine."""
    made: Artifact = sample.artifact()
    segment = made.program.classes["p1-s0-tp2"].segments[0]
    row = segment.rows[0]
    segment.rows += [replace(row, out=replace(row.out, id=1000 + n)) for n in range(20_000)]
    write(tmp_path / "out", made)
    back = load(tmp_path / "out")
    assert encode(back.program.classes["p1-s0-tp2"]) == encode(made.program.classes["p1-s0-tp2"])
