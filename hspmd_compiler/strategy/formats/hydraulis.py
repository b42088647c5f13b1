"""Hydraulis' strategies: a list of (cp, tp, pp) with an entry per pipeline, and pools of such lists.

Taken as a literal, as the launch script's MULTI_CP_TP_PP_LIST or MULTI_TP_PP_LIST, or as JSON that
names strategies. The format says neither layers per stage, which are equal, nor micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from ...base.limits import MOST_DEVICES
from ..check import check, raise_if_any
from ..strategy import StageSpec, Strategy
from .expanded import Choices, Entry, Expanded, context_groups
from .format_values import FormatValues, is_list
from .placement import NODE, place
from .shell_values import literal, read_assignments
from .stage_layers import even_counts, layer_ranges

FIX = "give (cp, tp, pp) or (tp, pp) per pipeline; docs/strategy.md shows the ways to write them"
SUBJECT = "a Hydraulis strategy"
LINE_KEYS = ("MULTI_CP_TP_PP_LIST", "MULTI_TP_PP_LIST")
MODEL_LAYERS = {"7b": 32, "13b": 40, "30b": 60, "32b": 60, "70b": 80}
TUPLES = "a list with (cp, tp, pp) or (tp, pp) per pipeline"


@dataclass(frozen=True, slots=True)
class Scheme:
    """One pipeline's degrees."""

    cp: int
    tp: int
    pp: int

    @property
    def gpus(self) -> int:
        return self.cp * self.tp * self.pp


@dataclass(frozen=True, slots=True)
class _Source:
    """One strategy as written. path: its key path. counted: entries are (tp, pp, count), as in pools."""

    id: str
    path: str
    value: object
    first_of_pool: bool = False
    counted: bool = False
    gpus: object = None
    layers: object = None


def line_entries(text: str, choices: Choices, at: str = "") -> list[Entry]:
    """The pool of a launch script's KEY=VALUE lines."""
    shell = read_assignments(text)
    values = FormatValues()
    values.problems += shell.problems
    key = next((key for key in LINE_KEYS if key in shell.values), LINE_KEYS[0])
    if key not in shell.values:
        values.bad(key, "missing: this key is required")
    raise_if_any(values.problems, at, FIX, SUBJECT)
    found = {name: literal(value.text) for name, value in shell.values.items()}
    pool = found[key]
    return pool_entries(pool, choices, at, key, found.get("NUM_GPUS"), found.get("NUM_LAYERS"))


def pool_entries(
    pool: object, choices: Choices, at: str = "", path: str = "", gpus: object = None, layers: object = None
) -> list[Entry]:
    """The strategies of a literal: one list of tuples, or a list of such lists, numbered from 0."""
    rows = pool if is_list(pool) else []
    first = rows[0] if rows else None
    if not is_list(first) or not all(map(is_list, rows)):
        values = FormatValues()
        values.bad(path or "strategy", f"{str(pool)[:80]!r}: {TUPLES}, or a list of such lists")
        raise_if_any(values.problems, at, FIX, SUBJECT)
        return []
    if not first or not is_list(first[0]):
        return [_entry(_Source("", path, pool, gpus=gpus, layers=layers), choices, at)]
    sources = [
        _Source(str(index), f"{path}[{index}]", one, index == 0, gpus=gpus, layers=layers)
        for index, one in enumerate(rows)
    ]
    return [_entry(source, choices, at) for source in sources]


def json_entries(content: Mapping[str, object], choices: Choices, at: str = "") -> list[Entry]:
    """The strategies of JSON: `strategies` with a `tp_pp_list` each, or pools of [tp, pp, count] by name."""
    sources = [source for key, value in content.items() for source in _sources(str(key), value)]
    return [_entry(source, choices, at) for source in sources]


def looks_like_pools(content: object) -> bool:
    """Whether JSON holds strategies with a `tp_pp_list`, or named pools."""
    if not isinstance(content, Mapping):
        return False
    return any(True for key, value in content.items() for _ in _sources(str(key), value))


