"""docs/decisions.md: each entry stands once, under its topic, and the index names each once, in order."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions.md"
ENTRY = re.compile(r"(\d{4}-\d\d-\d\d): (.+)")
LINK = re.compile(r"- \[(.+)\]\(#([^)]+)\)( \(overruled(?: in part)?\))?")


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and mkdocs make it."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")


def topics(text: str, mark: str) -> dict[str, list[str]]:
    """Lines by the last heading of a mark above them."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        named = re.fullmatch(mark, line)
        if named:
            assert named[1] not in found, f"{named[1]} twice"
            found[named[1]] = []
        elif found and line:
            found[[*found][-1]].append(line)
    return found


def entries() -> dict[str, list[str]]:
    """Headings by topic."""
    body = topics(_halves()[1], r"## (.+)")
    return {topic: [line[4:] for line in lines if line.startswith("### ")] for topic, lines in body.items()}


def index() -> dict[str, list[tuple[str, str, str]]]:
    """(title, anchor, what was overruled) by topic."""
    found = {}
    for topic, lines in topics(_halves()[0], r"\*\*(.+)\*\*").items():
        links = [LINK.fullmatch(line) for line in lines]
        assert all(links), [line for line, link in zip(lines, links, strict=True) if link is None]
        found[topic] = [(link[1], link[2], link[3] or "") for link in links if link is not None]
    return found


def _halves() -> tuple[str, str]:
    head, _, body = DECISIONS.read_text().partition("\n## ")
    return head, "## " + body


def test_no_entry_stands_twice() -> None:
    every = [ENTRY.fullmatch(heading) for headings in entries().values() for heading in headings]
    assert all(every)
    titles = Counter(entry[2] for entry in every if entry is not None)
    assert [title for title, count in titles.items() if count > 1] == []
    paragraphs = Counter(part for part in DECISIONS.read_text().split("\n\n") if len(part) > 100)
    assert [part for part, count in paragraphs.items() if count > 1] == []


def test_the_index_names_each_entry_once_under_its_topic_in_order() -> None:
    told, written = index(), entries()
    assert [*told] == [*written]
    for topic, headings in written.items():
        assert [anchor for _, anchor, _ in told[topic]] == [slug(heading) for heading in headings], topic
        for (title, _, _), heading in zip(told[topic], headings, strict=True):
            assert heading.endswith(f": {title}")
