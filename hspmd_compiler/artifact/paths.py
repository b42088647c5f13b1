"""Names of the files inside an artifact; nothing else in the directory is ever read."""

from __future__ import annotations

import re
from collections.abc import Iterable

MANIFEST = "manifest.json"
PROGRAM = "program.json"
STRATEGY = "strategy.json"
INIT = "init.json"
GRAPH = "graph.json"
LAYOUTS = "layouts.json"
CLUSTER = "cluster.json"
WEIGHTS = "weights.safetensors"

RANK_FILE = re.compile(r"ranks/(0|[1-9][0-9]*)\.json", re.ASCII)
TABLE_FILE = re.compile(r"tables/(0|[1-9][0-9]{0,17})\.json", re.ASCII)
CLASS_FILE = re.compile(r"classes/[A-Za-z0-9_][A-Za-z0-9_.-]*\.json", re.ASCII)
SINGLE_FILES = frozenset({PROGRAM, STRATEGY, INIT, GRAPH, LAYOUTS, CLUSTER, WEIGHTS})


def class_file(name: str) -> str:
    """The file of a class program."""
    return f"classes/{name}.json"


def rank_file(rank: int) -> str:
    """The file of a rank program."""
    return f"ranks/{rank}.json"


def table_file(number: int) -> str:
    """The file of a list that several ranks have."""
    return f"tables/{number}.json"


def is_ours(path: str) -> bool:
    """Whether an artifact can have a file of this name."""
    of_many = (RANK_FILE, CLASS_FILE, TABLE_FILE)
    return path in SINGLE_FILES or any(form.fullmatch(path) for form in of_many)


def ranks_of(paths: Iterable[str]) -> list[int]:
    """Ranks whose files are among `paths`, ascending."""
    return sorted(int(found[1]) for path in paths if (found := RANK_FILE.fullmatch(path)))
