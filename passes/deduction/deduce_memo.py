"""What a rule made is made again without it, where rows and layouts are alike: layers repeat.

A rule depends on its row's literals and on the layouts of its operands. Kept is what made exactly one local
row out of the operands themselves, with no conversion and no look at other rows: everything else goes to
the rule each time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...ir.annotated import AnnotatedRow, AnnotatedValue
from ...ir.graph import LogicalGraph, Phase, Ref, Row

Values = Mapping[tuple[int, int], AnnotatedValue | tuple[AnnotatedValue, ...]]
MemoKey = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """In the place of an operand: its number among the row's."""

    index: int


@dataclass(frozen=True, slots=True)
class MadeRow:
    """A local row with slots for its operands. via: the slot of the operand that its value is a view of.
    deep: whether slots stand inside lists of arguments, or in keywords."""

    op: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    reads: tuple[object, ...]
    out: AnnotatedValue
    via: int | None
    deep: bool


def signatures(graph: LogicalGraph) -> list[int]:
    """A number per row; equal numbers mean equal operators, literals, results and operands, and patterns of
    these: the same call."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(_signature(row, graph.rows), len(numbers)) for row in graph.rows]


def _signature(row: Row, rows: Sequence[Row]) -> Hashable:
    seen: list[int] = []
    args = _literals(row.args, seen, rows)
    kwargs = tuple([(name, *_literals((value,), seen, rows)) for name, value in row.kwargs.items()])
    return row.op, args, kwargs, row.shape, row.dtype, row.outs


def _literals(values: Sequence[object], seen: list[int], rows: Sequence[Row]) -> tuple[Hashable, ...]:
    """With their types, as 1, 1.0 and True are equal; refs by which operand they are, and what it is."""
    found: list[Hashable] = []
    for value in values:
        if type(value) is Ref:
            seen.append(value.id)
            read = rows[value.id]
            found.append((Ref, seen.index(value.id), read.shape, read.dtype))
        elif isinstance(value, (tuple, list)):
            found.append(_literals(value, seen, rows))
        elif isinstance(value, float):
            found.append((float, value.hex()))
        else:
            found.append((type(value), value))
    return tuple(found)


@dataclass(slots=True)
class RuleMemo:
    """Made rows of one deduction.

    looked: whether the running rule has looked at more than its operands, or left a note.
    """

    signatures: Sequence[int] = ()
    looked: bool = False
    _made: dict[MemoKey, MadeRow] = field(default_factory=dict)

    def key(self, row: Row, stage: int, operands: Sequence[int], values: Values) -> MemoKey | None:
        """What a rule depends on; None where an operand is not there yet."""
        if not self.signatures:
            return None
        key: list[Hashable] = [self.signatures[row.id], stage]
        numbers = []
        for operand in operands:
            value = values.get((operand, stage))
            if type(value) is not AnnotatedValue or value.producer is not None:
                return None
            number = value.id
            numbers.append(number)
            if value.pure:  # layers share these; what was made of them before is theirs
                key.append(number)
            else:
                key += (value.layout, value.dtype, value.static, value.loose, numbers.index(number))
        return tuple(key)

    def find(self, key: MemoKey | None) -> MadeRow | None:
        """What was made for a key."""
        return None if key is None else self._made.get(key)

    def learn(self, key: MemoKey, made: AnnotatedRow, read: Sequence[AnnotatedValue]) -> None:
        """Keep a row that was made of operands, and of pure values that came from these."""
        slots = {value.id: Slot(index) for index, value in reversed(list(enumerate(read)))}
        via = made.out.via[1].id if made.out.via is not None else None
        plain = all(value.id in slots or value.pure for value in made.reads)
        if made.marker is not None or not plain or (via is not None and via not in slots):
            return
        args = tuple([_with_slots(value, slots) for value in made.args])
        kwargs = {name: _with_slots(value, slots) for name, value in made.kwargs.items()}
        reads = tuple([slots.get(value.id, value) for value in made.reads])
        slot = None if via is None else slots[via].index
        deep = bool(_slots_in(tuple(kwargs.values()))) or any(map(_slots_in, args))
        self._made[key] = MadeRow(made.op, args, kwargs, reads, made.out, slot, deep)


def _with_slots(value: object, slots: Mapping[int, Slot]) -> object:
    if isinstance(value, AnnotatedValue):
        return slots.get(value.id, value)
    return tuple([_with_slots(item, slots) for item in value]) if isinstance(value, (tuple, list)) else value


def _slots_in(value: object) -> bool:
    """Whether slots stand in a list of arguments."""
    return isinstance(value, tuple) and any(type(item) is Slot or _slots_in(item) for item in value)


def filled(value: object, read: Sequence[AnnotatedValue]) -> object:
    """An argument with operands in its slots."""
    if type(value) is Slot:
        return read[value.index]
    return tuple([filled(item, read) for item in value]) if isinstance(value, tuple) else value


def again(
    made: MadeRow, read: Sequence[AnnotatedValue], number: int, row: Row, stage: int, phase: Phase
) -> AnnotatedRow:
    """The row once more, for a row like the one that it was made for; its value is `number`."""
    it = made.out
    via = None if made.via is None else (row, read[made.via])
    out = AnnotatedValue(
        number, it.layout, it.dtype, stage, it.pure, it.constant, it.static, it.loose, via=via
    )
    args, kwargs = made.args, made.kwargs
    if made.deep:
        args = tuple([filled(value, read) for value in args])
        kwargs = {name: filled(value, read) for name, value in kwargs.items()}
    else:
        args = tuple([read[value.index] if type(value) is Slot else value for value in args])
    reads: Any = tuple([read[value.index] if type(value) is Slot else value for value in made.reads])
    return AnnotatedRow(out, made.op, args, kwargs, stage, phase, row.where, None, reads)
