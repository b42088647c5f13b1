"""HotSPa's runs in the example: as published, by descending length, and trained equal in one command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hspmd_compiler.errors import OptionError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "hot_switch"
LIMIT = 400  # seconds, for machines that run other tests beside it
SMALL_LAYERS = 4


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import published_runs as module

    return module


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import tables as module

    yield module


def test_runs_are_the_published_ones(runs: ModuleType, reference: Path) -> None:
    found = runs.read_runs()
    published = json.loads((reference / "hspmd" / "strategies_hotspa.json").read_text())
    quick = json.loads((reference / "hspmd" / "strategies_hotspa_quick_8xA100.json").read_text())
    assert len(found) == len(published) + len(quick)
    for item in published:
        run = found[item["id"].removeprefix("hotspa/")]
        assert (run.size, run.layers, run.gpus) == (
            item["model"]["size"],
            item["model"]["layers"],
            item["num_gpus"],
        )
        assert list(run.bounds) == item["bucket_sizes"]
        assert list(run.degrees) == [(each["dp"], each["tp"], each["pp"]) for each in item["strategies"]]
        strategies = run.strategies(run.layers)
        for each in item["strategies"]:
            low, high = item["bucket_ranges"][each["handles_bucket"]]
            own = next(s for s in strategies if s.name == "dp{dp}-tp{tp}-pp{pp}".format(**each))
            assert own.longest == high and low < high
    for item in quick:
        run = found[f"quick_8gpus_{item['context_len']}"]
        assert list(run.degrees) == [(each["dp"], each["tp"], each["pp"]) for each in item["strategies"]]
        assert list(run.bounds) == item["bucket_sizes"]


def test_every_run_has_a_home_of_the_longest(runs: ModuleType) -> None:
    """All strategies use all ranks; a micro-batch has half the tokens of the longest at most."""
    for run in runs.read_runs().values():
        strategies = run.strategies(SMALL_LAYERS, shrink=128)
        assert [each.longest for each in strategies] == [bound // 128 for bound in run.bounds[:-1]]
        assert strategies[0].name == run.title(0)
        for each in strategies:
            assert each.strategy.devices == tuple(range(run.gpus))
            sizes = {size for pipeline in each.strategy.pipelines for size in pipeline.micro_batches}
            assert max(sizes) * each.longest <= max(strategies[0].longest // 2, each.longest)
            assert each.bucket().rows == each.strategy.global_batch
        assert len({each.name for each in strategies}) == len(strategies)
        assert {plan.global_batch for _, plan in run.whole(SMALL_LAYERS, 64)} == {64}


def test_sequences_are_alike_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from long_tail import sequences

    first, again, other = sequences(3, 20, 64), sequences(3, 20, 64), sequences(4, 20, 64)
    assert all(one.equal(two) for one, two in zip(first, again, strict=True))
    assert any(len(one) != len(two) or not one.equal(two) for one, two in zip(first, other, strict=True))
    lengths = sorted(map(len, first))
    assert lengths[0] >= 2 and lengths[-1] == 64 and lengths[10] < 16, "most are short"


def test_mistakes_are_told(runs: ModuleType) -> None:
    known = runs.read_runs()
    with pytest.raises(OptionError, match="there is no run c3"):
        runs.named(known, "c3")
    with pytest.raises(OptionError, match="30 sequences can't be shared out by every strategy"):
        known["c1_7b_8gpus_32768"].whole(SMALL_LAYERS, 30)


def test_a_wrong_loss_is_no_equality(tables: ModuleType) -> None:
    from trained_runs import TrainedRun

    one, near, far, none = (
        TrainedRun("a", losses=[2.0, last]) for last in (1.0, 1.0 + 1e-7, 1.0 + 1e-3, float("nan"))
    )
    assert tables.verdict([one, near]).is_equal
    assert not tables.verdict([one, near, far]).is_equal
    assert not tables.verdict([one, none]).is_equal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (("--steps", "2"), "EQUAL: a step in parts is the step of each strategy"),
        (("c1_13b_8gpus_8192", "--steps", "2"), "EQUAL: a step in parts is the step of each strategy"),
        (("c2_32b_32gpus_32768", "--compile-only"), "dp4-tp2-pp4"),
    ],
)
def test_the_demo(flags: tuple[str, ...], shown: str, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    done = subprocess.run(
        [sys.executable, "examples/hot_switch/demo.py", *flags, "--json", str(numbers)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown in done.stdout and "NOT EQUAL" not in done.stdout
    content = json.loads(numbers.read_text())
    assert all(flow["out_bytes"] > 0 for flow in content["flows"])
