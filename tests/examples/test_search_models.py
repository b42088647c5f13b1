"""HAP's four models: the published sizes, gating by its definition, equality with one device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
import torch

import hspmd_compiler as hspmd

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "program_search"
SMALL = {"layers": 2, "devices": 2, "hidden": 16, "heads": 2, "ffn": 24, "batch": 2}
WORDS = {"vocab": 50, "seq": 8}


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import models as module

    return module


@pytest.mark.parametrize(
    ("name", "sizes", "parameters"),
    [
        ("vgg19", {}, 139_611_210),
        ("vit", {}, 56_798_986),
        ("vit", {"layers": 24}, 170_204_938),
        ("bert", {}, 107_854_336),
        ("bert", {"layers": 24}, 221_260_288),
        ("bert_moe", {}, 391_003_648),
        ("bert_moe", {"devices": 4}, 239_984_128),
        ("bert_moe", {"devices": 64}, 2_505_276_928),
        ("bert_moe", {"layers": 12}, 560_929_792),
    ],
)
def test_sizes_are_the_published_ones(
    models: ModuleType, name: str, sizes: Mapping[str, int], parameters: int
) -> None:
    with torch.device("meta"):
        model, inputs = getattr(models, name)(**sizes)
    assert sum(held.numel() for held in model.parameters()) == parameters
    assert {len(held) for held in inputs.values()} == {32 * sizes.get("devices", 8)}


def places_by_hand(shares: torch.Tensor, capacity: int) -> dict[tuple[int, int, int, int], float]:
    """Token by token: (sample, token, expert, place) to its weight, of those that are taken."""
    weights: dict[tuple[int, int, int, int], float] = {}
    for sample, tokens in enumerate(shares.tolist()):
        held = [0] * shares.shape[2]
        best = [sorted(range(len(row)), key=lambda expert, row=row: -row[expert])[:2] for row in tokens]
        for choice in (0, 1):
            for token, (row, experts) in enumerate(zip(tokens, best, strict=True)):
                expert = experts[choice]
                if held[expert] < capacity:
                    place = sample, token, expert, held[expert]
                    weights[place] = row[expert] / sum(row[one] for one in experts)
                held[expert] += 1
    return weights


def test_gating_is_what_it_says(models: ModuleType) -> None:
    torch.manual_seed(0)
    x, gate = torch.randn(2, 9, 5, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    dispatch, combine = models.top_2_gating(x, gate, 3)
    weights = places_by_hand(torch.softmax(x @ gate, -1), 3)
    assert {tuple(where) for where in dispatch.nonzero().tolist()} == set(weights)
    assert len(weights) < 2 * 2 * 9  # some are dropped
    combined = {tuple(where): combine[tuple(where)].item() for where in combine.nonzero().tolist()}
    assert combined == pytest.approx(weights)


@pytest.mark.parametrize(
    ("name", "sizes", "layers"),
    [
        ("vgg19", {"channels": 4, "ffn": 16, "batch": 2}, 19),
        ("vit", {**SMALL, "image": 16}, 2),
        ("bert", {**SMALL, **WORDS}, 2),
        ("bert_moe", {**SMALL, **WORDS}, 2),
    ],
)
def test_shrunken_ones_equal_one_device(
    models: ModuleType, name: str, sizes: Mapping[str, int], layers: int
) -> None:
    model, inputs = getattr(models, name)(**sizes)
    cut = {"stages": [{"devices": [0, 1], "layers": layers}], "micro_batches": [2, 1]}
    one = {"stages": [{"devices": [2], "layers": layers}], "micro_batches": [1]}
    compiled = hspmd.compile(model, inputs, strategy={"pipelines": [cut, one]})
    compiled.verify(values=True)
