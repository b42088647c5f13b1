"""Texts that people write, JSON or YAML, as plain values of bounded size; and files that appear whole."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import HspmdError, first_line
from .bad_values import Problem, ProblemSubject
from .limits import MOST_VALUES
from .plain_content import PlainLoader, inner_nodes, long_text, problems_of, problems_of_node, text_of

YAML_SUFFIXES = (".yaml", ".yml")
ONCE = "a key stands once"


def write_text(path: Path, text: str, error: type[HspmdError]) -> None:
    """Write a text that appears whole or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as found:
        unfinished.unlink(missing_ok=True)
        raise error(f"can't write {path}: {found.strerror}") from found


def read_file(path: Path, subject: ProblemSubject, what: str) -> object:
    """The content of a file: YAML where its suffix says so, else JSON. what: for an error, `the pace`."""
    at = str(path)
    try:
        text = text_of(path)
    except OSError as error:
        raise subject.error(f"can't read {what} of {path}: {error.strerror}", fix=subject.fix) from error
    except UnicodeDecodeError as error:
        reason = f"{path} isn't a text: byte {error.start} is not UTF-8"
        raise subject.error(reason, fix=subject.fix) from error
    return read_yaml(text, subject, at) if path.suffix in YAML_SUFFIXES else read_json(text, subject, at)


@dataclass(slots=True)
class _Repeats:
    """Collects the keys that stand twice in one JSON object, which json itself lets pass."""

    problems: list[Problem] = field(default_factory=list)

    def pairs(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        for key, count in Counter(key for key, _ in pairs).items() if len(made) < len(pairs) else ():
            if count > 1:
                self.problems.append(Problem(key, f"stands {count} times in one object: {ONCE}"))
        return made


def read_json(
    text: str,
    subject: ProblemSubject,
    at: str = "",
    most_values: int = MOST_VALUES,
    may_be_nan: bool = False,
) -> object:
    """The content of a JSON text; a key that stands twice is an error."""
    repeats = _Repeats()
    try:
        content: object = json.loads(text, object_pairs_hook=repeats.pairs)
    except (ValueError, RecursionError) as error:
        raise _malformed(subject, "JSON", at, *_json_place(error), text) from error
    subject.refuse(repeats.problems, at)
    subject.refuse(problems_of(content, most_values, may_be_nan), at)
    return content


def _json_place(error: ValueError | RecursionError) -> tuple[str, int, int]:
    """What is wrong, in which line and column; json gives no place for a nest or number too large."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg, error.lineno, error.colno
    return "nested too deep" if isinstance(error, RecursionError) else "a number too long", 1, 1


def _repeated_keys(node: Any, seen: set[int]) -> Iterator[Problem]:
    """The keys that stand twice in one YAML mapping, which yaml itself lets pass."""
    inside = inner_nodes(node)
    if inside is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in keys:
                yield Problem(name, f"stands twice, again in line {key.start_mark.line + 1}: {ONCE}")
            keys.add(name)
    for inner in inside:
        yield from _repeated_keys(inner, seen)


def read_yaml(text: str, subject: ProblemSubject, at: str = "", may_be_nan: bool = False) -> object:
    """The content of a YAML text; a key that stands twice is an error."""
    subject.refuse(long_text(text), at)
    try:
        node = yaml.compose(text, Loader=PlainLoader)
        subject.refuse(problems_of_node(node), at)
        repeats = list(_repeated_keys(node, set()))
        content: object = yaml.load(text, Loader=PlainLoader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _malformed(
            subject, "YAML", at, str(error.problem or error.context), line, column, text
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:
        raise _malformed(subject, "YAML", at, first_line(error), 1, 1, text) from error
    except RecursionError as error:
        raise _malformed(subject, "YAML", at, "nested too deep", 1, 1, text) from error
    subject.refuse(repeats, at)
    subject.refuse(problems_of(content, may_be_nan=may_be_nan), at)
    return content


def _malformed(
    subject: ProblemSubject, language: str, at: str, reason: str, line: int, column: int, text: str
) -> HspmdError:
    lines = text.splitlines()
    shown = lines[line - 1].strip() if line <= len(lines) else "(end of the text)"
    place = f"{at}, line {line}, column {column}" if at else f"line {line}, column {column}"
    return subject.error(f"malformed {language}: {reason}", at=place, details=[("text", shown[:100])])
