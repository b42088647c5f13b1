"""Every block of README and docs is what it shows: code runs as it stands, commands work, files are read."""

from __future__ import annotations

import glob
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml

from hspmd_compiler.annotations import parse_annotation
from hspmd_compiler.annotations.text import parse_states
from hspmd_compiler.cli.main import main
from hspmd_compiler.cluster.form import cluster_from
from hspmd_compiler.cluster.hostfile import read_hostfile
from hspmd_compiler.program.sized.plan_file import plan_from_text
from hspmd_compiler.strategy.formats.read import read_text
from tests.docs.page_blocks import ROOT, Block, blocks, commands, link_checkout, with_this_python, write_files

LAYOUTS = ROOT / "docs" / "layouts.md"
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if blocks(page)]
MACHINES = ROOT / "docs" / "machines.md"
LIMIT = 240  # seconds for one command, on a machine that runs other tests beside it
GIVEN = {"hidden": torch.zeros(2, 3, 4)}
"""What a block without a file of its own takes as known."""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_rules: None) -> Iterator[Path]:
    """An empty folder with what a checkout has, entered. Modules of a page are forgotten afterwards."""
    link_checkout(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(workplace: Path, page: Path) -> None:
    """In their order, in one process; what starts under torchrun is left to the slow test."""
    run_all(page, type_in)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_commands_work_as_typed(workplace: Path, page: Path) -> None:
    """Each in a shell and a process of its own."""
    run_all(page, type_into_a_shell)
    assert page.stem != "README" or Path("build/own.safetensors").is_file()
    assert page.stem != "python_api" or Path("regression.pt").is_file()


def run_all(page: Path, typed: Callable[[str], None]) -> None:
    """A file that a command runs waits for that command."""
    write_files(page, Path())
    lines = " ".join(commands(page))
    for block in blocks(page):
        if block.file is None or block.file not in lines:
            run(block, typed)


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        fences = re.findall(r"^```(\w*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert all(fences[::2]) and not any(fences[1::2]), page.name


def test_the_machines_of_the_page_get_its_commands(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, hosts = (
        next(block.text for block in blocks(MACHINES) if block.language == language)
        for language in ("console", "hosts")
    )
    Path("hosts").write_text(re.sub(" kind=.*", "", hosts))  # the program is for any
    type_in("hspmd compile llama-tiny --strategy examples/quickstart/strategy.json -o build/llama")
    capsys.readouterr()
    command, _, wanted = shown.removeprefix("$ ").partition("\n")
    type_in(command)
    assert capsys.readouterr().out.replace(f"{workplace}/", "") == wanted


def run(block: Block, typed: Callable[[str], None]) -> None:
    """Fails where a block isn't what its language says; `text` and `console` show what is no code."""
    match block.language:
        case "python" if block.file is not None:
            runpy.run_path(block.file)
        case "python":
            exec(compile(f"import hspmd_compiler\n{block.text}", "page", "exec"), dict(GIVEN))
        case "json":
            read_json_text(block.text)
        case "yaml":
            read_yaml(block.text)
        case "hosts":
            assert read_hostfile(block.text).nodes
        case "sh" if all(re.match(r"[A-Z_]+=", line) for line in block.text.splitlines()):
            read_text(block.text)
        case "sh":
            for line in block.text.splitlines():
                typed(line)
        case "text" | "console":
            pass
        case other:
            pytest.fail(f"nobody knows how to run a block of {other!r}")


def read_json_text(text: str) -> None:
    """A step's plan where pipelines have lists of micro-batches, else a strategy."""
    is_plan = all(isinstance(each, list) for each in json.loads(text).get("pipelines", [{}]))
    assert (plan_from_text(text) if is_plan else read_text(text)).pipelines


def read_yaml(text: str) -> None:
    """A cluster where it has nodes, else a strategy."""
    form = yaml.safe_load(text)
    assert cluster_from(form).nodes if "nodes" in form else read_text(text).pipelines


def type_in(line: str) -> None:
    """A command line, in this process."""
    program, *words = shlex.split(line)
    arguments = [found for word in words for found in (sorted(glob.glob(word)) if "*" in word else [word])]
    if program == "hspmd":
        assert main(arguments) == 0, line
    elif program == "python":
        runpy.run_path(arguments[0])
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{arguments[0]}:", makefile, re.MULTILINE)
    else:
        assert program == "torchrun", line


def type_into_a_shell(line: str) -> None:
    if line.startswith("make "):
        return
    done = subprocess.run(
        with_this_python(line),
        shell=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_every_placement_on_the_page_is_read() -> None:
    page = LAYOUTS.read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip().strip("`") for line in page.splitlines() if line.startswith("| `")]
    assert rows
    for text in rows:
        assert str(parse_states(text)) == text
    example, *_ = (block.text for block in blocks(LAYOUTS) if block.language == "text")
    assert str(parse_annotation(example.strip())) == example.strip()


def test_the_plan_on_the_page_is_written(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(LAYOUTS, workplace)
    runpy.run_path("resolving.py")
    *_, shown = (block.text for block in blocks(LAYOUTS) if block.language == "text")
    assert shown in capsys.readouterr().out
