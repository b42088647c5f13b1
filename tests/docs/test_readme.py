"""README.md says what is so. tests/docs/test_docs.py runs its code and commands."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from hspmd_compiler.cli.main import COMMANDS, main, parser
from tests.docs.page_blocks import ROOT, blocks, commands, link_checkout, write_files

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with README's files, entered; its modules are forgotten afterwards."""
    write_files(README, tmp_path)
    link_checkout(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in blocks(README):
        if block.language == "python" and block.file is not None:
            monkeypatch.delitem(sys.modules, Path(block.file).stem, raising=False)
    return tmp_path


def test_every_command_is_listed_and_its_flags_are_known() -> None:
    table = TEXT[TEXT.index("| command |") :].partition("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)", table, re.MULTILINE)
    assert sorted(listed) == sorted(command.name for command in COMMANDS)
    for command in commands(README):
        if command.startswith("hspmd "):
            parser().parse_args(shlex.split(command)[1:])


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_folders_exist() -> None:
    for row in re.findall(r"^\| (`\w+/`.*?) \|", TEXT, re.MULTILINE):
        assert all((ROOT / name).is_dir() for name in re.findall(r"`(\w+)/`", row))


def test_inspect_shows_the_table_of_the_page(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = next(command for command in commands(README) if command.startswith("hspmd compile own"))
    assert main(shlex.split(compiled)[1:]) == 0
    shown = capsys.readouterr().out
    (table,) = (block.text for block in blocks(README) if block.text.startswith("rank "))
    assert table in shown
    assert main(["inspect", "build/own", "--rank", "2"]) == 0
    page = capsys.readouterr().out
    (line,) = re.findall(r"`(v\d+ = .*?)`", TEXT)
    assert re.search(rf"{re.escape(line)} +# row \d+\n", page) and " = comm" not in page
    assert main(["inspect", "build/own", "--rank", "0"]) == 0
    assert "comm" in capsys.readouterr().out
