"""Prices of published measurements: the bars that they hold, and what is said of files that can't be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "price_truth.py"


def price_truth(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def found(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What it writes of the published points."""
    out = tmp_path_factory.mktemp("truth") / "truth.json"
    done = price_truth("--planners", reference / "planners", "--json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    content: dict[str, Any] = json.loads(out.read_text())
    return content


def test_every_bar_is_held(found: dict[str, Any]) -> None:
    assert [bar for bar in found["bars"] if not bar["passed"]] == []
    assert len(found["bars"]) == 16


@pytest.mark.parametrize(
    ("data", "points", "mape", "worst", "sailor"),
    [
        ("three-type cluster, OPT-350", 5, 0.032, 0.120, 0.125),
        ("GH200, OPT-350", 10, 0.082, -0.157, 0.092),
        ("GH200, GPT-Neo-2.7", 7, 0.026, 0.080, 0.068),
    ],
)
def test_scores_of_sailors_points(
    found: dict[str, Any], data: str, points: int, mape: float, worst: float, sailor: float
) -> None:
    """As docs/prices.md has them. Sailor's formula is restated right: its known errors come out."""
    table = found["sets"][data]
    main = table["forms"][table["documented_form"]]
    assert main["points"] == points
    assert (main["mape"], main["worst"]) == pytest.approx((mape, worst), abs=6e-4)
    assert table["sailor"]["mape"] == pytest.approx(sailor, abs=6e-4)


def test_no_point_is_left_out_unsaid(found: dict[str, Any]) -> None:
    apart = {
        point["name"].rpartition("/")[2]: point["apart"].partition(":")[0]
        for table in found["sets"].values()
        for point in table["points"]
        if point.get("apart")
    }
    assert set(apart) == {"plan_config_N3_D1.json", "plan_config_N2_D1.json"}
    assert sum(len(table["points"]) for table in found["sets"].values()) == 24 + 53 + 52
    assert found["not_read"] == [
        "trials.json: het_model, 65 rows: model TransGAN: no layer sizes, not priced"
    ]


def test_reductions_of_the_three_type_cluster(found: dict[str, Any]) -> None:
    """Within 11 % of what was measured, by NIC and bytes alone."""
    for point in found["sets"]["three-type cluster, OPT-350"]["points"]:
        if point["measured_reduction_s"] > 1 and not point["apart"]:
            assert point["reduction_s"] == pytest.approx(point["measured_reduction_s"], rel=0.11)


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("no_batch", {"gbs": None}, "`gbs` is missing"),
    ("flag", {"mbs": True}, "`mbs` is True: not a number"),
    ("nan", {"real": float("nan")}, "`real` is nan: not a number"),
    ("below", {"max_mem": -1}, "`max_mem` is -1: below 0"),
    ("half", {"mbs": 1.5}, "`mbs` is 1.5: not a whole number"),
    ("huge", {"gbs": 10**12}, "micro-batches over all stages: at most 131,072 are priced"),
    ("none", {"pipeline_list": []}, "`pipeline_list` is missing or empty"),
    ("other", {"pipeline_list": [3]}, "not laid out as a plan (TypeError"),
    ("kind", {"kind": "H999"}, "no profile of OPT-350 on H999 at tp 4"),
    ("zone", {"zone": "mars"}, "no network figures between 4 GH-96 in mars and 4 GH-96 in mars"),
    ("degree", {"tp": 3}, "no profile of OPT-350 on GH-96 at tp 3"),
    ("short", {"layers": [12, 13]}, "its stages have [12, 13] layers, 25 in all; the model has 26"),
    ("replicas", {"dp": [2, 1]}, "`dp` is [2, 1], the stages have [1, 1] places"),
]


GPT2 = "GPT-2 h=1024 L=24 s=1024 V=52256 gbs=32"
TRIAL = {"layer_partition": "[0, 15, 30]", "mbs": 1, "tp": 1, "dp": 8, "pp": 2}
TIMES = {"predicted_s": 1.3, "measured_s": 1.28}
TRIALS = {
    "model": {"homogeneous": GPT2, "moon": GPT2, "other": "BERT"},
    "trials": {
        "homogeneous": [
            TRIAL | TIMES,
            {"layer_partition": "[0, 30]", "mbs": 1, "tp": 3, "dp": 1, "pp": 1} | TIMES,
            TRIAL | TIMES | {"layer_partition": [0, 30, 15]},
            {key: value for key, value in TRIAL.items() if key != "mbs"} | TIMES,
            TRIAL | TIMES | {"mbs": 3},
        ],
        "other": [TRIAL | TIMES],
        "moon": [TRIAL | TIMES],
    },
}


