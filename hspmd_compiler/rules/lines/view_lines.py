"""The table's lines of views and copies: the same elements in other dims, products of other letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd

from ...ir.graph import Row
from ..in_code.view_rules import VIEWS, expand, repeat, unsqueeze, view
from ..op_apply import put
from ..op_rule import Letters, Linear, OpRule, Shapes, chosen, lengths_of, numbered
from ..rules import integer, items

ACROSS = "a view regroups it across its parts"
SQUEEZES = ("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default")


@dataclass(slots=True)
class _Side:
    """The dims of one shape, from the outermost, and the letters that were read of them so far.

    left: what is not read yet of the last of these dims.
    """

    shape: Sequence[int]
    letters: list[Letters] = field(default_factory=list)
    left: int = 1

    def more(self) -> int:
        """What can be read next, 1 at the end."""
        while self.left == 1 and len(self.letters) < len(self.shape):
            self.left = self.shape[len(self.letters)]
            self.letters.append(())
        return self.left


@dataclass(slots=True)
class _Reading:
    """Two shapes of the same elements, read side by side in letters of both."""

    source: _Side
    target: _Side
    lengths: dict[str, int] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Letters of both, and whole ones of one side where they share no factor."""
        while True:
            read, written = self.source.more(), self.target.more()
            common = gcd(read, written)
            if read == written == 1:
                return
            if common > 1:
                self._take(common, self.source, self.target)
            else:
                self._apart()

    def _apart(self) -> None:
        """Dims up to where both sides have read as much again."""
        read, written = self._whole(self.source), self._whole(self.target)
        while read != written:
            if read < written:
                read *= self._whole(self.source)
            else:
                written *= self._whole(self.target)

    def _take(self, size: int, *sides: _Side) -> str:
        name = f"d{len(self.lengths)}"
        self.lengths[name] = size
        for side in sides:
            side.letters[-1] = (*side.letters[-1], name)
            side.left //= size
        return name

    def _whole(self, side: _Side) -> int:
        """What is left of a dim as a whole letter."""
        size = side.more()
        self.whole.add(self._take(size, side))
        return size


def regrouped(row: Row, shapes: Shapes) -> OpRule:
    """Letters of which the dims of both shapes are products; where they share none, dims are whole."""
    source, target = shapes[0] or (), row.shape or ()
    if 0 in source:  # nothing to split
        read, written = numbered(len(source)), numbered(len(target), "e")
        return chosen(row, [read], [written], [name for (name,) in (*read, *written)])
    reading = _Reading(_Side(source), _Side(target))
    reading.run()
    read, written = tuple(reading.source.letters), tuple(reading.target.letters)
    return chosen(row, [read], [written], reading.whole, lengths=tuple(reading.lengths.items()))


def _expanded(row: Row, shapes: Shapes) -> OpRule:
    """Stretched and new dims of the result have letters of their own."""
    source, target = shapes[0] or (), row.shape or ()
    letters = numbered(len(target))
    missing = len(target) - len(source)
    read = [
        () if size == 1 and wanted != 1 else names
        for names, size, wanted in zip(letters[missing:], source, target[missing:], strict=True)
    ]
    return chosen(row, [tuple(read)], [letters], lengths=lengths_of(letters, target))


def _repeated(row: Row, shapes: Shapes) -> OpRule:
    """Copies are an outer letter, whole."""
    source, counts = shapes[0] or (), [integer(count) for count in items(row.args[1])]
    letters, copies = numbered(len(source)), numbered(len(row.shape or ()), "r")
    lengths = lengths_of(letters, source) + lengths_of(copies, counts)
    read = ((),) * (len(copies) - len(letters)) + letters
    written = tuple(outer + inner for outer, inner in zip(copies, read, strict=True))
    return chosen(row, [letters], [written], whole=[name for (name,) in copies], lengths=lengths)


SAME = "the same elements in other dims: products of letters of both shapes"
ANY = "stretched and new dims take any cut"
VIEWS_AND_COPIES = {
    **dict.fromkeys((*VIEWS, *SQUEEZES), (regrouped, view, SAME)),
    "aten.unsqueeze.default": (regrouped, unsqueeze, SAME),
    "aten.expand.default": (_expanded, expand, ANY),
    "aten.repeat.default": (_repeated, repeat, "d -> (r d), whole='r'"),
}
for _op, (_letters, _code, _says) in VIEWS_AND_COPIES.items():
    put(OpRule(_op, by_shapes=_letters, code=_code, linear=Linear.ONE, flops=0, why=ACROSS, says=_says))
