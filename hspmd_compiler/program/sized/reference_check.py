"""Whether what varies in a decoded program is told of numbers, slots and pipelines that it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from ...base.comm_plan import CommStep
from ..arguments import leaves, row_leaves
from ..program import ClassProgram, Instruction, Op, Program, RankProgram, SizedRank
from .comm_numbers import numbers_of
from .size_range import SizeRange
from .sizes import RING, Count, MicroSizes, Overlay, Size
from .template import step_instructions

MOST_COUNTED = 256
"""Micro-batches of a pipeline in the first compile, whose instructions are made again."""
MOST_FACTORS = 4
"""Sizes whose product is a number of bytes."""
TAGGED = frozenset({Op.SEND, Op.RECV})


def problems_of_sizes(program: Program) -> Iterator[tuple[str, str]]:
    """(place, problem); of a program without `sizes`, everything that would vary."""
    sizes = program.sizes
    if sizes is None:
        yield from _without(program)
        return
    problems = [("sizes", text) for text in _range_problems(sizes)]
    yield from problems
    for name, shared in program.classes.items():
        for where, size in _sizes_of(shared):
            yield from ((f"class {name}, {where}", text) for text in _size_problems(size, sizes))
    for own in program.ranks:
        yield from ((f"rank {own.rank}", text) for text in _rank_problems(own, sizes, not problems))


def _without(program: Program) -> Iterator[tuple[str, str]]:
    text = "varies, in a program of one size"
    for name, shared in program.classes.items():
        yield from ((f"class {name}, {where}", f"{size.text} {text}") for where, size in _sizes_of(shared))
    for own in program.ranks:
        if own.sized is not None:
            yield f"rank {own.rank}", f"sized: what {text}"
        for size in _sizes_in(own.literals):
            yield f"rank {own.rank}", f"a literal {size.text} {text}"


def _sizes_of(shared: ClassProgram) -> Iterator[tuple[str, Size]]:
    for segment in shared.segments:
        for row in segment.rows:
            for leaf in row_leaves(row):
                if type(leaf) is Size:
                    yield f"segment {segment.name}, v{row.out.id}", leaf


def _sizes_in(argument: object) -> list[Size]:
    return [leaf for leaf in leaves(argument) if type(leaf) is Size]


def _range_problems(sizes: SizeRange) -> Iterator[str]:
    count = len(sizes.stages)
    if not 0 < sizes.low <= sizes.high:
        yield f"[{sizes.low}, {sizes.high}] is no range of sizes"
    if sizes.unit not in (Count.TOKENS, Count.SAMPLES):
        yield f"{sizes.unit.value}: of a micro-batch tokens or samples vary"
    if not count or min(sizes.stages) < 1:
        yield f"pipelines of {list(sizes.stages)} stages: each has one"
    if not sizes.probes or any(len(probe.pipelines) != count for probe in sizes.probes):
        yield f"steps of compiles are not of {count} pipelines"
    elif not all(probe.pipelines[number] for probe in sizes.probes for number in range(count)):
        yield "a compile in which a pipeline has nothing to do"
    elif max(sizes.probes[0].counts) > MOST_COUNTED:
        yield f"a compile of more than {MOST_COUNTED} micro-batches"
    elif not all(_shares_rows(sizes, number) for number in range(count)):
        yield "steps of compiles whose rows are not cut among the pipelines that share them"
    for group in sizes.groups:
        if not all(0 <= pipeline < count for pipeline in group):
            yield f"the group {list(group)} is not of the {count} pipelines"
    if sizes.shares and (len(sizes.shares) != count or not all(0 < share < inf for share in sizes.shares)):
        yield f"shares {list(sizes.shares)} are not of {count} pipelines"


def _shares_rows(sizes: SizeRange, pipeline: int) -> bool:
    """Whether each row of the compiles is cut in as many pieces as its pipelines take."""
    members = len(sizes.group_of(pipeline))
    wanted = (members, 2 * members) if members > 1 else (0,)
    micros: list[MicroSizes] = [micro for probe in sizes.probes for micro in probe.pipelines[pipeline]]
    return len({len(micro.ring) for micro in micros}) == 1 and len(micros[0].ring) in wanted


def _most_pieces(sizes: SizeRange) -> int:
    """Into how many pieces rows are cut that pipelines share, at most."""
    rings = (micro.ring for probe in sizes.probes for own in probe.pipelines for micro in own)
    return max(map(len, rings), default=0) if sizes.groups else 0


def _size_problems(size: Size, sizes: SizeRange) -> Iterator[str]:
    for each in (size, *([] if size.minus is None else [size.minus])):
        if each.parts == RING and not sizes.groups:
            yield f"{each.text}: no pipelines share a row"
        elif each.parts == RING and each.high > (most := _most_pieces(sizes)):
            yield f"{each.text}: rows that pipelines share have {most} pieces"
        elif each.parts > 0 and each.parts not in sizes.degrees:
            yield f"{each.text}: no stage cuts tokens in {each.parts}"


def _rank_problems(own: RankProgram, sizes: SizeRange, has_range: bool) -> Iterator[str]:
    if own.sized is None:
        yield "nothing says what varies"
        return
    if any(not 0 < len(product) <= MOST_FACTORS for product in own.sized.saved):
        yield f"bytes that are kept: products of more than {MOST_FACTORS} sizes, or of none"
    for size in (*_sizes_in(own.literals), *(size for product in own.sized.saved for size in product)):
        yield from _size_problems(size, sizes)
    yield from _overlay_problems("comm", own.comms, own.sized.comms, sizes)
    yield from _overlay_problems("transfer", own.transfers, own.sized.transfers, sizes)
    if not has_range:
        return
    if not 0 <= own.pipeline < len(sizes.stages) or not 0 <= own.stage < sizes.stages[own.pipeline]:
        yield f"no stage {own.stage} of pipeline {own.pipeline}"
        return
    yield from _template_problems(own, own.sized, sizes)


def _overlay_problems(
    what: str, steps: Sequence[CommStep], overlays: Sequence[Overlay], sizes: SizeRange
) -> Iterator[str]:
    if len(steps) != len(overlays):
        yield f"what varies is told of {len(overlays)} {what}s, there are {len(steps)}"
    for slot, (step, overlay) in enumerate(zip(steps, overlays, strict=False)):
        places, count = [place for place, _ in overlay], len(numbers_of(step)) if overlay else 0
        if places != sorted(set(places)) or not all(0 <= place < count for place in places):
            yield f"{what} {slot}: {places[:8]} are not ascending places of {count} numbers"
        for _, size in overlay:
            yield from (f"{what} {slot}: {text}" for text in _size_problems(size, sizes))


def _template_problems(own: RankProgram, template: SizedRank, sizes: SizeRange) -> Iterator[str]:
    """The instructions of the first compile, which are checked one by one, are those of the template."""
    made = step_instructions(own, sizes, sizes.probes[0].counts)
    if [_untagged(each) for each in made] != [_untagged(each) for each in own.instructions]:
        yield "its instructions are not what the template of a micro-batch makes of them"
    moved = [each for each in (*template.forward, *template.backward) if each.op in TAGGED]
    if any(each.tag < 0 for each in moved):
        yield "a template moves a value without a tag"
    sent, received = ({each.tag for each in moved if each.op is op} for op in (Op.SEND, Op.RECV))
    for tag, answer in template.answers:
        if tag not in sent or (answer not in received and answer != tag):
            yield f"crossing {answer} answers {tag}, of which the template has not both"


def _untagged(each: Instruction) -> Instruction:
    return replace(each, tag=-1, over=-1)
