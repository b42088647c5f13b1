"""Strategies from and to files and texts: JSON, YAML, HSPMD's KEY=VALUE lines and annotation JSON."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from . import strategy_lines
from .errors import StrategyError, first_line
from .limits import DEEPEST, MOST_VALUES
from .plain_content import PlainLoader, long_text, node_size, problems_of, text_of
from .strategy import Strategy
from .strategy_check import Problem, raise_if_any
from .strategy_form import form_of, strategy_from
from .strategy_formats.annotation_reading import looks_like_annotation, read_annotation
from .strategy_formats.expanded import Choices

YAML_SUFFIXES = (".yaml", ".yml")
ONCE = "a key stands once"


class TextForm(Enum):
    """How a strategy is written as text."""

    JSON = "json"
    YAML = "yaml"


def read_strategy(source: Path | str | Mapping[str, object]) -> Strategy:
    """The Strategy of a file, a text or a mapping, checked by every rule that needs no model.

    A str is a text where it begins with `{` or has several lines, and else the path of a file.
    """
    if isinstance(source, Mapping):
        return _from_content(source, "")
    if isinstance(source, str) and (source.lstrip().startswith("{") or "\n" in source):
        return read_text(source)
    path = Path(source)
    return read_text(file_text(path), at=str(path), json_only=path.suffix == ".json")


def read_text(text: str, at: str = "", json_only: bool = False) -> Strategy:
    """The Strategy of a text; its form is seen from its beginning. at: where the text comes from."""
    if json_only or text.lstrip().startswith("{"):
        return _from_content(read_json(text, at), at)
    raise_if_any(long_text(text), at)
    if strategy_lines.looks_like_lines(text):
        return strategy_lines.read_lines(text, at=at).strategy
    return _from_content(read_yaml(text, at), at)


def _from_content(content: object, at: str) -> Strategy:
    """Our own form, or HSPMD's annotation JSON."""
    if isinstance(content, Mapping) and looks_like_annotation(content):
        return read_annotation(content, Choices(), at).strategy
    return strategy_from(content, at)


def strategy_text(
    strategy: Strategy, form: TextForm = TextForm.JSON, context_parallel: tuple[int, ...] = ()
) -> str:
    """A text that depends on the Strategy alone and reads back as an equal one.

    context_parallel: degrees above 1 stand in the text too, so that nobody compiles it without them.
    """
    content = form_of(strategy, context_parallel)
    if form is TextForm.YAML:
        text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)
        return text
    return _json_text(content, "") + "\n"


def write_strategy(strategy: Strategy, path: Path, context_parallel: tuple[int, ...] = ()) -> None:
    """Write a file, as YAML where its suffix says so, else as JSON; it appears whole or not at all."""
    form = TextForm.YAML if path.suffix in YAML_SUFFIXES else TextForm.JSON
    write_text(path, strategy_text(strategy, form, context_parallel))


def write_text(path: Path, text: str) -> None:
    """Write a text that appears whole or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise StrategyError(f"can't write {path}: {error.strerror}") from error


def file_text(path: Path) -> str:
    """A file's text, or the error of a file that is none."""
    try:
        return text_of(path)
    except OSError as error:
        fix = "give the path of a JSON or YAML strategy, or of a file with KEY=VALUE lines"
        raise StrategyError(f"can't read the strategy {path}: {error.strerror}", fix=fix) from error
    except UnicodeDecodeError as error:
        raise StrategyError(f"{path} isn't a text: byte {error.start} is not UTF-8") from error


@dataclass(slots=True)
class _Repeats:
    """Collects the keys that stand twice in one JSON object, which json itself lets pass."""

    problems: list[Problem] = field(default_factory=list)

    def pairs(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        for key, count in Counter(key for key, _ in pairs).items():
            if count > 1:
                self.problems.append(Problem(key, f"stands {count} times in one object: {ONCE}"))
        return dict(pairs)


def read_json(text: str, at: str) -> object:
    """The content of a JSON text; a key that stands twice is an error."""
    repeats = _Repeats()
    try:
        content: object = json.loads(text, object_pairs_hook=repeats.pairs)
    except (ValueError, RecursionError) as error:
        raise _malformed("JSON", at, *_json_place(error), text) from error
    raise_if_any(repeats.problems, at)
    raise_if_any(problems_of(content), at)
    return content


def _json_place(error: ValueError | RecursionError) -> tuple[str, int, int]:
    """What is wrong, in which line and column; json gives no place for a nest or number too large."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg, error.lineno, error.colno
    return "nested too deep" if isinstance(error, RecursionError) else "a number too long", 1, 1


def _repeated_keys(node: Any, seen: set[int]) -> Iterator[Problem]:
    """The keys that stand twice in one YAML mapping, which yaml itself lets pass."""
    if node is None or id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in keys:
                yield Problem(name, f"stands twice, again in line {key.start_mark.line + 1}: {ONCE}")
            keys.add(name)
    for item in node.value:
        for inner in item if isinstance(item, tuple) else (item,):
            yield from _repeated_keys(inner, seen)


def read_yaml(text: str, at: str) -> object:
    """The content of a YAML text; a key that stands twice is an error."""
    raise_if_any(long_text(text), at)
    try:
        node = yaml.compose(text, Loader=PlainLoader)
        raise_if_any(_size_problems(node), at)
        repeats = list(_repeated_keys(node, set()))
        content: object = yaml.load(text, Loader=PlainLoader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _malformed("YAML", at, str(error.problem or error.context), line, column, text) from error
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:
        raise _malformed("YAML", at, first_line(error), 1, 1, text) from error
    except RecursionError as error:
        raise _malformed("YAML", at, "nested too deep", 1, 1, text) from error
    raise_if_any(repeats, at)
    raise_if_any(problems_of(content), at)
    return content


def _size_problems(node: Any) -> list[Problem]:
    """Of a document whose aliases are not written out yet."""
    size = node_size(node)
    if size is None:
        return [Problem("the text", f"lists and objects are nested deeper than {DEEPEST}, or in themselves")]
    if size > MOST_VALUES:
        return [
            Problem("the text", f"with its aliases it stands for {size:,} values: at most {MOST_VALUES:,}")
        ]
    return []


def _malformed(language: str, at: str, reason: str, line: int, column: int, text: str) -> StrategyError:
    lines = text.splitlines()
    shown = lines[line - 1].strip() if line <= len(lines) else "(end of the text)"
    place = f"{at}, line {line}, column {column}" if at else f"line {line}, column {column}"
    return StrategyError(f"malformed {language}: {reason}", at=place, details=[("text", shown[:100])])


def _json_text(value: object, indent: str) -> str:
    """JSON with one stage, one override and one list of sizes a line."""
    if indent and not _holds_mappings(value):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + "  "
    if isinstance(value, dict):
        rows = [f"{inner}{json.dumps(key)}: {_json_text(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    assert isinstance(value, list)
    return "[\n" + ",\n".join(inner + _json_text(item, inner) for item in value) + f"\n{indent}]"


def _holds_mappings(value: object) -> bool:
    """Whether it is a list of mappings, or a mapping that has one."""
    if isinstance(value, list):
        return any(isinstance(item, dict) for item in value)
    return isinstance(value, dict) and any(_holds_mappings(item) for item in value.values())
