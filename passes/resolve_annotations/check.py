"""Pairs that can't be resolved: they do not mean one value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...annotations.annotation import Annotation, Shape
from ...annotations.text import parse_annotation
from ...base.dtypes import BYTES
from ...errors import AnnotationError
from .sides import side_of

AnnotationOrText = Annotation | str
"""An annotation, or its text."""


def element_bytes(dtype: str) -> int:
    """Bytes of an element of this type; AnnotationError where there is no such type."""
    if dtype not in BYTES:
        raise AnnotationError(
            f"element type {dtype!r}",
            rule="an element type is one of those that programs have",
            fix=f"give one of {', '.join(BYTES)}",
        )
    return BYTES[dtype]


def checked_pair(
    source: AnnotationOrText, target: AnnotationOrText, shapes: tuple[Shape, Shape], dtype: str
) -> tuple[Annotation, Annotation]:
    """The annotations of a well-typed pair; else an AnnotationError with both, and all that is wrong.

    shapes: of the tensor that each of them was written for.
    """
    errors: list[AnnotationError] = []
    pair = [_read(one, errors) for one in (source, target)]
    errors += _unlike(shapes)
    for annotation, shape in zip(pair, shapes, strict=True):
        if annotation is not None and _is_shape(shape):
            errors += _misfits(annotation, shape)
    before, after = pair
    if before is not None and after is not None and after.is_partial and not before.is_partial:
        errors.append(_to_a_sum())
    try:
        element_bytes(dtype)
    except AnnotationError as error:
        errors.append(error)
    if before is not None and before.is_partial and dtype == "bool":
        errors.append(_sum_of_bools())
    if errors or before is None or after is None:
        raise _refused(source, target, errors)
    return before, after


def _read(written: AnnotationOrText, errors: list[AnnotationError]) -> Annotation | None:
    if isinstance(written, Annotation):
        return written
    try:
        return parse_annotation(written)
    except AnnotationError as error:
        errors.append(error)
        return None


def _unlike(shapes: tuple[Shape, Shape]) -> Iterator[AnnotationError]:
    before, after = shapes
    for shape in dict.fromkeys(shapes):
        if not _is_shape(shape):
            yield AnnotationError(
                f"shape {list(shape)}",
                rule="a length is an int, 0 or more",
                fix="give the global shape of the tensor",
            )
    if before != after:
        yield AnnotationError(
            f"shape {list(before)} before, {list(after)} after",
            rule="one tensor has one global shape on both sides",
            fix="give both annotations of one tensor; a view of it is an operator of its own",
        )


def _is_shape(shape: Shape) -> bool:
    return all(isinstance(length, int) and length >= 0 for length in shape)


def _misfits(annotation: Annotation, shape: Shape) -> Iterator[AnnotationError]:
    try:
        side_of(annotation, shape)
    except AnnotationError as error:
        yield error


def _to_a_sum() -> AnnotationError:
    return AnnotationError(
        "a whole value is to become a pending sum",
        rule="only a computation makes addends; a sum that is done is not undone",
        fix="name splits or duplicates after, or say before which addends there are (Px, hetero=partial)",
    )


def _sum_of_bools() -> AnnotationError:
    return AnnotationError(
        "addends are bool",
        rule="a sum of true and false is a number",
        fix="add numbers, as torch does: int64 for counts",
    )


def _refused(
    source: AnnotationOrText, target: AnnotationOrText, errors: Sequence[AnnotationError]
) -> AnnotationError:
    """One error for all; what several have in common is told once."""
    facts = [("source", str(source)), ("target", str(target))]
    first = errors[0]
    if len(errors) == 1:
        return AnnotationError(first.what, details=[*facts, *first.details], rule=first.rule, fix=first.fix)
    for error in errors:
        head = "bad" if error.rule else "in"
        rows = [(head, error.what), *error.details, ("rule", error.rule), ("fix", error.fix)]
        facts += [row for row in rows if row[1]]
    return AnnotationError(f"{len(errors)} things are wrong with a pair of annotations", details=facts)
