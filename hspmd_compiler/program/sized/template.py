"""The instructions of one micro-batch, made into those of a step of any number of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...base.pipeline_schedule import ActionKind, build_schedule, scatter_points
from ...errors import InternalError
from ..program import Instruction, Op, RankProgram, SizedRank
from .size_range import SizeRange

MOVES = frozenset({Op.SEND, Op.RECV})
ENDS = frozenset({Op.REDUCE_WAIT, Op.GRAD_SYNC})
BETWEEN = frozenset({Op.GRAD_SCATTER, Op.REDUCE_START})
"""What stands in the passes and is not done for each micro-batch."""


def template_of(own: RankProgram, crossings: dict[int, int]) -> SizedRank:
    """The parts of a rank's instructions, without overlays. crossings: of each first tag, its number."""
    first = [each for each in own.instructions if each.mb in (0, -1)]
    at = [place for place, each in enumerate(first) if each.op in (Op.FORWARD, *MOVES)]
    end = next(place for place, each in enumerate(first) if each.op in ENDS)
    if first[end - 1].op is Op.PARAM_DROP:
        end -= 1
    start = next(place for place, each in enumerate(first) if each.op is not Op.PARAM_GATHER)
    passes = [each for each in first[at[0] : end] if each.op not in BETWEEN]
    turn = next(place for place, each in enumerate(passes) if each.op is Op.FORWARD) + 1
    while passes[turn].op is Op.SEND:
        turn += 1
    numbered = [
        replace(each, tag=crossings[each.tag], over=-1) if each.op in MOVES else each for each in passes
    ]
    backward = numbered[turn:]
    return SizedRank(
        comms=[()] * len(own.comms),
        transfers=[()] * len(own.transfers),
        begin=first[:start],
        counts=first[start : at[0]],
        forward=numbered[:turn],
        backward=_with_starts([each for each in backward if each.op is not Op.WEIGHTS], own.instructions),
        weights=[each for each in backward if each.op is Op.WEIGHTS],
        end=first[end:],
        scatters=any(each.op is Op.GRAD_SCATTER for each in first),
    )


def _with_starts(backward: list[Instruction], instructions: Sequence[Instruction]) -> list[Instruction]:
    """One micro-batch's backward pass with what the last one starts, behind the same parts of it."""
    starts: dict[int, list[Instruction]] = {}
    parts = 0
    last = max((each.mb for each in instructions if each.op is Op.REDUCE_START), default=-1)
    for each in instructions:
        parts += each.op is Op.BACKWARD and each.mb == last
        if each.op is Op.REDUCE_START:
            starts.setdefault(parts, []).append(replace(each, mb=0))
    made: list[Instruction] = []
    parts = 0
    for place, each in enumerate(backward):
        made.append(each)
        parts += each.op is Op.BACKWARD
        following = backward[place + 1].op if place + 1 < len(backward) else Op.RECV
        if following is not Op.SEND:
            made += starts.pop(parts, ())
    return made


def first_tags(ranks: Sequence[RankProgram]) -> dict[int, int]:
    """The tags of all first micro-batches, numbered: of each crossing of a program one."""
    tags = {each.tag for own in ranks for each in own.instructions if each.op in MOVES and each.mb == 0}
    return {tag: number for number, tag in enumerate(sorted(tags))}


def step_instructions(
    own: RankProgram, sizes: SizeRange, counts: Sequence[int], most: int = 0
) -> list[Instruction]:
    """What a rank does in a step. counts: micro-batches of each pipeline, at least 1.

    A tag is `crossing * most + mb`; most: 0 for the most that a pipeline has. `over` is not told: see
    `receipts`.
    """
    assert own.sized is not None, "a program for micro-batches of any size"
    template, count, most = own.sized, counts[own.pipeline], most or max(counts)
    made = list(template.begin)
    for each in template.counts:
        many = range(count) if each.op is Op.STEP_COMPUTE else ()
        made += [replace(each, mb=mb) for mb in many] or [each]
    points = scatter_points(counts)[own.pipeline] if template.scatters else frozenset()
    schedule = build_schedule(sizes.schedule, sizes.stages[own.pipeline], count)
    last = schedule.ends_with(own.stage)
    parts = {
        ActionKind.FORWARD: template.forward,
        ActionKind.BACKWARD: template.backward,
        ActionKind.WEIGHTS: template.weights,
    }
    for action in schedule.stages[own.stage]:
        for each in parts[action.kind]:
            if each.op is not Op.REDUCE_START or action.micro_batch == count - 1:
                made.append(_for_micro(each, action.micro_batch, most))
        if action.kind is last and action.micro_batch in points:
            made.append(Instruction(Op.GRAD_SCATTER))
    starts = [replace(each, mb=-1) for each in template.backward if each.op is Op.REDUCE_START]
    return [*made, *(() if count else starts), *template.end]


def _for_micro(each: Instruction, mb: int, most: int) -> Instruction:
    return replace(each, mb=mb, tag=each.tag * most + mb if each.tag >= 0 else -1)


def check_template(own: RankProgram, sizes: SizeRange, counts: Sequence[int]) -> None:
    """An InternalError where the template does not give back the instructions that it was made of."""
    made = step_instructions(own, sizes, counts)
    found = [replace(each, over=-1, tag=-1) for each in own.instructions]
    if [replace(each, tag=-1) for each in made] != found:
        raise InternalError(
            f"the instructions of rank {own.rank} are no pattern of its micro-batches",
            details=[("instructions", str(len(found))), ("by the pattern", str(len(made)))],
            rule="what a rank does for each micro-batch is the same, in the order of the schedule",
            fix="report this model and strategy",
        )
