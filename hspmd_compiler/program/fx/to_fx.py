"""A rank's whole training step as one runnable torch.fx.GraphModule: the executor's, nodes for values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, fx

from ...base.comm_plan import CommStep, GradBucket
from ...errors import InternalError
from ..arrays import Arrays, TorchArrays
from ..execute import RankPlan, RankState, plan_rank, run_step
from ..interpret import RowCall, function_of, read_rows, walk_rows
from ..program import ALIASES, ZERO_PARAMS, Program
from ..requests import (
    AllReduce,
    Exchange,
    GradReduce,
    LossReduce,
    OptimizerStep,
    Recv,
    ReduceStart,
    ReduceWait,
    Request,
    SegmentRun,
    Send,
)
from . import fx_comm

OpenTransport = Callable[[int, tuple[tuple[int, ...], ...], str], fx_comm.Answers]
"""The transport of a world of so many ranks with these groups, on a kind of device."""
LOSS, GRADS, BUFFERS = "loss", "grads", "buffers"


def rank_module(program: Program, rank: int, transport: OpenTransport = fx_comm.alone) -> fx.GraphModule:
    """One training step of `rank`, all micro-batches, up to the synchronised gradients, by the executor.

    It takes the rank's shards, its rows of each batch tensor and the keys of random numbers, in that order,
    and returns a dict: `loss` (of all ranks, in double precision), `grads` by parameter, and `buffers`, the
    new values of those that the step changes. transport: called first of all, by its name in the graph;
    a world of one rank needs none.

    Shards are local tensors in the type that is read; with ZeRO-3 flat rows of the elements that the rank
    stores, which the graph gathers. From ZeRO-2 on gradients are flat rows, too. Both follow `Shard.kept`.
    """
    plan = replace(plan_rank(program, rank), homes={})  # a graph changes nothing in place
    return _Builder(program, plan).module(transport)


@dataclass(slots=True)
class _Builder:
    """A graph in the making, and the objects that its calls name. graph, root: as of a GraphModule."""

    program: Program
    plan: RankPlan
    graph: fx.Graph = field(default_factory=fx.Graph)
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    held: dict[str, tuple[object, fx.Node]] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """Kind of device that new tensors lie on."""
        return self.plan.program.device_family

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A call in the graph."""
        return self.graph.call_function(function, args, kwargs)

    def object(self, name: str, value: object) -> fx.Node:
        """An attribute of the module: steps and buckets are no literals of fx."""
        wanted = name
        while wanted in self.held and self.held[wanted][0] is not value:
            wanted += "_"
        if wanted not in self.held:
            setattr(self.root, wanted, value)
            self.held[wanted] = (value, self.graph.get_attr(wanted))
        return self.held[wanted][1]

    def module(self, transport: OpenTransport) -> fx.GraphModule:
        """One step by the executor, every value a node."""
        state, batches = self._placeholders()
        opener = fx_comm.alone if self.program.world_size == 1 else transport
        opened = self.call(opener, self.program.world_size, tuple(self.program.groups), self.device)
        arrays = cast(Arrays[fx.Node], FxArrays(self))
        steps = run_step(self.plan, state, batches, FxSegments(self), arrays)
        driver = _Driver(self, opened)
        request = next(steps)
        while not isinstance(request, OptimizerStep):
            request = steps.send(driver.answer(request))
        self.call(fx_comm.finish_sends, opened)
        self.graph.output({LOSS: state.loss, GRADS: state.synced, BUFFERS: state.buffers})
        self.graph.lint()
        return fx.GraphModule(self.root, self.graph, f"Rank{self.plan.program.rank}")

    def _placeholders(self) -> tuple[RankState[fx.Node], list[dict[str, fx.Node]]]:
        state: RankState[fx.Node] = RankState({})
        for name, shard in self.plan.shards.items():
            node = self.graph.placeholder(_identifier(name), Tensor)
            node.meta["parameter"] = name
            (state.stored if shard.zero >= ZERO_PARAMS else state.params)[name] = node
        count, keys = len(self.plan.program.rows), self.program.inputs
        batches = [
            {key: self.graph.placeholder(_identifier(f"{key}_{mb}"), Tensor) for key in keys}
            for mb in range(count)
        ]
        if self.plan.shared.draws:
            state.keys = [self.graph.placeholder(f"key_{mb}", Tensor) for mb in range(count)]
        return state, batches


