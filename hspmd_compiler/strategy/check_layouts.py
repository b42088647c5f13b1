"""The rules of a strategy's layouts, as far as they are known without the model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ..base.bad_values import Problem
from ..base.name_glob import components
from ..errors import AnnotationError
from .strategy import LayoutWish
from .wish_states import fixed_states


def layout_problems(wishes: Sequence[LayoutWish], widths: Collection[int]) -> Iterator[Problem]:
    """widths: how many devices the stages have."""
    first: dict[str, int] = {}
    for number, wish in enumerate(wishes):
        path = f"layouts[{number}]"
        if not all(components(wish.at)):
            yield Problem(f"{path}.at", f"{wish.at!r}: a glob has no empty part between its dots")
        elif wish.at in first:
            yield Problem(f"{path}.at", f"{wish.at!r}: layouts[{first[wish.at]}] says it too, name it once")
        first.setdefault(wish.at, number)
        yield from _state_problems(f"{path}.to", wish.to, widths)


def _state_problems(path: str, to: str, widths: Collection[int]) -> Iterator[Problem]:
    try:
        states = fixed_states(to)
    except AnnotationError as error:
        details = "".join(f"; {text}" for key, text in error.details if key == "bad")
        yield Problem(
            path, f"{to!r}: {error.what}{details}; states are written as S0(4,2,2), Dx3, Px3, S2 or D"
        )
        return
    if states is None:
        return
    several = {width for width in widths if width > 1}
    if several and states.size not in several:
        counts = " or ".join(map(str, sorted(several)))
        rule = f"for {states.size} ranks, the stages have {counts}; S2, D or P alone fit any number"
        yield Problem(path, f"{to!r}: {rule}")
    if any(split.shares is not None and not any(split.shares) for split in states.splits):
        yield Problem(path, f"{to!r}: at least one share is above 0")
