"""Safetensors: written in a stream, read box by box, never half-written."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hspmd_compiler.base.comm_plan import Box
from hspmd_compiler.errors import RunError
from hspmd_compiler.runtime.saved.loaded_names import ModelNames, match_names
from hspmd_compiler.runtime.saved.safetensors_file import SafetensorsReader, SafetensorsWriter
from hspmd_compiler.runtime.saved.weights_file import check_writable

TENSORS = {
    "d": torch.randn(3, 2, dtype=torch.float64),
    "a": torch.randn(4, 6),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(2.5),
    "b": torch.randn(5).to(torch.bfloat16),
    "flags": torch.tensor([True, False, True]),
}


def entries(tensors: dict[str, torch.Tensor]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [
        (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    ]


def test_written_in_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    with SafetensorsWriter(path, entries(TENSORS)) as writer:
        for name, tensor in TENSORS.items():
            writer.write(name, tensor)
    loaded = load_file(path)
    assert set(loaded) == set(TENSORS)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    path.write_text("old")
    with pytest.raises(ValueError), SafetensorsWriter(path, entries(TENSORS)) as writer:
        writer.write("d", TENSORS["d"])
        raise ValueError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_older_file(tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk; what is small is held back till it is closed."""
    path = tmp_path / "out.safetensors"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for tensor in (torch.zeros(1 << 16), torch.zeros(1 << 10)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, limits[1]))
        try:
            with (
                pytest.raises(RunError, match="can't be written") as caught,
                SafetensorsWriter(path, entries({"a": tensor})) as writer,
            ):
                writer.write("a", tensor)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.details == (("reason", "File too large"),)
        assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_place_is_tried_before_training(tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    path.write_text("old")
    check_writable(path, "--save")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(RunError, match="/proc/weights can't be written"):
        check_writable(Path("/proc/weights"), "--save")


@pytest.mark.parametrize(
    ("view", "box"),
    [
        ((6, 8), ((1, 4), (2, 7))),
        ((3, 2, 8), ((1, 3), (1, 2), (0, 8))),
        ((2, 3, 2, 4), ((0, 2), (1, 2), (0, 1), (1, 3))),
        ((6, 2, 4), ((0, 6), (1, 2), (0, 4))),
        ((48,), ((5, 17),)),
        ((6, 8), ((2, 2), (0, 8))),
    ],
)
def test_boxes(tmp_path: Path, view: tuple[int, ...], box: Box) -> None:
    whole = torch.randn(6, 8)
    save_file({"w": whole}, tmp_path / "in.safetensors")
    file = SafetensorsReader(tmp_path / "in.safetensors")
    expected = whole.view(view)[tuple(slice(low, high) for low, high in box)]
    assert torch.equal(file.read_box("w", view, box), expected)


def test_scalars(tmp_path: Path) -> None:
    save_file({"s": torch.tensor(3.0)}, tmp_path / "in.safetensors")
    file = SafetensorsReader(tmp_path / "in.safetensors")
    assert float(file.read_box("s", (), ())) == 3 and float(file.read_box("s", (1,), ((0, 1),))) == 3


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"nothing of the kind")
    for name in ("bad", "absent"):
        with pytest.raises(RunError):
            SafetensorsReader(tmp_path / name)


NAMES = ModelNames({"w": (2,), "v": (3,)}, {"mean": (1,)}, frozenset({"cache"}), {"tied": "w"})


def test_aliases_and_unsaved_buffers() -> None:
    assert match_names(NAMES, {"tied": (2,), "v": (3,), "mean": (1,), "cache": (9,)}) == {
        "w": ("tied",),
        "v": ("v",),
        "mean": ("mean",),
    }
    assert match_names(NAMES, {"w": (2,), "v": (3,)}, all_buffers=False) == {"w": ("w",), "v": ("v",)}


def test_every_mistake_at_once() -> None:
    with pytest.raises(RunError) as caught:
        match_names(NAMES, {"v": (4,), "x": (1,)})
    assert [name for name, _ in caught.value.details] == ["w", "v", "mean", "x"]
