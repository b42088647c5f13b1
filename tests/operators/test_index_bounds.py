"""An index or target outside of its table is refused where eager PyTorch refuses it, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hspmd_compiler as hspmd
from hspmd_compiler.errors import HspmdError, RunError
from hspmd_compiler.program.kernels.index_check import outside_error
from hspmd_compiler.runtime.engine import Engine
from hspmd_compiler.runtime.start.launch import launch
from hspmd_compiler.runtime.start.opening import StartOptions
from hspmd_compiler.runtime.start.rank_process import Emit
from hspmd_compiler.verify.values import simulate

CLASSES = 11
OUTSIDE = (CLASSES, -1, -CLASSES - 1, 2**40)
IGNORED = -100


class Uses(nn.Module):
    """Two layers and a head, then whatever uses the index."""

    def __init__(self, use: Callable[[Uses, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, CLASSES)
        self.table = nn.Parameter(torch.randn(CLASSES, 8))
        self.use = use

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.use(self, x, y)


USES: dict[str, Callable[[Uses, Tensor, Tensor], Tensor]] = {
    "mean": lambda m, x, y: F.cross_entropy(m.head(x), y),
    "sum": lambda m, x, y: F.cross_entropy(m.head(x), y, reduction="sum"),
    "per sample": lambda m, x, y: F.cross_entropy(m.head(x), y, reduction="none").mean(),
    "smoothed": lambda m, x, y: F.cross_entropy(m.head(x), y, label_smoothing=0.1),
    "of positions": lambda m, x, y: F.cross_entropy(
        m.head(x).unsqueeze(-1).expand(-1, -1, 2), y.unsqueeze(-1).expand(-1, 2)
    ),
    "embedding": lambda m, x, y: (F.embedding(y, m.table, padding_idx=2) * x).square().mean(),
    "computed embedding": lambda m, x, y: (F.embedding(y * 2 - y, m.table) * x).square().mean(),
    "gather": lambda m, x, y: m.head(x).gather(1, y[:, None]).square().mean(),
    "scatter": lambda m, x, y: m.head(x).scatter_add(1, y[:, None], x[:, :1]).square().mean(),
    "index_select": lambda m, x, y: (m.table.index_select(0, y) * x).square().mean(),
    "indexing": lambda m, x, y: (m.table[y] * x).square().mean(),
    "one_hot": lambda m, x, y: (m.head(x) * F.one_hot(y, CLASSES)).square().mean(),
}
TP2: dict[str, object] = {"pipelines": [{"stages": [{"devices": [0, 1], "layers": 2}], "micro_batches": [6]}]}
MIXED: dict[str, object] = {
    "pipelines": [
        {"stages": [{"devices": [0, 1], "layers": 2}], "micro_batches": [2, 1]},
        {"stages": [{"devices": [2], "layers": 2}], "micro_batches": [3]},
    ]
}


def batch_with(first: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (6,), generator=generator)
    y[0] = first
    return {"x": torch.randn(6, 8, generator=generator), "y": y}


@pytest.mark.parametrize("strategy", [TP2, MIXED], ids=["tp2", "mixed"])
@pytest.mark.parametrize("use", USES)
def test_refused_where_eager_refuses(use: str, strategy: dict[str, object]) -> None:
    model = Uses(USES[use])
    program = hspmd.compile(model, batch_with(0), strategy=strategy).artifact.program
    state = {name: value.detach() for name, value in model.named_parameters()}
    for value in (3, IGNORED, *OUTSIDE):
        batch = batch_with(value)
        try:
            expected = float(model(**batch).detach())
        except (IndexError, RuntimeError):
            with pytest.raises(HspmdError, match=r"outside of what it picks|out of bounds"):
                simulate(program, state, [batch])
        else:
            assert simulate(program, state, [batch]).losses == [pytest.approx(expected, rel=1e-5)]


class Language(nn.Module):
    """Ids looked up in one table, targets among as many classes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CLASSES, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def test_every_rank_refuses_and_can_go_on(tmp_path: Path) -> None:
    def tokens(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {key: torch.randint(CLASSES, (6, 4), generator=generator) for key in ("ids", "labels")}

    torch.manual_seed(0)
    model = Language()
    hspmd.compile(model, tokens(0), strategy=MIXED).save(tmp_path / "made")

    def job(engine: Engine, emit: Emit) -> None:
        bad = tokens(1)
        bad["ids"][4, 2], bad["labels"][0, 0], bad["labels"][5, 1] = CLASSES, -1, 99
        with pytest.raises(RunError) as caught:
            engine.step(bad)
        assert set(caught.value.details) == {
            ("ids", "11, wanted 0 to 10"),
            ("labels", "-1, wanted 0 to 10 (or -100, which is ignored)"),
            ("labels", "99, wanted 0 to 10 (or -100, which is ignored)"),
        }
        lines = "\n".join(caught.value.at)
        assert "self.table(ids)" in lines and "F.cross_entropy(self.head(x)" in lines
        assert engine.steps == 0
        emit({"loss": engine.step(tokens(2))})

    records: list[dict[str, object]] = []
    launch(tmp_path / "made", job, StartOptions(), on_record=lambda record: records.append(dict(record)))
    assert records == [{"loss": pytest.approx(float(model(**tokens(2)).detach()), rel=1e-5)}]


def test_a_proof_says_so_instead_of_comparing() -> None:
    program = hspmd.compile(Uses(USES["mean"]), batch_with(0), strategy=TP2)
    with pytest.raises(RunError) as caught:
        program.verify(values=True, batch=batch_with(-1))
    assert caught.value.details == (("eager", "Target -1 is out of bounds."),)
    assert "F.cross_entropy(m.head(x), y)" in caught.value.at[0]


def test_one_input_used_at_two_lines_is_told_once() -> None:
    error = outside_error([("ids", "-1, wanted 0 to 10", line) for line in ("a.py:1", "a.py:2")])
    assert error.at == ("a.py:1", "a.py:2") and error.details == (("ids", "-1, wanted 0 to 10"),)
