"""benchmarks/switching.py --transitions: what it writes, and when it says that something is wrong."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SLICES = [
    {"numel": 10, "owners": [0, 8], "needers": [9, 10, 0]},
    {"numel": 6, "owners": [0], "needers": [9, 10]},
]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("switching")


def run(
    command: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, *entries: object
) -> tuple[int, list[Any]]:
    given, out = folder / "given.json", folder / "out.json"
    given.write_text(json.dumps({"node_size": 8, "transitions": entries}))
    monkeypatch.setattr(sys, "argv", ["switching.py", "--transitions", str(given), "--json", str(out)])
    code = command.main()
    return code, json.loads(out.read_text())["transitions"]


def test_ours_is_on_the_bound_where_no_rule_is(
    command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Elements of two ranks of a node without a holder cross once, not twice."""
    told = {"MIN_IDX": {"inter_node_numel": 32, "moved_numel": 32}}
    code, (row,) = run(command, monkeypatch, tmp_path, {"name": "two nodes", "slices": SLICES, "stats": told})
    assert code == 0
    assert row["inter_node_bound_numel"] == 6
    over = {rule: found["over_bound_numel"] for rule, found in row["rules"].items()}
    assert over["LEAST_LOAD"] == 0
    assert (over["MIN_IDX/fused"], over["NEW_GREEDY/fused"]) == (26, 6)
    assert row["rules"]["MIN_IDX/fused"]["as_told"] is True
    assert row["rules"]["NEW_GREEDY/fused"]["as_told"] is None


def test_what_is_wrong_is_said_by_the_exit_code(
    command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wrong = {"name": "told wrong", "slices": SLICES, "stats": {"FCFS/fused": {"num_pairs": 7}}}
    unknown = {"name": "C8->C9 (case98->case99)"}
    lost = {"name": "lost", "slices": SLICES, "failed_devices": [0]}
    code, rows = run(command, monkeypatch, tmp_path, wrong, unknown, lost)
    assert code == 1
    assert [row["is_right"] for row in rows] == [False, False, True]
    assert rows[0]["rules"]["FCFS/fused"]["as_told"] is False
    assert rows[1]["problem"] == "no strategy file beside it has case 98"
    assert all(found["errors"] == ["1"] for found in rows[2]["rules"].values()), "the slice that nobody holds"
