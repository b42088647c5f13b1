"""A mask of ones beside positions says nothing, and hides where documents begin: the model is called without.

Models of transformers look at positions only where they get no mask. So one that leaves out no token of the
example is left out of the call, where this is proved to change nothing for rows of one document: with ones,
each attention passes what the attention of documents passes then. Batches are held to ones when they come.
A mask of a factory's random numbers isn't known: it is taken for ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ...base.log import logger, task
from ...errors import HspmdError
from ...ir.graph import LogicalGraph, Ref, Row
from ...ir.own_names import PACKED
from ...ir.type_text import dtype_name
from ...models.compile_subject import CompileSubject
from ...program.kernels.packed_kernels import DocumentMask
from ...program.program import Program
from ...rules.lines.attention_lines import FLASH
from ...trace.key_cache import POSITIONS, USE_CACHE, loses_key_cache
from ...trace.trace_checks import check_named
from ..causal_mask import MASK, passing
from .packed_mask import SHORT, MaskFinder, MaskRows, candidates, expected, named

MASK_INPUT = "attention_mask"
ROWS = 3
Inputs = Mapping[str, Tensor]
StepOf = Callable[[nn.Module, Inputs, int], LogicalGraph]
"""A traced step of inputs like these, of so many samples."""


def without_masks(
    subject: CompileSubject,
    trace: StepOf,
    known: dict[tuple[int, int], tuple[CompileSubject, CompileSubject]] | None = None,
) -> CompileSubject:
    """What is compiled, called without masks of ones. known: what came of others, by model and inputs."""
    check_named(subject.inputs, subject.model)
    known = {} if known is None else known
    key = id(subject.model), id(subject.inputs)
    if key not in known:
        left_out = left_out_masks(subject, trace)
        _tell_how_called(subject, left_out)
        inputs = {name: value for name, value in subject.inputs.items() if name not in left_out}
        masks = {name: subject.inputs[name] for name in left_out}
        called = replace(subject, inputs=inputs, left_out=masks) if left_out else subject
        known[key] = called, subject  # which is kept, so that its ids stay its own
    return known[key][0]


def left_out_masks(subject: CompileSubject, trace: StepOf) -> frozenset[str]:
    """Names of inputs that the model is to be called without."""
    model, inputs = subject.model, subject.inputs
    if not _can_do_without(model, inputs):
        return frozenset()
    mask = subject.held(MASK_INPUT)
    if mask is not None and not bool((mask != 0).all()):
        return frozenset()
    with task("look for documents that a mask hides"):
        found = _hides_documents(model, inputs, trace)
    if found and mask is None:
        logger.warning("numbers of the example's %s aren't known: batches may hold ones alone", MASK_INPUT)
    if found is None:
        logger.warning(
            "%s is applied as the model does it: documents of a row see each other, though %s begin anew",
            MASK_INPUT,
            POSITIONS,
        )
    return frozenset({MASK_INPUT}) if found else frozenset()


def _tell_how_called(subject: CompileSubject, left_out: frozenset[str]) -> None:
    """In one line, what a user's own call of the model has and this one hasn't."""
    ways = [f"{USE_CACHE} off"] if loses_key_cache(subject.model, subject.inputs) else []
    ways += [f"no {name}, which is all ones" for name in sorted(left_out)]
    if ways:
        text = "the model is called with %s: the batch has %s, which tell documents apart only so"
        logger.warning(text, " and ".join(ways), POSITIONS)


def with_left_out(program: Program, masks: Inputs) -> Program:
    """The program, whose batches may hold these masks beside positions."""
    shape = program.inputs[POSITIONS][0] if masks else ()
    held = {name: (shape, dtype_name(mask.dtype)) for name, mask in masks.items()}
    return replace(program, left_out=held) if held else program


def _can_do_without(model: nn.Module, inputs: Inputs) -> bool:
    """Whether the example has a mask of tokens beside positions, and the model can be called without it."""
    mask, positions = inputs.get(MASK_INPUT), inputs.get(POSITIONS)
    if mask is None or positions is None or mask.dim() != 2 or mask.shape[1:] != positions.shape[1:]:
        return False
    try:
        known = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return False
    return MASK_INPUT not in known or known[MASK_INPUT].default is None


def _hides_documents(model: nn.Module, inputs: Inputs, trace: StepOf) -> bool | None:
    """Whether positions tell documents without a mask; None: and one of ones is not seen to be none."""
    short = {
        name: value.new_zeros(()).expand(ROWS, SHORT, *value.shape[2:]) if value.dim() > 1 else value
        for name, value in inputs.items()
    }
    try:
        without = trace(model, {name: value for name, value in short.items() if name != MASK_INPUT}, ROWS)
        if not _tells_documents(without):
            return False
        packed = [row for row in without.rows if row.op == PACKED]
        return (bool(packed) and _says_nothing(trace(model, short, ROWS), packed)) or None
    except HspmdError:  # what is wrong with the model is told of its own inputs
        return None


def _tells_documents(graph: LogicalGraph) -> bool:
    """Whether positions make a mask: attention of documents, or of its own kind, or written out."""
    finder = MaskFinder(graph)
    square = [row for row in graph.rows if (row.shape or ())[-2:] == (SHORT, SHORT)]
    found = [finder.rows(row.id) for row in square]
    told = {graph.rows[each.positions].origin.name for each in found if each is not None}
    return POSITIONS in told or any(row.op == PACKED for row in graph.rows)


def _says_nothing(graph: LogicalGraph, packed: list[Row]) -> bool:
    """Whether with ones each attention row passes what the packed one passes of one document."""
    attended = [row for row in graph.rows if row.op == FLASH]
    finder = MaskFinder(graph)
    return len(attended) == len(packed) and all(
        _kind_of_ones(finder, row) == DocumentMask(*other.args[4:6])  # type: ignore[arg-type]
        for row, other in zip(attended, packed, strict=True)
    )


def _kind_of_ones(finder: MaskFinder, row: Row) -> DocumentMask | None:
    """What attention passes of a row whose mask is ones."""
    mask = row.kwargs.get(MASK)
    rows = finder.rows(passing(finder.graph, mask.id), ()) if isinstance(mask, Ref) else None
    if rows is None or finder.graph.rows[rows.positions].origin.name != MASK_INPUT:
        return None
    tried = candidates(rows, rows.length)
    return next((named(kind, instead) for kind, instead in tried if _passes(rows, kind, instead)), None)


def _passes(rows: MaskRows, kind: DocumentMask, instead: Mapping[int, int]) -> bool:
    ones = torch.ones(rows.count, rows.length, dtype=rows.graph.rows[rows.positions].dtype)
    try:
        passes = rows.passes(ones, instead)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False  # a number that was replaced is no window
    wanted = expected(torch.arange(rows.length).expand(rows.count, -1), kind)[:, None]
    return passes is not None and passes.shape[-2:] == wanted.shape[-2:] and bool((passes == wanted).all())
