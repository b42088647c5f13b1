"""Copies of what too few nodes have: whichever nodes are lost, each element is still somewhere."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from hspmd_compiler.artifact.copies_file import copies_from, copies_text
from hspmd_compiler.program.program import RankProgram
from hspmd_compiler.program.state.state_copies import StateCopies, copies_as_program
from hspmd_compiler.program.switch_plan import VALUE, SwitchClass, SwitchScope
from hspmd_compiler.runtime.elastic.stale import program_of_owned
from hspmd_compiler.switching.copies import plan_copies, plan_restored
from hspmd_compiler.switching.kept_state import Programs
from hspmd_compiler.switching.links import SwitchLinks, links_of_nodes
from hspmd_compiler.switching.plan import plan_switch

from .by_element import check_moves, check_plan, check_ranks, elements_of, held_masks
from .test_plan_switch import ALL, DEVICES, MOMENTS, QUICK, drawn_pair

NAMES = ("before", "after")


def copied(copies: StateCopies, programs: Programs) -> dict[int, RankProgram]:
    return {rank: copies_as_program(shards, programs) for rank, shards in enumerate(copies.shards) if shards}


def check_pair(number: int, subjects: tuple[str, ...]) -> None:
    before, after, random = drawn_pair(number, subjects)
    links = links_of_nodes([random.randrange(6) for _ in range(DEVICES)])
    lost = random.choice((1, 2))
    copies = plan_copies(before, links, lost, MOMENTS, frozenset())
    targets = copied(copies, before)
    check_plan(copies.make, before, targets, MOMENTS)
    check_plan(copies.each_step, before, targets, MOMENTS)
    assert copies == copies_from(copies_text(copies).encode(), "copies.json")
    check_nodes(before, targets, links, copies, lost)
    check_loss(before, targets, after, links, set(random.sample(sorted(set(links.nodes)), lost)))


def check_nodes(
    before: Programs, copies: Programs, links: SwitchLinks, found: StateCopies, lost: int
) -> None:
    """Each element is on lost + 1 nodes, by what ranks own alone, and on no node twice by a copy."""
    owned = {rank: program_of_owned(own) for rank, own in before.items()}
    nodes: dict[tuple[str, str], dict[int, set[int]]] = {}
    for programs in (owned, copies):
        for (name, kind, rank), mask in held_masks(programs, SwitchScope.STATE, MOMENTS).items():
            if kind in (VALUE, *MOMENTS):
                of = nodes.setdefault((name, kind), {})
                for element in np.flatnonzero(mask).tolist():
                    of.setdefault(element, set()).add(links.nodes[rank])
    least = min(len(on) for of in nodes.values() for on in of.values())
    assert least >= min(lost + 1, len(set(links.nodes)))
    assert found.survived == min(lost, len(set(links.nodes)) - 1)


def check_loss(
    before: Programs, copies: Programs, after: Programs, links: SwitchLinks, gone: set[int]
) -> None:
    """What owners that are left don't have comes from copies, all of it, from ranks that have it."""
    alive = [rank for rank, node in enumerate(links.nodes) if node not in gone]
    if len(alive) < len(after):
        return
    wanted = {alive[at]: own for at, own in enumerate(after.values())}
    left, kept = ({rank: own for rank, own in of.items() if rank in alive} for of in (before, copies))
    plan = plan_switch(left, wanted, links, names=NAMES, moments=MOMENTS, missing_ok=True)
    restored, missing = plan_restored(left, kept, wanted, links, NAMES, MOMENTS)
    assert not missing.classes
    assert lacking(restored.classes) == lacking(plan.orphans())
    masks = held_masks(kept, SwitchScope.STATE, MOMENTS)
    for each in restored.classes:
        elements = elements_of(each)
        for kind in each.kinds:
            check_ranks(each.holders, masks, kept, kind, elements)
        check_moves(each, sum(map(len, elements.values())))


def lacking(classes: Iterable[SwitchClass]) -> set[tuple[str, str, int, int]]:
    return {
        (name, kind, rank, element)
        for each in classes
        for name, elements in elements_of(each).items()
        for element in elements.tolist()
        for kind in each.kinds
        for rank in each.needers
    }


@pytest.mark.parametrize("number", range(QUICK))
def test_any_lost_nodes_leave_each_element(number: int) -> None:
    check_pair(number, ("odd", "normed"))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(QUICK, ALL))
def test_any_lost_nodes_leave_each_element_of_many_strategies(number: int) -> None:
    check_pair(number, ("odd", "normed", "llama", "gpt2"))
