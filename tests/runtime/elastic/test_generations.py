"""What a generation is told, out of what ranks held in the ones before."""

from __future__ import annotations

from dataclasses import replace

from hspmd_compiler.runtime.elastic.choosing import Situation, Successor
from hspmd_compiler.runtime.elastic.decide import decide
from hspmd_compiler.runtime.elastic.generations import Generations
from hspmd_compiler.runtime.elastic.messages import Halt, HeldReport, NextGeneration, RunPosition, WorldMember

PLAN = Successor("/programs/a", "a", (0, 2), "/plans/1")
WORLD = tuple(WorldMember(id, device) for id, device in ((0, 3), (5, 4), (2, 7)))


def begun(generations: Generations, reports: dict[int, Halt]) -> NextGeneration:
    decision = decide({id: halt.held for id, halt in reports.items()})
    return generations.next(WORLD, decision, PLAN, list(reports.values()), None)


def test_who_is_which_rank_is_remembered() -> None:
    """The first and the third process run the program; the second is idle and has nothing of it."""
    generations = Generations("here", 1)
    first = begun(generations, {id: Halt(-1, HeldReport()) for id in (0, 5, 2)})
    assert (first.generation, first.held, first.plan) == (0, -1, "/plans/1")
    reports = {0: HeldReport(0, 4, whole=False), 5: HeldReport(0, 4), 9: HeldReport()}
    world = [WorldMember(0, 3), WorldMember(5, 4), WorldMember(9, 7)]
    found = generations.situation(world, decide(reports))
    assert found == Situation((3, 4, 7), "/programs/a", "a", (0, None, None), (0,))
    assert found.without(3) == Situation((4, 7), "/programs/a", "a", (None, None), ())
    assert found.renewed(3) == replace(found, held_as=(None, None, None), stale=())
    assert generations.after(WORLD, is_renewed=False)[1] == Situation((3, 7), "/programs/a", "a", (0, 1))


def test_who_has_which_copies_is_remembered() -> None:
    """By world rank of the generation that made them: idle processes keep some, new ones have none."""
    generations = Generations("here", 1)
    reports = {id: Halt(-1, HeldReport()) for id in (0, 5, 2)}
    successor = replace(PLAN, copies="/copies/1", restored="/plans/2")
    decision = decide({id: halt.held for id, halt in reports.items()})
    order = generations.next(WORLD, decision, successor, list(reports.values()), None)
    assert (order.copies, order.restored) == ("/copies/1", "/plans/2")
    world = [WorldMember(5, 4), WorldMember(2, 7), WorldMember(9, 8)]
    held = {5: HeldReport(0, 4), 2: HeldReport(0, 4), 9: HeldReport()}
    found = generations.situation(world, decide(held))
    assert (found.copies, found.copied_as) == ("/copies/1", (1, 2, None))
    assert found.without(4).copied_as == (2, None) and found.renewed(4).copied_as == (None, 2, None)
    order = generations.next(WORLD, decision, successor, list(reports.values()), "/kept/step-2")
    assert (order.plan, order.restored, order.copies) == ("", "", "/copies/1")


def test_the_position_is_of_those_who_took_the_last_step() -> None:
    """And is not forgotten where nobody is left who knows it."""
    generations = Generations("here", 1)
    old, new = RunPosition(0, 4, seed=7, begun=2), RunPosition(0, 5, seed=7, begun=2)
    halts = {0: Halt(0, HeldReport(0, 4, ready=True), "", old), 2: Halt(0, HeldReport(0, 5), "", new)}
    assert begun(generations, halts).position == new
    assert begun(generations, {5: Halt(-1, HeldReport())}).position == new
