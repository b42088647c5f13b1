"""Finds out which language a strategy file is written in, and reads it: a list of entries, told by id."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...base.bad_values import Problem
from ...base.json_yaml import read_json, read_yaml
from ...base.plain_content import long_text, problems_of, text_of
from ...errors import StrategyError
from ..check import STRATEGY, check, raise_if_any
from ..form import strategy_from
from ..strategy import Strategy
from .annotation_reading import looks_like_annotation, read_annotation
from .expanded import Choices, Entry, Expanded, Format
from .flagscale import expand_flagscale, find_hetero
from .format_values import is_list
from .hexiscale import expand_hexiscale, looks_like_flags, read_configuration
from .hotspa import hotspa_entries, looks_like_hotspa
from .hspmd_cases import case_entries, expand_lines
from .hspmd_lines import looks_like_lines, read_lines
from .hydraulis import LINE_KEYS, json_entries, line_entries, looks_like_pools, pool_entries

SHOWN_IDS = 40
TUPLES_FIX = "write it as Python does, such as [(1, 4, 2), (1, 2, 4)]"


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
        return _from_content(read_json(text, STRATEGY, at), at)
    raise_if_any(long_text(text), at)
    if looks_like_lines(text):
        return read_lines(text, at=at).strategy
    return _from_content(read_yaml(text, STRATEGY, at), at)


def _from_content(content: object, at: str) -> Strategy:
    """Our own form, or HSPMD's annotation JSON."""
    if isinstance(content, Mapping) and looks_like_annotation(content):
        return read_annotation(content, Choices(), at).strategy
    return strategy_from(content, at)


def file_text(path: Path) -> str:
    """A file's text, or the error of a file that is none."""
    try:
        return text_of(path)
    except OSError as error:
        fix = "give the path of a JSON or YAML strategy, or of a file with KEY=VALUE lines"
        raise StrategyError(f"can't read the strategy {path}: {error.strerror}", fix=fix) from error
    except UnicodeDecodeError as error:
        raise StrategyError(f"{path} isn't a text: byte {error.start} is not UTF-8") from error


def read_entries(path: Path, choices: Choices, form: Format | None = None) -> tuple[Format, list[Entry]]:
    """The strategies of a file, and the language it is in: the given one, else the one it looks like."""
    return text_entries(file_text(path), choices, form, str(path), path.suffix == ".json")


def text_entries(
    text: str,
    choices: Choices,
    form: Format | None = None,
    at: str = "",
    json_only: bool = False,
) -> tuple[Format, list[Entry]]:
    """The strategies of a text."""
    if not json_only and not text.lstrip().startswith("{"):
        raise_if_any(long_text(text), at)
    if looks_like_flags(text) and form in (None, Format.HEXISCALE):
        return Format.HEXISCALE, [_entry(Format.HEXISCALE, read_configuration(text, at), choices, at)]
    if looks_like_lines(text) and not json_only:
        return _line_entries(text, choices, form, at)
    content = _content(text, at, json_only)
    found = form or recognise(content, at)
    return found, _content_entries(found, content, choices, at)


def pick(entries: Sequence[Entry], wanted: str | None, at: str = "") -> Entry:
    """The entry of this id, or of an id that ends in it; without an id, the only one."""
    if wanted is None and len(entries) == 1:
        return entries[0]
    ids = [entry.id for entry in entries]
    for entry in entries:
        if wanted is not None and entry.id == wanted:
            return entry
    ending = [entry for entry in entries if wanted is not None and entry.id.endswith(f"/{wanted}")]
    if len(ending) == 1:
        return ending[0]
    shown = ", ".join(ids[:SHOWN_IDS]) + (
        f", and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
    )
    if wanted is None:
        raise StrategyError(
            f"the file holds {len(entries)} strategies",
            at=at,
            details=[("ids", shown)],
            fix="choose one with --id",
        )
    what = (
        f"{len(ending)} strategies have ids that end in {wanted!r}" if ending else f"no strategy {wanted!r}"
    )
    known = ", ".join(entry.id for entry in ending) if ending else shown
    details = [("ids", known if any(ids) else "none: the file holds one strategy")]
    raise StrategyError(what, at=at, details=details, fix="give one of these to --id")


