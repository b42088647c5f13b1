"""The global batches of a proof: drawn for the model, or given by the user; and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from ..errors import VerifyError
from ..ir.graph import LogicalGraph
from ..program.context.row_piece import PADDING, RowPiece
from ..program.program import Program
from .random_batch import draw_batch

Batch = Mapping[str, Tensor]
GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Batches:
    """One batch per step. inputs: of each input, how its values came about and their range."""

    steps: tuple[Batch, ...]
    inputs: tuple[tuple[str, str], ...]


def drawn_batches(
    graph: LogicalGraph, examples: Batch | None, steps: int, generator: torch.Generator
) -> Batches:
    """Random batches that are legal for the model, as far as its graph and the examples say.

    In the last one every sample has all of its targets, so that none goes without a gradient in all of them.
    """
    drawn = [draw_batch(graph, examples, generator, step + 1 < steps) for step in range(steps)]
    how = {name: each.how for name, each in drawn[0].items()}
    return _told([{name: each.values for name, each in of.items()} for of in drawn], how)


def given_batches(given: Sequence[Batch], steps: int) -> Batches:
    """The given batches, from the first again where they are fewer than steps."""
    return _told([given[step % len(given)] for step in range(steps)], dict.fromkeys(given[0], GIVEN))


def blanked(batches: Batches, program: Program) -> Batches:
    """The batches with nothing at tokens of padding, which no rank runs."""
    padded = list(_padded(program))
    if not padded:
        return batches
    steps = tuple({key: value.clone() for key, value in batch.items()} for batch in batches.steps)
    for batch, (piece, (low, high)) in product(steps, padded):
        for each in piece.blank:
            batch[each.name][low:high, piece.end :] = each.value
    return replace(batches, steps=steps)


def checked_padding(batches: Batches, program: Program) -> Batches:
    """The batches; a VerifyError where padding has something that would count in eager's."""
    tried = product(batches.steps, _padded(program))
    wrong = dict.fromkeys(text for batch, (piece, rows) in tried for text in piece.unblank(batch, rows))
    if wrong:
        raise VerifyError("padding of samples counts", details=list(wrong), rule=PADDING)
    return batches


def _padded(program: Program) -> Iterator[tuple[RowPiece, tuple[int, int]]]:
    """Pieces of padded samples, with each of their micro-batches."""
    for own in program.ranks:
        if own.piece is not None and own.piece.blank:
            yield from ((own.piece, rows) for rows in own.rows)


def _told(batches: Sequence[Batch], how: Mapping[str, str]) -> Batches:
    told = tuple((name, f"{text}: {_range([of[name] for of in batches])}") for name, text in how.items())
    return Batches(tuple(batches), told)


def _range(values: Sequence[Tensor]) -> str:
    whole = torch.cat([each.flatten() for each in values])
    if not whole.numel():
        return "no values"
    if whole.is_complex():
        return f"sizes up to {float(whole.abs().max()):.4g}"
    low, high = (float(end) for end in (whole.double().min(), whole.double().max()))
    return f"{low:.4g} to {high:.4g}" if low != high else f"{low:.4g} throughout"
