"""The rules of a Strategy: every value that breaks one, with its key path, in one error."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from ..base.bad_values import Problem, ProblemSubject
from ..base.limits import MOST_DEVICES, MOST_LAYERS, MOST_MICRO_BATCHES, MOST_SAMPLES, beyond
from ..base.name_glob import components
from ..base.pipeline_schedule import scatter_points
from ..errors import StrategyError
from .check_context import context_problems
from .check_experts import expert_form_problems
from .check_lanes import lane_problems, repeat_problems
from .check_layouts import layout_problems
from .check_sizes import size_problems
from .schedules.meetings import meeting_problems
from .schedules.schedule_check import schedule_problems
from .strategy import ZERO_STAGES, Override, PipelineSpec, RecomputeKind, StageSpec, Strategy

PAGE = "docs/strategy.md lists every key, its values and its rule"
STRATEGY = ProblemSubject("a strategy", StrategyError, PAGE)


def check(
    strategy: Strategy, *, num_layers: int | None = None, num_heads: int | None = None, at: str = ""
) -> None:
    """Raise one StrategyError that lists every value that breaks a rule.

    num_layers, num_heads: the model's, where it is known. at: where the strategy comes from.
    """
    raise_if_any(find_problems(strategy, num_layers=num_layers, num_heads=num_heads), at)


def raise_if_any(
    problems: Sequence[Problem], at: str = "", fix: str = PAGE, subject: str = "a strategy"
) -> None:
    """Raise one StrategyError with a line per problem; subject: what the values are of."""
    ProblemSubject(subject, StrategyError, fix).refuse(problems, at)


def find_problems(
    strategy: Strategy,
    *,
    num_layers: int | None = None,
    num_heads: int | None = None,
    unread: Collection[str] = frozenset(),
) -> list[Problem]:
    """All broken rules. unread: key paths whose value is a stand-in, so that no rule may judge it."""
    large = [*_large_numbers(strategy)]
    if large:
        return [problem for problem in large if problem.path not in unread]
    found = [
        *_whole_problems(strategy),
        *_kind_problems(strategy, unread),
        *_total_problems(strategy.pipelines, num_layers, unread),
        *repeat_problems(strategy),
    ]
    for index, pipeline in enumerate(strategy.pipelines):
        path = f"pipelines[{index}]"
        found += _size_problems(path, pipeline.micro_batches)
        found += [] if _layers_unread(path, pipeline, unread) else _layer_problems(path, pipeline.stages)
        found += _recompute_problems(f"{path}.recompute", pipeline, unread)
        found += _schedule_problems(path, pipeline, strategy, unread)
        for number, stage in enumerate(pipeline.stages):
            found += _stage_problems(f"{path}.stages[{number}]", stage, unread)
            found += _zero_share_problems(f"{path}.stages[{number}]", stage, strategy.zero, unread)
            found += _head_problems(f"{path}.stages[{number}]", stage, strategy, num_heads)
    for index, override in enumerate(strategy.overrides):
        found += _override_problems(f"overrides[{index}]", override, strategy, unread)
    found += lane_problems(strategy)
    found += size_problems(strategy)
    found += expert_form_problems(strategy, unread)
    found += layout_problems(strategy.layouts, {stage.tp for _, stage in _stages(strategy) if stage.devices})
    found += context_problems(strategy, unread)
    return [problem for problem in found if problem.path not in unread]


def _whole_problems(strategy: Strategy) -> Iterator[Problem]:
    if not strategy.pipelines:
        yield Problem("pipelines", "empty: a strategy has at least one pipeline")
    for index, pipeline in enumerate(strategy.pipelines):
        if not pipeline.stages:
            yield Problem(f"pipelines[{index}].stages", "empty: a pipeline has at least one stage")
    if strategy.accumulation < 1:
        yield Problem("accumulation", f"{strategy.accumulation}: a step runs its micro-batches at least once")
    if strategy.receives_ahead < 0:
        text = f"{strategy.receives_ahead}: so many receives are posted before their turn, 0 or more"
        yield Problem("receives_ahead", text)
    if strategy.zero not in ZERO_STAGES:
        yield Problem("zero", f"{strategy.zero}: one of {', '.join(map(str, ZERO_STAGES))}")
    if strategy.bucket_bytes is not None and strategy.bucket_bytes < 0:
        yield Problem("bucket_bytes", f"{strategy.bucket_bytes}: bytes of a bucket, 0 for one at the end")


def _large_numbers(strategy: Strategy) -> Iterator[Problem]:
    """Numbers that no machine has room for; they are judged before anything is counted up to them."""
    yield from _beyond("accumulation", "micro-batches", strategy.accumulation, MOST_MICRO_BATCHES)
    yield from _beyond("receives_ahead", "receives", strategy.receives_ahead, MOST_MICRO_BATCHES)
    for index, pipeline in enumerate(strategy.pipelines):
        path = f"pipelines[{index}]"
        count, samples = len(pipeline.micro_batches) * strategy.accumulation, sum(pipeline.micro_batches)
        yield from _beyond(f"{path}.micro_batches", "micro-batches", count, MOST_MICRO_BATCHES)
        yield from _beyond(f"{path}.micro_batches", "samples", samples * strategy.accumulation, MOST_SAMPLES)
        for number, stage in enumerate(pipeline.stages):
            here = f"{path}.stages[{number}]"
            yield from _beyond(f"{here}.layers", "as a layer", max(map(abs, stage.layers)), MOST_LAYERS)
            yield from _beyond(f"{here}.devices", "as a device", max(stage.devices, default=0), MOST_SAMPLES)
            for name in ("shares", "zero_shares", "experts"):
                shares = getattr(stage, name)
                yield from _beyond(f"{here}.{name}", "as a share", max(shares or (0,)), MOST_SAMPLES)
        for number, item in enumerate(pipeline.recompute):
            here = f"{path}.recompute[{number}]"
            yield from _beyond(f"{here}.layers", "as a layer", max(map(abs, item.layers)), MOST_LAYERS)
            yield from _beyond(f"{here}.every", "layers", item.every, MOST_LAYERS)
    for index, override in enumerate(strategy.overrides):
        largest = max(override.split or 0, override.tp or 0, *(override.shares or (0,)))
        yield from _beyond(f"overrides[{index}]", "as a dim, degree or share", largest, MOST_SAMPLES)
    yield from _beyond("pipelines", "devices", len(strategy.devices), MOST_DEVICES)


def _beyond(path: str, what: str, count: int, most: int) -> Iterator[Problem]:
    rule = beyond(what, count, most)
    if rule:
        yield Problem(path, rule)


def _kind_problems(strategy: Strategy, unread: Collection[str]) -> Iterator[Problem]:
    """Only a used device has a kind."""
    used = set(strategy.devices)
    unsure = any(path.startswith("pipelines") for path in unread)
    for device, _ in strategy.device_kinds:
        if device not in used and not unsure:
            yield Problem(f"device_kinds.{device}", f"{device}: no stage uses this device")


def _stages(strategy: Strategy) -> Iterator[tuple[str, StageSpec]]:
    for index, pipeline in enumerate(strategy.pipelines):
        for number, stage in enumerate(pipeline.stages):
            yield f"pipelines[{index}].stages[{number}]", stage


def _size_problems(path: str, sizes: tuple[int, ...]) -> Iterator[Problem]:
    if not sizes:
        yield Problem(f"{path}.micro_batches", "empty: a pipeline has at least one micro-batch")
    for index, size in enumerate(sizes):
        if size < 1:
            yield Problem(f"{path}.micro_batches[{index}]", f"{size}: a micro-batch has at least one sample")


def _schedule_problems(
    path: str, pipeline: PipelineSpec, strategy: Strategy, unread: Collection[str]
) -> Iterator[Problem]:
    """A schedule of a pipeline's own runs its stages and all of its micro-batches."""
    if pipeline.schedule is None or any(other.startswith(path) for other in unread):
        return
    here, schedule = f"{path}.schedule", pipeline.schedule
    if schedule.num_stages != len(pipeline.stages):
        yield Problem(here, f"{schedule.num_stages} lines: one for each of {len(pipeline.stages)} stages")
        return
    count = len(pipeline.micro_batches) * strategy.accumulation
    found = schedule_problems(schedule, count)
    counts = [len(each.micro_batches) * strategy.accumulation for each in strategy.pipelines]
    if not found and strategy.zero in ZERO_STAGES[2:] and min(counts) > 0:
        points = scatter_points([count, *counts])[0]
        found = [*meeting_problems(schedule, points)]
    for where, what in found:
        yield Problem(here, f"{where}: {what}")


