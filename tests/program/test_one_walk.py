"""Tensors, shapes and nodes of a graph go through one walk: the same instructions, asked for the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hspmd_compiler as hspmd
from hspmd_compiler.errors import HspmdError
from hspmd_compiler.program import execute
from hspmd_compiler.program.execute import ACTIONS, InstructionRun, Walk, plan_ranks
from hspmd_compiler.program.fx.to_fx import rank_module
from hspmd_compiler.program.program import Instruction, Op, Program
from hspmd_compiler.runtime.torch_transport import of_process_group
from hspmd_compiler.strategy.strategy import PipelineSpec, StageSpec, Strategy
from hspmd_compiler.verify.shape.fit import check_fit
from hspmd_compiler.verify.shape.shape_segments import ShapeBook
from hspmd_compiler.verify.shape.solo import solo
from hspmd_compiler.verify.values import lockstep_step, simulate, start_ranks

from .rank_arguments import rank_arguments

WIDTH, SAMPLES = 6, 3
STAGES = Strategy(
    (
        PipelineSpec((StageSpec((0, 1), (0, 2)), StageSpec((2,), (2, 3))), (1, 1)),
        PipelineSpec((StageSpec((3,), (0, 3)),), (1,)),
    )
)
ALONE = Strategy((PipelineSpec((StageSpec((0,), (0, 3)),), (2, 1)),))
Log = dict[int, list[tuple[object, ...]]]
"""By rank, what a walk did."""


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().mean()


def compiled(strategy: Strategy) -> Program:
    example = {"x": torch.zeros(SAMPLES, WIDTH)}
    return hspmd.compile(Layers(), example, strategy=strategy).artifact.program


def by_tensors(program: Program) -> None:
    simulate(program, dict(Layers().named_parameters()), [{"x": torch.ones(SAMPLES, WIDTH)}])


def by_shape(program: Program) -> None:
    for plan in plan_ranks(program):
        solo(program, plan, ShapeBook())


def as_graph(program: Program) -> None:
    for own in program.ranks:
        rank_module(program, own.rank, of_process_group)


MACHINES = (by_tensors, by_shape, as_graph)


class Spy:
    """Stands before arrays or segments, and notes each call with its plain arguments."""

    def __init__(self, asked: object, log: list[tuple[object, ...]]) -> None:
        self._asked, self._log = asked, log

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*args: object) -> object:
            self._log.append((name, *(item for item in args if type(item) in (str, int, tuple))))
            return getattr(self._asked, name)(*args)

        return call


def walked(machine: Callable[[Program], None], program: Program, patch: pytest.MonkeyPatch) -> Log:
    """Each rank's instructions, and what they ask of arrays and segments, up to the update."""
    log: Log = defaultdict(list)

    def spied(action: Callable[[Walk[Any], Instruction], InstructionRun[Any]]) -> Callable[..., object]:
        def act(walk: Walk[Any], instruction: Instruction) -> InstructionRun[Any]:
            mine = log[walk.plan.program.rank]
            if not isinstance(walk.arrays, Spy):
                walk.arrays, walk.segments = (
                    cast(Any, Spy(walk.arrays, mine)),
                    cast(Any, Spy(walk.segments, mine)),
                )
            mine.append((walk.state.position, instruction))
            yield from action(walk, instruction)

        return act

    with patch.context() as patched:
        for op, action in ACTIONS.items():
            patched.setitem(ACTIONS, op, spied(action))
        machine(program)
    return {rank: mine[: _end(mine)] for rank, mine in log.items()}


def _kept(log: Log) -> Log:
    """Without the memory of buckets, which a first step makes and shapes have from the start."""
    return {rank: [item for item in mine if item[:2] != ("pack", "")] for rank, mine in log.items()}


def _end(mine: list[tuple[object, ...]]) -> int:
    return next(i for i, item in enumerate(mine) if item[-1] == Instruction(Op.OPTIMIZER))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_all_come_to_the_same_instructions_and_ask_for_the_same(
    zero: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiled(replace(STAGES, zero=zero))
    tensors, shapes = (walked(machine, program, monkeypatch) for machine in (by_tensors, by_shape))
    assert _kept(tensors) == _kept(shapes)
    monkeypatch.setattr(execute, "homes_of", lambda own: {})  # a graph changes no memory in place
    tensors, shapes, graph = (walked(machine, program, monkeypatch) for machine in MACHINES)
    assert sorted(tensors) == [0, 1, 2, 3] and all(len(mine) > 20 for mine in tensors.values())
    assert tensors == shapes
    assert tensors == graph


class Held(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes of tensors that were alive at once."""

    def __init__(self, there: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._note(there)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self._note(item for item in tree_leaves(made) if isinstance(item, Tensor))
        return made

    def _note(self, tensors: Iterable[Tensor]) -> None:
        for storage in (tensor.untyped_storage() for tensor in tensors):
            self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
        gone = [key for key, held in self._alive.items() if held[0].expired()]  # type: ignore[no-untyped-call]
        for key in gone:
            del self._alive[key]
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))


@pytest.mark.parametrize("sizes", [(3,), (2, 1)])
def test_memory_by_shape_is_what_tensors_hold(sizes: tuple[int, ...]) -> None:
    """But for scalars: a shape knows nothing of what an operator holds while it computes."""
    program = compiled(Strategy((PipelineSpec((StageSpec((0,), (0, 3)),), sizes),)))
    batch = {"x": torch.ones(SAMPLES, WIDTH)}
    ranks = start_ranks(program, dict(Layers().named_parameters()))
    with Held([*ranks[0].state.params.values(), *batch.values()]) as held:
        lockstep_step(ranks, batch, None)
    (peak,) = check_fit(program).peak
    assert 0.95 * held.peak < peak <= held.peak


class New(Enum):
    """An instruction that no program has today."""

    DOUBLE_LOSS = "DOUBLE_LOSS"


def with_new(program: Program) -> Program:
    """The loss is doubled before it is summed."""
    own = program.ranks[0]
    at = next(index for index, item in enumerate(own.instructions) if item.op is Op.LOSS)
    new = Instruction(cast(Op, New.DOUBLE_LOSS))
    return replace(
        program, ranks=[replace(own, instructions=[*own.instructions[:at], new, *own.instructions[at:]])]
    )


def test_a_new_instruction_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(walk: Walk[Any], instruction: Instruction) -> InstructionRun[Any]:
        walk.state.loss = walk.arrays.add_loss(walk.state.loss, walk.state.loss)
        yield from ()

    monkeypatch.setitem(execute.ACTIONS, cast(Op, New.DOUBLE_LOSS), double)
    plain = compiled(ALONE)
    program = with_new(plain)
    state, batch = dict(Layers().named_parameters()), {"x": torch.ones(SAMPLES, WIDTH)}
    once, twice = (simulate(each, state, [batch]).losses[0] for each in (plain, program))
    graph = rank_module(program, 0)(*rank_arguments(program, 0, state, batch))
    assert twice == 2 * once == graph["loss"].item() and once > 0
    by_shape(program)


@pytest.mark.parametrize("machine", MACHINES)
def test_an_unknown_instruction_is_refused_by_name(machine: Callable[[Program], None]) -> None:
    with pytest.raises(HspmdError, match="DOUBLE_LOSS is not one that the executor knows"):
        machine(with_new(compiled(ALONE)))
