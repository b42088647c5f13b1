"""`hspmd rules`: the table, the ways of a call, proof by brute force, and what is not understood."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import hspmd_compiler as hspmd
from hspmd_compiler.cli.main import main
from hspmd_compiler.rules.rule_book import RULES

Expect = Callable[[str, str], None]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("product", "mm --shape 8,4 --shape 4,6 --shares 2,1"),
        ("along", "cumsum --shape 4,6,8 --arg dim=1"),
        (
            "norm",
            "native_layer_norm --shape 4,6,8 --shape 8 --arg normalized_shape=8 --arg eps=0.1",
        ),
        ("unsplit", "gather --shape 4,6 --shape 4,3 --arg dim=1 --dtype int64"),
        ("code", "hspmd.comm.default"),
        ("without_shapes", "aten.mm.default"),
    ],
)
def test_one_rule(name: str, line: str, capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    assert main(["rules", *line.split()]) == 0
    expect(f"rules/{name}", capsys.readouterr().out)


def test_all_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--json"]) == 0
    rows = {row["operator"]: row["line"] for row in json.loads(capsys.readouterr().out)["rules"]}
    assert rows.keys() == RULES.keys()
    assert rows["aten.mm.default"] == "m k, k n -> m n, sum='k', linear='each'"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("unknown", "softmx"),
        ("split_without", "erfinv"),
        ("whole_without", "aten.bincount"),
        ("refused_without", "multinomial"),
        ("too_few_shapes", "mm --shape 8,4"),
        ("shapes_that_do_not_fit", "mm --shape 8,4 --shape 5,6"),
        ("not_a_number", "mm --shape 8,x --shape 5,6"),
        ("no_such_argument", "cumsum --shape 4 --arg dims=1"),
        ("nothing_to_share", "mm --shape 8,4 --shape 4,6 --shares 0,0"),
        ("no_such_module", "mm --import no.such_module"),
        ("check_of_a_function", "hspmd.comm.default --check"),
    ],
)
def test_mistakes(name: str, line: str, capsys: pytest.CaptureFixture[str], expect: Expect) -> None:
    assert main(["rules", *line.split()]) == 2
    expect(f"rules/{name}", capsys.readouterr().err)


def test_a_right_rule_of_a_user_is_checked(own_rules: None, capsys: pytest.CaptureFixture[str]) -> None:
    hspmd.rule("aten.erfinv.default", "... -> ...")
    assert main(["rules", "erfinv", "--check"]) == 0
    assert "equal to the whole operator" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("op", "letters", "more"),
    [
        ("aten.cumsum.default", "... d -> ... d", {}),
        ("aten.exp.default", "... -> ...", {"linear": "one"}),
        ("aten.amax.default", "... d -> ...", {"sum": "d"}),
    ],
)
def test_a_wrong_rule_of_a_user_is_told(
    op: str, letters: str, more: dict[str, str], own_rules: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs along a dim that may be cut; it is not linear; a maximum is no sum."""
    hspmd.rule(op, letters, override=True, **more)  # type: ignore[arg-type]
    assert main(["rules", op, "--check"]) == 1
    assert "NOT the whole operator" in capsys.readouterr().out


def test_a_module_beside_the_user_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_rules: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The current folder's modules are found; what is wrong in them is told without a traceback."""
    monkeypatch.chdir(tmp_path)
    text = 'import hspmd_compiler as hspmd\nhspmd.rule("aten.erfinv.default", "... -> ...")\n'
    (tmp_path / "rules_of_mine.py").write_text(text)
    (tmp_path / "rules_with_a_slip.py").write_text("hspmd.rule(")
    assert main(["rules", "erfinv", "--import", "rules_of_mine"]) == 0
    assert main(["rules", "--import", "rules_with_a_slip"]) == 2
    assert "SyntaxError" in capsys.readouterr().err


def test_a_check_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "mm", "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["check"]
    assert found["problem"] is None
    assert found["greedy"] > 0
    assert found["ways"] > found["greedy"]
