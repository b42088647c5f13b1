"""User lines as text: which file, line and function a traced value or an error comes from."""

from __future__ import annotations

import ast
import linecache
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_stack
from types import TracebackType

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)', re.MULTILINE)
_TORCH = str(Path(getattr(find_spec("torch"), "origin", "torch")).parent) + "/"
_OURS = str(Path(__file__).parents[1]) + "/"
_LIBRARY = f"{sysconfig.get_paths()['stdlib']}/"
_INSTALLED = tuple(f"{path}/" for path in set(sysconfig.get_paths().values()))


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A place in a Python file."""

    file: str
    line: int
    function: str

    def text(self) -> str:
        """`package/file.py:12  in Class.method  source`; the path starts at the outermost package."""
        where = f"{_package_path(self.file)}:{self.line}"
        qualified = _qualified_names(self.file).get(self.line, self.function)
        source = linecache.getline(self.file, self.line).strip()
        return "  ".join(part for part in (where, f"in {qualified}", source) if part)

    @property
    def is_users(self) -> bool:
        """Whether it lies outside torch, this package and Python's generated code."""
        return not self.file.startswith((_TORCH, _OURS, "<"))

    @property
    def is_pythons(self) -> bool:
        """Whether it lies in the standard library."""
        return self.file.startswith(_LIBRARY) and "site-packages" not in self.file


@cache
def line_of_trace(trace: str) -> str:
    """Text of the innermost user line of an fx stack trace."""
    frames = (SourceLine(m["file"], int(m["line"]), m["name"]) for m in _FRAME.finditer(trace))
    users = [frame for frame in frames if frame.is_users]
    return users[-1].text() if users else ""


def line_of_error(error: BaseException) -> str:
    """Text of the innermost user line that an exception, or one that caused it, passed through."""
    found = ""
    for cause in causes(error):
        users = [line for line in _frames(cause.__traceback__) if line.is_users]
        found = users[-1].text() if users else found
    return found


def lines_of_error(error: BaseException) -> list[str]:
    """Texts of the innermost line of the user's own files, and of the installed one that it led to, if any.

    A worker of a loader sends its trace as the text of the error.
    """
    told = str(error)
    frames = [SourceLine(m["file"], int(m["line"]), m["name"]) for m in _FRAME.finditer(told)]
    users = [line for line in frames or _frames(error.__traceback__) if line.is_users and not line.is_pythons]
    own = [line for line in users if not line.file.startswith(_INSTALLED)]
    return list(dict.fromkeys(line.text() for line in (*own[-1:], *users[-1:])))


def line_of_caller() -> str:
    """Text of the innermost user line that is running now."""
    frames = (SourceLine(f.f_code.co_filename, line, f.f_code.co_name) for f, line in walk_stack(None))
    return next((frame.text() for frame in frames if frame.is_users), "")


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, then what it came from, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _frames(traceback: TracebackType | None) -> Iterator[SourceLine]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield SourceLine(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next


@cache
def _package_path(file: str) -> str:
    path = Path(file)
    top = path.parent
    while (top / "__init__.py").exists():
        top = top.parent
    return path.relative_to(top).as_posix()


@cache
def _qualified_names(file: str) -> dict[int, str]:
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    names: dict[int, str] = {}
    _mark(tree, "", names)
    return names


def _mark(node: ast.AST, outer: str, names: dict[int, str]) -> None:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            _mark(child, outer, names)
            continue
        name = f"{outer}.{child.name}" if outer else child.name
        if not isinstance(child, ast.ClassDef):
            names.update(dict.fromkeys(range(child.lineno, (child.end_lineno or child.lineno) + 1), name))
        _mark(child, name, names)
