"""What may be wrong with an annotation, by itself and on a shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .problems import AnnotationProblem
from .split import Split, even_lengths

if TYPE_CHECKING:
    from .annotation import Annotation


def problems_of(it: Annotation) -> Iterator[AnnotationProblem]:
    """Everything that is wrong whatever the shape."""
    if len(it.groups) != len(it.states) or not it.groups:
        yield AnnotationProblem(
            f"{len(it.groups)} device groups, {len(it.states)} states",
            "there is at least one group, and one states entry for each group",
            "write one entry between | for each group, in both lists",
        )
    for u, (group, states) in enumerate(zip(it.groups, it.states, strict=False)):
        if len(group) != states.size:
            yield AnnotationProblem(
                f"subgroup {u}: <{states}> is for {states.size} devices, [{group}] has {len(group)}",
                "the product of the parts is the number of devices",
                f"give [{group}] states whose parts multiply to {len(group)}",
            )
    yield from _twice_placed(it)
    yield from _hetero_problems(it)


def _twice_placed(it: Annotation) -> Iterator[AnnotationProblem]:
    for device in dict.fromkeys(it.devices):
        places = [str(u) for u, group in enumerate(it.groups) if device in group.devices]
        if len(places) > 1:
            yield AnnotationProblem(
                f"device {device} is in subgroups {', '.join(places)}",
                "a device is in one subgroup",
                f"keep device {device} in one of them",
            )


def _hetero_problems(it: Annotation) -> Iterator[AnnotationProblem]:
    count = len(it.groups)
    if (it.hetero is None) == (count > 1):
        yield AnnotationProblem(
            f"{count} subgroups with hetero {'missing' if it.hetero is None else 'given'}",
            "two or more subgroups need hetero, one subgroup has none",
            "add hetero=dup, hetero=partial or hetero=<dim>"
            if count > 1
            else "leave hetero out, or put its factor into the states",
        )
    if isinstance(it.hetero, int) and it.hetero < 0:
        yield AnnotationProblem(
            f"hetero dim {it.hetero} is negative", "dims count from 0", "count from the first dim"
        )
    if it.hetero_shares is not None:
        yield from _hetero_share_problems(it, it.hetero_shares)
    elif isinstance(it.hetero, int):
        yield from _implied_problems(it, it.hetero)


def _hetero_share_problems(it: Annotation, shares: tuple[int, ...]) -> Iterator[AnnotationProblem]:
    if not isinstance(it.hetero, int):
        yield AnnotationProblem(
            "hetero shares without a hetero dim",
            "only a dim is shared out between subgroups",
            "leave the shares out, or name the dim, as hetero=0(4,2)",
        )
    elif len(shares) != len(it.groups):
        yield AnnotationProblem(
            f"{len(shares)} hetero shares for {len(it.groups)} subgroups",
            "there is one hetero share for each subgroup",
            f"give {len(it.groups)} shares",
        )
    for share in shares:
        if share < 0:
            yield AnnotationProblem(
                f"hetero share {share} is negative", "a share is 0 or more", "use 0 for nothing"
            )


def _implied_problems(it: Annotation, dim: int) -> Iterator[AnnotationProblem]:
    splits = (states.split_of(dim) for states in it.states)
    lengths = (split.known_length for split in splits if split is not None)
    known = tuple(length for length in lengths if length is not None)
    if len(known) == len(it.groups) and known != even_lengths(sum(known), len(known)):
        yield AnnotationProblem(
            f"subgroups split {', '.join(map(str, known))} of dim {dim}, which is not even",
            "without hetero shares the subgroups have even shares",
            f"write hetero={dim}({','.join(map(str, known))})",
        )


def problems_on(it: Annotation, shape: Sequence[int], leaf: bool) -> Iterator[AnnotationProblem]:
    """Everything that doesn't fit this shape; a leaf is a parameter or an input."""
    if leaf and it.is_partial:
        yield AnnotationProblem(
            "a parameter or input is partial",
            "only computed values are pending sums",
            "use Dx or S instead of Px, and hetero=dup or a dim",
        )
    splits = [(u, split) for u, states in enumerate(it.states) for split in states.splits]
    dims = {split.dim for _, split in splits}
    dims |= {it.hetero} if isinstance(it.hetero, int) else set()
    for dim in sorted(dim for dim in dims if dim >= len(shape)):
        yield AnnotationProblem(
            f"dim {dim} of a tensor with {len(shape)} dims",
            "a split names a dim of the tensor",
            f"split one of the dims 0 to {len(shape) - 1}" if shape else "leave a scalar whole",
        )
    yield from _length_problems(it, shape, splits)


def _length_problems(
    it: Annotation, shape: Sequence[int], splits: Sequence[tuple[int, Split]]
) -> Iterator[AnnotationProblem]:
    shares, hetero = it.hetero_shares, it.hetero
    is_shared = isinstance(hetero, int) and hetero < len(shape) and shape[hetero] > 0
    if is_shared and shares is not None and not any(shares):
        yield AnnotationProblem(
            "all hetero shares are 0",
            "every element has a holder",
            "give at least one subgroup a share above 0",
        )
        return
    for u, split in splits:
        if split.fits_all or split.dim >= len(shape):
            continue
        low, high = it.extent(u, split.dim, shape[split.dim])
        for problem in split.problems_on(high - low):
            yield problem.within(f"subgroup {u}") if len(it.states) > 1 else problem