def _recompute_problems(path: str, pipeline: PipelineSpec, unread: Collection[str]) -> Iterator[Problem]:
    """Ranges lie in the pipeline's layers, and no layer is in two of them."""
    known = bool(pipeline.stages) and not _layers_unread(path.removesuffix(".recompute"), pipeline, unread)
    taken: dict[int, int] = {}
    for index, item in enumerate(pipeline.recompute):
        low, high = item.layers
        here = f"{path}[{index}]"
        if not 0 <= low < high or (known and high > pipeline.num_layers):
            end = f" of the pipeline's {pipeline.num_layers}" if known else ""
            yield Problem(f"{here}.layers", f"[{low}, {high}]: a range has at least one layer{end}")
            continue
        twice = next((layer for layer in range(low, high) if layer in taken), None)
        if twice is not None:
            yield Problem(f"{here}.layers", f"[{low}, {high}]: [{taken[twice]}] has layer {twice} too")
        taken |= dict.fromkeys(range(low, high), index)
        if item.every < 1 or (item.every > 1 and item.kind is not RecomputeKind.FULL):
            yield Problem(f"{here}.every", f"{item.every}: at least 1, above 1 with the kind full only")


def _layers_unread(path: str, pipeline: PipelineSpec, unread: Collection[str]) -> bool:
    """Whether a stage's layers, or the list of stages itself, is a stand-in."""
    paths = [f"{path}.stages", *(f"{path}.stages[{index}].layers" for index in range(len(pipeline.stages)))]
    return path in unread or any(item in unread for item in paths)


