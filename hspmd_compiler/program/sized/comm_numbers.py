"""The numbers of a communication step in one fixed order, and the step with other ones in their places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...base.comm_plan import Box, CommStep, Piece
from ...errors import OptionError
from .sizes import MicroSizes, Overlay, Size

Shape = tuple[int, ...]


def numbers_of(step: CommStep) -> tuple[int, ...]:
    """Views and shape, then the ends of all boxes: of sends, of receives."""
    shapes = (step.src_view, step.dst_view, step.dst_shape)
    sizes = [size for shape in shapes for size in shape or ()]
    pieces = (*step.sends, *step.recvs)
    return (*sizes, *(end for piece in pieces for box in piece.boxes for ends in box for end in ends))


def frame_of(step: CommStep) -> tuple[object, ...]:
    """All of a step but its numbers: equal for steps that differ in sizes only."""
    shapes = [
        None if shape is None else len(shape) for shape in (step.src_view, step.dst_view, step.dst_shape)
    ]
    pieces = [
        [(piece.peer, [len(box) for box in piece.boxes]) for piece in given]
        for given in (step.sends, step.recvs)
    ]
    named = (step.id, step.kind, step.group, step.combine, step.note, step.dtype, step.form, step.counted)
    return (*named, shapes, pieces)


def with_numbers(step: CommStep, numbers: tuple[int, ...]) -> CommStep:
    """The step whose `numbers_of` these are."""
    given = iter(numbers)
    return replace(
        step,
        src_view=_shape(step.src_view, given),
        dst_view=_shape(step.dst_view, given),
        dst_shape=_shape(step.dst_shape, given),
        sends=tuple(_piece(piece, given) for piece in step.sends),
        recvs=tuple(_piece(piece, given) for piece in step.recvs),
    )


def filled(step: CommStep, overlay: Overlay, micro: MicroSizes, total: int = 0) -> CommStep:
    """The step of one micro-batch; an OptionError where its tokens are cut in an order that it can't take."""
    return placed(step, [(place, size.at(micro, total)) for place, size in overlay], micro)


def placed(step: CommStep, varying: Sequence[tuple[int, int]], micro: MicroSizes) -> CommStep:
    """As `filled`, from (place, number) pairs."""
    if not varying:
        return step
    numbers = list(numbers_of(step))
    for place, number in varying:
        numbers[place] = number
    made = with_numbers(step, tuple(numbers))
    if any(low > high for piece in (*made.sends, *made.recvs) for box in piece.boxes for low, high in box):
        raise OptionError(
            "the tokens of a micro-batch are cut unlike on two stages",
            details=[("tokens", f"{micro.tokens}"), ("cuts", f"{[list(cut) for cut in micro.cuts]}")],
            rule="between stages of unlike degrees, boundaries of cuts keep the order of those of even cuts",
            fix="cut the tokens evenly, or closer to evenly, on both stages",
        )
    return made


def told_apart(step: CommStep, overlay: Overlay) -> CommStep:
    """The step with a number of its own for each size: boxes are equal there if they are at all sizes."""
    numbers = list(numbers_of(step))
    names: dict[Size, int] = {}
    for place, size in overlay:
        numbers[place] = -1 - names.setdefault(size, len(names))
    return with_numbers(step, tuple(numbers))


def _shape(shape: Shape | None, given: Iterator[int]) -> Shape | None:
    return None if shape is None else tuple([next(given) for _ in shape])


def _piece(piece: Piece, given: Iterator[int]) -> Piece:
    return Piece(piece.peer, tuple([_box(box, given) for box in piece.boxes]))


def _box(box: Box, given: Iterator[int]) -> Box:
    return tuple([(next(given), next(given)) for _ in box])
