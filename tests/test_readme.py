"""README.md says what is so: its files and commands work as a new user would try them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hspmd_compiler.cli.main import COMMANDS, main, parser
from tests.page_blocks import ROOT, blocks, commands, link_checkout, with_this_python, write_files

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
LIMIT = 240  # seconds for one command, on a machine that runs other tests beside it


def is_make(command: str) -> bool:
    return command.startswith("make ")


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


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in filter(is_make, commands(README)):
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE)


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


@pytest.mark.slow
def test_files_and_commands_work(workplace: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for command in commands(README):
        if is_make(command):
            continue
        done = subprocess.run(
            with_this_python(command),
            shell=True,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert (workplace / "build" / "own.safetensors").is_file()
