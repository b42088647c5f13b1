"""The rules of pipelines that share sequences, as far as they are known without the model."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..base.bad_values import Problem
from ..base.limits import MOST_SAMPLES
from .context_spec import ContextSpec
from .strategy import PipelineSpec, ScheduleKind, Strategy

IN_ORDER = (
    "except under gpipe, members meet in each layer in one order only where their stages have the same"
    " layers; give them equal stages, or schedule gpipe"
)


def context_problems(strategy: Strategy, unread: Collection[str]) -> Iterator[Problem]:
    """Groups name pipelines, each once; their members run the same micro-batches in the same order."""
    if strategy.context and strategy.schedule is ScheduleKind.AUTO:
        yield Problem("schedule", "auto: with context members keep to one order; name a schedule instead")
    taken: dict[int, int] = {}
    for number, spec in enumerate(strategy.context):
        path = f"context[{number}]"
        for pipeline in spec.pipelines:
            if not 0 <= pipeline < len(strategy.pipelines):
                count = len(strategy.pipelines)
                yield Problem(f"{path}.pipelines", f"{pipeline}: the strategy has pipelines 0 to {count - 1}")
            elif pipeline in taken:
                yield Problem(
                    f"{path}.pipelines", f"{pipeline}: once only, context[{taken[pipeline]}] has it too"
                )
            taken.setdefault(pipeline, number)
        yield from _number_problems(path, spec)
        if not any(one.startswith("pipelines") for one in unread):
            yield from _member_problems(path, spec, strategy)


def _number_problems(path: str, spec: ContextSpec) -> Iterator[Problem]:
    count = len(spec.pipelines)
    if count < 2 and not (count and spec.padding):
        text = "a sequence is shared by two pipelines or more, one alone has padding at most"
        yield Problem(f"{path}.pipelines", f"{list(spec.pipelines)}: {text}")
    if spec.lengths and len(spec.lengths) != count:
        text = f"one length per member, here {count}"
        yield Problem(f"{path}.lengths", f"{list(spec.lengths)}: {text}")
    if any(not 0 <= each <= MOST_SAMPLES for each in spec.lengths) or not any(spec.lengths or (1,)):
        text = f"a member has 0 to {MOST_SAMPLES:,} tokens, some member more than 0"
        yield Problem(f"{path}.lengths", f"{list(spec.lengths)}: {text}")
    if not 0 <= spec.padding <= MOST_SAMPLES:
        yield Problem(f"{path}.padding", f"{spec.padding}: 0 to {MOST_SAMPLES:,} tokens")


def _member_problems(path: str, spec: ContextSpec, strategy: Strategy) -> Iterator[Problem]:
    """Each member beside the first: what they do together is in the same order in all of them."""
    named = [each for each in spec.pipelines if 0 <= each < len(strategy.pipelines)]
    for other in named[1:]:
        one, two = strategy.pipelines[named[0]], strategy.pipelines[other]
        where = f"{path}.pipelines"
        names = f"pipelines {named[0]} and {other}"
        if one.micro_batches != two.micro_batches:
            both = f"{_shown(one.micro_batches)} and {_shown(two.micro_batches)}"
            yield Problem(where, f"micro_batches of {names} are {both}: members run the same samples")
        if one.schedule != two.schedule:
            yield Problem(where, f"{names} have schedules of their own: members have the same, or none")
        if one.recompute != two.recompute:
            yield Problem(
                where, f"{names} recompute unlike layers: members attend again at the same places, or not"
            )
        if strategy.schedule is not ScheduleKind.GPIPE or one.schedule is not None:
            yield from _stage_problems(where, names, one, two)


def _stage_problems(where: str, names: str, one: PipelineSpec, two: PipelineSpec) -> Iterator[Problem]:
    first, second = ([list(stage.layers) for stage in each.stages] for each in (one, two))
    if first != second:
        yield Problem(where, f"stages of {names} have the layers {first} and {second}: {IN_ORDER}")


def _shown(sizes: tuple[int, ...]) -> str:
    few = list(sizes[:8])
    return f"{few}" if len(few) == len(sizes) else f"{str(few)[:-1]}, ...]"
