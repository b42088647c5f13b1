"""Forms of an exchange between the members of a group: one collective each, as unequal pieces allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from ..base.comm_plan import CommKind, CommStep, GatherForm
from ..program import boxes
from ..program.arrays import TorchArrays
from ..program.exchange_plan import ExchangePlan, Shortcut, gathered_sizes, scattered_sizes
from ..program.literals import torch_dtype
from ..program.sized.recent import Recent
from .members import MOST_STEPS
from .transport import from_wire, to_wire, wire_dtype
from .under_way.gathers import Gather, as_long_as, pieces


class GroupExchanges:
    """Gathers, reduce-scatters and all-to-alls of this rank."""

    def __init__(self, rank: int, device: torch.device, arrays: TorchArrays) -> None:
        self.rank = rank
        self.device = device
        self._arrays = arrays
        self._plans: Recent[int, tuple[CommStep, ExchangePlan]] = Recent(MOST_STEPS)

    def run(
        self, step: CommStep, sent: Mapping[int, Tensor], group: dist.ProcessGroup | None, is_agreed: bool
    ) -> Tensor | None:
        """The destination of `step`, if this rank has one. is_agreed: all members may take the shortcut."""
        if step.form is GatherForm.PADDED and step.kind is CommKind.REDUCE_SCATTER:
            return self._padded_sums(step, sent, group)
        if self.is_gather(step, is_agreed):
            return self.gathered(step, self.start_gather(step, sent, group).ended())
        if step.form is GatherForm.BROADCASTS:
            arrived = self._broadcasts(step, sent, group)
        elif self._shortcut(step, is_agreed) is Shortcut.REDUCE_SCATTER:
            return self._reduce_scatter(step, sent, group)
        else:
            arrived = self._all_to_all(step, sent, group)
        return None if step.dst_view is None else self._arrays.paste(step, arrived)

    def _shortcut(self, step: CommStep, is_agreed: bool) -> Shortcut:
        """What all members take: they agreed that equal pieces allow it, and see alike whether they are."""
        return self._plan(step).shortcut if is_agreed else Shortcut.NONE

    def _plan(self, step: CommStep) -> ExchangePlan:
        """By identity: a step is large, and ids are shared by unequal micro-batches."""
        return self._plans.get(id(step), lambda: (step, ExchangePlan.of(step)))[1]

    def _all_to_all(
        self, step: CommStep, sent: Mapping[int, Tensor], group: dist.ProcessGroup | None
    ) -> dict[int, Tensor]:
        """What each member sent here, by one all_to_all_single with splits, zero sizes too."""
        plan, dtype = self._plan(step), torch_dtype(step.dtype)
        me, coming, leaving = step.group.index(self.rank), [*plan.recv_sizes], [*plan.send_sizes]
        row = boxes.one_run([to_wire(sent[peer]) for peer in step.group if peer in sent])
        if row is None:  # what stays here isn't packed
            row = self._row(step, {peer: part for peer, part in sent.items() if peer != self.rank})
            coming[me] = leaving[me] = 0
        arrived = torch.empty(sum(coming), dtype=wire_dtype(dtype), device=self.device)
        dist.all_to_all_single(arrived, row, coming, leaving, group)
        parts = dict(zip(step.group, torch.split(from_wire(arrived, dtype), coming), strict=True))
        return parts if coming[me] or self.rank not in sent else parts | {self.rank: sent[self.rank]}

    def is_gather(self, step: CommStep, is_agreed: bool) -> bool:
        """Whether it goes as one all-gather, of equal pieces or of padded ones."""
        if step.kind is CommKind.SEND_RECV or len(step.group) < 2:
            return False
        if step.form is not GatherForm.ALL_TO_ALL:
            return step.form is GatherForm.PADDED and step.kind is not CommKind.REDUCE_SCATTER
        return self._shortcut(step, is_agreed) is Shortcut.ALL_GATHER

    def start_gather(
        self, step: CommStep, sent: Mapping[int, Tensor], group: dist.ProcessGroup | None
    ) -> Gather:
        """What each member gives to all, under way."""
        own = None if self.rank not in sent else to_wire(sent[self.rank])
        if step.form is GatherForm.PADDED:
            like = torch.empty(0, dtype=wire_dtype(torch_dtype(step.dtype)), device=self.device)
            own = as_long_as(own, max(self._sizes(step)), like)
        assert own is not None, "every member gives an equal piece"
        return Gather.started(own, len(step.group), group)

    def gathered(self, step: CommStep, arrived: Tensor) -> Tensor | None:
        """The result of a gather; what has arrived itself, where it lies in its order."""
        found = from_wire(arrived, torch_dtype(step.dtype))
        if step.dst_view is None:
            return None
        if step.form is GatherForm.PADDED:
            rows = pieces(found, self._sizes(step))
        elif self._plan(step).in_turn and step.dst_shape is not None:
            return found.view(step.dst_shape)
        else:
            rows = [*found.chunk(len(step.group))]
        return self._arrays.paste(step, dict(zip(step.group, rows, strict=True)))

    def _broadcasts(
        self, step: CommStep, sent: Mapping[int, Tensor], group: dist.ProcessGroup | None
    ) -> dict[int, Tensor]:
        """Pieces of unequal lengths, by a broadcast of each that is not empty, all under way at once."""
        dtype = torch_dtype(step.dtype)
        rows, works = {}, []
        for peer, size in zip(step.group, self._sizes(step), strict=True):
            if size:
                row = torch.empty(size, dtype=wire_dtype(dtype), device=self.device)
                rows[peer] = to_wire(sent[peer]) if peer == self.rank else row
                works.append(dist.broadcast(rows[peer], peer, group, async_op=True))
        for work in works:
            work.wait()
        return {peer: from_wire(row, dtype) for peer, row in rows.items()}

    @staticmethod
    def _sizes(step: CommStep) -> tuple[int, ...]:
        sizes = gathered_sizes(step)
        assert sizes is not None, "what has a form gathers whole pieces"
        return sizes

    def _reduce_scatter(
        self, step: CommStep, sent: Mapping[int, Tensor], group: dist.ProcessGroup | None
    ) -> Tensor:
        assert step.dst_shape is not None, "a reduce-scatter has a destination on every member"
        source = self._row(step, sent)
        result = source.new_empty(source.numel() // len(step.group))
        dist.reduce_scatter_tensor(result, source, group=group)
        return result.view(step.dst_shape)

    def _padded_sums(
        self, step: CommStep, sent: Mapping[int, Tensor], group: dist.ProcessGroup | None
    ) -> Tensor | None:
        """Sums of unequal lengths, by one reduce-scatter of pieces as long as the longest."""
        sizes = scattered_sizes(step)
        assert sizes is not None, "what is padded has an addend of every sum"
        longest, dtype = max(sizes), torch_dtype(step.dtype)
        source = torch.zeros(len(sizes), longest, dtype=dtype, device=self.device)
        for row, peer, size in zip(source, step.group, sizes, strict=True):
            if size:
                row[:size] = sent[peer]
        result = source.new_empty(longest)
        dist.reduce_scatter_tensor(result, source.view(-1), group=group)
        if step.dst_view is None:
            return None
        first = step.recvs[:1]  # the same boxes come from each
        return self._arrays.paste(replace(step, recvs=first), {one.peer: result for one in first})

    def _row(self, step: CommStep, sent: Mapping[int, Tensor]) -> Tensor:
        """What goes to the members, one after the other in the order of the group."""
        empty = torch.empty(0, dtype=wire_dtype(torch_dtype(step.dtype)), device=self.device)
        rows = [to_wire(sent[peer]) for peer in step.group if peer in sent] or [empty]
        return rows[0] if len(rows) == 1 else torch.cat(rows)
