"""A Strategy as plain mappings and lists, the content of its JSON or YAML, both ways."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .form_values import FormValues, is_integer, names
from .limits import MOST_MICRO_BATCHES, beyond
from .strategy import (
    DeviceKind,
    Override,
    PipelineSpec,
    Recompute,
    RecomputeKind,
    ScheduleKind,
    StageSpec,
    Strategy,
)
from .strategy_check import find_problems, raise_if_any

VERSION = 1
STRATEGY_KEYS = (
    "version",
    "name",
    "pipelines",
    "accumulation",
    "schedule",
    "sequence_parallel",
    "zero",
    "overrides",
    "device_kinds",
    "context_parallel",
)
PIPELINE_KEYS = ("stages", "micro_batches", "recompute")
NEEDED_PIPELINE_KEYS = ("stages", "micro_batches")
RECOMPUTE_KEYS = ("layers", "kind", "every")
STAGE_KEYS = ("devices", "layers", "shares")
OVERRIDE_KEYS = ("match", "split", "duplicate", "tp", "shares", "annotation")
GROUP_KEYS = ("count", "size")


def strategy_from(form: object, at: str = "") -> Strategy:
    """The Strategy a form describes; one error lists every bad value in it."""
    reader = FormReader()
    strategy = reader.strategy(form)
    raise_if_any([*reader.problems, *find_problems(strategy, unread=reader.unread)], at)
    return strategy


class FormReader(FormValues):
    """Reads the form of a strategy."""

    def __init__(self) -> None:
        super().__init__("strategy")

    def strategy(self, form: object) -> Strategy:
        top = self.mapping("", form, STRATEGY_KEYS, ("pipelines",))
        self._context_parallel("context_parallel", top.get("context_parallel", []))
        if top.get("version", VERSION) != VERSION:
            self.bad("version", f"{top['version']!r}: this version reads {VERSION}")
        return Strategy(
            pipelines=self.items("pipelines", top.get("pipelines", []), self._pipeline),
            accumulation=self.integer("accumulation", top.get("accumulation", 1), 1),
            schedule=self.choice("schedule", top.get("schedule", "1f1b"), ScheduleKind.ONE_F_ONE_B),
            sequence_parallel=self.flag("sequence_parallel", top.get("sequence_parallel", False)),
            zero=self.integer("zero", top.get("zero", 0), 0),
            overrides=self.items("overrides", top.get("overrides", []), self._override),
            device_kinds=self._kinds("device_kinds", top.get("device_kinds", {})),
            name=self.text("name", top.get("name", "")),
        )

    def _pipeline(self, path: str, form: object) -> PipelineSpec:
        keys = self.mapping(path, form, PIPELINE_KEYS, NEEDED_PIPELINE_KEYS)
        here = f"{path}.stages"
        stages: list[StageSpec] = []
        for index, stage in enumerate(self.sequence(here, keys.get("stages", []))):
            stages.append(self._stage(f"{here}[{index}]", stage, stages[-1].layers[1] if stages else 0))
        sizes = self._sizes(f"{path}.micro_batches", keys.get("micro_batches", []))
        layers = stages[-1].layers[1] if stages else 0
        recompute = self._recompute(f"{path}.recompute", keys.get("recompute", []), layers)
        return PipelineSpec(tuple(stages), sizes, recompute)

    def _stage(self, path: str, form: object, first: int) -> StageSpec:
        keys = self.mapping(path, form, STAGE_KEYS, ("devices", "layers"))
        return StageSpec(
            devices=self.device_ids(f"{path}.devices", keys.get("devices", [])),
            layers=self._layers(f"{path}.layers", keys.get("layers", 0), first),
            shares=self._shares(f"{path}.shares", keys.get("shares")),
        )

    def _recompute(self, path: str, form: object, layers: int) -> tuple[Recompute, ...]:
        """A list of ranges, or one kind for all layers."""
        if isinstance(form, str):
            kind = self.choice(path, form, RecomputeKind.NONE)
            return () if kind is RecomputeKind.NONE else (Recompute((0, layers), kind),)
        return self.items(path, form, self._recompute_range)

    def _recompute_range(self, path: str, form: object) -> Recompute:
        keys = self.mapping(path, form, RECOMPUTE_KEYS, ("layers", "kind"))
        ends = self.integers(f"{path}.layers", keys.get("layers", [0, 1]), "[low, high]")
        if len(ends) != 2 and f"{path}.layers" not in self.unread:
            self.bad(f"{path}.layers", f"{list(ends)}: a range has two ends, [low, high]")
        return Recompute(
            layers=(ends[0], ends[1]) if len(ends) == 2 else (0, 1),
            kind=self.choice(f"{path}.kind", keys.get("kind", "none"), RecomputeKind.NONE),
            every=self.integer(f"{path}.every", keys.get("every", 1), 1),
        )

    def _override(self, path: str, form: object) -> Override:
        keys = self.mapping(path, form, OVERRIDE_KEYS, ("match",))
        known = len(self.unread)
        override = Override(
            match=self.text(f"{path}.match", keys.get("match", "")),
            split=self.optional(f"{path}.split", keys.get("split")),
            duplicate=self.flag(f"{path}.duplicate", keys.get("duplicate", False)),
            tp=self.optional(f"{path}.tp", keys.get("tp")),
            shares=self._shares(f"{path}.shares", keys.get("shares")),
            annotation=None
            if keys.get("annotation") is None
            else self.text(f"{path}.annotation", keys["annotation"]),
        )
        if len(self.unread) > known:
            self.unread.add(path)
        return override

    def _layers(self, path: str, form: object, first: int) -> tuple[int, int]:
        """A count of layers after those of the stage before, or [low, high)."""
        if is_integer(form):
            return first, first + form
        pair = self.integers(path, form, "a count, or [low, high]")
        if len(pair) == 2:
            return pair[0], pair[1]
        if path not in self.unread:
            self.bad(path, f"{form!r}: a range has two ends, [low, high]")
        return first, first

    def _sizes(self, path: str, form: object) -> tuple[int, ...]:
        """Sizes in samples; {count, size} stands for `count` equal ones."""
        if isinstance(form, Mapping):
            return self._group(path, form)
        sizes: list[int] = []
        for index, item in enumerate(self.sequence(path, form)):
            here = f"{path}[{index}]"
            sizes += self._group(here, item) if isinstance(item, Mapping) else [self.integer(here, item, 1)]
        return tuple(sizes)

    def _group(self, path: str, form: object) -> tuple[int, ...]:
        keys = self.mapping(path, form, GROUP_KEYS, GROUP_KEYS)
        count = self.integer(f"{path}.count", keys.get("count", 1), 1)
        if count < 1 or count > MOST_MICRO_BATCHES:
            rule = beyond("micro-batches", count, MOST_MICRO_BATCHES) or f"{count}: a count is at least 1"
            self.bad(f"{path}.count", rule)
            count = 1
        return (self.integer(f"{path}.size", keys.get("size", 1), 1),) * max(count, 1)

    def _shares(self, path: str, form: object) -> tuple[int, ...] | None:
        shares = None if form is None else self.integers(path, form, "a list of integer weights")
        return None if path in self.unread else shares

    def _kinds(self, path: str, form: object) -> tuple[tuple[int, DeviceKind], ...]:
        if not isinstance(form, Mapping):
            self.bad(path, f"{form!r}: a mapping of device ids to {names(DeviceKind)}")
            return ()
        kinds = {}
        for key, value in form.items():
            if re.fullmatch(r"0|[1-9][0-9]{0,17}", str(key)) is None:
                self.bad(f"{path}.{key}", f"{key!r}: the key is a device id")
            else:
                kinds[int(key)] = self.choice(f"{path}.{key}", value, DeviceKind.CPU)
        return tuple(sorted(kinds.items()))

    def _context_parallel(self, path: str, form: object) -> None:
        """Degrees above 1 are refused by name."""
        for index, degree in enumerate(self.integers(path, form, "one degree per group of pipelines")):
            if degree != 1:
                self.bad(f"{path}[{index}]", f"{degree}: context parallelism comes later, degree 1 only")


def form_of(strategy: Strategy, context_parallel: tuple[int, ...] = ()) -> dict[str, object]:
    """The form of a Strategy: keys in documented order, without those that say nothing."""
    form: dict[str, object] = {"version": VERSION}
    if strategy.name:
        form["name"] = strategy.name
    form["pipelines"] = [_pipeline_form(pipeline) for pipeline in strategy.pipelines]
    form["accumulation"] = strategy.accumulation
    form["schedule"] = strategy.schedule.value
    form["sequence_parallel"] = strategy.sequence_parallel
    if strategy.zero:
        form["zero"] = strategy.zero
    if strategy.overrides:
        form["overrides"] = [_override_form(override) for override in strategy.overrides]
    if strategy.device_kinds:
        form["device_kinds"] = {str(device): kind.value for device, kind in strategy.device_kinds}
    if any(degree > 1 for degree in context_parallel):
        form["context_parallel"] = list(context_parallel)
    return form


def _pipeline_form(pipeline: PipelineSpec) -> dict[str, object]:
    form: dict[str, object] = {
        "stages": [_stage_form(stage) for stage in pipeline.stages],
        "micro_batches": list(pipeline.micro_batches),
    }
    if pipeline.recompute:
        form["recompute"] = [_recompute_form(item) for item in pipeline.recompute]
    return form


def _recompute_form(item: Recompute) -> dict[str, object]:
    form: dict[str, object] = {"layers": list(item.layers), "kind": item.kind.value}
    return form if item.every == 1 else {**form, "every": item.every}


def _stage_form(stage: StageSpec) -> dict[str, object]:
    form: dict[str, object] = {"devices": list(stage.devices), "layers": list(stage.layers)}
    return form if stage.shares is None else {**form, "shares": list(stage.shares)}


def _override_form(override: Override) -> dict[str, object]:
    values = {
        "match": override.match,
        "split": override.split,
        "duplicate": override.duplicate or None,
        "tp": override.tp,
        "shares": None if override.shares is None else list(override.shares),
        "annotation": override.annotation,
    }
    return {key: value for key, value in values.items() if value is not None}