def _layer_problems(path: str, stages: tuple[StageSpec, ...]) -> Iterator[Problem]:
    """A pipeline's stages cover its layers without a gap, an overlap or an empty stage."""
    end = 0
    for index, stage in enumerate(stages):
        low, high = stage.layers
        here = f"{path}.stages[{index}].layers"
        if high <= low:
            yield Problem(here, f"[{low}, {high}]: a stage runs at least one layer")
        if low != end:
            rule = f"a stage begins where the one before ends, at {end}" if index else "the first begins at 0"
            name = "overlap" if low < end else "gap"
            yield Problem(here, f"[{low}, {high}]: {name}, {rule}")
        end = max(end, high)


def _total_problems(
    pipelines: tuple[PipelineSpec, ...], num_layers: int | None, unread: Collection[str]
) -> Iterator[Problem]:
    """All pipelines run all layers: of the model if it is known, else as many as the first."""
    known = [
        (f"pipelines[{index}]", pipeline)
        for index, pipeline in enumerate(pipelines)
        if pipeline.stages and not _layers_unread(f"pipelines[{index}]", pipeline, unread)
        if not any(_layer_problems("", pipeline.stages))
    ]
    if not known:
        return
    first, spec = known[0]
    wanted = spec.num_layers if num_layers is None else num_layers
    owner = f"{first} has" if num_layers is None else "the model has"
    for path, pipeline in known:
        if pipeline.num_layers != wanted:
            counts = " + ".join(str(stage.num_layers) for stage in pipeline.stages)
            total = f"{counts} = {pipeline.num_layers}" if len(pipeline.stages) > 1 else counts
            yield Problem(f"{path}.stages", f"{total} layers: {owner} {wanted}, every pipeline runs all")


def _stage_problems(path: str, stage: StageSpec, unread: Collection[str]) -> Iterator[Problem]:
    if not stage.devices:
        yield Problem(f"{path}.devices", "empty: a stage has at least one device")
    for device in stage.devices:
        if device < 0:
            yield Problem(f"{path}.devices", f"{device}: a device id is 0 or more")
    for name, shares in (("shares", stage.shares), ("experts", stage.experts)):
        if shares is not None and f"{path}.devices" not in unread:
            yield from _share_problems(f"{path}.{name}", shares, [stage.tp], "one share per device")


