"""Rows of a reduced step, in which each kind of block is traced once, become those of the whole step.

A block's row may read rows outside all blocks, of its own block, and of the blocks beside it. Such a
neighbour may be made from another template than in the trace: the values that a block gives to the next
one (and to the previous one) are its ports, found again by their order. Anything else is a mismatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from ...ir.graph import Origin, OriginKind, Phase, Ref, Row, moved, row_inputs
from ...ir.own_names import anchor_name, renamed_anchor
from ..capture import OutputRole
from .signatures import StackPlan

PLACEHOLDER = "placeholder"


class TemplateMismatch(Exception):
    """The whole step can't be made from traced blocks; the text says why."""


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of a training step, and which of them are its outputs."""

    rows: list[Row]
    outputs: dict[OutputRole, int]


class Section(Enum):
    """A part of a step in which the rows of a block lie together."""

    PARAM = "parameters"
    BUFFER = "buffers"
    FORWARD = "forward"
    BACKWARD = "backward"


def section_of(row: Row) -> Section:
    """The part of the step that a row belongs to."""
    if row.op == PLACEHOLDER:
        return Section.BUFFER if row.origin.kind is OriginKind.BUFFER else Section.PARAM
    return Section.FORWARD if row.phase is Phase.FORWARD else Section.BACKWARD


def expand(step: StepRows, plan: StackPlan, first: int) -> StepRows:
    """The step with all blocks of one stack. first: the layer number of its first block."""
    traced = _TracedBlocks(step.rows, plan, first)
    traced.check_order()
    traced.check_reads()
    expansion = _Expansion(traced, plan, first)
    return StepRows(expansion.rows(), dict(expansion.outputs(step.outputs)))


class _TracedBlocks:
    """The blocks of the reduced step: their rows, and the rows by which they are joined."""

    def __init__(self, rows: list[Row], plan: StackPlan, first: int) -> None:
        self.rows, self.plan = rows, plan
        self.count = len(plan.traced)
        self.block = [self._block(row, first) for row in rows]
        self.sections = [section_of(row) for row in rows]
        self.members: list[list[int]] = [[] for _ in range(self.count)]
        for row, block in zip(rows, self.block, strict=True):
            if block is not None:
                self.members[block].append(row.id)
        self.reads: list[set[int]] = [
            {i for m in members for i in row_inputs(rows[m])} for members in self.members
        ]
        self.of_ends = {i for end in (0, self.count - 1) for i in self._read_afar(end)}

    def _block(self, row: Row, first: int) -> int | None:
        return row.layer - first if row.layer is not None and 0 <= row.layer - first < self.count else None

    def _read_afar(self, end: int) -> Iterator[int]:
        """Rows of the first or last block that others than its neighbour read: all find them there."""
        far = (reads for block, reads in enumerate(self.reads) if abs(block - end) > 1)
        yield from (i for reads in far for i in reads if self.block[i] == end)

    def ports(self, giver: int, taker: int) -> list[int]:
        """Rows of block `giver` that block `taker` reads of it as its neighbour, in order."""
        return sorted(i for i in self.reads[taker] - self.of_ends if self.block[i] == giver)

    def check_order(self) -> None:
        """The rows of all blocks lie together, in order of blocks (the reverse in backward)."""
        for section in Section:
            places = [i for i, found in enumerate(self.sections) if found is section]
            blocks = [self.block[i] for i in places]
            inside = [i for i, block in enumerate(blocks) if block is not None]
            if not inside:
                continue
            run = blocks[inside[0] : inside[-1] + 1]
            if None in run:
                between = self.rows[places[inside[0] + run.index(None)]]
                raise TemplateMismatch(f"{_shown(between)} lies between blocks of {self.plan.path}")
            wanted = sorted(run, key=lambda b: b or 0, reverse=section is Section.BACKWARD)
            if run != wanted:
                raise TemplateMismatch(f"the blocks of {self.plan.path} don't run one after the other")

    def check_reads(self) -> None:
        """Only neighbours read each other, and only ends are read from outside."""
        for row, block in zip(self.rows, self.block, strict=True):
            for i in row_inputs(row):
                source = self.block[i]
                if source is None:
                    continue
                if block is None and 0 < source < self.count - 1:
                    raise TemplateMismatch(f"{_shown(row)} reads an inner block of {self.plan.path}")
                if block is not None and abs(block - source) > 1 and i not in self.of_ends:
                    raise TemplateMismatch(
                        f"{_shown(row)} reads a block of {self.plan.path} far from its own"
                    )


class _Expansion:
    """New ids of all rows, and the rows under them."""

    def __init__(self, traced: _TracedBlocks, plan: StackPlan, first: int) -> None:
        self.traced, self.plan, self.first = traced, plan, first
        self.ends = {0: 0, traced.count - 1: len(plan.template) - 1}
        self.order = list(self._order())
        self.inside: list[dict[int, int]] = [{} for _ in plan.template]
        self.outside: dict[int, int] = {}
        for new, (block, old) in enumerate(self.order):
            (self.outside if block is None else self.inside[block])[old] = new
        self.refs = [Ref(new) for new in range(len(self.order))]
        self._add_ends()

    def _order(self) -> Iterator[tuple[int | None, int]]:
        """(block or None, row of the reduced step), in the order of the whole step."""
        done: set[Section] = set()
        for row, block, section in zip(
            self.traced.rows, self.traced.block, self.traced.sections, strict=True
        ):
            if block is None:
                yield None, row.id
            elif section not in done:
                done.add(section)
                yield from self._section(section)

    def _section(self, section: Section) -> Iterator[tuple[int, int]]:
        parts = [[i for i in m if self.traced.sections[i] is section] for m in self.traced.members]
        blocks = list(enumerate(self.plan.template))
        for block, template in reversed(blocks) if section is Section.BACKWARD else blocks:
            yield from ((block, i) for i in parts[template])

    def _add_ends(self) -> None:
        for template, block in self.ends.items():
            for i in self.traced.members[template]:
                self.outside[i] = self.inside[block][i]

    def rows(self) -> list[Row]:
        """All rows of the whole step."""
        resolvers = [self._resolver(block) for block in range(len(self.plan.template))]
        paths = [
            (self.plan.traced_path(template), self.plan.full_path(block))
            for block, template in enumerate(self.plan.template)
        ]
        made: list[Row] = []
        for new, (block, old) in enumerate(self.order):
            row = self.traced.rows[old]
            if block is None:
                made.append(self._outer(row, new))
            else:
                made.append(self._inner(row, new, block, resolvers[block], *paths[block]))
        return made

    def _outer(self, row: Row, new: int) -> Row:
        row = _moved(row, new, lambda ref: self.refs[self.outside[ref.id]])
        if row.layer is not None and row.layer >= self.first:
            row.layer += len(self.plan.template) - self.traced.count
        return row

    def _inner(
        self, row: Row, new: int, block: int, change: Callable[[Ref], Ref], old_path: str, path: str
    ) -> Row:
        row = _moved(row, new, change)
        row.layer = self.first + block
        row.module = _renamed(row.module, old_path, path)
        if (name := anchor_name(row)) is not None:
            row.args = (row.args[0], renamed_anchor(name, old_path, path))
        if row.origin.name:
            row.origin = Origin(row.origin.kind, _renamed(row.origin.name, old_path, path))
        return row

    def _resolver(self, block: int) -> Callable[[Ref], Ref]:
        """From a reference of the block's template to the reference of this block."""
        template = self.plan.template[block]
        new = {**self.inside[block], **self._joined(block, template, -1), **self._joined(block, template, 1)}
        outside, refs = self.outside, self.refs
        traced_block, of_ends = self.traced.block, self.traced.of_ends

        def change(ref: Ref) -> Ref:
            found = new.get(ref.id)
            if found is None:
                assert traced_block[ref.id] is None or ref.id in of_ends
                found = outside[ref.id]
            return refs[found]

        return change

    def _joined(self, block: int, template: int, step: int) -> dict[int, int]:
        """New ids of the rows that the template reads of its traced neighbour."""
        if not 0 <= template + step < self.traced.count:
            return {}
        neighbour = block + step
        wanted = self.traced.ports(template + step, template)
        given = self._given(self.plan.template[neighbour], -step)
        if [self._kind(i) for i in wanted] != [self._kind(i) for i in given]:
            raise TemplateMismatch(
                f"{self.plan.full_path(block)} reads other values of the block"
                f" {'before' if step < 0 else 'after'} it than the traced {self.plan.traced_path(template)}"
            )
        return {old: self.inside[neighbour][i] for old, i in zip(wanted, given, strict=True)}

    def _given(self, giver: int, step: int) -> list[int]:
        return self.traced.ports(giver, giver + step) if 0 <= giver + step < self.traced.count else []

    def _kind(self, id: int) -> tuple[object, ...]:
        row = self.traced.rows[id]
        return self.traced.sections[id], row.shape, row.dtype, row.outs

    def outputs(self, outputs: Mapping[OutputRole, int]) -> Iterator[tuple[OutputRole, int]]:
        """The outputs of the whole step; those named after a traced block come once per block of its kind."""
        for role, i in outputs.items():
            template = self._template_of(role.name)
            for block, places in self._copies(template):
                if i not in places:
                    raise TemplateMismatch(f"the output {role.name or role.kind.value} is made elsewhere")
                yield self._role(role, template, block), places[i]

    def _copies(self, template: int | None) -> list[tuple[int | None, Mapping[int, int]]]:
        """The blocks made from a template, and where its rows are; an end's outputs may lie outside."""
        if template is None:
            return [(None, self.outside)]
        if template in self.ends:
            return [(self.ends[template], self.outside)]
        return [(block, self.inside[block]) for block, t in enumerate(self.plan.template) if t == template]

    def _template_of(self, name: str) -> int | None:
        paths = (f"{self.plan.traced_path(place)}." for place in range(self.traced.count))
        return next((place for place, path in enumerate(paths) if name.startswith(path)), None)

    def _role(self, role: OutputRole, template: int | None, block: int | None) -> OutputRole:
        if template is None or block is None:
            return role
        old, new = self.plan.traced_path(template), self.plan.full_path(block)
        return replace(role, name=_renamed(role.name, old, new))


def _moved(row: Row, new: int, change: Callable[[Ref], Ref]) -> Row:
    named = {key: _change(value, change) for key, value in row.kwargs.items()} if row.kwargs else {}
    return moved(row, new, _changed(row.args, change), named)


def _changed(values: Iterable[object], change: Callable[[Ref], Ref]) -> tuple[object, ...]:
    return tuple([_change(value, change) for value in values])


def _change(value: object, change: Callable[[Ref], Ref]) -> object:
    if isinstance(value, Ref):
        return change(value)
    return _changed(value, change) if isinstance(value, (tuple, list)) else value


def _renamed(name: str, old: str, new: str) -> str:
    return new + name[len(old) :] if name == old or name.startswith(f"{old}.") else name


def _shown(row: Row) -> str:
    return f"{row.op} {row.where}".rstrip() if row.op != PLACEHOLDER else row.origin.name
