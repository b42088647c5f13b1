"""Constant attention masks are read once: a causal one becomes the kernel's own flag, an open one goes.

Tracing writes out the mask that eager leaves to the kernel. The pass computes the constant and
compares it with the causal pattern, number by number, so that nothing is guessed. A mask that reads a
buffer stays: what buffers hold is not known here, and may be loaded later.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

import torch
from torch import Tensor

from ..ir.fx_convert import PLACEHOLDER
from ..ir.graph import LogicalGraph, Ref, Row, map_refs, row_inputs
from ..ir.printer import format_graph
from ..ir.prune import prune
from ..program.operator_names import known_operator
from ..rules.in_code.pointwise_operators import LINEAR, PRODUCTS, SETTLING, SUMS
from ..rules.lines.attention_lines import FLASH, FLASH_BACKWARD
from .compile_state import Traced
from .pass_chain import Pass
from .row_checks import graph_problems

MASK = "attn_mask"
WHERE, SCALAR = "aten.where.self", "aten.scalar_tensor.default"
CAUSAL_POSITION = {FLASH: 4, FLASH_BACKWARD: 7}
MOST_ELEMENTS = 2**25
"""Of a mask that is computed at its own size, where a shorter one tells what it is."""
LARGEST_DIM = 4
ENDLESS = 2**31
"""From here on a number is the end of a slice, not a window."""
POINTWISE = frozenset((*SETTLING, *SUMS, *PRODUCTS, *LINEAR))


class MaskKind(Enum):
    """What a constant mask does."""

    OPEN = "open"
    CAUSAL = "causal"
    OTHER = "other"


def retarget_masks(graph: LogicalGraph, kinds: Mapping[int, MaskKind] | None = None) -> LogicalGraph:
    """The graph with constant causal masks given as flags; any other mask stays as it was traced.

    kinds: of its masks, where they are known.
    """
    kinds = mask_kinds(graph) if kinds is None else kinds
    rows = list(graph.rows)
    for number, kind in kinds.items():
        if kind is not MaskKind.OTHER and not _is_causal(rows[number]):
            rows[number] = _retargeted(rows[number], kind)
    return prune(replace(graph, rows=rows)) if kinds else graph


def mask_kinds(graph: LogicalGraph, longer: LogicalGraph | None = None) -> dict[int, MaskKind]:
    """By attention row, what its constant mask does.

    longer: the same step on longer rows, whose masks do the same. Their own are computed only where a number
    in them is one that short rows may not reach; where that takes too much memory they are any others.
    """
    constant = _made_from_nothing(graph)
    values = ConstantValues(graph)
    kinds: dict[int, MaskKind] = {}
    found: dict[int, MaskKind] = {}
    for row in graph.rows:
        mask = row.kwargs.get(MASK)
        if row.op not in CAUSAL_POSITION or not isinstance(mask, Ref) or not constant[mask.id]:
            continue
        first = values.same_as(mask.id)
        if first not in kinds:
            kinds[first] = _kind_of(graph, values, passing(graph, mask.id), longer)
        found[row.id] = kinds[first]
    return found


def _kind_of(graph: LogicalGraph, values: ConstantValues, mask: int, longer: LogicalGraph | None) -> MaskKind:
    kind = mask_kind(values.of(mask))
    if longer is None or kind is MaskKind.OTHER:
        return kind
    shape = longer.rows[mask].shape or ()
    near = {longer.batch, *(size * count for size in shape[-2:] for count in (1, longer.batch))}
    rows = [longer.rows[each] for each in needed_rows(graph, mask)]
    if not far_numbers(rows, near | {size + more for size in shape[-2:] for more in (-1, 1)}):
        return kind
    if prod(shape[-2:]) > MOST_ELEMENTS:
        return MaskKind.OTHER
    return kind if mask_kind(ConstantValues(longer).of(mask)) is kind else MaskKind.OTHER


def needed_rows(graph: LogicalGraph, row: int, known: Container[int] = ()) -> set[int]:
    """The row and all that it is made of, but what is known."""
    needed: set[int] = set()
    queue = [row]
    while queue:
        each = queue.pop()
        if each not in needed and each not in known:
            needed.add(each)
            queue += row_inputs(graph.rows[each])
    return needed


def far_numbers(rows: Iterable[Row], near: set[int]) -> set[int | float]:
    """Numbers that short rows may never reach: windows, or parts of one. near: numbers of rows and tokens."""
    every = {number for row in rows for number in numbers_in(row.args)}
    return {each for each in every if LARGEST_DIM < abs(each) < ENDLESS and each not in near}


def numbers_in(value: object) -> Iterator[int | float]:
    """All numbers of an argument."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from numbers_in(item)


def _made_from_nothing(graph: LogicalGraph) -> list[bool]:
    """Which rows read no parameter, buffer or input, so that they can be computed here."""
    made: list[bool] = []
    for row in graph.rows:
        made.append(row.op != PLACEHOLDER and all(made[read] for read in row_inputs(row)))
    return made


def passing(graph: LogicalGraph, mask: int) -> int:
    """The boolean row that a mask is written out from, else the mask: where(c, 0, -inf) passes what c does.

    A mask of numbers takes four times the memory and several passes over it.
    """
    row = graph.rows[mask]
    if row.op != WHERE or not all(isinstance(argument, Ref) for argument in row.args):
        return mask
    chosen, here, elsewhere = (graph.rows[ref.id] for ref in row.args)  # type: ignore[attr-defined]
    scalars = [(each.op, each.args) for each in (here, elsewhere)]
    is_mask = scalars == [(SCALAR, (0.0,)), (SCALAR, (float("-inf"),))]
    return chosen.id if is_mask and chosen.dtype is torch.bool and chosen.shape == row.shape else mask


