"""Plans between several strategies: which pairs are wanted, and the plan of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

from ..base.log import task
from ..errors import OptionError
from ..program.program import Program, RankProgram
from ..program.switch_plan import SwitchPlan, SwitchScope
from .links import SwitchLinks
from .plan import plan_switch

Pair = tuple[str, str]
"""Names of the strategies before and after."""

SIGN = ":"


def world_of(programs: Iterable[Program]) -> tuple[int, ...]:
    """The devices of all strategies, ascending; a world rank is an index of it."""
    return tuple(sorted({own.device for program in programs for own in program.ranks}))


def plan_several(
    programs: Mapping[str, Program],
    pairs: Sequence[Pair],
    moments: tuple[str, ...],
    links: SwitchLinks,
    home: str | None = None,
) -> list[SwitchPlan]:
    """The plan of each pair; with a home also parameters from there to each other, and gradients back."""
    world = {device: rank for rank, device in enumerate(world_of(programs.values()))}
    placed: dict[str, dict[int, RankProgram]] = {
        name: {world[own.device]: own for own in program.ranks} for name, program in programs.items()
    }
    wanted = [(pair, SwitchScope.STATE) for pair in pairs]
    for name in programs:
        if home is not None and name != home:
            wanted += [((home, name), SwitchScope.PARAMS), ((name, home), SwitchScope.GRADS)]
    plans = []
    with task("plan switches", len(wanted)) as progress:
        for (source, target), scope in wanted:
            plans.append(
                plan_switch(
                    placed[source],
                    placed[target],
                    links,
                    names=(source, target),
                    scope=scope,
                    moments=moments if scope is SwitchScope.STATE else (),
                )
            )
            progress.advance()
    return plans


def wanted_pairs(
    given: str | Iterable[Pair] | None, names: Sequence[str], home: str | None = None
) -> list[Pair]:
    """The switches that are asked for, as `A:B,B:A` or pairs; None: every ordered pair."""
    pairs = list(permutations(names, 2)) if given is None else _pairs(given)
    bad = [(SIGN.join(pair), text) for pair in pairs for text in _problems(pair, names)]
    bad += [(SIGN.join(pair), "asked for twice") for pair in dict.fromkeys(pairs) if pairs.count(pair) > 1]
    if home is not None and home not in names:
        bad.append((home, f"the home is none of {', '.join(names)}"))
    if bad:
        raise OptionError(
            "the switches are not understood",
            details=bad,
            rule="a switch is two names of strategies, SOURCE:TARGET",
            fix=_example(names, is_home_wrong=len(bad) == 1 and home is not None and home not in names),
        )
    return pairs


def _example(names: Sequence[str], is_home_wrong: bool) -> str:
    if len(names) < 2:
        return "give at least two strategies"
    if is_home_wrong:
        return f"--home {names[0]}"
    one, other = names[:2]
    return f"--switch {one}{SIGN}{other},{other}{SIGN}{one}, or none, for all pairs"


def _pairs(given: str | Iterable[Pair]) -> list[Pair]:
    if not isinstance(given, str):
        return [(source, target) for source, target in given]
    split = [text.strip().partition(SIGN) for text in given.split(",")]
    return [(source.strip(), target.strip()) for source, _, target in split]


def _problems(pair: Pair, names: Sequence[str]) -> Iterable[str]:
    source, target = pair
    for name in dict.fromkeys(pair):
        if not name:
            yield "a name is missing"
        elif name not in names:
            yield f"no strategy {name!r}; there are {', '.join(names)}"
    if source == target and source in names:
        yield "one strategy, which needs no switch"