class FxArrays:
    """`Arrays` for nodes: each method is a call of that method of `TorchArrays`.

    What the executor may overwrite is left as it is, so that nodes can be moved, and read again.
    """

    def __init__(self, builder: _Builder) -> None:
        self._builder, self._graph = builder, builder.graph
        self._arrays = builder.object("arrays", TorchArrays(builder.device))

    def counted(self, step: CommStep, rank: int, counts: fx.Node) -> fx.Node:
        """See Arrays; the step is a node, too."""
        held = self._builder.object(f"{step.kind.value}_{step.id}", step)
        return self._graph.call_method("counted", (self._arrays, held, rank, counts))

    def accumulate(self, total: fx.Node | None, value: fx.Node, owned: bool) -> fx.Node:
        """See Arrays."""
        return self._graph.call_method("accumulate", (self._arrays, total, value, False))

    def __getattr__(self, method: str) -> Callable[..., fx.Node]:
        return lambda *args: self._graph.call_method(method, (self._arrays, *args))


@dataclass(frozen=True, slots=True)
class FxSegments:
    """`Segments` of one rank: each row is a call of its kernel."""

    builder: _Builder

    def start(self, segment: int, mb: int, inputs: list[fx.Node], owned: list[bool]) -> SegmentRun[fx.Node]:
        """See Segments."""
        builder = self.builder
        found = builder.plan.shared.segments[segment]

        def compute(call: RowCall, values: Mapping[int, fx.Node]) -> fx.Node:
            arguments, named = call.filled(values, builder.device)
            if call.row.op in ALIASES:
                node: fx.Node = arguments[0]
                return node
            return builder.call(function_of(call.row.op), *arguments, **named)

        def seen(call: RowCall, node: fx.Node) -> None:
            for key, value in (("segment", found.name), ("micro_batch", mb), ("logical", call.row.logical)):
                node.meta.setdefault(key, value)

        calls = read_rows(found, builder.plan.program.literals)
        return walk_rows(found, calls, inputs, compute, seen)


@dataclass(frozen=True, slots=True)
class _Driver:
    """Answers the executor by calls of `fx_comm`."""

    builder: _Builder
    transport: fx.Node

    def answer(self, request: Request[fx.Node]) -> fx.Node | None:
        """The node that the answer will be."""
        match request:
            case AllReduce(step, value):
                return self._comm(fx_comm.all_reduce, step, value)
            case Exchange(step, source):
                return self._comm(fx_comm.exchange, step, source)
            case Send(step, value, tag):
                return self._comm(fx_comm.send, step, value, tag)
            case Recv(step, tag):
                return self._comm(fx_comm.receive, step, tag)
            case GradReduce(bucket, flat):
                return self._bucket(fx_comm.reduce_bucket, bucket, flat)
            case ReduceStart(bucket, flat):
                self._bucket(fx_comm.start_bucket, bucket, flat)
                return None
            case ReduceWait(bucket):
                return self._bucket(fx_comm.started_bucket, bucket)
            case LossReduce(share):
                return self.builder.call(fx_comm.reduce_loss, self.transport, share)
        raise InternalError(f"a graph has no call for {type(request).__name__}")

    def _bucket(self, function: Callable[..., Any], bucket: GradBucket, *args: Any) -> fx.Node:
        held = self.builder.object(f"bucket_{bucket.id}", bucket)
        return self.builder.call(function, self.transport, held, *args)

    def _comm(self, function: Callable[..., Any], step: CommStep, *args: Any) -> fx.Node:
        if isinstance(step, fx.Node):  # filled in when it runs
            return self.builder.call(function, self.transport, step, *args)
        held = self.builder.object(f"{step.kind.value}_{step.id}", step)
        node = self.builder.call(function, self.transport, held, *args)
        node.meta["step"], node.meta["note"] = step.id, step.note
        return node


def _identifier(name: str) -> str:
    """A parameter or batch key as a name of Python."""
    return re.sub(r"\W", "_", name)
