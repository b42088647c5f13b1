"""Every kind of communication over real gloo, uneven and empty too, against plain indexing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.distributed as dist

from hspmd_compiler.base.comm_plan import Box, Combine, CommKind, CommStep, GatherForm, GradBucket, Piece
from hspmd_compiler.errors import RunError
from hspmd_compiler.program import boxes
from hspmd_compiler.program.exchange_plan import ExchangePlan, Shortcut, gathered_sizes, scattered_sizes
from hspmd_compiler.program.requests import (
    AllReduce,
    Exchange,
    ExchangeStart,
    GradReduce,
    LossReduce,
    Recv,
    Send,
)
from hspmd_compiler.runtime.torch_transport import TorchDist

from .gloo_ranks import on_ranks

WORLD = (0, 1, 2)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


def on_three_ranks(check: Callable[[TorchDist], None], shortcuts: frozenset[int] = frozenset()) -> None:
    """Run `check(transport)` on three connected ranks."""
    on_ranks(3, [(0, 2), WORLD, (1,), (0, 2)], check, shortcuts)


def value_of(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (10 * torch.randn(shape, generator=generator)).to(dtype)


def uneven(kind: CommKind, combine: Combine, rank: int, dtype: torch.dtype, number: int) -> CommStep:
    """Rank r has r rows of 3; rank 0 wants all, 1 nothing, 2 the last column of all in two boxes, or sums."""
    name = str(dtype).removeprefix("torch.")
    starts = {0: 0, 1: 0, 2: 1}
    sends, recvs = [], []
    if rank:
        sends = [Piece(0, (((0, rank), (0, 3)),)), Piece(2, (((0, rank), (2, 3)), ((0, 1), (0, 1))))]
    view = {0: (3, 3), 1: None, 2: (3, 2)}[rank]
    for source in (1, 2):
        low, high = starts[source], starts[source] + source
        if rank == 0:
            rows: Box = ((low, high), (0, 3)) if combine is Combine.COPY else ((0, source), (0, 3))
            recvs.append(Piece(source, (rows,)))
        elif rank == 2:
            recvs.append(Piece(source, (((low, high), (0, 1)), ((source, source + 1), (1, 2)))))
    return CommStep(
        number,
        kind,
        WORLD,
        combine,
        (rank, 3) if rank else None,
        view,
        view,
        tuple(sends),
        tuple(recvs),
        dtype=name,
    )


def expected_of(steps: dict[int, CommStep], rank: int, dtype: torch.dtype) -> torch.Tensor | None:
    """What arrives, by cutting every source here."""
    if steps[rank].dst_view is None:
        return None
    arrived = {
        source: boxes.cut(steps[source], value_of(source, (source, 3), dtype))[rank] for source in (1, 2)
    }
    return boxes.paste(steps[rank], arrived, torch.empty(0, dtype=dtype))


def check_exchanges(transport: TorchDist) -> None:
    rank = transport.rank
    number = 0
    for dtype in DTYPES:
        for kind in (CommKind.ALL_TO_ALL, CommKind.SEND_RECV, CommKind.ALL_GATHER):
            for combine in (Combine.COPY, Combine.SUM):
                if combine is Combine.SUM and dtype is torch.bool:
                    continue
                number += 1
                steps = {each: uneven(kind, combine, each, dtype, number) for each in WORLD}
                source = value_of(rank, (rank, 3), dtype) if rank else None
                for _ in range(2):
                    answer = transport.answer(Exchange(steps[rank], source))
                    expected = expected_of(steps, rank, dtype)
                    assert (answer is None) == (expected is None)
                    assert answer is None or expected is None or torch.equal(answer, expected), (kind, dtype)


def test_uneven_exchanges() -> None:
    on_three_ranks(check_exchanges)


def check_reductions(transport: TorchDist) -> None:
    rank = transport.rank
    if rank != 1:
        step = CommStep(1, CommKind.ALL_REDUCE, (0, 2), Combine.MAX)
        transposed = value_of(rank, (2, 3), torch.float32).t()
        kept = transposed.clone()
        both = [value_of(each, (2, 3), torch.float32).t() for each in (0, 2)]
        assert torch.equal(transport.answer(AllReduce(step, transposed)), torch.maximum(*both))  # type: ignore[arg-type]
        assert torch.equal(transposed, kept)
    expanded = torch.ones(1).expand(4)
    total = transport.answer(AllReduce(CommStep(2, CommKind.ALL_REDUCE, WORLD, Combine.SUM), expanded, True))
    assert total is not None and total.tolist() == [3] * 4 and expanded.tolist() == [1] * 4
    alone = torch.ones(2)
    assert transport.answer(AllReduce(CommStep(3, CommKind.ALL_REDUCE, (rank,), Combine.SUM), alone)) is alone
    flat = torch.full((3,), float(rank))
    summed = transport.answer(GradReduce(GradBucket(0, WORLD, "float32", ()), flat))
    assert summed is not None and summed.tolist() == [3] * 3
    loss = transport.answer(LossReduce(torch.tensor(1.5 * rank, dtype=torch.float64)))
    assert loss is not None and float(loss) == 4.5


def test_reductions() -> None:
    on_three_ranks(check_reductions)


def check_announced_types(transport: TorchDist) -> None:
    """Nothing leaves a rank in another type than its receivers allocate."""
    piece = (Piece((transport.rank + 1) % 3, (((0, 4),),)),)
    send = CommStep(1, CommKind.SEND_RECV, WORLD, src_view=(4,), sends=piece)
    for request in (
        AllReduce(CommStep(2, CommKind.ALL_REDUCE, WORLD, Combine.SUM), torch.ones(4).double()),
        Exchange(send, torch.ones(4).double()),
        Send(send, torch.ones(4).double(), tag=1),
    ):
        with pytest.raises(RunError, match="has float64 to hand over where float32 is announced"):
            transport.answer(request)


def test_announced_types() -> None:
    on_three_ranks(check_announced_types)


def check_transfers(transport: TorchDist) -> None:
    """Both ends send before they receive, and receive in another order than was sent."""
    rank = transport.rank
    if rank == 1:
        transport.finish_sends()
        return
    peer = 2 - rank
    send = CommStep(1, CommKind.SEND_RECV, (0, 2), src_view=(4, 5), sends=(Piece(peer, (((0, 4), (1, 3)),)),))
    recv = CommStep(
        1,
        CommKind.SEND_RECV,
        (0, 2),
        dst_view=(4, 2),
        dst_shape=(8,),
        recvs=(Piece(peer, (((0, 4), (0, 2)),)),),
    )
    empty = CommStep(
        2, CommKind.SEND_RECV, (0, 2), src_view=(4, 5), sends=(Piece(peer, (((0, 0), (0, 5)),)),)
    )
    for mb in range(5):
        transport.answer(Send(send, value_of(rank + 10 * mb, (4, 5), torch.float32), tag=mb))
    transport.answer(Send(empty, torch.zeros(4, 5), tag=9))
    for mb in reversed(range(5)):
        answer = transport.answer(Recv(recv, tag=mb))
        expected = value_of(peer + 10 * mb, (4, 5), torch.float32)[:, 1:3].reshape(-1)
        assert answer is not None and torch.equal(answer, expected)
    transport.finish_sends()


def test_transfers() -> None:
    on_three_ranks(check_transfers)


class Told:
    """A message that says that it has left once it was told so."""

    def __init__(self, work: object, left: set[int]) -> None:
        self.work, self.left, self.waited = work, left, 0

    def is_completed(self) -> bool:
        return id(self) in self.left

    def wait(self) -> None:
        self.waited += 1
        self.work.wait()  # type: ignore[attr-defined]


def check_what_is_kept(transport: TorchDist) -> None:
    """Messages go when they are known to have left, the oldest first; all others stay, and arrive."""
    rank, peer = transport.rank, 2 - transport.rank
    if rank == 1:
        return
    view, box = (4,), (((0, 4),),)
    send = CommStep(1, CommKind.SEND_RECV, (0, 2), src_view=view, sends=(Piece(peer, box),))
    recv = CommStep(1, CommKind.SEND_RECV, (0, 2), dst_view=view, dst_shape=view, recvs=(Piece(peer, box),))
    left: set[int] = set()
    told: list[Told] = []
    isend = dist.isend

    def told_send(*given: object) -> Told:
        told.append(Told(isend(*given), left))  # type: ignore[arg-type]
        return told[-1]

    dist.isend = told_send  # type: ignore[assignment]
    kept = []
    for mb in range(4):
        transport.answer(Send(send, torch.full(view, float(10 * rank + mb)), tag=mb))
        kept.append(transport.kept_sends)
    for mb in range(4):
        if mb == 2:
            left |= {id(told[0]), id(told[1]), id(told[3])}
        answer = transport.answer(Recv(recv, tag=mb))
        assert answer is not None and answer.tolist() == [10 * peer + mb] * 4
        kept.append(transport.kept_sends)
    assert kept == [1, 2, 3, 4, 4, 4, 2, 2]
    transport.finish_sends()
    assert transport.kept_sends == 0 and [each.waited for each in told] == [1] * 4


def check_what_a_program_knows(transport: TorchDist) -> None:
    """Gloo does not tell what has left: what the program says to be received goes, the rest stays."""
    rank, peer = transport.rank, 2 - transport.rank
    if rank == 1:
        return
    view, box = (4,), (((0, 4),),)
    send = CommStep(1, CommKind.SEND_RECV, (0, 2), src_view=view, sends=(Piece(peer, box),))
    recv = CommStep(1, CommKind.SEND_RECV, (0, 2), dst_view=view, dst_shape=view, recvs=(Piece(peer, box),))
    for _ in range(2):
        kept = []
        for mb, over in enumerate((-1, 1, -1, 3)):
            transport.answer(Send(send, torch.full(view, float(mb)), tag=mb))
            answer = transport.answer(Recv(recv, tag=mb, over=over))
            assert answer is not None and answer.tolist() == [mb] * 4
            kept.append(transport.kept_sends)
        assert kept == [1, 1, 2, 1]
        transport.finish_sends()
        assert transport.kept_sends == 0


def check_posted_ahead(transport: TorchDist) -> None:
    """A message leaves while its receiver is elsewhere, if its receive is posted; and arrives as it is."""
    rank, peer = transport.rank, 2 - transport.rank
    if rank == 1:
        return
    view, box = (1 << 16,), (((0, 1 << 16),),)
    send = CommStep(1, CommKind.SEND_RECV, (0, 2), src_view=view, sends=(Piece(peer, box),))
    recv = CommStep(1, CommKind.SEND_RECV, (0, 2), dst_view=view, dst_shape=view, recvs=(Piece(peer, box),))
    if rank == 0:
        for mb in range(3):
            transport.answer(Send(send, torch.full(view, float(mb)), tag=mb))
        transport.finish_sends()  # gloo's end with what the receiver has posted
        transport.send_run(torch.ones(1), peer)
        transport.finish_sends()
        return
    answers = [transport.answer(Recv(recv, 0, ahead=((recv, 1), (recv, 2))))]
    assert transport.recv_run(1, torch.float32, peer).tolist() == [1]  # its sends are over
    answers += [transport.answer(Recv(recv, 1)), transport.answer(Recv(recv, 2))]
    assert [answer is not None and answer.unique().tolist() for answer in answers] == [[0], [1], [2]]


def test_receives_are_posted_ahead() -> None:
    on_three_ranks(check_posted_ahead)


def test_messages_that_are_surely_received_are_let_go() -> None:
    on_three_ranks(check_what_a_program_knows)


def test_messages_that_have_left_are_let_go() -> None:
    on_three_ranks(check_what_is_kept)


def even(kind: CommKind, rank: int, number: int) -> CommStep:
    """An all-gather or reduce-scatter of equal pieces of two elements."""
    own: Box = ((2 * rank, 2 * rank + 2),)
    whole: Box = ((0, 2),)
    if kind is CommKind.ALL_GATHER:
        sends = tuple(Piece(peer, (whole,)) for peer in WORLD)
        recvs = tuple(Piece(peer, (((2 * peer, 2 * peer + 2),),)) for peer in WORLD)
        return CommStep(number, kind, WORLD, Combine.COPY, (2,), (6,), (3, 2), sends, recvs)
    assert own
    sends = tuple(Piece(peer, (((2 * peer, 2 * peer + 2),),)) for peer in WORLD)
    recvs = tuple(Piece(peer, (whole,)) for peer in WORLD)
    return CommStep(number, kind, WORLD, Combine.SUM, (6,), (2,), (1, 2), sends, recvs)


def check_shortcuts(transport: TorchDist) -> None:
    for kind, size in ((CommKind.ALL_GATHER, 2), (CommKind.REDUCE_SCATTER, 6)):
        source = value_of(transport.rank, (size,), torch.float32)
        by_collective = transport.answer(Exchange(even(kind, transport.rank, 1), source))
        by_splits = transport.answer(Exchange(even(kind, transport.rank, 2), source))
        assert by_collective is not None and by_splits is not None
        torch.testing.assert_close(by_collective, by_splits)
        assert by_collective.shape == ((3, 2) if size == 2 else (1, 2))


def test_shortcuts_do_the_same() -> None:
    on_three_ranks(check_shortcuts, frozenset({1}))


def gathering(lengths: tuple[int, ...], rank: int, form: GatherForm, dtype: torch.dtype) -> CommStep:
    """Rank r's rows of 2 go to all, in two boxes; the last ranks' rows come first."""
    length, whole = lengths[rank], sum(lengths)
    boxes_of = [((0, length), (column, column + 1)) for column in range(2)]
    sends = tuple(Piece(peer, tuple(boxes_of)) for peer in WORLD) if length else ()
    recvs, low = [], whole
    for peer in WORLD:
        low -= lengths[peer]
        rows = (low, low + lengths[peer])
        recvs.append(Piece(peer, ((rows, (0, 1)), (rows, (1, 2)))))
    name = str(dtype).removeprefix("torch.")
    number = 100 + list(GatherForm).index(form)
    view = (whole, 2)
    source = (length, 2)
    return CommStep(
        number,
        CommKind.ALL_GATHER,
        WORLD,
        Combine.COPY,
        source,
        view,
        view,
        sends,
        tuple(recvs),
        "",
        name,
        form,
    )


def check_forms(transport: TorchDist) -> None:
    for lengths, dtype in product(((3, 1, 2), (0, 4, 1), (0, 0, 2), (0, 0, 0)), DTYPES):
        values = [value_of(rank, (length, 2), dtype) for rank, length in enumerate(lengths)]
        for form in GatherForm:
            step = gathering(lengths, transport.rank, form, dtype)
            assert gathered_sizes(step) == tuple(2 * length for length in lengths)
            for starts in (False, True):
                own = values[transport.rank]
                if starts:  # and nothing else has been waited for
                    assert transport.answer(ExchangeStart(step, own)) is own
                found = transport.answer(Exchange(step, own))
                assert found is not None and found.equal(torch.cat(values[::-1]))


def test_every_form_gathers_unequal_pieces() -> None:
    on_three_ranks(check_forms)


def scattering(lengths: tuple[int, ...], rank: int, form: GatherForm, dtype: torch.dtype) -> CommStep:
    """Rank r sums its rows of 2, in two boxes; the last ranks' rows come first."""
    whole, ends = sum(lengths), [sum(lengths[at:]) for at in WORLD]
    sends = []
    for peer in WORLD:
        rows = (ends[peer] - lengths[peer], ends[peer])
        sends.append(Piece(peer, ((rows, (0, 1)), (rows, (1, 2)))))
    length = lengths[rank]
    held = (((0, length), (0, 1)), ((0, length), (1, 2)))
    view = (length, 2)
    return CommStep(
        110 + list(GatherForm).index(form),
        CommKind.REDUCE_SCATTER,
        WORLD,
        Combine.SUM,
        (whole, 2),
        view if length else None,
        view if length else None,
        tuple(sends),
        tuple(Piece(peer, held) for peer in WORLD) if length else (),
        "",
        str(dtype).removeprefix("torch."),
        form,
    )


