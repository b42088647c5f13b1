"""The code on docs/layouts.md and docs/python_api.md runs as it stands."""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path

import pytest

from hspmd_compiler.annotations import parse_annotation
from hspmd_compiler.annotations.text import parse_states
from tests.page_blocks import ROOT, blocks, with_this_python, write_files

LAYOUTS = ROOT / "docs" / "layouts.md"
PYTHON_API = ROOT / "docs" / "python_api.md"
LIMIT = 240  # seconds


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for page in (LAYOUTS, PYTHON_API):
        write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_placement_on_the_page_is_read() -> None:
    page = LAYOUTS.read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip().strip("`") for line in page.splitlines() if line.startswith("| `")]
    assert rows
    for text in rows:
        assert str(parse_states(text)) == text
    example, *_ = (block.text for block in blocks(LAYOUTS) if block.language == "text")
    assert str(parse_annotation(example.strip())) == example.strip()


@pytest.mark.parametrize("file", ["reading.py", "marked.py", "compiling.py"])
def test_code_runs(workplace: Path, file: str) -> None:
    runpy.run_path(file)


@pytest.mark.slow
def test_the_loop_trains(workplace: Path) -> None:
    runpy.run_path("compiling.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        with_this_python("torchrun --nproc-per-node 4 training.py"),
        shell=True,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (workplace / "regression.pt").is_file()
