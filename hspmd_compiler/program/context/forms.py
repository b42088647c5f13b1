"""Context-parallel attention as values: the members of a group, and what a form makes of one attention row.

A member is one stage of one pipeline. Its ranks share the heads, all have its tokens. Every rank holds q
[samples, heads, tokens, width], k and v [samples, kv heads, tokens, width] of its own; what it gets are the
output and the log-sum-exp of its own queries, and from these, in the backward pass, the gradients of its own
q, k and v. Heads of keys and values that several ranks of a member hold are alike on all of them, and the sum
of their gradients is the gradient: it is pending over these ranks, as it is without other members.

`rows.attention_rows(form, group, member, operands, numbering)` gives the rows. Every member runs the same
steps in the same order, so that segments of members meet. Numbers of a row that differ between the ranks of
a member are holes; numbers of tokens are plain, and become sizes where programs of several lengths are
compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...base.comm_plan import CommStep, Interval
from ..program import Argument, LocalRow, Value


@dataclass(frozen=True, slots=True)
class ContextMember:
    """One member: a stage's ranks.

    heads, kv_heads: of each rank, of all of the operator's heads; the key-value heads, counted before they
    are repeated, include those that its query heads read, and are just these where k and v are repeated.
    runs: the member's tokens, ascending runs of the whole row; empty runs are fine.
    """

    ranks: tuple[int, ...]
    heads: tuple[Interval, ...]
    kv_heads: tuple[Interval, ...]
    runs: tuple[Interval, ...]

    @property
    def tokens(self) -> int:
        """How many tokens it has."""
        return sum(high - low for low, high in self.runs)


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """What all members compute.

    repeat: query heads that read one head of keys and values. width, value_width: of a head. causal: a query
    sees no later token; in any case none of another document. window: a causal query sees so many tokens, its
    own the last; 0: all. scale: None: 1 / sqrt(width). samples: rows of the micro-batch. dtype: of q, k, v.
    repeated: k and v come with a head for each query head, of which `repeat` one after the other are alike:
    one of them is moved, and given all of their gradient.
    """

    repeat: int
    width: int
    value_width: int
    causal: bool = True
    window: int = 0
    scale: float | None = None
    samples: int = 1
    dtype: str = "float32"
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class ContextGroup:
    """Members that hold the pieces of a row, and what they compute of them.

    spread: for HEADS, the query heads that each of `ranks` attends with; none: as even as whole groups of one
    key-value head go, or heads where ranks outnumber these.
    """

    members: tuple[ContextMember, ...]
    kind: AttentionKind
    spread: tuple[Interval, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, ascending: the group of every step."""
        return tuple(sorted(rank for member in self.members for rank in member.ranks))


@dataclass(frozen=True, slots=True)
class Operands:
    """What attention reads.

    documents: a value of the host, for each token of the whole row the place where its document begins (int64
    [1 or samples, tokens of the row]), the same on all members; None: the row is one document.
    grad, out, lse: of the backward pass.
    """

    q: Value
    k: Value
    v: Value
    documents: Value | None = None
    grad: Value | None = None
    out: Value | None = None
    lse: Value | None = None


@dataclass(frozen=True, slots=True)
class Numbering:
    """Where new things get their numbers.

    slot, hole: the first free ones among the comms and the literals of each rank of the member. step: id of
    the first step, alike on all members of the group.
    """

    fresh: Callable[[], Value]
    slot: int
    hole: int
    step: int


@dataclass(slots=True)
class ContextRows:
    """What the ranks of one member run in place of an attention row.

    outputs: (out, lse) of the forward pass; (dq, dk, dv) of the backward pass, all values of `rows`. steps:
    by rank of the member, one for each new slot; a member may have fewer than `rows.step_count`. literals:
    by rank, one for each new hole.
    """

    rows: list[LocalRow]
    outputs: tuple[Value, ...]
    steps: tuple[tuple[CommStep, ...], ...]
    literals: tuple[tuple[Argument, ...], ...]
