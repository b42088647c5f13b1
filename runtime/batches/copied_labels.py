"""Whether a model on text would compare each token with itself: it learns to copy, and its loss looks fine.

Text gives labels that are the inputs. A causal language model shifts one of them; a masked one needs inputs
that are masked, and one from sequence to sequence needs pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from ...errors import RunError
from ...program.context.row_piece import RowPiece
from ...program.lifetimes import VIEW_OPS
from ...program.program import COMM, ClassProgram, InputKind, LocalRow, Segment, Value
from ..transport import Transport

LOOKUPS = {"aten.embedding.default": 1, "hspmd.vocab_embedding": 1}
"""The argument that holds the tokens."""
TARGETS = {
    "hspmd.nll_pick": 1,
    "hspmd.valid_count": 0,
    "aten.nll_loss_forward.default": 1,
    "aten.nll_loss2d_forward.default": 1,
    "aten.gather.default": 2,
}
"""The argument that holds what the loss compares with."""
IN_PLACE = VIEW_OPS | {
    COMM,
    "hspmd.checked_index",
    "aten.detach.default",
    "aten.reshape.default",
    "aten.clone.default",
    "aten._to_copy.default",
    "aten.expand.default",
    "aten.unsqueeze.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.permute.default",
    "aten.clamp.default",
    "aten.where.self",
    "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor",
}
"""Operators that leave each token at its place."""
HIDING = frozenset({"aten.where.self", "aten.masked_fill.Tensor", "aten.masked_fill.Scalar"})
"""Those by which a model may hide tokens from itself."""


def check_labels(
    shared: ClassProgram, transport: Transport, inputs: str, labels: str, piece: RowPiece | None = None
) -> None:
    """RunError on every rank where the tokens are looked up, and compared with, at the same places.

    piece: of samples, which may give this rank an input shifted.
    """
    shifted = {each.name for each in (() if piece is None else piece.shifts)}
    own = (
        inputs not in shifted
        and any(_reaches(segment, inputs, LOOKUPS, IN_PLACE - HIDING) for segment in shared.segments),
        labels not in shifted
        and any(_reaches(segment, labels, TARGETS, IN_PLACE) for segment in shared.segments),
    )
    with transport.call("text", meets=False):
        told = cast(list[tuple[bool, bool]], transport.gather_objects(own))
    if any(looked_up for looked_up, _ in told) and any(compared for _, compared in told):
        raise RunError(
            "--text would train this model to copy its input",
            details=[(inputs, "enters as it is"), (labels, "is compared token by token, at the same places")],
            rule=f"text gives {labels} equal to {inputs}: a model that predicts the next token shifts one of"
            " them by itself",
            fix="compile a causal language model, a ...ForCausalLM of transformers; or give inputs and labels"
            " that differ by --data module:factory",
        )


def _reaches(segment: Segment, name: str, ends: dict[str, int], passing: frozenset[str]) -> bool:
    """Whether a batch entry comes to one of these arguments, each token at its place."""
    there = {item.value for item in segment.inputs if item.kind is InputKind.DATA and item.name == name}
    for row in segment.rows:
        if row.op in ends and _argument(row, ends[row.op]) in there:
            return True
        if row.op in passing and any(value in there for value in _values(row)):
            there.add(row.out)
    return False


def _values(row: LocalRow) -> Iterator[Value]:
    return (item for item in row.args if isinstance(item, Value))


def _argument(row: LocalRow, index: int) -> Value | None:
    found = row.args[index] if index < len(row.args) else None
    return found if isinstance(found, Value) else None
