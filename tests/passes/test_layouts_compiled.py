"""Layouts from a strategy to an artifact: kept, shown, proved; what names nothing is told what is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import hspmd_compiler as hspmd
from hspmd_compiler.cli.main import main
from hspmd_compiler.errors import StrategyError
from hspmd_compiler.ir.anchor_rows import anchors_of
from hspmd_compiler.ir.graph_json import decode
from hspmd_compiler.strategy.form import form_of

from ..trace.anchored_models import BATCHES, Mlp
from .test_layouts import COLUMN_ROW, MIXED, strategy, three

FAR = {"bandwidth": 1e9, "latency": 1e-3}
Expect = Callable[[str, str], None]


def test_an_artifact_keeps_them_and_is_proved(tmp_path: Path, expect: Expect) -> None:
    chosen = strategy(three(4), MIXED, COLUMN_ROW)
    made = hspmd.compile(Mlp(), BATCHES[Mlp], strategy=form_of(chosen), dump=str(tmp_path / "dump"))
    made.save(str(tmp_path / "mlp"))
    artifact = made.artifact
    assert artifact.strategy["layouts"] == [{"at": at, "to": to} for at, to in MIXED.items()]
    assert artifact.graph is not None
    assert [anchor.name for anchor in anchors_of(decode(artifact.graph))] == list(MIXED)
    made.verify(values=True, rows=True)
    decided = (tmp_path / "dump" / "03-annotate.txt").read_text()
    moves = (tmp_path / "dump" / "04-deduce.txt").read_text().splitlines()
    moved = [line.split("  #")[0].rstrip() for line in moves if "  comm" in line or "hspmd.anchor" in line]
    expect("layouts/dumped", "\n".join([decided, *moved]))


def test_a_dump_prices_moves_on_the_cluster(tmp_path: Path) -> None:
    """Where one rank is far away, what goes there takes longer than with ranks that are all alike."""
    chosen = form_of(strategy(three(4), MIXED, COLUMN_ROW))
    nodes = [
        {"address": name, "devices": [{"count": count}], "link": FAR, "nic": FAR}
        for name, count in (("a", 2), ("b", 1))
    ]
    machines = {"nodes": nodes}
    hspmd.compile(Mlp(), BATCHES[Mlp], strategy=chosen, dump=str(tmp_path), cluster=machines, device="cuda")
    text = (tmp_path / "04-deduce.txt").read_text()
    seconds = re.findall(r"<S0\(4,2,2\) -> S1\(8,4,4\)> +direct exchange ([0-9.]+ \w+)", text)
    assert seconds and seconds != ["24.0 us"]


def test_what_names_nothing_is_told_with_all_that_is_there(expect: Expect) -> None:
    chosen = strategy(three(4), {"layers.*": "Dx3", "relu#4": "D", "layer.2": "D"}, COLUMN_ROW)
    with pytest.raises(StrategyError) as caught:
        hspmd.compile(Mlp(), BATCHES[Mlp], strategy=form_of(chosen))
    expect("layouts/unmatched_in_a_compile", str(caught.value))


def test_anchors_are_listed(capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    assert main(["trace", "mlp", "--anchors"]) == 0
    text = capsys.readouterr().out
    expect("layouts/anchors_of_mlp", text[text.index("anchors, for layouts") :])
    assert "hspmd.anchor" not in text
