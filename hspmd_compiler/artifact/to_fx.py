"""A rank's whole training step as one runnable torch.fx.GraphModule."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from ..cluster import family_of
from ..comm_plan import Box, CommKind, CommStep, GradBucket, ParamBucket, Piece
from ..errors import InternalError
from . import fx_comm
from .arrays import synced_shape
from .boxes import slices
from .execute import RankPlan, micro_batches, plan_rank
from .kernels import ALIASES, COMM, GETITEM, kernel, makes_tensor_from_nothing
from .literals import resolve, resolved_kwargs, torch_dtype
from .program import (
    ZERO_PARAMS,
    InputKind,
    Instruction,
    LocalRow,
    Op,
    OutputKind,
    Program,
    Segment,
    Value,
)
from .random_kernels import step_keys
from .trained import start_value

Place = tuple[tuple[int, ...], tuple[Box, ...]]
"""View and boxes."""
LOSS, GRADS, BUFFERS = "loss", "grads", "buffers"


def rank_module(program: Program, rank: int) -> fx.GraphModule:
    """One training step of `rank`, all micro-batches, up to the synchronised gradients.

    It takes the rank's shards and its rows of each batch tensor, as `rank_arguments` lists them, and
    returns a dict: `loss` (of all ranks, in double precision), `grads` by parameter, and `buffers`, the
    new values of those that the step changes. A world of one rank needs no torch.distributed.

    Shards are local tensors in the type that is read; with ZeRO-3 flat rows of the elements that the rank
    stores, which the graph gathers. From ZeRO-2 on gradients are flat rows, too. Both follow `Shard.kept`.
    """
    plan = plan_rank(program, rank)
    graph = _Builder(program, plan).build()
    return fx.GraphModule(torch.nn.Module(), graph, f"Rank{rank}")


def rank_arguments(
    program: Program,
    rank: int,
    params: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    seed: int = 0,
    step: int = 0,
) -> list[Tensor]:
    """What `rank_module` takes, cut from whole parameters and buffers and the global batch.

    seed, step: of dropout, as `Engine.seed` and `Engine.steps`.
    """
    plan = plan_rank(program, rank)
    shards = [
        _local(plan, name, {program.aliases.get(key, key): value for key, value in params.items()})
        for name in plan.shards
    ]
    rows = micro_batches(plan.program, batch)
    keys = step_keys(plan.program.rows, seed, step) if _draws(plan) else []
    return [*shards, *(of[key] for of in rows for key in program.inputs), *keys]


def _draws(plan: RankPlan) -> bool:
    """Whether the rank draws random masks."""
    return any(item.kind is InputKind.KEY for part in plan.shared.segments for item in part.inputs)


def _local(plan: RankPlan, name: str, params: Mapping[str, Tensor]) -> Tensor:
    shard = plan.shards[name]
    whole = params[name].detach().reshape(shard.whole_view)
    local = torch.zeros(shard.view, dtype=torch_dtype(shard.dtype))
    for source, target in shard.boxes:
        local[slices(target)] = whole[slices(source)].reshape(local[slices(target)].shape)
    if shard.zero >= ZERO_PARAMS:
        return start_value(shard, local)
    return local.reshape(shard.shape).to(torch_dtype(shard.local_dtype))


@dataclass(slots=True)
class _Builder:
    """Inlines a rank's instructions, in order, into one fx graph."""

    program: Program
    plan: RankPlan
    graph: fx.Graph = field(default_factory=fx.Graph)
    params: dict[str, fx.Node] = field(default_factory=dict)
    data: list[dict[str, fx.Node]] = field(default_factory=list)
    keys: list[fx.Node] = field(default_factory=list)
    micro: dict[tuple[int, int], fx.Node] = field(default_factory=dict)
    steps: dict[int, fx.Node] = field(default_factory=dict)
    grads: dict[str, fx.Node] = field(default_factory=dict)
    synced: dict[str, fx.Node] = field(default_factory=dict)
    buffers: dict[str, fx.Node] = field(default_factory=dict)
    sends: list[fx.Node] = field(default_factory=list)
    loss: fx.Node | None = None
    groups: fx.Node | None = None

    def build(self) -> fx.Graph:
        """The graph of one step."""
        self._placeholders()
        groups = tuple(self.program.groups)
        self.groups = self._call(fx_comm.process_groups, self.program.world_size, groups)
        for instruction in self.plan.program.instructions:
            self._instruction(instruction)
        if self.sends:
            self._call(fx_comm.finish_sends, tuple(self.sends))
        self.graph.output({LOSS: self.loss, GRADS: self.synced, BUFFERS: self.buffers})
        self.graph.lint()
        return self.graph

    @property
    def rank(self) -> int:
        """The rank whose step this is."""
        return self.plan.program.rank

    @property
    def device(self) -> str:
        """Kind of device that new tensors lie on."""
        return family_of(self.plan.program.device_kind)

    def _placeholders(self) -> None:
        for name in self.plan.shards:
            self.params[name] = self.graph.placeholder(_identifier(name), Tensor)
            self.params[name].meta["parameter"] = name
        for number, _ in enumerate(self.plan.program.rows):
            row = {
                key: self.graph.placeholder(_identifier(f"{key}_{number}"), Tensor)
                for key in self.program.inputs
            }
            self.data.append(row)
        if _draws(self.plan):
            self.keys = [self.graph.placeholder(f"key_{mb}", Tensor) for mb in range(len(self.data))]

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.call_function(function, args, kwargs)

    def _instruction(self, step: Instruction) -> None:
        match step.op:
            case Op.FORWARD | Op.BACKWARD | Op.STEP_COMPUTE:
                self._segment(self.plan.shared.segments[step.segment], step.mb)
            case Op.STEP_REDUCE:
                source = self.steps[step.value]
                self.steps[step.value] = self._comm(self.plan.program.comms[step.slot], source)
            case Op.SEND:
                self._send(step)
            case Op.RECV:
                self._receive(step)
            case Op.GRAD_SCATTER:
                self._grad_sync([b for b in self.plan.program.grad_buckets if self.plan.is_scattered(b)])
                self.grads = {
                    name: grad for name, grad in self.grads.items() if name not in self.plan.scattered
                }
            case Op.GRAD_SYNC:
                self._grad_sync(self.plan.program.grad_buckets)
            case Op.LOSS:
                self._sum_loss()
            case Op.PARAM_GATHER:
                self._param_gather()
            case Op.OPTIMIZER | Op.PARAM_DROP:
                pass

    # Segments

    def _segment(self, segment: Segment, mb: int) -> None:
        values: dict[int, fx.Node] = {}
        for item in segment.inputs:
            if item.kind in (InputKind.PARAM, InputKind.STORED):
                values[item.value.id] = self.params[item.name]
            elif item.kind is InputKind.DATA:
                values[item.value.id] = self.data[mb][item.name]
            elif item.kind is InputKind.KEY:
                values[item.value.id] = self.keys[mb]
            elif item.kind is InputKind.STEP:
                values[item.value.id] = self.steps[item.value.id]
            else:
                values[item.value.id] = self.micro[mb, item.value.id]
        for row in segment.rows:
            node = values[row.out.id] = self._row(row, values)
            node.meta.setdefault("segment", segment.name)
            node.meta.setdefault("micro_batch", mb)
            node.meta.setdefault("logical", row.logical)
        for output in segment.outputs:
            self._output(output.kind, output.name, mb, output.value.id, values[output.value.id])

    def _row(self, row: LocalRow, values: Mapping[int, fx.Node]) -> fx.Node:
        literals = self.plan.program.literals
        arguments = [_filled(resolve(argument, literals), values) for argument in row.args]
        if row.op == COMM:
            return self._comm(self.plan.program.comms[arguments[1]], arguments[0])
        if row.op == GETITEM:
            return self._call(operator.getitem, *arguments)
        if row.op in ALIASES:
            node: fx.Node = arguments[0]
            return node
        named = {key: _filled(value, values) for key, value in resolved_kwargs(row, literals).items()}
        if makes_tensor_from_nothing(row.op):
            named["device"] = self.device
        return self._call(kernel(row.op), *arguments, **named)

    def _output(self, kind: OutputKind, name: str, mb: int, number: int, value: fx.Node) -> None:
        if kind is OutputKind.MICRO:
            self.micro[mb, number] = value
        elif kind is OutputKind.GRAD:
            self.grads[name] = self._call(fx_comm.accumulate, self.grads.get(name), value)
        elif kind is OutputKind.LOSS:
            self.loss = self._added(self.loss, self._double(value))
        elif kind is OutputKind.STEP:
            self.steps[number] = self._added(self.steps.get(number), value)
        else:
            self.buffers[name] = value  # the step itself reads the old one

    def _added(self, total: fx.Node | None, value: fx.Node) -> fx.Node:
        return value if total is None else self._call(torch.ops.aten.add.Tensor, total, value)

    def _double(self, value: fx.Node) -> fx.Node:
        return self._call(torch.ops.aten._to_copy.default, value, dtype=torch.float64)

    # Communication

    def _comm(self, step: CommStep, source: fx.Node | None) -> fx.Node:
        if step.kind is CommKind.ALL_REDUCE:
            node = self._call(fx_comm.all_reduce, source, self.groups, step.group, step.combine.value)
        else:
            node = self._call(
                fx_comm.exchange,
                source,
                self.groups,
                rank=self.rank,
                ranks=step.group,
                combine=step.combine.value,
                dtype=torch_dtype(step.dtype),
                src_view=step.src_view,
                sends=_pairs(step.sends),
                dst_view=step.dst_view,
                dst_shape=step.dst_shape,
                recvs=_pairs(step.recvs),
            )
        node.meta["step"], node.meta["note"] = step.id, step.note
        return node

    def _send(self, instruction: Instruction) -> None:
        step = self.plan.program.transfers[instruction.slot]
        value = self.micro[instruction.mb, instruction.value]
        self.sends.append(
            self._call(
                fx_comm.send,
                value,
                self.groups,
                rank=self.rank,
                src_view=step.src_view,
                sends=_pairs(step.sends),
                tag=instruction.tag,
            )
        )

    def _receive(self, instruction: Instruction) -> None:
        step = self.plan.program.transfers[instruction.slot]
        self.micro[instruction.mb, instruction.value] = self._call(
            fx_comm.receive,
            self.groups,
            rank=self.rank,
            combine=step.combine.value,
            dtype=torch_dtype(step.dtype),
            dst_view=step.dst_view,
            dst_shape=step.dst_shape,
            recvs=_pairs(step.recvs),
            tag=instruction.tag,
            device=self.device,
        )

    # Gradients, and parameters that are stored in shares

    def _grad_sync(self, buckets: Sequence[GradBucket]) -> None:
        """Add what this rank gets of buckets to its synchronised gradients."""
        parts: dict[str, list[tuple[fx.Node, Place]]] = {}
        for bucket in buckets:
            kept = [(piece.param, piece.length, piece.dst_view, piece.dst_boxes) for piece in bucket.kept]
            self._taken(self._reduced(bucket), kept, parts)
        for name, found in parts.items():
            shard, (view, _) = self.plan.shards[name], found[0][1]
            made = self._unpacked(found, synced_shape(view, shard))
            self.synced[name] = self._call(fx_comm.accumulate, self.synced.get(name), made)

    def _taken(
        self,
        flat: fx.Node | None,
        pieces: Sequence[tuple[str, int, tuple[int, ...] | None, tuple[Box, ...] | None]],
        parts: dict[str, list[tuple[fx.Node, Place]]],
    ) -> None:
        """The pieces, one after the other, of a flat tensor; those without boxes are passed over."""
        start = 0
        for name, length, view, held in pieces:
            if view is not None and held is not None:
                part = self._call(torch.ops.aten.narrow.default, flat, 0, start, length)
                parts.setdefault(name, []).append((part, (view, held)))
            start += length

    def _unpacked(self, found: Sequence[tuple[fx.Node, Place]], shape: tuple[int, ...]) -> fx.Node:
        nodes, places = tuple(node for node, _ in found), tuple(place for _, place in found)
        return self._call(fx_comm.unpack, nodes, shape, places)

    def _reduced(self, bucket: GradBucket) -> fx.Node | None:
        """All that a rank gets of a bucket, flat; None where it keeps nothing."""
        comms = self.plan.program.comms
        step = comms[bucket.slot] if bucket.slot >= 0 else None
        flat = None if step is not None and step.src_view is None else self._packed(bucket)
        if step is None:
            return self._call(fx_comm.all_reduce, flat, self.groups, bucket.group, "sum")
        return self._comm(step, flat)

    def _packed(self, bucket: GradBucket) -> fx.Node:
        empty = self._empty(bucket.dtype)
        rows = [
            self._call(
                fx_comm.pack, self.grads.get(each.param), each.length, each.src_view, each.src_boxes, empty
            )
            for each in bucket.given
        ]
        return self._call(torch.ops.aten.cat.default, [empty, *rows])

    def _empty(self, dtype: str) -> fx.Node:
        made = torch.ops.aten.empty.memory_format
        return self._call(made, [0], dtype=torch_dtype(dtype), device=self.device)

    def _param_gather(self) -> None:
        """Whole local tensors at the start of a step. Below ZeRO-3 they are made behind the update."""
        parts: dict[str, list[tuple[fx.Node, Place]]] = {}
        shards = self.plan.shards
        for bucket in self.plan.program.param_buckets:
            stored = [piece for piece in bucket.pieces if shards[piece.param].zero >= ZERO_PARAMS]
            if stored:
                held = [(each.param, each.length, shards[each.param].view, each.boxes) for each in stored]
                self._taken(self._gathered(bucket), held, parts)
        for name, found in parts.items():
            self.params[name] = self._unpacked(found, shards[name].shape)

    def _gathered(self, bucket: ParamBucket) -> fx.Node:
        empty = self._empty(bucket.dtype)
        rows = [
            self._call(fx_comm.part, self.params[piece.param], *piece.row, empty) for piece in bucket.pieces
        ]
        flat = self._call(torch.ops.aten.cat.default, [empty, *rows])
        return flat if bucket.slot < 0 else self._comm(self.plan.program.comms[bucket.slot], flat)

    def _sum_loss(self) -> None:
        if self.loss is None:
            self.loss = self._call(torch.ops.aten.zeros.default, [], dtype=torch.float64, device=self.device)
        world = tuple(range(self.program.world_size))
        self.loss = self._call(fx_comm.all_reduce, self.loss, self.groups, world, "sum")


def _filled(argument: object, values: Mapping[int, fx.Node]) -> Any:
    """The argument with values replaced by their nodes."""
    if isinstance(argument, Value):
        if argument.id not in values:
            raise InternalError(f"v{argument.id} is read before it is made")
        return values[argument.id]
    if isinstance(argument, tuple):
        return tuple(_filled(item, values) for item in argument)
    return argument


def _pairs(pieces: tuple[Piece, ...]) -> tuple[tuple[int, object], ...]:
    return tuple((piece.peer, piece.boxes) for piece in pieces)


def _identifier(name: str) -> str:
    """A parameter or batch key as a name of Python."""
    return re.sub(r"\W", "_", name)
