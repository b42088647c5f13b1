"""Whether a step is a transaction: nothing changes a parameter before all ranks have all gradients."""

from __future__ import annotations

from collections.abc import Iterator

from .program import Op, RankProgram

LOCAL_END = frozenset({Op.OPTIMIZER, Op.PARAM_GATHER, Op.PARAM_DROP})
"""What may follow the sum of the loss. A gathering comes behind the update and only copies its result."""


def order_problems(own: RankProgram) -> Iterator[str]:
    """The sum of the loss over all ranks is the last meeting before the update.

    A rank that has passed it knows that every rank has its synchronised gradients, and can update alone: so
    whoever is left when a rank dies is at the same step, or can get there.
    """
    ops = [instruction.op for instruction in own.instructions]
    if Op.OPTIMIZER not in ops:
        return
    update, votes = ops.index(Op.OPTIMIZER), [at for at, op in enumerate(ops) if op is Op.LOSS]
    if ops.count(Op.OPTIMIZER) > 1:
        yield "more than one OPTIMIZER"
    if len(votes) != 1 or votes[0] > update:
        yield f"{len(votes)} LOSS, of which one stands before OPTIMIZER"
        return
    for at in range(votes[0] + 1, len(ops)):
        if ops[at] not in LOCAL_END or (ops[at] is Op.PARAM_GATHER and at < update):
            yield f"instruction {at} {ops[at].value} stands behind LOSS (instruction {votes[0]})"
