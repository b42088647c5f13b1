"""Which loaded tensor is which of ours: names, aliases and shapes, with every mistake told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ...base.comm_plan import Box
from ...base.name_groups import shortened
from ...errors import RunError
from ...program.program import Program, Shard
from ..shards import ReadBox
from ..transport import Transport

Shape = tuple[int, ...]
NamedShape = tuple[str, Shape, bool, bool]
"""Name, whole shape, whether it is a buffer, whether the model saves it."""


@dataclass(frozen=True, slots=True)
class ModelNames:
    """Names and whole shapes of a model, whichever rank holds them.

    needed: parameters, and `optional`: buffers, which may be missing where that is allowed.
    unsaved: buffers that the model keeps out of its state dict; ignored where they are given.
    """

    needed: Mapping[str, Shape]
    optional: Mapping[str, Shape]
    unsaved: frozenset[str]
    aliases: Mapping[str, str]

    @classmethod
    def of_all_ranks(
        cls, program: Program, transport: Transport, shards: Sequence[Shard], unsaved_too: bool = False
    ) -> ModelNames:
        """Gathered from every rank, so that all of them find the same mistakes.

        unsaved_too: what is loaded holds the buffers that a state dict leaves out, too.
        """
        own = named_shards(shards, unsaved_too)
        return cls.of_shards(program, cast(list[list[NamedShape]], transport.gather_objects(own)))

    @classmethod
    def of_shards(cls, program: Program, held_by_rank: Iterable[Iterable[NamedShape]]) -> ModelNames:
        """From what `named_shards` gives on each rank."""
        needed: dict[str, Shape] = {}
        optional: dict[str, Shape] = {}
        unsaved: set[str] = set()
        for held in held_by_rank:
            for name, shape, is_buffer, persistent in held:
                if not persistent:
                    unsaved.add(name)
                else:
                    (optional if is_buffer else needed)[name] = shape
        return cls(needed, optional, frozenset(unsaved), program.aliases)

    def spellings(self, name: str) -> list[str]:
        """The name and its aliases."""
        return [name, *(alias for alias, of in self.aliases.items() if of == name != alias)]


def named_shards(shards: Sequence[Shard], unsaved_too: bool = False) -> list[NamedShape]:
    """What a rank tells the others of its shards. unsaved_too: as in `ModelNames.of_all_ranks`."""
    return [
        (shard.name, shard.whole_shape, shard.is_buffer, shard.persistent or unsaved_too) for shard in shards
    ]


def match_names(
    names: ModelNames, given: Mapping[str, Shape], all_buffers: bool = True
) -> dict[str, tuple[str, ...]]:
    """The given names for each of ours; without `all_buffers` a buffer may be missing, then it isn't there.

    Several where what is tied was given by several names: `agreeing` reads them.
    """
    matched = {}
    wrong = []
    for name, shape in {**names.needed, **names.optional}.items():
        found = tuple(each for each in names.spellings(name) if each in given)
        bad = [each for each in found if given[each] != shape]
        wrong += [(each, f"shape {list(given[each])}, the program has {list(shape)}") for each in bad]
        if not found:
            wrong += [(name, "missing")] if all_buffers or name in names.needed else []
        elif not bad:
            matched[name] = found
    known = {*names.needed, *names.optional, *names.unsaved, *names.aliases}
    wrong += [(name, "the program has no such parameter") for name in given if name not in known]
    if wrong:
        raise RunError(
            "the weights don't fit the program",
            details=shortened(wrong),
            rule="every parameter is given by its name or by an alias, in its whole shape",
        )
    return matched


def agreeing(spellings: Sequence[str], reader: Callable[[str], ReadBox]) -> ReadBox:
    """Reads boxes of a tensor by the first of its names; a RunError where it has other values by another."""
    readers = [reader(name) for name in spellings]

    def read(box: Box) -> Tensor:
        first, *others = [each(box) for each in readers]
        for name, other in zip(spellings[1:], others, strict=True):
            if not bool(((first == other) | (first.isnan() & other.isnan())).all()):
                raise RunError(
                    f"{spellings[0]} and {name} are one tensor of the model, and have two values here",
                    rule="what is tied has one value",
                    fix="leave one of the names out, or make a model in which they are not tied",
                )
        return first

    return read
