"""Names of our own operators in a graph; `own_operators` and `comm_marker` register them with PyTorch."""

from __future__ import annotations

from .graph import Row

COMM = "hspmd.comm.default"
COMM_BACKWARD = "hspmd.comm_backward.default"
ANCHOR = "hspmd.anchor.default"
ANCHOR_BACKWARD = "hspmd.anchor_backward.default"
OF_USERS = frozenset({COMM, COMM_BACKWARD})
ANCHORS = frozenset({ANCHOR, ANCHOR_BACKWARD})
NUMBER = "#"
"""Stands in the name of an anchor before the number of a call that is not its module's first of the kind."""
RANDOM_MASK = "hspmd.random_mask.default"
RANDOM_NUMBERS = "hspmd.random_numbers.default"
CHECKED = "hspmd.checked_index.default"
EXPERT_MM = "hspmd.expert_mm.default"
EXPERT_GRAD = "hspmd.expert_grad.default"
"""Each row times the matrix of its own expert, and the gradient of these matrices."""
PACKED = "hspmd.packed_attention.default"
PACKED_BACKWARD = "hspmd.packed_attention_backward.default"
MASKED = "aten.native_dropout_backward.default"
"""Its first operand times a mask and a scale: what dropout does, forward and backward."""


def is_marker(op: str) -> bool:
    """Whether the row operator is a marker or an anchor, of the forward or the backward half."""
    return op in OF_USERS or op in ANCHORS


def anchor_name(row: Row) -> str | None:
    """The name of the anchor that a row is, of the forward or the backward half; None for any other row."""
    return str(row.args[1]) if row.op in ANCHORS else None


def renamed_anchor(name: str, old: str, new: str) -> str:
    """The name that an anchor inside of the module `old` has where that module is called `new`."""
    rest = name.removeprefix(old)
    inside = name.startswith(old) and (not rest or rest[0] in f".{NUMBER}")
    return new + rest if inside else name
