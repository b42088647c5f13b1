"""Where numbers of the model itself stop being finite: no program can be proved by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import VerifyError
from ..ir.graph import LogicalGraph, OriginKind, Row, row_inputs
from ..ir.printer import operator_text
from ..program.segments import Observation
from .eager import EagerResult
from .single_device import single_device_program
from .values import simulate
from .widen import widen_program, widened

FIX = (
    "verify on data that the model is made for: --data MODULE:FACTORY, in Python batch={...}; if eager isn't"
    " finite on that either, mend the model (a sqrt or log on the other side of a torch.where gives it in"
    " backward)"
)


class EagerNotFinite(VerifyError):
    """The eager model's loss or a gradient is infinite or no number. state: what that step began with."""

    def __init__(self, step: int, found: str, state: Mapping[str, Tensor]) -> None:
        self.step, self.state = step, state
        super().__init__(f"eager's own {found} of step {step} is not finite", rule=RULE, fix=FIX)


RULE = "numbers are compared with eager's, and nothing is proved where those are infinite or no numbers"


def check_finite(expected: EagerResult, step: int, state: Mapping[str, Tensor]) -> None:
    """Raise EagerNotFinite for what eager computed in a step, counted from 1."""
    if not torch.tensor(expected.loss).isfinite():
        raise EagerNotFinite(step, f"loss ({expected.loss})", state)
    lost = [name for name, grad in expected.grads.items() if not grad.isfinite().all()]
    if lost:
        raise EagerNotFinite(step, f"gradient of {lost[0]}", state)


def explained(
    error: EagerNotFinite,
    graph: LogicalGraph,
    batch: Mapping[str, Tensor],
    inputs: Sequence[tuple[str, str]],
) -> VerifyError:
    """The same error with the first operator whose result isn't finite, and with what it was given."""
    seen = _Seen({}, {})
    wide = {name: widened(value) for name, value in batch.items()}
    simulate(widen_program(single_device_program(graph)), error.state, [wide], observe=seen.observe)
    row = seen.first(graph)
    told = [] if row is None else [("first", _text(row)), *seen.operands(graph, row)]
    drawn = [(f"input {name}", text) for name, text in inputs]
    return VerifyError(
        error.what, at="" if row is None else row.where, details=[*told, *drawn], rule=RULE, fix=FIX
    )


@dataclass(slots=True)
class _Seen:
    """Of each row, whether it has numbers that are none, or infinite; and its range."""

    kinds: dict[int, tuple[bool, bool]]
    ranges: dict[int, str]

    def observe(self, seen: Observation) -> None:
        """Kept as they come: later rows may overwrite memory."""
        value = seen.result
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return
        self.kinds[seen.row.out.id] = (bool(value.isnan().any()), bool(value.isinf().any()))
        if value.numel() and not value.is_complex():
            self.ranges[seen.row.out.id] = f"{float(value.min()):.4g} to {float(value.max()):.4g}"

    def first(self, graph: LogicalGraph) -> Row | None:
        """The first row with no numbers; else the first that is infinite where its operands are not."""
        rows = [row for row in graph.rows if row.id in self.kinds]
        lost = next((row for row in rows if self.kinds[row.id][0]), None)
        return lost or next((row for row in rows if self._overflows(row)), None)

    def _overflows(self, row: Row) -> bool:
        operands = [self.kinds.get(operand, (False, False)) for operand in row_inputs(row)]
        return self.kinds[row.id][1] and bool(operands) and not any(infinite for _, infinite in operands)

    def operands(self, graph: LogicalGraph, row: Row) -> list[tuple[str, str]]:
        """What the row was computed of."""
        found = [graph.rows[operand] for operand in dict.fromkeys(row_inputs(row))]
        return [("of", f"{_text(each)}: {self.ranges[each.id]}") for each in found if each.id in self.ranges]


def _text(row: Row) -> str:
    if row.origin.kind is not OriginKind.ACTIVATION:
        return f"{row.origin.kind.value} {row.origin.name}"
    place = row.module or "the model"
    return f"{operator_text(row.op)} in {place}, {row.phase.name.lower()}"
