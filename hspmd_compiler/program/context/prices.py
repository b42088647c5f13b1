"""What each form of an attention costs its group: seconds of both passes, bytes moved, and memory.

Seconds are those of the slowest: a hop of a ring takes as long as its transfers or as what is computed
meanwhile, whichever is longer; the other forms compute when all has come. Scores are counted as if a row were
one document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from ...base.comm_plan import CommStep, CostModel, Interval, Traffic
from ...base.context import ContextForm
from ...base.dtypes import BYTES
from ..boxes import sent_volumes
from ..kernels.visible_blocks import visible_blocks
from ..program import Value
from .forms import ContextGroup, ContextMember, Numbering, Operands
from .heads_form import spread_of
from .ring_form import Ring
from .row_writer import all_runs
from .rows import attention_rows

PRODUCTS = (2, 5)
"""Of matrices, forward and backward."""
GIVEN = tuple(map(Value, range(6)))


@dataclass(frozen=True, slots=True)
class FormPrice:
    """seconds: of both passes. moved_bytes: between ranks, of both. held_bytes: of keys, values and their
    gradients (HEADS: queries and output too), the most that comes to one rank and is held at once."""

    seconds: float
    moved_bytes: int
    held_bytes: int


def form_prices(
    group: ContextGroup, cost: CostModel, flop_s: Mapping[int, float] | float = 0.0
) -> dict[ContextForm, FormPrice]:
    """Of every form. flop_s: seconds of an operation of attention, of each rank or of all."""
    rates = flop_s if isinstance(flop_s, Mapping) else dict.fromkeys(group.ranks, flop_s)
    return {form: _price(form, group, cost, rates) for form in ContextForm}


def cheapest_form(prices: Mapping[ContextForm, FormPrice]) -> ContextForm:
    """The one of fewest seconds; of those alike the one that holds least."""
    return min(prices, key=lambda form: (prices[form].seconds, prices[form].held_bytes))


def form_steps(form: ContextForm, group: ContextGroup, backward: bool) -> dict[int, dict[int, CommStep]]:
    """Of one pass, by number of the step and by rank."""
    found: dict[int, dict[int, CommStep]] = {}
    q, k, v, *rest = GIVEN
    given = Operands(q, k, v, None, *rest) if backward else Operands(q, k, v)
    for number, member in enumerate(group.members):
        fresh = partial(next, map(Value, count(len(GIVEN))))
        rows = attention_rows(form, group, number, given, Numbering(fresh, 0, 0, 0))
        for rank, steps in zip(member.ranks, rows.steps, strict=True):
            for step in steps:
                found.setdefault(step.id, {})[rank] = step
    return found


def step_volumes(members: Mapping[int, CommStep]) -> dict[tuple[int, int], int]:
    """Bytes of a step from rank to rank."""
    return {
        (rank, peer): size * BYTES[step.dtype]
        for rank, step in members.items()
        for peer, size in sent_volumes(step).items()
        if peer != rank and size
    }


def _price(form: ContextForm, group: ContextGroup, cost: CostModel, flop_s: Mapping[int, float]) -> FormPrice:
    seconds, moved = 0.0, 0
    for backward in (False, True):
        moves_s: dict[int, float] = {}
        for number, steps in form_steps(form, group, backward).items():
            volumes, one = step_volumes(steps), next(iter(steps.values()))
            moves_s[number] = cost.comm_s([Traffic(one.kind, one.group, volumes)]) if volumes else 0.0
            moved += sum(volumes.values())
        if form is ContextForm.RING:
            seconds += _ring_s(group, moves_s, flop_s, backward)
        else:
            seconds += sum(moves_s.values()) + max(_computed(form, group, flop_s, backward), default=0.0)
    return FormPrice(seconds, moved, _held_bytes(form, group))


def _ring_s(
    group: ContextGroup, moves_s: Mapping[int, float], flop_s: Mapping[int, float], backward: bool
) -> float:
    """Hop by hop. Gradients of a hop are under way in the next."""
    ring, total = Ring(group), 0.0
    for hop in range(ring.size):
        held = [(number, ring.block(number, hop)) for number in range(ring.size)]
        computed = [
            _attention_s(member, ring.runs(block), flop_s, group, backward)
            for member, block in ((group.members[number], block) for number, block in held)
            if block is not None
        ]
        coming = moves_s.get(hop, 0.0) if hop < ring.size - 1 else 0.0
        going = moves_s.get(ring.size - 1 + hop - 2, 0.0) if backward and hop > 1 else 0.0
        total += max(*computed, coming + going)
    last = moves_s.get(2 * (ring.size - 1) - 1, 0.0) if backward and ring.size > 1 else 0.0
    return total + last


def _computed(
    form: ContextForm, group: ContextGroup, flop_s: Mapping[int, float], backward: bool
) -> Iterator[float]:
    runs = all_runs(group)
    if form is ContextForm.GATHER:
        yield from (_attention_s(member, runs, flop_s, group, backward) for member in group.members)
        return
    whole = ContextMember(group.ranks, spread_of(group), (), runs)
    yield _attention_s(whole, runs, flop_s, group, backward)


def _attention_s(
    member: ContextMember,
    keys: Sequence[Interval],
    flop_s: Mapping[int, float],
    group: ContextGroup,
    backward: bool,
) -> float:
    """Of the slowest rank of a member, over the keys of some runs."""
    kind = group.kind
    blocks = visible_blocks(member.runs, keys, None, kind.causal, kind.window)
    each = sum(block.pairs for block in blocks) * kind.samples * 2 * PRODUCTS[backward] * kind.width
    heads = zip(member.ranks, member.heads, strict=True)
    return max((each * (high - low) * flop_s[rank] for rank, (low, high) in heads), default=0.0)


def _held_bytes(form: ContextForm, group: ContextGroup) -> int:
    """Of the rank that holds most."""
    kind = group.kind
    width, each = kind.width + kind.value_width, kind.samples * BYTES[kind.dtype]
    whole = sum(member.tokens for member in group.members)
    if form is ContextForm.HEADS:
        heads = max(high - low for low, high in spread_of(group))
        kv_heads = -(-heads // kind.repeat)
        return each * whole * width * 2 * (heads + kv_heads)
    heads = max(high - low for member in group.members for low, high in member.kv_heads)
    tokens = whole if form is ContextForm.GATHER else 2 * max(member.tokens for member in group.members)
    return each * heads * tokens * width * 2
