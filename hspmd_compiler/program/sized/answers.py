"""When what a rank sent has been received, in a step of any size: told by what comes back in its micro-batch.

A receiver does in its order what its template says of a micro-batch; so what it sends to the rank behind that
message tells by arriving that the message has been received, whatever else the schedule does between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..program import Instruction, Op, RankProgram, SizedRank
from ..receipts import NEVER, ends_of, told

AnsweredBy = Mapping[int, int]
"""By crossing that a rank sends, the one that it receives by which the first is over; itself: at once."""


def with_answers(ranks: Sequence[RankProgram]) -> list[RankProgram]:
    """Programs whose templates tell answers. ranks: all of a program for micro-batches of any size."""
    ends = ends_of([replace(own, instructions=_passes(own.sized)) for own in ranks])
    return [replace(own, sized=_answered(own.sized, ends[own.rank])) for own in ranks]


def _passes(template: SizedRank | None) -> list[Instruction]:
    assert template is not None, "a program for micro-batches of any size"
    return [*template.forward, *template.backward]


def _answered(template: SizedRank | None, ends: Sequence[int]) -> SizedRank:
    assert template is not None, "a program for micro-batches of any size"
    one = _passes(template)
    sends = [each.tag for each in one if each.op is Op.SEND]
    found = [(tag, one[end].tag) for tag, end in zip(sends, ends, strict=True) if end < NEVER]
    return replace(template, answers=found)


def with_overs(instructions: list[Instruction], answers: AnsweredBy, most: int) -> list[Instruction]:
    """The instructions of a step, whose RECVs tell how many sends are over. most: as tags are made.

    It is true where each message of the step moves something between all ranks that it is between.
    """
    places = {each.tag: at for at, each in enumerate(instructions) if each.op is Op.RECV}
    ends = []
    for at, each in enumerate(instructions):
        if each.op is Op.SEND:
            crossing, mb = divmod(each.tag, most)
            answer = answers.get(crossing)
            if answer is None:
                ends.append(NEVER)
            else:
                ends.append(at if answer == crossing else places[answer * most + mb])
    return told(instructions, ends) or instructions
