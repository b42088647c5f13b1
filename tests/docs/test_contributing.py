"""CONTRIBUTING.md and the glossary name files and folders that are there, and every room has its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hspmd_compiler"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATH = re.compile(r"`([a-z_]+(?:/[\w.*]+)*(?:/|\.py|\.md))`")
INNER = ("strategy/formats", "program/kernels", "../tests/strategy/formats")
"""Folders whose files are named without them."""
PLACES = (ROOT, PACKAGE, *(PACKAGE / name for name in INNER))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/glossary.md", "README.md"])
def test_named_places_are_there(page: str) -> None:
    named = set(PATH.findall((ROOT / page).read_text(encoding="utf-8")))
    missing = [name for name in named if not any([*place.glob(name.rstrip("/"))] for place in PLACES)]
    assert not missing, f"{page} names what is not there: {sorted(missing)}"


def test_every_room_is_in_the_table() -> None:
    table = CONTRIBUTING.partition("## Where a thing is")[2].partition("## House rules")[0]
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").is_file()}
    missing = sorted(room for room in rooms if f"`{room}/`" not in table)
    assert not missing, f"rooms without a line in CONTRIBUTING.md: {missing}"
