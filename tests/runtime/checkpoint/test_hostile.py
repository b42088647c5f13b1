"""A checkpoint that was changed, hashes made anew: refused in our words, or read; nothing else happens."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from hspmd_compiler.artifact.json_text import fingerprint
from hspmd_compiler.errors import RunError
from hspmd_compiler.options import OptimizerConfig
from hspmd_compiler.program.boxes import full_box
from hspmd_compiler.program.switch_plan import VALUE
from hspmd_compiler.runtime.saved.checkpoint.pieces import PIECES_KEY
from hspmd_compiler.runtime.saved.checkpoint.reader import CheckpointReader
from hspmd_compiler.runtime.saved.safetensors_file import SafetensorsReader
from tests.base.mutated_files import Subject, mutated_json, try_one

from ...training.test_zero_training import CASES
from ...training.training_cases import graph_of, program_for
from .drawn_ranks import ThreadRanks

ROUNDS = 300


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kept")
    ThreadRanks(program_for(graph_of("mlp-ce"), replace(CASES["dp2"], zero=1)), OptimizerConfig(), 1, 3).save(
        directory
    )
    return directory / "step-00000003"


def read_all(folder: Path) -> None:
    """Every element of every tensor, and where training stood."""
    reader = CheckpointReader(folder)
    if reason := reader.damage():
        raise RunError(reason)
    reader.index.random.restore()
    for name, tensor in reader.index.tensors.items():
        for kind in (VALUE, *tensor.moments):
            reader.read_box(name, kind, tensor.shape, full_box(tensor.shape))


def written(folder: Path, source: Path, content: dict[str, Any]) -> None:
    """The checkpoint again with this index and these tables of pieces, and right hashes of all of it."""
    folder.mkdir(exist_ok=True)
    index = content["index.json"]
    files = index.get("files") if isinstance(index, dict) else None
    for path in source.glob("*.safetensors"):
        target = folder / path.name
        save_file(load_file(path), target, {PIECES_KEY: json.dumps(content[path.name])})
        if isinstance(files, dict) and path.name in files:
            size, digest = target.stat().st_size, hashlib.sha256(target.read_bytes()).hexdigest()
            files[path.name] = {"size": size, "sha256": digest}
    if isinstance(index, dict):
        index.pop("sha256", None)
        index["sha256"] = fingerprint(index)
    (folder / "index.json").write_text(json.dumps(index))


def content_of(source: Path) -> dict[str, Any]:
    tables = {
        path.name: json.loads(SafetensorsReader(path).metadata[PIECES_KEY])
        for path in sorted(source.glob("*.safetensors"))
    }
    return {"index.json": json.loads((source / "index.json").read_text()), **tables}


def changed(source: Path) -> Subject:
    """One or two values changed and all hashes made anew; or bytes of a file changed."""

    def change(rng: random.Random, folder: Path) -> str:
        if rng.random() < 0.2:
            shutil.copytree(source, folder, dirs_exist_ok=True)
            path = rng.choice(sorted(folder.iterdir()))
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
            return path.name
        content = content_of(source)
        told = [mutated_json(rng, content, rng.choice(sorted(content))) for _ in range(rng.choice((1, 2)))]
        written(folder, source, content)
        return "; ".join(told)

    return Subject("checkpoint", change, read_all)


def test_changed_checkpoints(kept: Path, tmp_path: Path) -> None:
    subject, rng, outcomes = changed(kept), random.Random(3), list[tuple[str, str]]()
    for number in range(ROUNDS):
        (folder := tmp_path / str(number)).mkdir()
        outcomes.append(try_one(subject, rng, folder))
        shutil.rmtree(folder)
    bad = [each for each in outcomes if each[0] not in ("refused", "taken or refused by its exit code")]
    assert not bad, bad
    assert sum(found == "refused" for found, _ in outcomes) > ROUNDS / 2


def refused(tmp_path: Path, kept: Path, content: dict[str, Any]) -> str:
    written(tmp_path, kept, content)
    with pytest.raises(RunError) as caught:
        read_all(tmp_path)
    return str(caught.value)


def test_an_element_in_two_files(kept: Path, tmp_path: Path) -> None:
    """No number of it is guessed."""
    content = content_of(kept)
    pieces = content["rank-0000.safetensors"]["pieces"]["blocks.0.down.bias"]
    ((low, high),) = pieces["boxes"][0]
    pieces["boxes"] = [[[low, low + 1]], [[low, high - 1]]]
    assert "elements are in two files" in refused(tmp_path, kept, content)


def test_an_element_in_no_file(kept: Path, tmp_path: Path) -> None:
    content = content_of(kept)
    del content["index.json"]["files"]["rank-0000.safetensors"]
    assert "elements are in no file" in refused(tmp_path, kept, content)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("format", "other", "format: hspmd-checkpoint"),
        ("schema", 2, "schema: 1, which this version reads"),
        ("ranks", 10**9, "ranks: 1 to 65,536 ranks"),
        ("files", {"../../etc/passwd": {"size": 1, "sha256": "0" * 64}}, "no file of a rank of it"),
        ("lr", "high", "lr: a number"),
    ],
)
def test_bad_values(kept: Path, tmp_path: Path, key: str, value: object, text: str) -> None:
    content = content_of(kept)
    content["index.json"][key] = value
    assert text in refused(tmp_path, kept, content)
