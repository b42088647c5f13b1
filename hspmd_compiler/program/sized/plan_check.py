"""Whether a step's choice is one that a program runs: every bad value, told at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from ...base.bad_values import Problem, ProblemSubject
from ...errors import RunError
from .shared_rows import own_runs
from .size_range import SizeRange
from .sizes import Count, MicroSizes
from .step_plan import StepPlan, rows_of, whole_row

MOST_MICRO_BATCHES = 1 << 16
"""Of a pipeline in a step."""
PLAN = ProblemSubject(
    "a step's plan",
    RunError,
    "plan for the strategy that the program was compiled for; make rows that are too long shorter, or compile"
    " with `sizes` that end at the longest or later",
    shown=20,
)


def check_plan(plan: StepPlan, sizes: SizeRange, at: str = "") -> None:
    """Raise one RunError for all that a program for these sizes can't run."""
    PLAN.refuse([*_problems(plan, sizes)], at)


def _problems(plan: StepPlan, sizes: SizeRange) -> Iterator[Problem]:
    wanted = len(sizes.stages)
    if len(plan.pipelines) != wanted:
        found = f"{len(plan.pipelines)} pipelines, the program has {wanted}"
        yield Problem("pipelines", f"{found}: the plan of another strategy")
        return
    if not any(plan.pipelines):
        yield Problem("pipelines", "no micro-batch in any of them: a step has one")
    for number, micros in enumerate(plan.pipelines):
        if len(micros) > MOST_MICRO_BATCHES:
            found = f"{len(micros):,} micro-batches, at most {MOST_MICRO_BATCHES:,}"
            yield Problem(f"pipelines[{number}]", found)
            return
        for place, micro in enumerate(micros):
            path = f"pipelines[{number}][{place}]"
            yield from _of_micro(micro, path, sizes, number)
    yield from _of_groups(plan, sizes)
    yield from _of_order(plan, sizes)


def _of_micro(micro: MicroSizes, path: str, sizes: SizeRange, pipeline: int) -> Iterator[Problem]:
    if sizes.unit is Count.SAMPLES:
        yield from _range(f"{path}.samples", micro.samples, "samples", sizes)
        for name in ("tokens", "cuts", "ring", "documents"):
            if getattr(micro, name):
                yield Problem(f"{path}.{name}", "given, where only samples vary")
        return
    if micro.samples != 1:
        yield Problem(f"{path}.samples", f"{micro.samples}: a micro-batch is one row of tokens")
    whole, members, pieces = whole_row(micro), len(sizes.group_of(pipeline)), sizes.pieces_of(pipeline)
    yield from _range(f"{path}.ring" if micro.ring else f"{path}.tokens", whole, "tokens", sizes)
    yield from _cuts(micro, path, sizes)
    if members > 1 and len(micro.ring) != pieces:
        each = f", {pieces // members} for each" if pieces > members else ""
        found = f"{len(micro.ring)} pieces, the row is cut among {members} pipelines{each}"
        yield Problem(f"{path}.ring", found)
    if members == 1 and micro.ring:
        yield Problem(f"{path}.ring", "given, where no other pipeline takes a piece of the row")
    if any(length < 0 for length in (*micro.documents, *micro.ring)) or micro.tokens < 0:
        yield Problem(path, "a length below 0")
    if micro.documents and sum(micro.documents) != whole:
        yield Problem(f"{path}.documents", f"{sum(micro.documents)} tokens in all, the row has {whole}")


def _range(path: str, found: int, what: str, sizes: SizeRange) -> Iterator[Problem]:
    if not sizes.low <= found <= sizes.high:
        yield Problem(path, f"{found}: the program was compiled for {sizes.low} to {sizes.high} {what}")


def _cuts(micro: MicroSizes, path: str, sizes: SizeRange) -> Iterator[Problem]:
    degrees = [len(cut) for cut in micro.cuts]
    for place, cut in enumerate(micro.cuts):
        where = f"{path}.cuts[{place}]"
        if len(cut) not in sizes.degrees:
            known = ", ".join(map(str, sizes.degrees)) or "none"
            yield Problem(where, f"in {len(cut)} pieces; stages cut tokens in: {known}")
        elif degrees.index(len(cut)) != place:
            yield Problem(where, f"a second cut in {len(cut)} pieces")
        elif min(cut) < 0:
            yield Problem(where, "a piece below 0")
        elif sum(cut) != micro.tokens:
            yield Problem(where, f"{sum(cut)} tokens in all, the micro-batch has {micro.tokens}")


def _of_groups(plan: StepPlan, sizes: SizeRange) -> Iterator[Problem]:
    """Members of a context-parallel group run the same rows, each its piece."""
    for group in sizes.groups:
        rows = zip_longest(*(plan.pipelines[member] for member in group))
        for place, pieces in enumerate(rows):
            path = f"pipelines[{group[0]}][{place}].ring"
            whole = [each for each in pieces if each is not None]
            if len(whole) < len(group):
                yield Problem(path, f"not all of pipelines {list(group)} have a piece of this row")
            elif any(each.ring != whole[0].ring for each in whole):
                yield Problem(path, f"pipelines {list(group)} tell the pieces of this row unlike")
            elif len(whole[0].ring) == sizes.pieces_of(group[0]):
                yield from _of_members(whole, path)


def _of_members(whole: Sequence[MicroSizes], path: str) -> Iterator[Problem]:
    """Each has the tokens of its pieces, and they are those of one row of the step."""
    runs = [own_runs(each, member, len(whole)) for member, each in enumerate(whole)]
    if any(
        each.tokens != sum(high - low for low, high in own) for each, own in zip(whole, runs, strict=True)
    ):
        found = [each.tokens for each in whole]
        yield Problem(path, f"{list(whole[0].ring)}, but the pipelines have {found} tokens")
    for name in ("first", "documents"):
        if any(getattr(each, name) != getattr(whole[0], name) for each in whole):
            yield Problem(path.removesuffix("ring") + name, "unlike on the pipelines that share this row")


def _of_order(plan: StepPlan, sizes: SizeRange) -> Iterator[Problem]:
    """Micro-batches share out the step's tokens, or samples: each is taken once, or by all who share it."""
    taken = [
        (*rows_of(micro, sizes.unit), f"pipelines[{number}][{place}].first")
        for number, micros in enumerate(plan.pipelines)
        if sizes.group_of(number)[0] == number
        for place, micro in enumerate(micros)
    ]
    end = 0
    for first, behind, path in sorted(each for each in taken if each[0] < each[1]):
        if first != end:
            how = "is left out" if first > end else "is taken twice"
            yield Problem(path, f"{first}: what lies from {min(first, end)} to {max(first, end)} {how}")
        end = max(end, behind)


def in_order(plan: Sequence[Sequence[MicroSizes]], unit: Count) -> StepPlan:
    """The plan whose micro-batches lie one behind the other in the step, pipeline by pipeline."""
    pipelines, first = [], 0
    for micros in plan:
        placed = []
        for micro in micros:
            placed.append(replace(micro, first=first))
            first += micro.tokens if unit is Count.TOKENS else micro.samples
        pipelines.append(tuple(placed))
    return StepPlan(tuple(pipelines))