def plan(
    kind: str = "GH-96",
    zone: str = "us-central1-a",
    tp: int = 4,
    layers: tuple[int, ...] = (13, 13),
    dp: tuple[int, ...] = (1, 1),
    **changed: Any,
) -> dict[str, Any]:
    """A plan of two stages, with what is changed of it."""
    numbers = iter(range(100))
    pipeline = {
        "num_stages": len(layers),
        "layers_per_stage": [[next(numbers) for _ in range(count)] for count in layers],
        "tmp_per_stage": [[[[[kind, 4, zone]], tp]] for _ in layers],
        "dp": list(dp),
    }
    row = {
        "pipeline_list": [pipeline],
        "mbs": 8,
        "gbs": 32,
        "real": 0.7,
        "red_grads": 0.004,
        "max_mem": 2.7e10,
    }
    return {key: value for key, value in (row | changed).items() if value is not None}


def test_a_file_that_cannot_be_read_is_one_line(reference: Path, tmp_path: Path) -> None:
    """Of any folder; the others are priced, and what can be repaired is."""
    for name, changed, _ in CHANGES:
        (tmp_path / f"{name}.json").write_text(json.dumps(plan(**changed)))
    (tmp_path / "cut.json").write_text('{"pipeline_list":')
    typo = plan()
    typo["pipeline_list"][0]["layers_per_stage"][1][2] = 51
    (tmp_path / "typo.json").write_text(json.dumps(typo))
    other = plan(mbs=3, gbs=96)
    (tmp_path / "other_size.json").write_text(json.dumps(other))
    beside = tmp_path.parent / "beside"
    beside.mkdir(exist_ok=True)
    out, trials = beside / "truth.json", beside / "trials.json"
    trials.write_text(json.dumps(TRIALS))
    done = price_truth(
        "--planners", reference / "planners", "--points", tmp_path, "--trials", trials, "--json", out
    )
    assert not done.stderr
    content = json.loads(out.read_text())
    told = {line.partition(":")[0]: line for line in content["not_read"]}
    for name, _, text in CHANGES:
        assert text in told[f"{name}.json"]
    assert told["cut.json"] == "cut.json: can't be read as JSON: JSONDecodeError"
    assert [line for line in content["not_read"] if line.startswith(("trials.json", "moon"))] == [
        "trials.json: homogeneous, row 1: tp 3 x dp 1 x pp 1 is not 16 devices",
        "trials.json: homogeneous, row 2: `layer_partition` [0, 30, 15] is not of 2 stages",
        "trials.json: homogeneous, row 3: `mbs` is missing",
        "trials.json: homogeneous, row 4: 32 samples do not come out even at mbs 3, dp 8",
        "trials.json: other, 1 rows: model BERT: no layer sizes, not priced",
        "moon: no cluster moon; known: homogeneous, het_cluster",
    ]
    (trial,) = content["sets"]["AMP, homogeneous"]["points"]
    assert trial["name"] == "mbs 1 tp 1 dp 8 pp 2"
    points = {point["name"]: point for point in content["sets"]["GH200, OPT-350"]["points"]}
    assert set(points) == {"typo.json", "other_size.json"}
    assert points["typo.json"]["notes"] == ["layers repaired by position: 51 for 15"]
    assert points["other_size.json"]["sailor_s"] is None, "its formula has measured sizes only"


def test_pipelines_of_unlike_length(reference: Path, tmp_path: Path) -> None:
    """Replicas with two stages and with one: each layer is reduced around its own ring."""
    mixed = plan(gbs=64)
    mixed["pipeline_list"] += plan(layers=(26,), dp=(1,))["pipeline_list"]
    (tmp_path / "mixed.json").write_text(json.dumps(mixed))
    (tmp_path / "alone.json").write_text(json.dumps(plan()))
    out = tmp_path / "out"
    price_truth("--planners", reference / "planners", "--points", tmp_path, "--trials", "none", "--json", out)
    content = json.loads(out.read_text())
    points = {point["name"]: point for point in content["sets"]["GH200, OPT-350"]["points"]}
    assert points["alone.json"]["reduction_s"] == 0.0
    assert points["mixed.json"]["reduction_s"] > 0.0


def test_without_the_tables_it_says_what_is_missing(tmp_path: Path) -> None:
    done = price_truth("--planners", tmp_path / "nowhere")
    assert done.returncode == 2
    assert "no such folder; --planners names one with the published tables" in done.stderr
    assert "Traceback" not in done.stderr