def _share_problems(
    path: str, shares: tuple[int, ...], counts: Iterable[int], rule: str
) -> Iterator[Problem]:
    """Shares are weights, one per part, not all zero."""
    yield from _count_problems(path, shares, counts, rule)
    if any(share < 0 for share in shares):
        yield Problem(path, f"{list(shares)}: a share is 0 or more")
    elif not any(shares):
        yield Problem(path, f"{list(shares)}: at least one share is above 0")


def _count_problems(
    path: str, shares: tuple[int, ...], counts: Iterable[int], rule: str
) -> Iterator[Problem]:
    """There are as many as one of the counts."""
    if len(shares) not in counts:
        wanted = " or ".join(map(str, sorted(counts)))
        name = "too long" if len(shares) > max(counts) else "too short"
        yield Problem(path, f"{list(shares)}: list {name}, {rule}, here {wanted}")


def _zero_share_problems(
    path: str, stage: StageSpec, zero: int, unread: Collection[str]
) -> Iterator[Problem]:
    """Weights of devices for what ZeRO stores; all of a stage may be 0, where others store it."""
    shares, here = stage.zero_shares, f"{path}.zero_shares"
    if shares is None:
        return
    if zero == 0 and "zero" not in unread:
        yield Problem(
            here, f"{list(shares)}: with zero 0 every device stores what it holds; set zero to 1, 2 or 3"
        )
    if f"{path}.devices" not in unread:
        yield from _count_problems(here, shares, [stage.tp], "one weight per device")
    if any(share < 0 for share in shares):
        yield Problem(here, f"{list(shares)}: a weight is 0 or more")


def _head_problems(
    path: str, stage: StageSpec, strategy: Strategy, num_heads: int | None
) -> Iterator[Problem]:
    """Heads are split whole. Layers with a degree of their own are judged where names are known."""
    own_degree = any(override.tp is not None for override in strategy.overrides)
    if num_heads is None or own_degree or stage.shares is not None or stage.tp <= num_heads:
        return
    rule = f"more than the model's heads, {num_heads}, which are split whole; shares may leave a device empty"
    yield Problem(f"{path}.devices", f"{stage.tp} devices: {rule}")


def _override_problems(
    path: str, override: Override, strategy: Strategy, unread: Collection[str]
) -> Iterator[Problem]:
    if not all(components(override.match)):
        yield Problem(f"{path}.match", f"{override.match!r}: a glob has no empty part between its dots")
    yield from _choice_problems(path, override)
    widths = {stage.tp for _, stage in _stages(strategy) if stage.devices}
    if override.split is not None and override.split < 0:
        yield Problem(f"{path}.split", f"{override.split}: a tensor dim is 0 or more")
    if override.tp is not None:
        yield from _degree_problems(f"{path}.tp", override.tp, widths)
    counts = widths if override.tp is None else {override.tp}
    if override.shares is not None and counts and f"{path}.tp" not in unread:
        rule = "one share per device of a stage" if override.tp is None else "one share per part"
        yield from _share_problems(f"{path}.shares", override.shares, counts, rule)


def _degree_problems(path: str, degree: int, widths: set[int]) -> Iterator[Problem]:
    if degree < 1:
        yield Problem(path, f"{degree}: a degree is at least 1")
    elif widths and not any(width % degree == 0 for width in widths):
        counts = ", ".join(map(str, sorted(widths)))
        yield Problem(path, f"{degree}: a degree divides its stage's devices, the stages have {counts}")


def _choice_problems(path: str, override: Override) -> Iterator[Problem]:
    """An override says something, and nothing that contradicts itself."""
    chosen = {
        "split": override.split is not None,
        "duplicate": override.duplicate,
        "tp": override.tp is not None,
        "shares": override.shares is not None,
        "annotation": override.annotation is not None,
        "gradient": override.gradient is not None,
    }
    named = [name for name, given in chosen.items() if given]
    if not named:
        yield Problem(path, f"says nothing: give one of {', '.join(chosen)}")
    for alone in ("duplicate", "annotation"):
        others = ", ".join(name for name in named if name not in (alone, "gradient"))
        if chosen[alone] and others:
            yield Problem(path, f"{alone} with {others}: {alone} stands alone")
            return
