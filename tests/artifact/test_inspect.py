"""What `hspmd inspect` says about an artifact, pinned."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from hspmd_compiler.errors import ArtifactError
from hspmd_compiler.pages.inspect import comm_page, overview, rank_page, tensor_page
from hspmd_compiler.pages.schedule_page import schedule_page
from hspmd_compiler.pages.sections import Section, Table, sections_to_json, sections_to_text
from tests.artifact import sample

Expect = Callable[[str, str], None]

PAGES: dict[str, Callable[[], list[Section]]] = {
    "overview": lambda: overview(sample.artifact()),
    "stage": lambda: rank_page(sample.artifact(), 1),
    "tp": lambda: rank_page(sample.artifact(), 3),
    "tensor": lambda: tensor_page(sample.artifact(), "tied"),
    "comm": lambda: comm_page(sample.artifact()),
    "schedule": lambda: schedule_page(sample.artifact()),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages(expect: Expect, name: str) -> None:
    expect(f"inspect/{name}", sections_to_text(PAGES[name]()))


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_json(name: str) -> None:
    sections = PAGES[name]()
    back = json.loads(json.dumps(sections_to_json(sections)))
    assert list(back) == [section.key for section in sections]
    for section in sections:
        if isinstance(section, Table) and section.rows:
            assert list(back[section.key][0]) == list(section.columns)


def test_unknown_tensor_names_near_ones() -> None:
    with pytest.raises(ArtifactError) as caught:
        tensor_page(sample.artifact(), "tid")
    assert caught.value.details == (("names", "tied, ..."),)


def test_unknown_rank_names_the_ranks() -> None:
    with pytest.raises(ArtifactError, match="no program for rank 4") as caught:
        rank_page(sample.artifact(), 4)
    assert caught.value.details == (("ranks", "0, 1, 2, 3"),)


def test_the_schedule_needs_all_ranks() -> None:
    part = sample.artifact()
    part.manifest = replace(part.manifest, rank=1)
    with pytest.raises(ArtifactError, match="needs the programs of all ranks"):
        schedule_page(part)