def check_scattered(transport: TorchDist) -> None:
    for lengths, dtype in product(((3, 1, 2), (0, 4, 1), (0, 0, 2)), (torch.float32, torch.float64)):
        values = [value_of(rank, (sum(lengths), 2), dtype) for rank in WORLD]
        high = sum(lengths[transport.rank :])
        wanted = sum(values)[high - lengths[transport.rank] : high]
        for form in (GatherForm.ALL_TO_ALL, GatherForm.PADDED):
            step = scattering(lengths, transport.rank, form, dtype)
            assert scattered_sizes(step) == tuple(2 * length for length in lengths)
            found = transport.answer(Exchange(step, values[transport.rank]))
            assert (found is None) == (not lengths[transport.rank])
            if found is not None:
                torch.testing.assert_close(found, wanted)


def test_sums_of_unequal_lengths_are_scattered_in_either_form() -> None:
    on_three_ranks(check_scattered)


def test_which_steps_gather() -> None:
    for rank in WORLD:
        assert gathered_sizes(even(CommKind.ALL_GATHER, rank, 1)) == (2, 2, 2)
        assert gathered_sizes(even(CommKind.REDUCE_SCATTER, rank, 1)) is None
        step = uneven(CommKind.ALL_GATHER, Combine.COPY, rank, torch.float32, 1)
        assert (gathered_sizes(step) is None) == (rank > 0)  # who sends nothing can't tell


def test_which_steps_have_shortcuts() -> None:
    for rank in WORLD:
        assert ExchangePlan.of(even(CommKind.ALL_GATHER, rank, 1)).shortcut is Shortcut.ALL_GATHER
        assert ExchangePlan.of(even(CommKind.REDUCE_SCATTER, rank, 1)).shortcut is Shortcut.REDUCE_SCATTER
        step = uneven(CommKind.ALL_GATHER, Combine.COPY, rank, torch.float32, 1)
        assert ExchangePlan.of(step).shortcut is Shortcut.NONE
