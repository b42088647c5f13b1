"""Files of weights: what is tied has all of its names and one value, and a damaged file is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.cli.main import main
from hspmd_compiler.errors import RunError
from hspmd_compiler.runtime.batches.data import FactoryData
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.saved.safetensors_file import SafetensorsReader
from hspmd_compiler.runtime.saved.training_state import save_state
from hspmd_compiler.runtime.saved.weights_file import save
from hspmd_compiler.runtime.start.opening import StartOptions, open_engine
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy

ONE = Strategy((PipelineSpec((StageSpec((0,), (0, 2)),), (2,)),))
TABLE, HEAD = "table.weight", "head.weight"


class Tied(nn.Module):
    """A table that is the last layer too, a frozen parameter, and a buffer that is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.layers[0].bias.requires_grad_(False)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.full((4,), 0.5))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.table(x)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden)) * self.scale
        return nn.functional.cross_entropy(self.head(hidden), y)


def build() -> tuple[nn.Module, dict[str, Tensor]]:
    return Tied(), {"x": torch.zeros(2, dtype=torch.int64), "y": torch.ones(2, dtype=torch.int64)}


@contextmanager
def opened(directory: Path, weights: Path | None = None) -> Iterator[Engine]:
    """The only rank of an artifact, in this process."""
    engine = open_engine(directory, StartOptions(weights=weights)).engine
    try:
        yield engine
    finally:
        engine.transport.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of one rank, what it saves after two steps, and its state."""
    made = tmp_path_factory.mktemp("weights")
    hspmd.compile(build, strategy=ONE).save(made / "one")
    with opened(made / "one") as engine:
        for _ in range(2):
            engine.step(build()[1])
        save(engine, made / "saved.safetensors")
        save_state(engine, FactoryData(lambda: iter([build()[1]]), engine.shape), made / "state.safetensors")
    return made


def refused(folder: Path, weights: Path) -> str:
    with pytest.raises(RunError) as error, opened(folder / "one", weights):
        pass
    return str(error.value)


def test_a_saved_file_loads_strictly_into_the_plain_model(folder: Path) -> None:
    model, saved = Tied(), load_file(folder / "saved.safetensors")
    model.load_state_dict(saved)
    assert saved.keys() == model.state_dict().keys()
    assert torch.equal(saved[TABLE], saved[HEAD])


def test_a_saved_file_is_a_start(folder: Path) -> None:
    saved = load_file(folder / "saved.safetensors")
    with opened(folder / "one", folder / "saved.safetensors") as engine:
        state = engine.state_dict()
    assert all(torch.equal(state[name], value) for name, value in saved.items())


@pytest.mark.parametrize("names", [(TABLE,), (HEAD,), (TABLE, HEAD)])
def test_what_is_tied_may_have_any_of_its_names(folder: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    saved = load_file(folder / "saved.safetensors")
    given = {name: value for name, value in saved.items() if name in names or name not in (TABLE, HEAD)}
    save_file(given, tmp_path / "given.safetensors")
    with opened(folder / "one", tmp_path / "given.safetensors") as engine:
        assert torch.equal(engine.state_dict()[HEAD], saved[TABLE])


def test_two_values_of_what_is_tied_are_refused(folder: Path, tmp_path: Path) -> None:
    saved = load_file(folder / "saved.safetensors")
    other = saved[HEAD].clone()
    other[4, 3] += 1e-6
    save_file(saved | {HEAD: other}, tmp_path / "given.safetensors")
    told = refused(folder, tmp_path / "given.safetensors")
    assert TABLE in told and HEAD in told and "two values" in told
    with opened(folder / "one") as engine, pytest.raises(RunError, match="two values"):
        engine.load_state_dict(saved | {HEAD: other})
    save_file(saved | {HEAD: saved[HEAD][:2].clone()}, tmp_path / "given.safetensors")
    assert f"{HEAD} shape [2, 4]" in " ".join(refused(folder, tmp_path / "given.safetensors").split())


def test_a_damaged_file_of_ours_is_refused_and_one_from_elsewhere_has_no_hash(
    folder: Path, tmp_path: Path
) -> None:
    content = (folder / "saved.safetensors").read_bytes()
    for at in (len(content) - 1, len(content) // 2):
        changed = bytearray(content)
        changed[at] ^= 1
        (tmp_path / "damaged.safetensors").write_bytes(changed)
        assert "doesn't match its hash" in refused(folder, tmp_path / "damaged.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(content[:-4])
    assert "not a safetensors file" in refused(folder, tmp_path / "cut.safetensors")
    foreign = tmp_path / "foreign.safetensors"
    save_file(load_file(folder / "saved.safetensors"), foreign)
    assert not SafetensorsReader(foreign).written_hash
    with opened(folder / "one", foreign):
        pass


def test_a_state_of_training_goes_to_resume(folder: Path) -> None:
    assert "--resume" in refused(folder, folder / "state.safetensors")


def test_a_folder_is_told_by_what_lies_in_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", str(folder / "one"), "--data", "nowhere:batches", "--steps", "1", "--init"]
    assert main([*run, str(tmp_path)]) == 2
    assert "a folder; name one .safetensors file" in capsys.readouterr().err
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert main([*run, str(tmp_path)]) == 2
    assert f"name the file in it, {tmp_path / 'model.safetensors'}" in capsys.readouterr().err
    save_file({"w": torch.zeros(1)}, tmp_path / "more.safetensors")
    assert main([*run, str(tmp_path)]) == 2
    assert "the folder has 2" in capsys.readouterr().err
