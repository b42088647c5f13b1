"""Pairs that can't be resolved: they do not mean one value."""

from __future__ import annotations

from collections.abc import Sequence

from ...annotations.annotation import Annotation, Shape
from ...dtypes import BYTES
from ...errors import AnnotationError
from .sides import Side, side_of


def element_bytes(dtype: str) -> int:
    """Bytes of an element of this type; AnnotationError where there is no such type."""
    if dtype not in BYTES:
        raise AnnotationError(
            f"element type {dtype!r}",
            rule="an element type is one of those that programs have",
            fix=f"give one of {', '.join(BYTES)}",
        )
    return BYTES[dtype]


def sides_of(
    source: Annotation, target: Annotation, shape: Shape, target_shape: Shape | None
) -> tuple[Side, Side]:
    """Both sides, or an AnnotationError that names both annotations, the rule and the fix."""
    if target_shape is not None and target_shape != shape:
        raise _refused(
            source,
            target,
            f"shape {list(shape)} before, {list(target_shape)} after",
            "one tensor has one global shape on both sides",
            "give both annotations of one tensor; a view of it is an operator of its own",
        )
    if target.is_partial and not source.is_partial:
        raise _refused(
            source,
            target,
            "a whole value is to become a pending sum",
            "only a computation makes addends; a sum that is done is not undone",
            "name splits or duplicates after, or say before which addends there are (Px, hetero=partial)",
        )
    sides, errors = [], []
    for annotation in (source, target):
        try:
            sides.append(side_of(annotation, shape))
        except AnnotationError as error:
            errors.append(error)
    if errors:
        raise _misfit(source, target, errors)
    return sides[0], sides[1]


def _misfit(source: Annotation, target: Annotation, errors: Sequence[AnnotationError]) -> AnnotationError:
    """One error for what doesn't fit the shape, on one side or on both."""
    facts = [("source", str(source)), ("target", str(target))]
    first = errors[0]
    if len(errors) == 1:
        return AnnotationError(first.what, details=[*facts, *first.details], rule=first.rule, fix=first.fix)
    for error in errors:
        rows = [("bad", error.what), *error.details, ("rule", error.rule), ("fix", error.fix)]
        facts += [row for row in rows if row[1]]
    return AnnotationError("neither annotation fits the tensor", details=facts)


def _refused(source: Annotation, target: Annotation, what: str, rule: str, fix: str) -> AnnotationError:
    facts = [("source", str(source)), ("target", str(target))]
    return AnnotationError(what, details=facts, rule=rule, fix=fix)