def _is_causal(row: Row) -> bool:
    position = CAUSAL_POSITION[row.op]
    return bool(row.args[position]) if len(row.args) > position else bool(row.kwargs.get("is_causal", False))


def _retargeted(row: Row, kind: MaskKind) -> Row:
    position = CAUSAL_POSITION[row.op]
    args = list(row.args)
    if kind is MaskKind.CAUSAL:
        args += [0.0] * (position - len(args)) if row.op == FLASH else []
        args[position:] = [True]
    kwargs = {key: value for key, value in row.kwargs.items() if key != MASK}
    return replace(row, args=tuple(args), kwargs=kwargs)


def mask_kind(mask: Tensor) -> MaskKind:
    """Whether an additive or boolean mask lets all keys pass, just the earlier ones, or others."""
    if mask.dim() < 2:
        return MaskKind.OTHER
    if mask.shape[0] > 1 and mask.stride(0) == 0:
        mask = mask[:1]
    passes = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not bool((mask == float("-inf")).logical_or_(passes).all()):
        return MaskKind.OTHER
    queries, keys = mask.shape[-2:]
    if not passes.numel() or bool(passes[(0,) * (passes.dim() - 1)].all()):
        return MaskKind.OPEN if bool(passes.all()) else MaskKind.OTHER
    if queries != keys:
        return MaskKind.OTHER
    places = torch.arange(keys)
    causal = places <= places[:, None]
    return MaskKind.CAUSAL if torch.equal(passes, causal.expand_as(passes)) else MaskKind.OTHER


class ConstantValues:
    """Computes constant rows. Samples that are all alike are held once: a large batch costs nothing."""

    def __init__(self, graph: LogicalGraph) -> None:
        self._graph = graph
        self._known: dict[int, Tensor] = {}
        self._first: dict[object, int] = {}
        self._same: dict[int, int] = {}

    def same_as(self, row: int) -> int:
        """The first row that computes the same from the same, so that layers share one mask."""
        for each in sorted(needed_rows(self._graph, row, self._same)):
            found = self._graph.rows[each]
            args = tuple(map_refs(argument, self._canonical) for argument in found.args)
            kwargs = tuple((key, map_refs(value, self._canonical)) for key, value in found.kwargs.items())
            self._same[each] = self._first.setdefault((found.op, args, kwargs), each)
        return self._same[row]

    def _canonical(self, ref: Ref) -> Ref:
        return Ref(self._same.get(ref.id, ref.id))

    def of(self, row: int) -> Tensor:
        """The value of a constant row. What it is made of is dropped after its last use."""
        wanted = self.same_as(row)
        order = list(dict.fromkeys(self._same[each] for each in sorted(needed_rows(self._graph, row))))
        last = {self._same[read]: each for each in order for read in row_inputs(self._graph.rows[each])}
        for each in order:
            if each not in self._known:
                self._known[each] = once_per_batch(self._compute(self._graph.rows[each]))
            for read in [read for read, at in last.items() if at == each and read != wanted]:
                del self._known[read]
        return self._known.pop(wanted)

    def _value(self, ref: Ref) -> Tensor:
        return self._known[self._same[ref.id]]

    def _compute(self, row: Row) -> Tensor:
        args = [map_refs(argument, self._value) for argument in row.args]
        kwargs = {key: map_refs(value, self._value) for key, value in row.kwargs.items()}
        shape = row.shape or ()
        many = row.op in POINTWISE and bool(shape) and shape[0] > 1
        if many and all(_held_once(argument, shape) for argument in args):
            small = [_first_sample(argument, shape) for argument in args]
            one: Tensor = known_operator(row.op)(*small, **kwargs)
            return one.expand(shape)
        result: Tensor = known_operator(row.op)(*args, **kwargs)
        return result


def once_per_batch(value: Tensor) -> Tensor:
    """A value whose samples are all alike as a view of its first sample."""
    if value.dim() < 2 or value.shape[0] < 2 or value.stride(0) == 0:
        return value
    return value[:1].expand(value.shape) if bool((value == value[:1]).all()) else value


def _held_once(argument: object, shape: tuple[int, ...]) -> bool:
    """Whether an argument gives every sample of a result of `shape` the same."""
    if not isinstance(argument, Tensor) or argument.dim() < len(shape) or argument.shape[0] == 1:
        return True
    return argument.stride(0) == 0


def _first_sample(argument: object, shape: tuple[int, ...]) -> object:
    """The argument for one sample of a result of `shape`."""
    return argument[:1] if isinstance(argument, Tensor) and argument.dim() == len(shape) else argument


@dataclass(frozen=True, slots=True)
class CausalMask(Pass[Traced, Traced]):
    """A mask that is not the causal one, or reads a buffer, stays. kinds: of masks, where they are known."""

    kinds: Mapping[int, MaskKind] | None = None

    def run(self, state: Traced) -> Traced:
        return replace(state, graph=retarget_masks(state.graph, self.kinds))

    def text(self, before: Traced, after: Traced) -> str:
        return format_graph(after.graph)

    def problems(self, before: Traced, after: Traced) -> Iterator[str]:
        return iter(()) if after.graph is before.graph else graph_problems(after.graph)
