"""Forms inside whole programs: references, shapes and values of a step, all ranks in lockstep."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from hspmd_compiler.base.comm_plan import CommStep
from hspmd_compiler.base.context import ContextCut, ContextForm
from hspmd_compiler.program.check import problems_of_program
from hspmd_compiler.program.context.forms import AttentionKind, ContextGroup, Numbering, Operands
from hspmd_compiler.program.context.rows import attention_rows, step_count
from hspmd_compiler.program.program import (
    COMM_START,
    Argument,
    ClassProgram,
    Hole,
    InputKind,
    Instruction,
    LocalRow,
    Op,
    OutputKind,
    Program,
    RankProgram,
    Segment,
    SegmentInput,
    SegmentOutput,
    Value,
)
from hspmd_compiler.verify.shape.fit import check_fit
from hspmd_compiler.verify.values import lockstep_step, start_ranks

from .dense_attention import dense, drawn, visible
from .together import group_of

HEADS, WIDTH = 6, 4
LENGTHS = [5, 0, 9]


class MemberProgram:
    """One member's class, whose step is attention of its own part of the inputs and a loss of all results.

    The gradient of the output is the output; the loss has the squares of the output, halved, and of the
    gradients of q, k and v.
    """

    def __init__(self, form: ContextForm, group: ContextGroup, number: int) -> None:
        self.member = group.members[number]
        self._fresh = map(Value, count())
        self.literals: list[list[Argument]] = [[] for _ in self.member.ranks]
        self.comms: list[list[CommStep]] = [[] for _ in self.member.ranks]
        given = [next(self._fresh) for _ in "qkv"]
        rows: list[LocalRow] = []
        q, k, v = (self._own(rows, value) for value in given)
        out, lse = self._attention(form, group, number, Operands(q, k, v), 0, rows)
        loss = self._squares(rows, out, 0.5)
        inputs = [SegmentInput(InputKind.DATA, value, name) for value, name in zip(given, "qkv", strict=True)]
        kept = [SegmentOutput(OutputKind.MICRO, value) for value in (q, k, v, out, lse)]
        forward = Segment("forward", inputs, rows, [SegmentOutput(OutputKind.LOSS, loss), *kept])
        rows = []
        operands = Operands(q, k, v, None, out, out, lse)
        found = self._attention(
            form, group, number, operands, step_count(form, len(group.members), False), rows
        )
        losses = [SegmentOutput(OutputKind.LOSS, self._squares(rows, value, 1.0)) for value in found]
        read = [SegmentInput(InputKind.MICRO, value) for value in (q, k, v, out, lse)]
        self.name = f"c{number}"
        self.made = ClassProgram(self.name, [forward, Segment("backward", read, rows, losses)])

    def _own(self, rows: list[LocalRow], value: Value) -> Value:
        for own, heads in zip(self.literals, self.member.heads, strict=True):
            own.append((heads,))
        heads_of, taken = next(self._fresh), next(self._fresh)
        rows.append(LocalRow(heads_of, "hspmd.take", (value, 1, Hole(len(self.literals[0]) - 1))))
        rows.append(LocalRow(taken, "hspmd.take", (heads_of, 2, self.member.runs)))
        return taken

    def _attention(
        self,
        form: ContextForm,
        group: ContextGroup,
        number: int,
        operands: Operands,
        first: int,
        rows: list[LocalRow],
    ) -> tuple[Value, ...]:
        numbers = Numbering(lambda: next(self._fresh), len(self.comms[0]), len(self.literals[0]), first)
        made = attention_rows(form, group, number, operands, numbers)
        rows += made.rows
        for own, steps in zip(self.comms, made.steps, strict=True):
            own += steps
        for held, literals in zip(self.literals, made.literals, strict=True):
            held += literals
        return made.outputs

    def _squares(self, rows: list[LocalRow], value: Value, factor: float) -> Value:
        square, total, loss = (next(self._fresh) for _ in range(3))
        rows.append(LocalRow(square, "aten.mul.Tensor", (value, value)))
        rows.append(LocalRow(total, "aten.sum.default", (square,)))
        rows.append(LocalRow(loss, "aten.mul.Scalar", (total, factor)))
        return loss

    def ranks(self, number: int) -> list[RankProgram]:
        """Of its ranks."""
        steps = [Instruction(Op.FORWARD, segment=0, mb=0), Instruction(Op.BACKWARD, segment=1, mb=0)]
        ends = [Instruction(Op.GRAD_SYNC), Instruction(Op.LOSS), Instruction(Op.OPTIMIZER)]
        tables = zip(self.member.ranks, self.literals, self.comms, strict=True)
        return [
            RankProgram(*place, self.name, "cpu", [(0, 2)], literals, comms, [], [], [], [*steps, *ends])
            for place, literals, comms in (
                ((rank, rank, number, 0, at), *own) for at, (rank, *own) in enumerate(tables)
            )
        ]


def program_of(form: ContextForm, cut: ContextCut) -> Program:
    kind = AttentionKind(1, WIDTH, WIDTH, samples=2, dtype="float64")
    group = group_of([2, 1, 3], LENGTHS, HEADS, HEADS, kind, cut)
    members = [MemberProgram(form, group, number) for number in range(len(LENGTHS))]
    inputs = {name: ((2, HEADS, sum(LENGTHS), WIDTH), "float64") for name in "qkv"}
    ranks = [own for number, member in enumerate(members) for own in member.ranks(number)]
    classes = {member.name: member.made for member in members}
    groups = sorted({step.group for own in ranks for step in own.comms if len(step.group) > 1})
    return Program(len(ranks), 2, inputs, {}, classes, ranks, groups)


@pytest.mark.parametrize("form", ContextForm)
@pytest.mark.parametrize("cut", ContextCut)
def test_a_step_of_whole_programs(form: ContextForm, cut: ContextCut) -> None:
    program = program_of(form, cut)
    assert list(problems_of_program(program)) == []
    report = check_fit(program)
    q, k, v = (drawn(2, HEADS, sum(LENGTHS), WIDTH) for _ in range(3))
    seen = visible(sum(LENGTHS), None, True, 0)
    zero = dense(q, k, v, torch.zeros_like(q), seen)
    whole = dense(q, k, v, zero.out, seen)
    wanted = zero.out.square().sum() / 2 + sum(each.square().sum() for each in (whole.dq, whole.dk, whole.dv))
    loss, events = lockstep_step(start_ranks(program, {}), {"q": q, "k": k, "v": v}, None)
    assert loss == pytest.approx(float(wanted), rel=1e-12)
    assert len(events) == len(report.events)
    rows = [row.op for shared in program.classes.values() for each in shared.segments for row in each.rows]
    assert (COMM_START in rows) == (form is ContextForm.RING)
