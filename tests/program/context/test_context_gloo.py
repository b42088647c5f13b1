"""The forms of context parallelism between processes: unlike degrees, a member without tokens, packed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from hspmd_compiler.base.comm_plan import CommKind, CommStep, Piece
from hspmd_compiler.base.context import ContextCut, ContextForm
from hspmd_compiler.program.codegen import compile_segment
from hspmd_compiler.program.context.forms import AttentionKind, ContextGroup
from hspmd_compiler.program.requests import Exchange, ExchangeStart, SegmentRun, comm_request
from hspmd_compiler.runtime.torch_transport import TorchDist
from tests.runtime.gloo_ranks import on_ranks

from .dense_attention import dense, drawn, starts_of, visible
from .together import RankPart, group_of, local, parts_of

DEGREES, HEADS, KV_HEADS, WIDTH = [2, 1, 1], 4, 2, 4
WORLD = (0, 1, 2, 3)
LENGTHS, DOCUMENTS = [[5, 0, 9], [1, 12, 4]], [[3, 8, 3], [17]]


def driven(
    run: SegmentRun[Tensor], part: RankPart, transport: TorchDist, kinds: list[type]
) -> tuple[Tensor, ...]:
    """A segment to its end, its requests answered. kinds: of these."""
    answer = None
    try:
        while True:
            slot, value, overwrite = run.send(answer)  # type: ignore[arg-type]
            step = part.comms[slot]
            assert step is not None
            request = comm_request(step, value, overwrite)
            kinds.append(type(request))
            answer = transport.answer(request)
    except StopIteration as end:
        outputs: tuple[Tensor, ...] = end.value
        return outputs


def check_form(form: ContextForm, group: ContextGroup, documents: list[int], transport: TorchDist) -> None:
    torch.manual_seed(1)
    total = sum(documents)
    q, grad = (drawn(1, HEADS, total, WIDTH) for _ in range(2))
    k, v = (drawn(1, KV_HEADS, total, WIDTH) for _ in range(2))
    whole = dense(q, k, v, grad, visible(total, documents, True, 0))
    at, rank = next(place for place in places(group) if place[0] == transport.rank)[1:]
    member = group.members[at]
    own, kv = member.heads[rank], member.kv_heads[rank]
    given: list[Tensor | None] = [local(x, heads, member.runs) for x, heads in ((q, own), (k, kv), (v, kv))]
    results: list[Tensor] = []
    for backward in (False, True):
        part = parts_of(form, group, backward)[transport.rank]
        inputs = [
            *given,
            starts_of(documents),
            *([local(grad, own, member.runs), *results] if backward else []),
        ]
        kinds: list[type] = []
        run = compile_segment(part.segment, part.literals, starts=True)(*inputs)
        results = list(driven(run, part, transport, kinds))
        assert (ExchangeStart in kinds) == (form is ContextForm.RING)
        wanted = (
            ((whole.dq, own), (whole.dk, kv), (whole.dv, kv))
            if backward
            else ((whole.out, own), (whole.lse, own))
        )
        for found, (each, heads) in zip(results, wanted, strict=True):
            torch.testing.assert_close(found, local(each, heads, member.runs), rtol=0, atol=1e-11)


def places(group: ContextGroup) -> Iterator[tuple[int, int, int]]:
    """(rank, member, place in the member)."""
    for at, member in enumerate(group.members):
        yield from ((rank, at, place) for place, rank in enumerate(member.ranks))


def check_all(transport: TorchDist) -> None:
    kind = AttentionKind(HEADS // KV_HEADS, WIDTH, WIDTH, dtype="float64")
    cases = product(ContextForm, ContextCut, zip(LENGTHS, DOCUMENTS, strict=True))
    for form, cut, (lengths, documents) in cases:
        check_form(form, group_of(DEGREES, lengths, HEADS, KV_HEADS, kind, cut), documents, transport)


def test_every_form_between_four_processes() -> None:
    on_ranks(4, [WORLD], check_all)


def check_start(transport: TorchDist) -> None:
    """Rank 1 starts when rank 0 has started, and rank 0 ends when rank 1 has: a start waits for nobody."""
    import torch.distributed as dist

    rank, other = transport.rank, 1 - transport.rank
    view, box = (1 << 20,), (((0, 1 << 20),),)
    step = CommStep(
        7,
        CommKind.SEND_RECV,
        (0, 1),
        src_view=view,
        dst_view=view,
        dst_shape=view,
        sends=(Piece(other, box),),
        recvs=(Piece(other, box),),
    )
    value = torch.full(view, float(rank))
    told = torch.zeros(1)
    if rank:
        dist.recv(told, 0)
    assert transport.answer(ExchangeStart(step, value)) is value
    if rank:
        dist.send(told, 0)
    else:
        dist.send(told, 1)
        dist.recv(told, 1)
    found = transport.answer(Exchange(step, value))
    assert found is not None and torch.equal(found, torch.full(view, float(other)))


def test_a_start_waits_for_nobody() -> None:
    on_ranks(2, [(0, 1)], check_start)


@pytest.mark.parametrize("starts", [True, False])
def test_a_driver_that_starts_nothing_sees_exchanges_only(starts: bool) -> None:
    kind = AttentionKind(1, WIDTH, WIDTH, dtype="float64")
    part = parts_of(ContextForm.RING, group_of([1, 1], [3, 4], 2, 2, kind), False)[0]
    empty = torch.zeros(1, 2, 3, WIDTH, dtype=torch.float64)
    run = compile_segment(part.segment, part.literals, starts=starts)(empty, empty, empty, None)
    assert (next(run)[2] is None) == starts
