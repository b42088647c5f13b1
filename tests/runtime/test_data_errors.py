"""What fails in a user's own data is told with the user's line, not with ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hspmd_compiler.errors import RunError
from hspmd_compiler.runtime.batches.data import BatchShape, FactoryData, load_factory

SHAPE = BatchShape(3, {"x": ((3, 2), "float32")})


def sample() -> dict[str, Tensor]:
    return {"x": torch.zeros(3, 2)}


def raises() -> Iterator[dict[str, Tensor]]:
    yield sample()
    raise ValueError("file 3 is broken")


def raises_at_once() -> Iterator[dict[str, Tensor]]:
    raise KeyError("path")


def exits() -> Iterator[dict[str, Tensor]]:
    raise SystemExit(0)


def in_a_library() -> Iterator[dict[str, Tensor]]:
    yield {"x": torch.from_numpy(numpy.stack([]))}


class Broken(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index == 4:
            raise LookupError("no such image")
        return {"x": torch.zeros(2)}


def loaded() -> DataLoader[dict[str, Tensor]]:
    return DataLoader(Broken(), 3)


def loaded_by_a_worker() -> DataLoader[dict[str, Tensor]]:
    return DataLoader(Broken(), 3, num_workers=1)


@pytest.mark.parametrize(
    ("factory", "line", "kind", "text"),
    [
        (raises, "in raises  raise ValueError", "ValueError", "file 3 is broken"),
        (raises_at_once, "in raises_at_once  raise KeyError", "KeyError", "'path'"),
        (exits, "in exits  raise SystemExit", "SystemExit", "0"),
        (in_a_library, "in in_a_library  yield", "ValueError", "need at least one array to stack"),
        (loaded, "in Broken.__getitem__  raise LookupError", "LookupError", "no such image"),
        (
            loaded_by_a_worker,
            "in Broken.__getitem__  raise LookupError",
            "LookupError",
            "LookupError: no such image",
        ),
    ],
)
def test_the_users_line_is_told(factory: Callable[..., Any], line: str, kind: str, text: str) -> None:
    with pytest.raises(RunError) as caught:
        list(FactoryData(factory, SHAPE))
    assert "test_data_errors.py:" in caught.value.at[0] and line in caught.value.at[0]
    assert caught.value.details == ((kind, text),)
    assert "runtime/" not in caught.value.text().replace("tests/runtime/", "")


def test_a_factory_that_gives_no_iterator_or_wants_more() -> None:
    def wants(path: str) -> Iterator[dict[str, Tensor]]:
        yield sample()

    for factory, text in ((lambda: 3, "not iterable"), (wants, "'path'")):
        with pytest.raises(RunError, match="factory fails") as caught:
            list(FactoryData(factory, SHAPE))  # type: ignore[arg-type]
        assert text in caught.value.details[0][1]


def test_none_is_no_end() -> None:
    """A loader whose collate function forgets to return would else train on nothing."""
    data = FactoryData(lambda: iter([sample(), None, sample()]), SHAPE)  # type: ignore[arg-type, list-item]
    with pytest.raises(RunError, match="a batch is a NoneType"):
        list(data)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: torch.zeros(3, 2).to_sparse(), "sparse_coo float32[3, 2]"),
        (lambda: torch.zeros(3, 2, device="meta"), "float32[3, 2] without values"),
    ],
)
def test_tensors_that_hold_no_plain_values(made: Callable[[], Tensor], text: str) -> None:
    with pytest.raises(RunError, match="doesn't fit") as caught:
        list(FactoryData(lambda: iter([{"x": made()}]), SHAPE))
    assert caught.value.details == (("x", f"{text}, wanted float32[3, 2]"),)


def test_a_module_that_fails_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_data.py").write_text("import math\nLENGTH = math.sqrt(-1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunError, match="failing_data:batches can't be loaded") as caught:
        load_factory("failing_data:batches")
    assert caught.value.at == ("failing_data.py:2  in <module>  LENGTH = math.sqrt(-1)",)
