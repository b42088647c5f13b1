"""Which elements of which tensors a rank's file holds: boxes of the whole, one after the other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import prod

from ....base.comm_plan import Box, box_volume
from ....base.typed import read
from ....program.program import Shard
from ..loaded_names import Shape
from ..progress import MOMENT

PIECES_KEY = "hspmd_checkpoint"
"""In the header of a rank's file."""


@dataclass(frozen=True, slots=True)
class SavedBoxes:
    """Boxes of the whole viewed as `view`; their elements follow each other, row-major."""

    view: tuple[int, ...]
    boxes: tuple[Box, ...]

    @classmethod
    def owned_by(cls, shard: Shard) -> SavedBoxes:
        """What a rank owns of a tensor."""
        return cls(shard.whole_view, tuple(whole for whole, _ in shard.owned))

    @property
    def elements(self) -> int:
        return sum(box_volume(box) for box in self.boxes)

    def problem(self, shape: Shape) -> str:
        """Why they are no boxes of a tensor of this shape; empty where they are."""
        if prod(self.view) != prod(shape) or any(size < 0 for size in self.view):
            return f"view {list(self.view)} of a tensor of shape {list(shape)}"
        for box in self.boxes:
            inside = all(0 <= low <= high <= size for (low, high), size in zip(box, self.view, strict=False))
            if len(box) != len(self.view) or not inside:
                return f"box {[list(each) for each in box]} outside of view {list(self.view)}"
        return ""


Pieces = dict[str, SavedBoxes]
"""By the name of the parameter or buffer; moments have the same boxes."""


@dataclass(frozen=True, slots=True)
class PieceTable:
    """The pieces of a rank's file."""

    pieces: Pieces

    def text(self) -> str:
        """As the header of the file holds it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> PieceTable:
        """ValueError where it is none."""
        try:
            return read(cls, json.loads(text))
        except RecursionError as error:
            raise ValueError("nested too deep") from error


def table_problems(
    table: PieceTable, wholes: Mapping[str, Shape], stored: Mapping[str, Shape]
) -> Iterable[str]:
    """What of a rank's file doesn't fit together. wholes: shapes by name. stored: of the file's tensors."""
    for name, piece in table.pieces.items():
        problem = f"there is no tensor {name}" if name not in wholes else piece.problem(wholes[name])
        if problem:
            yield f"{name}: {problem}"
    for stored_name, shape in stored.items():
        name = tensor_of(stored_name)
        if name not in table.pieces:
            yield f"{stored_name}: its place in the whole isn't told"
        elif name in wholes and shape != (table.pieces[name].elements,):
            yield f"{stored_name}: shape {list(shape)} for {table.pieces[name].elements} elements"


def tensor_of(stored: str) -> str:
    """The parameter or buffer that a stored tensor belongs to."""
    return stored.partition("/")[2] if stored.startswith(MOMENT) and "/" in stored else stored


def stored_name(kind: str, name: str) -> str:
    """The name in a file. kind: a moment by torch's name, or empty for the value."""
    return f"{MOMENT}{kind}/{name}" if kind else name
