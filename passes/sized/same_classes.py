"""Compiles name their class programs in an order of their own: here by those of the first compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...program.program import Program


def class_ranks(program: Program) -> list[list[int]]:
    """Which ranks run the same rows, by the first of them."""
    ranks: dict[str, list[int]] = {}
    for own in program.ranks:
        ranks.setdefault(own.class_name, []).append(own.rank)
    return list(ranks.values())


def named_alike(programs: Sequence[Program]) -> list[Program]:
    """The programs, in which a rank's class has the name that it has in the first.

    Ranks that share a class do so in every program: see `class_ranks`.
    """
    first = programs[0]
    names = [own.class_name for own in first.ranks]
    return [first, *(_named(each, names) for each in programs[1:])]


def _named(program: Program, names: Sequence[str]) -> Program:
    theirs = [own.class_name for own in program.ranks]
    if theirs == list(names):
        return program
    named = dict(zip(theirs, names, strict=True))
    classes = {named[name]: replace(held, name=named[name]) for name, held in program.classes.items()}
    ranks = [replace(own, class_name=named[own.class_name]) for own in program.ranks]
    return replace(program, classes=classes, ranks=ranks)