def recognise(content: object, at: str = "") -> Format:
    """The language of a content; one that is nobody else's is taken for our own."""
    if isinstance(content, Mapping) and "pipelines" in content:
        return Format.STRATEGY
    if isinstance(content, Mapping) and _names(content) & {"hetero_configs", "layer_partitions"}:
        return Format.HEXISCALE
    if find_hetero(content) is not None:
        return Format.FLAGSCALE
    if looks_like_annotation(content):
        return Format.ANNOTATION
    if looks_like_hotspa(content):
        return Format.HOTSPA
    if looks_like_pools(content):
        return Format.HYDRAULIS
    if is_list(content) and any(map(is_list, content)):
        return _recognise_tuples(content, at)
    return Format.HSPMD_CASES if _holds_cases(content) else Format.STRATEGY


def _recognise_tuples(content: Sequence[object], at: str) -> Format:
    """Pools and pairs are Hydraulis'; one list of triples may be either's."""
    rows = [row for row in content if is_list(row)]
    if any(is_list(item) for row in rows for item in row) or all(len(row) == 2 for row in rows):
        return Format.HYDRAULIS
    raise StrategyError(
        "a list of triples can be read in two ways",
        at=at,
        details=[
            (Format.HYDRAULIS.value, "(cp, tp, pp) per pipeline of one strategy"),
            (Format.HOTSPA.value, "(dp, tp, pp) per bucket, each a strategy of equal pipelines"),
        ],
        fix="tell it by --format",
    )


def _holds_cases(content: object) -> bool:
    """Whether it is HSPMD's: an object with degrees of parallelism, or a list of such."""
    if isinstance(content, Mapping):
        return {"dp", "tp"} <= _names(content) or (
            "strategies" in content and _holds_cases(content["strategies"])
        )
    return is_list(content) and any(_holds_cases(item) for item in content if isinstance(item, Mapping))


def _names(content: Mapping[str, object]) -> set[str]:
    return {str(key).lstrip("-").replace("-", "_") for key in content}


def _line_entries(text: str, choices: Choices, form: Format | None, at: str) -> tuple[Format, list[Entry]]:
    pools = any(f"{key}=" in text for key in LINE_KEYS)
    found = form or (Format.HYDRAULIS if pools else Format.HSPMD_LINES)
    if found is Format.HYDRAULIS:
        return found, line_entries(text, choices, at)
    if found is Format.HSPMD_LINES:
        return found, [Entry("", lambda: expand_lines(text, choices, at))]
    rule = f"a text of KEY=VALUE lines is {Format.HSPMD_LINES.value} or {Format.HYDRAULIS.value}"
    raise StrategyError(
        f"--format {found.value} doesn't fit the text", at=at, rule=rule, fix="leave out --format"
    )


def _content(text: str, at: str, json_only: bool) -> object:
    """The content of JSON, of a literal, or of YAML."""
    start = text.lstrip()[:1]
    if not json_only and start in ("[", "("):
        try:
            literal: object = ast.literal_eval(text.strip())
            raise_if_any(problems_of(literal), at)
            return literal
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            if "(" in text:
                raise StrategyError("a malformed list of tuples", at=at, fix=TUPLES_FIX) from None
            return read_json(text, STRATEGY, at)
    if json_only or start == "{":
        return read_json(text, STRATEGY, at)
    return read_yaml(text, STRATEGY, at)


def _content_entries(form: Format, content: object, choices: Choices, at: str) -> list[Entry]:
    if form is Format.HYDRAULIS:
        return (
            json_entries(content, choices, at)
            if isinstance(content, Mapping)
            else pool_entries(content, choices, at)
        )
    if form is Format.HOTSPA:
        return hotspa_entries(content, choices, at)
    if form in (Format.HSPMD_CASES, Format.HSPMD_LINES):
        return case_entries(content, choices, at)
    if form is Format.STRATEGY:
        return [Entry("", lambda: own_strategy(content, choices, at))]
    if not isinstance(content, Mapping):
        what = f"--format {form.value} reads an object of keys and values"
        raise StrategyError(what, at=at, fix="leave out --format, or give another file")
    return [_entry(form, content, choices, at)]


def _entry(form: Format, content: Mapping[str, object], choices: Choices, at: str) -> Entry:
    readers = {
        Format.HEXISCALE: expand_hexiscale,
        Format.FLAGSCALE: expand_flagscale,
        Format.ANNOTATION: read_annotation,
    }
    return Entry("", lambda: readers[form](content, choices, at))


def own_strategy(content: object, choices: Choices, at: str = "") -> Expanded:
    """Our own form. It says all itself."""
    strategy = strategy_from(content, at)
    check(strategy, num_layers=choices.num_layers, at=at)
    if choices.micro_batch_size is not None or choices.micro_batches is not None:
        text = "a strategy says them itself: leave out --micro-batches and --micro-batch-size"
        raise_if_any([Problem("pipelines.micro_batches", text)], at)
    return Expanded(strategy)
