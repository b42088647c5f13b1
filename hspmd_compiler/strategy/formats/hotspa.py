"""HotSPa's strategies: (dp, tp, pp) per bucket of sequence lengths, switched between within a step.

Buckets are ordered by length, longest first, given by descending bounds that end in 0. The list of
strategies is in another order: that of the first bucket, of the last, ..., of the second. A step
begins and ends with strategy 0, which updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ...base.limits import MOST_DEVICES
from ..check import check, raise_if_any
from ..strategy import Strategy
from .expanded import AnnotationStyle, Choices, Entry, Expanded
from .format_values import FormatValues, is_list
from .stage_layers import equal_stages

FIX = "give (dp, tp, pp) per bucket, and descending bucket_sizes that end in 0"
SUBJECT = "a HotSPa strategy"
DEGREES = ("dp", "tp", "pp")


@dataclass(frozen=True, slots=True)
class _Plan:
    """The strategies of one training run, as written, and what is said around them."""

    id: str
    path: str
    strategies: Sequence[object]
    bounds: object = None
    gpus: object = None
    layers: object = None


def bucket_of_strategy(index: int, buckets: int) -> int:
    """The bucket that a strategy of HotSPa's list runs."""
    return (buckets - index) % buckets


def looks_like_hotspa(content: object) -> bool:
    """Whether it is an object with buckets and strategies, or a list of such."""
    items = content if is_list(content) else [content]
    return bool(items) and all(
        isinstance(item, Mapping) and "bucket_sizes" in item and "strategies" in item for item in items
    )


def hotspa_entries(content: object, choices: Choices, at: str = "") -> list[Entry]:
    """The strategies of a literal list of tuples, of an object with buckets, or of a list of those."""
    return [
        Entry(_entry_id(plan, index), partial(_expand, plan, index, choices, at))
        for plan in _plans(content, at)
        for index in range(len(plan.strategies))
    ]


def _entry_id(plan: _Plan, index: int) -> str:
    if not plan.id and len(plan.strategies) == 1:
        return ""
    return f"{plan.id}/{index}" if plan.id else str(index)


def _plans(content: object, at: str) -> list[_Plan]:
    values = FormatValues()
    plans: list[_Plan] = []
    if looks_like_hotspa(content):
        items = content if is_list(content) else [content]
        for index, item in enumerate(items):
            assert isinstance(item, Mapping)
            path = f"[{index}].strategies" if len(items) > 1 else "strategies"
            plans.append(_plan(item, index, len(items), path, values))
    elif is_list(content) and content and all(map(is_list, content)):
        plans.append(_Plan("", "strategies", content))
    elif is_list(content) and len(content) == len(DEGREES):
        plans.append(_Plan("", "strategies", [content]))
    else:
        values.bad("strategies", f"{str(content)[:80]!r}: a list with (dp, tp, pp) per bucket")
    raise_if_any(values.problems, at, FIX, SUBJECT)
    return plans


def _plan(item: Mapping[str, object], index: int, count: int, path: str, values: FormatValues) -> _Plan:
    strategies = item["strategies"]
    if not is_list(strategies) or not strategies:
        values.bad(path, f"{strategies!r}: a list with dp, tp, pp per bucket")
        strategies = []
    model = item.get("model")
    layers = model.get("layers") if isinstance(model, Mapping) else item.get("layers")
    name = item.get("id", index if count > 1 else "")
    return _Plan(str(name), path, strategies, item["bucket_sizes"], item.get("num_gpus"), layers)


def _expand(plan: _Plan, index: int, choices: Choices, at: str) -> Expanded:
    """One strategy. Stages are equal; a stage's devices are consecutive, pipeline by pipeline."""
    values = FormatValues()
    path = f"{plan.path}[{index}]"
    dp, tp, pp = _degrees(path, plan.strategies[index], values)
    bounds = _bounds(plan, values)
    gpus = values.count("num_gpus", plan.gpus)
    layers = choices.num_layers or values.count("layers", plan.layers)
    if gpus is not None and not values.broken(path) and dp * tp * pp != gpus:
        values.bad(path, f"dp {dp} * tp {tp} * pp {pp} = {dp * tp * pp}: num_gpus is {gpus}")
    values.within(path, "devices", dp * tp * pp, MOST_DEVICES)
    if layers is None:
        values.bad("layers", "missing: the tuples don't say the model's layers, give --layers N")
    elif layers % pp:
        values.bad(path, f"pp {pp}: {layers} layers do not divide evenly into {pp} stages")
    raise_if_any(values.problems, at, FIX, SUBJECT)
    name = "/".join(part for part in (plan.id, str(index)) if part) if plan.id else ""
    stages = [equal_stages(group, dp, tp, pp, (layers or 1) // pp) for group in range(dp)]
    strategy = Strategy(tuple(map(choices.pipeline, stages)), name=name)
    check(strategy, at=at)
    notes = tuple(_notes(index, len(plan.strategies), bounds))
    return Expanded(strategy, style=AnnotationStyle.LAYER_RANGES, num_gpus=dp * tp * pp, notes=notes)


def _degrees(path: str, value: object, values: FormatValues) -> tuple[int, int, int]:
    """dp, tp, pp of a tuple, or of an object with these keys."""
    if isinstance(value, Mapping):
        cp = value.get("cp", 1)
        if cp != 1:
            values.bad(f"{path}.cp", f"{cp!r}: HotSPa's strategies are dp, tp, pp only")
        dp, tp, pp = (values.required(f"{path}.{key}", value.get(key)) for key in DEGREES)
        return dp, tp, pp
    numbers = values.counts(path, value)
    if len(numbers) == len(DEGREES):
        return numbers[0], numbers[1], numbers[2]
    if not values.broken(path):
        values.bad(path, f"{tuple(numbers)}: (dp, tp, pp)")
    return 1, 1, 1


def _bounds(plan: _Plan, values: FormatValues) -> list[int]:
    """Descending bounds of the buckets, one more than strategies; empty where none are given."""
    if plan.bounds is None:
        return []
    bounds = values.counts("bucket_sizes", plan.bounds, 0)
    if bounds and (bounds[-1] != 0 or sorted(set(bounds), reverse=True) != bounds):
        values.bad("bucket_sizes", f"{bounds}: bounds descend, and the last is 0")
    elif bounds and len(bounds) - 1 != len(plan.strategies):
        buckets = len(bounds) - 1
        values.bad(plan.path, f"{len(plan.strategies)} strategies: bucket_sizes has {buckets} buckets")
    return bounds


def _notes(index: int, count: int, bounds: list[int]) -> Iterator[str]:
    """Which bucket this strategy runs."""
    bucket = bucket_of_strategy(index, count)
    lengths = f", lengths {bounds[bucket + 1] + 1} to {bounds[bucket]}" if bounds else ""
    order = "the list is in the order first bucket, last, ..., second"
    yield f"strategy {index} of {count} runs bucket {bucket}{lengths}: {order}"
    if bounds:
        yield "a length equal to a bound is in the bucket that ends there"
