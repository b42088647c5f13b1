"""A sample of pairs through real processes that talk by gloo: every way, uneven and empty pieces too."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from hspmd_compiler.annotations import Annotation, parse_annotation
from hspmd_compiler.passes.resolve_annotations import Method, Resolution, resolve
from hspmd_compiler.runtime.start.processes import run_ranks
from hspmd_compiler.runtime.start.rank_process import Emit, LocalRank
from hspmd_compiler.runtime.start.rendezvous import listen, use_loopback
from hspmd_compiler.runtime.torch_transport import TorchDist

from ...annotations.pieces import pieces_of, whole_tensor
from .converted import run_steps
from .proof import COSTS, check_pieces

WORLD = (0, 1, 2, 3)
WAIT = timedelta(seconds=60)

TEXTS = (
    ("[0,1,2,3]  <S0x4>", "[0,1,2,3]  <S1x4>", (7, 5)),
    ("[0,1,2,3]  <S0x4>", "[3,2,1,0]  <S0x4>", (3, 5)),
    ("[0,1,2,3]  <S0x2 S1x2>", "[0,1,2,3]  <S1x2 S0x2>", (5, 7)),
    ("[0,1,2,3]  <Dx2 S0x2>", "[0,1,2,3]  <Dx4>", (5, 3)),
    ("[0,1,2,3]  <Dx4>", "[0,1,2,3]  <S0x4>", (2, 3)),
    ("[0,1,2,3]  <Px4>", "[0,1,2,3]  <Dx4>", (5, 3)),
    ("[0,1,2,3]  <Px4>", "[0,1,2,3]  <S0(3,0,1,1)>", (5, 3)),
    ("[0,1,2,3]  <Px2 S0x2>", "[0,1,2,3]  <S1x4>", (5, 7)),
    ("[0,1,2,3]  <Px4>", "[0,1,2,3]  <Px2 Dx2>", (5, 3)),
    ("[0,1 | 2]  <S0x2 | R>  hetero=partial", "[0,1 | 2]  <S0x2 | R>  hetero=dup", (5, 3)),
    ("[0,1 | 2 | 3]  <S0x2 | R | R>  hetero=partial", "[0,1 | 2 | 3]  <S0x2 | R | R>  hetero=dup", (8, 6)),
    ("[0,1 | 2,3]  <Px2 | Px2>  hetero=partial", "[0,1 | 2,3]  <S0x2 | S0x2>  hetero=dup", (8, 6)),
    ("[0,1 | 2,3]  <S1x2 | Dx2>  hetero=0(3,2)", "[2,3]  <S1x2>", (5, 3)),
    ("[3]  <R>", "[0,1,2]  <Dx3>", (64, 6)),
    ("[0]  <R>", "[1,2,3]  <S0x3>", (2, 3)),
    ("[0,1]  <Px2>", "[2,3]  <Dx2>", ()),
    ("[1,2]  <Px2>", "[1,0 | 2]  <S0x2 | R>  hetero=dup", (1,)),
    ("[0,1,2]  <Px3>", "[3]  <R>", (0, 3)),
)


def sample() -> list[Resolution]:
    """Each pair by each cost model."""
    found = []
    for before, after, shape in TEXTS:
        for cost in COSTS:
            source, target = parse_annotation(before), parse_annotation(after)
            found.append(resolve(source, target, shape, "float64", cost=cost))
    return found


def run_all(resolutions: list[Resolution], check: Callable[[int, Resolution, object], None]) -> None:
    """Run every plan on four connected ranks."""
    steps = [found.steps() for found in resolutions]
    groups = sorted({step.group for plan in steps for own in plan.values() for step in own})
    with listen() as listener:
        port = listener.getsockname()[1]

        def body(local: LocalRank, emit: Emit) -> None:
            torch.set_num_threads(1)
            use_loopback()
            own = os.dup(listener.fileno()) if local.rank == 0 else None
            store = dist.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", port, len(WORLD), local.rank == 0, WAIT, False, master_listen_fd=own
            )
            dist.init_process_group("gloo", store=store, rank=local.rank, world_size=len(WORLD), timeout=WAIT)
            transport = TorchDist(torch.device("cpu"), groups, WAIT)
            for found, plan in zip(resolutions, steps, strict=True):
                check(local.rank, found, converted(transport, found.source, plan, found.shape))
            dist.barrier()
            dist.destroy_process_group()

        run_ranks(WORLD, body, lambda record: None)


def converted(
    transport: TorchDist, source: Annotation, plan: dict[int, object], shape: tuple[int, ...]
) -> dict[int, torch.Tensor]:
    """What all ranks hold after their steps."""
    value = pieces_of(source, whole_tensor(shape)).get(transport.rank)
    run = run_steps(plan.get(transport.rank, ()), value)  # type: ignore[arg-type]
    try:
        request = next(run)
        while True:
            request = run.send(transport.answer(request))
    except StopIteration as end:
        own = end.value
    every = transport.gather_objects(own)
    return {rank: one for rank, one in zip(WORLD, every, strict=True) if isinstance(one, torch.Tensor)}


def check(rank: int, found: Resolution, after: object) -> None:
    assert isinstance(after, dict)
    check_pieces(found.source, found.target, whole_tensor(found.shape), after)


def test_pairs_over_gloo() -> None:
    resolutions = sample()
    taken = {part.method for found in resolutions for part in found.parts}
    assert {Method.LOCAL, Method.ALL_REDUCE, Method.DIRECT, Method.RELAY} <= taken
    run_all(resolutions, check)