def _sources(key: str, value: object) -> Iterator[_Source]:
    if key == "strategies" and is_list(value):
        for index, item in enumerate(value):
            if isinstance(item, Mapping) and "tp_pp_list" in item:
                path = f"strategies[{index}].tp_pp_list"
                name = str(item.get("id", index))
                gpus, layers = item.get("num_gpus"), item.get("layers")
                yield _Source(name, path, item["tp_pp_list"], gpus=gpus, layers=layers)
    elif isinstance(value, Mapping):
        for name in ("strategies", "strategies_active"):
            pool = value.get(name)
            for index, one in enumerate(pool if is_list(pool) else []):
                layers = MODEL_LAYERS.get(str(value.get("model")))
                path = f"{key}.{name}[{index}]"
                yield _Source(f"{key}/{index}", path, one, index == 0, True, value.get("gpus"), layers)


def _entry(source: _Source, choices: Choices, at: str) -> Entry:
    return Entry(source.id, partial(_expand, source, choices, at))


def _expand(source: _Source, choices: Choices, at: str) -> Expanded:
    """One strategy, placed. Each member of a context-parallel group is a pipeline of its own."""
    values = FormatValues()
    path = source.path or "strategy"
    schemes = _schemes(path, source, values)
    layers = choices.num_layers or values.count("layers", source.layers)
    if layers is None:
        values.bad("layers", "missing: tuples don't say the model's layers, give --layers N")
    used = sum(scheme.gpus for scheme in schemes)
    gpus = values.count("gpus", source.gpus) or used
    if not values.within(path, "GPUs", max(used, gpus), MOST_DEVICES):
        raise_if_any(values.problems, at, FIX, SUBJECT)
    if schemes and gpus != used:
        values.bad(path, f"{used} GPUs: the strategy has to use all {gpus}")
    notes = list(_notes(schemes, source, layers or 1))
    placed = _placed(path, schemes, gpus, values)
    for index, scheme in enumerate(schemes):
        if layers is not None and scheme.pp > layers:
            values.bad(f"{path}[{index}]", f"pp {scheme.pp}: the model has {layers} layers")
    raise_if_any(values.problems, at, FIX, SUBJECT)
    pipelines = [choices.pipeline(_stages(stages, layers or 1)) for stages in placed]
    context = context_groups([scheme.cp for scheme in schemes])
    strategy = Strategy(tuple(pipelines), name=source.id, context=context)
    check(strategy, at=at)
    return Expanded(strategy, num_gpus=gpus, notes=tuple(notes))


def _schemes(path: str, source: _Source, values: FormatValues) -> list[Scheme]:
    """The pipelines' degrees; (tp, pp, count) stands for so many equal ones."""
    rows = values.count_lists(path, source.value, TUPLES)
    schemes: list[Scheme] = []
    for index, row in enumerate(rows):
        if len(row) == 2:
            schemes.append(Scheme(1, *row))
        elif len(row) == 3:
            if source.counted and not values.within(f"{path}[{index}]", "pipelines", row[2], MOST_DEVICES):
                continue
            schemes += [Scheme(1, *row[:2])] * row[2] if source.counted else [Scheme(*row)]
        else:
            values.bad(f"{path}[{index}]", f"{tuple(row)}: (cp, tp, pp) or (tp, pp)")
    return schemes


def _placed(path: str, schemes: list[Scheme], gpus: int, values: FormatValues) -> list[list[list[int]]]:
    shapes = [(scheme.tp, scheme.pp) for scheme in schemes for _ in range(scheme.cp)]
    owners = [index for index, scheme in enumerate(schemes) for _ in range(scheme.cp)]
    placed = []
    if values.broken(path):
        return []
    for index, (tp, pp), stages in zip(owners, shapes, place(shapes, gpus), strict=True):
        if stages is None:
            rule = f"a stage of {tp} GPUs finds no room: it is on one node of {NODE}, or on whole free nodes"
            values.bad(f"{path}[{index}]", f"tp {tp}, pp {pp}: {rule}")
        else:
            placed.append(stages)
    return placed


def _stages(stages: list[list[int]], layers: int) -> list[StageSpec]:
    ends = layer_ranges(even_counts(layers, len(stages)))
    return [StageSpec(tuple(gpus), own) for gpus, own in zip(stages, ends, strict=True)]


def _notes(schemes: list[Scheme], source: _Source, layers: int) -> Iterator[str]:
    if source.first_of_pool and len(set(schemes)) > 1:
        rule = "it holds the optimizer's states"
        yield f"the first strategy of a pool has equal pipelines, as {rule}; this one has not"
    for stages in sorted({scheme.pp for scheme in schemes if layers % scheme.pp}):
        yield f"{layers} layers do not divide into {stages} stages: the first ones take one more"
