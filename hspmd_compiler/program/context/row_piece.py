"""Which tokens of its samples a rank runs, and what of a batch that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base.comm_plan import Interval

if TYPE_CHECKING:
    from torch import Tensor

TOKEN_DIM = 1
PADDING = "the strategy says that these tokens are padding, which no rank runs: they bear no label"


@dataclass(frozen=True, slots=True)
class TokenShift:
    """An input that is read `by` tokens later, and `fill` behind the last one."""

    name: str
    by: int
    fill: int


@dataclass(frozen=True, slots=True)
class BlankInput:
    """What an input has at tokens that count for nothing."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class RowPiece:
    """runs: tokens, ascending. inputs: those that have tokens, in dim 1; others are given whole.

    end: where the tokens end that any rank runs of these samples; behind it every input of `blank` has that
    value.
    """

    runs: tuple[Interval, ...]
    inputs: tuple[str, ...]
    shifts: tuple[TokenShift, ...] = ()
    end: int = -1
    blank: tuple[BlankInput, ...] = ()

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return sum(high - low for low, high in self.runs)

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of an input of this shape, cut."""
        if name not in self.inputs:
            return shape
        return (*shape[:TOKEN_DIM], self.tokens, *shape[TOKEN_DIM + 1 :])

    def of(self, name: str, value: Tensor) -> Tensor:
        """An input of whole samples, cut; a view where it can be."""
        if name not in self.inputs:
            return value
        shift = next((each for each in self.shifts if each.name == name), TokenShift(name, 0, 0))
        parts = [_run(value, low + shift.by, high + shift.by, shift.fill) for low, high in self.runs]
        if len(parts) == 1:
            return parts[0]
        import torch

        return torch.cat(parts, TOKEN_DIM) if parts else value.narrow(TOKEN_DIM, 0, 0)

    def unblank(self, batch: Mapping[str, Tensor], rows: Interval) -> Iterator[tuple[str, str]]:
        """Inputs of some samples that have something behind the end."""
        for each in self.blank:
            behind = batch[each.name][rows[0] : rows[1], self.end :]
            if behind.numel() and bool((behind != each.value).any()):
                yield (
                    each.name,
                    f"samples [{rows[0]}, {rows[1]}), tokens from {self.end}: not all {each.value}",
                )


def cut_input(piece: RowPiece | None, name: str, value: Tensor) -> Tensor:
    """An input of some samples as a rank reads it."""
    return value if piece is None else piece.of(name, value)


def _run(value: Tensor, low: int, high: int, fill: int) -> Tensor:
    size = value.shape[TOKEN_DIM]
    found = value.narrow(TOKEN_DIM, min(low, size), max(min(high, size) - low, 0))
    missing = high - low - found.shape[TOKEN_DIM]
    if not missing:
        return found
    import torch

    filled = value.new_full((*value.shape[:TOKEN_DIM], missing, *value.shape[TOKEN_DIM + 1 :]), fill)
    return torch.cat([found, filled], TOKEN_DIM)
