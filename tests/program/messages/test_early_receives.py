"""Receives before their turn: each is posted once, in order, and no more than so many wait."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hspmd_compiler.program.messages.early_receives import early_receives
from hspmd_compiler.program.program import Instruction, Op

orders = st.lists(st.sampled_from((Op.FORWARD, Op.SEND, Op.RECV, Op.RECV)), max_size=20)


@settings(max_examples=200, deadline=None)
@given(orders, st.integers(0, 6))
def test_receives_are_posted_once_in_order_and_so_many_ahead(ops: list[Op], ahead: int) -> None:
    instructions = [Instruction(op, mb=0, tag=number) for number, op in enumerate(ops)]
    early = early_receives(instructions, ahead)
    posted: list[int] = []
    awaited: list[int] = []
    for at, each in enumerate(instructions):
        assert at not in early or each.op is Op.RECV
        if each.op is not Op.RECV:
            continue
        if each.tag not in posted:
            assert not ahead or not awaited, "only the first is posted at its turn"
            posted.append(each.tag)
        awaited.append(each.tag)
        posted += [later.tag for later in early.get(at, ())]
        left = len(instructions[at + 1 :]) and sum(one.op is Op.RECV for one in instructions[at + 1 :])
        assert len(posted) - len(awaited) == min(ahead, left)
    assert posted == awaited == [each.tag for each in instructions if each.op is Op.RECV]
