"""Why a plan holds a parameter or a value as it does: what was considered there, and what each would cost."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...base import name_glob
from ...errors import OptionError
from ..value_types import FoundProgram, ValueType

WaysByName = Mapping[str, tuple[tuple[ValueType, float], ...]]
SHOWN_NEAR = 5


@dataclass(frozen=True, slots=True)
class ConsideredType:
    """One way of holding it. price_s: of the best program that has it so. is_chosen: by the plan."""

    type: ValueType
    price_s: float
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """A parameter or an anchor, and the ways that were considered, the cheapest first.

    made_whole: the operator without a rule that makes it on every rank, "" for none.
    """

    name: str
    ways: tuple[ConsideredType, ...]
    made_whole: str = ""


def explain_all(
    found: FoundProgram | None, names: Iterable[str]
) -> tuple[tuple[Explanation, ...], OptionError | None]:
    """Each place that any of the names names, once; and the first error, so that a plan is shown with it."""
    told: dict[str, Explanation] = {}
    wrong: OptionError | None = None
    for name in names:
        try:
            told |= {one.name: one for one in explain(found, name)}
        except OptionError as error:
            wrong = wrong or error
    return tuple(told.values()), wrong


def explain(found: FoundProgram | None, name: str) -> tuple[Explanation, ...]:
    """All that a name, a module or a glob names. OptionError where the search considered nothing so."""
    if found is None:
        raise OptionError(
            "nothing was considered module by module",
            details=[("asked for", name)],
            rule="layouts are considered where a program is searched: here none was, or none fits",
            fix="the table of what was compiled and priced says what each strategy costs",
        )
    names = [one for one in found.considered if name_glob.matches(name, one)]
    if not names:
        raise _unknown(name, found.considered)
    chosen = dict(_chosen(found))
    return tuple(
        _explanation(one, found.considered[one], chosen.get(one), found.made_whole.get(one, ""))
        for one in names
    )


def _chosen(found: FoundProgram) -> Iterator[tuple[str, ValueType]]:
    for exchange in found.exchanges:
        yield exchange.anchor, exchange.after
    for choice in found.params:
        yield choice.name, choice.type


def _explanation(
    name: str, considered: tuple[tuple[ValueType, float], ...], chosen: ValueType | None, made_whole: str
) -> Explanation:
    ordered = sorted(considered, key=lambda item: item[1])
    taken = chosen if chosen is not None else ordered[0][0] if ordered else None
    ways = tuple(ConsideredType(kind, price, kind == taken) for kind, price in ordered)
    return Explanation(name, ways, made_whole)


def _unknown(name: str, considered: WaysByName) -> OptionError:
    near = difflib.get_close_matches(name, considered, n=SHOWN_NEAR, cutoff=0.6)
    return OptionError(
        f"the plan knows no {name!r}",
        details=[("near it", ", ".join(near))]
        if near
        else [("known", ", ".join([*considered][:SHOWN_NEAR]))],
        rule="a name is that of a parameter, of an anchor, or of a module above them; globs are allowed",
        fix="hspmd trace MODEL --anchors prints the names; where a value can be held in one way only, none",
    )
