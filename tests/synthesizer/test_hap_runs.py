"""The original's own runs: no program of ours costs more; with a vector for each tensor no more again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from hspmd_compiler.errors import OptionError
from hspmd_compiler.synthesizer.hap.profiles import FAST, PROFILES, SLOW

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "program_search"
CLOSE = 1e-12
HET = (FAST,) * 2 + (SLOW,) * 6


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import published as module

    return module


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import searched as module

    return module


def test_no_run_of_the_original_is_cheaper(published: ModuleType, searched: ModuleType) -> None:
    runs = [run for run in published.read_runs(published.ORIGINAL_RUNS) if run.final_cost_s and run.params]
    assert len(runs) == 30
    for run in runs:
        found = searched.searched(run.setting())
        assert found.flops == run.hap_flops_fwd_bwd, run.title
        assert found.parameters == run.params, run.title
        assert found.cost <= run.final_cost_s * (1 + CLOSE), run.title
        assert found.tensor_cost <= found.cost * (1 + CLOSE), run.title
        assert found.search_s < run.cpu_s / 5, run.title  # 10 and more, on a machine of its own


def test_the_copied_runs_are_the_original(published: ModuleType, reference: Path) -> None:
    runs = published.read_runs(reference / "hap" / "peer_runs.json")
    copied = published.read_runs(published.ORIGINAL_RUNS)
    for run, copy in zip(runs, copied[: len(runs)], strict=True):
        assert (run.setting(), run.final_cost_s) == (copy.setting(), copy.final_cost_s)
        assert run.cpu_s == copy.cpu_s


def test_data_parallelism_costs_what_the_original_says(
    published: ModuleType, searched: ModuleType, reference: Path
) -> None:
    content = json.loads((reference / "hap" / "peer_runs.json").read_text(encoding="utf-8"))
    for row in content["derived_cost_model_comparison"]["rows"]:
        layers = None if row["model"] == "VGG19" else 8
        setting = searched.Setting(published.NAMES[row["model"]], HET, PROFILES["het_2of8_fast"], layers)
        found = searched.searched(setting)
        assert found.dp_even_cost == pytest.approx(row["dp_ev_cost_s"], rel=1e-12)
        assert found.dp_proportional_cost == pytest.approx(row["dp_cp_cost_s"], rel=1e-12)
        assert found.cost == pytest.approx(row["hap_cost_s"], rel=1e-12)


@pytest.mark.parametrize(
    ("model", "scale", "gain"), [("vgg19", 1.0, 0.028), ("vgg19", 4.0, 0.018), ("bert-moe", 0.25, 0.021)]
)
def test_a_vector_per_tensor_is_cheaper(searched: ModuleType, model: str, scale: float, gain: float) -> None:
    bandwidths = PROFILES["het_2of8_fast"].scaled(scale)
    found = searched.searched(searched.Setting(model, HET, bandwidths, None if model == "vgg19" else 8))
    assert found.tensor_cost < found.cost * (1 - gain)
    assert found.tensor_exchanges.keys() > {"re-slice"} or len(found.tensor_ratios) == 2


SETTINGS: Mapping[str, tuple[Mapping[str, object], float]] = {
    "segments": ({"model": "vgg19", "segmented": True}, 0.05045545),
    "slices of parameters": ({"model": "vgg19", "extra_ps": True}, 0.0529),
    "more devices": ({"model": "bert", "layers": 8, "speeds": HET * 8}, 1.1593),
    "even is cheaper": ({"model": "bert-moe", "layers": 8, "speeds": HET * 4}, 2.3349),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_which_the_original_left_the_cost(searched: ModuleType, name: str) -> None:
    """Costs as its notes round them; its segments as its search and linear program in turns end."""
    changes, cost = SETTINGS[name]
    base = searched.Setting("vgg19", HET, PROFILES["het_2of8_fast"])
    assert searched.searched(replace(base, **changes)).cost <= cost * (1 + 1e-4)


RUN = {
    "model": "ViT",
    "layers": 2,
    "n_devices": 2,
    "cluster": "[2e12]*(n/2) + [1e12]*(n/2)",
    "bandwidth_profile": "four_gpu",
}


def test_a_run_says_what_is_searched(published: ModuleType, tmp_path: Path) -> None:
    sizes = {"batch": 6, "seqlen": 16, "n_expert": 4, "capacity": 3, "params": 89_000_000}
    options = {"segmentation": True, "extra_ps": True}
    given = {**RUN, "model": "BERT-MoE", **sizes, "bandwidth_scale": 0.5, "options": options}
    file = tmp_path / "runs.json"
    file.write_text(json.dumps({"runs": [given]}), encoding="utf-8")
    setting = published.read_runs(file)[0].setting()
    assert setting.speeds == (2e12, 1e12)
    assert setting.bandwidths.all_reduce == PROFILES["four_gpu"].all_reduce / 2
    assert setting.segmented and setting.extra_ps
    wanted = {"devices": 2, "layers": 2, "batch": 6, "seq": 16, "vocab": 33280, "experts": 4, "capacity": 3}
    assert setting.arguments == wanted


def test_bad_runs_are_told_at_once(
    published: ModuleType, tmp_path: Path, expect: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = [
        {**RUN, "overlap": True},
        {**RUN, "options": {"segmentaton": True}},
        {**RUN, "model": "GPT", "bandwidth_profile": "mine"},
        {key: value for key, value in RUN.items() if key not in ("layers", "cluster")},
        {**RUN, "device_flops": [1.0, 2.0, 3.0]},
    ]
    Path("runs.json").write_text(json.dumps({"runs": bad}), encoding="utf-8")
    with pytest.raises(OptionError) as caught:
        published.read_runs(Path("runs.json"))
    expect("hap/bad_runs", str(caught.value))
