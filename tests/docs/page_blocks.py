"""Code blocks of a page: files that a reader would write, and commands that a reader would type."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEHIND = {
    "python": [],
    "hspmd": ["-m", "hspmd_compiler"],
    "torchrun": ["-m", "torch.distributed.run"],
}


@dataclass(frozen=True, slots=True)
class Block:
    """language: the word behind the fence."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name in the first line, `# own_model.py`."""
        named = re.match(r"# (\S+\.\w+)\n", self.text)
        return named and named.group(1)


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a Markdown page, in order."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(language, text) for language, text in found]


def commands(page: Path) -> list[str]:
    """Lines of the shell blocks."""
    return [line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]


def write_files(page: Path, folder: Path) -> None:
    """The files that a page shows."""
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")


def link_checkout(folder: Path) -> None:
    """What a page's commands find in a checkout."""
    for name in ("README.md", "docs", "examples"):
        (folder / name).symlink_to(ROOT / name)


def with_this_python(command: str) -> str:
    """The command run by the Python of the tests, installed scripts or not."""
    program, _, arguments = command.partition(" ")
    return f"{shlex.join([sys.executable, *BEHIND[program]])} {arguments}"
