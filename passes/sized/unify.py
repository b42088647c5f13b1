"""One program of several compiles of a strategy: numbers that differ become sizes, all else is equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...base.comm_plan import CommStep
from ...program.program import ClassProgram, LocalRow, Program, RankProgram, Segment
from ...program.sized.answers import with_answers
from ...program.sized.comm_numbers import frame_of, numbers_of
from ...program.sized.size_range import SizeRange
from ...program.sized.sizes import Overlay, Size
from ...program.sized.template import check_template, first_tags, template_of
from ..compile_state import KeptShapes
from .explain import AmbiguousSize, Explainer, explainer_of
from .refusals import Unlike, ambiguous_sizes, unexplained_size, unlike_programs
from .same_classes import class_ranks, named_alike
from .saved_sizes import saved_sizes

OF_RANK = (
    "rank",
    "device",
    "pipeline",
    "stage",
    "coordinate",
    "class_name",
    "device_kind",
    "shards",
    "grad_buckets",
    "param_buckets",
)
"""What of a rank is the same at all sizes."""


def unify(
    programs: Sequence[Program],
    sizes: SizeRange,
    lines: Sequence[str] = (),
    kept: Sequence[Mapping[int, KeptShapes]] = (),
) -> Program:
    """The program of all sizes in a range; an HspmdError where the compiles differ in more than sizes.

    programs: by `sizes.probes`, which see. lines: the user's line of each row of the logical graph. kept: by
    rank of each program, see `Lowered`.
    """
    return Unifier(programs, sizes, lines, kept).run()


@dataclass(slots=True)
class Unifier:
    """Compares the compiles part by part. explainers: of each pipeline. tags: of first micro-batches.

    counts_all: a number may be that of all tokens, or samples, of a step.
    """

    programs: Sequence[Program]
    sizes: SizeRange
    lines: Sequence[str] = ()
    kept: Sequence[Mapping[int, KeptShapes]] = ()
    counts_all: bool = True
    explainers: list[Explainer] = field(init=False)
    tags: list[dict[int, int]] = field(init=False)
    products: dict[tuple[int, ...], list[tuple[Size, ...]]] = field(default_factory=dict)
    overlays: dict[tuple[int, ...], tuple[Overlay, object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tags = [first_tags(program.ranks) for program in self.programs]
        sizes = self.sizes
        self.explainers = [
            explainer_of(
                sizes.probes, sizes.unit, sizes.degrees, sizes.group_of(number), number, self.counts_all
            )
            for number in range(len(sizes.stages))
        ]

    def run(self) -> Program:
        """Compare all."""
        first = self.programs[0]
        for name in ("world_size", "aliases", "groups"):
            self.alike([getattr(each, name) for each in self.programs], Unlike(f"the program's {name}"))
        self.alike(
            [class_ranks(each) for each in self.programs], Unlike("which ranks run the same operators")
        )
        programs = named_alike(self.programs)
        users = {own.class_name: own.pipeline for own in first.ranks}
        for own in first.ranks:
            mine, theirs = self.explainers[own.pipeline], self.explainers[users[own.class_name]]
            if mine.micros != theirs.micros:
                raise unlike_programs(self.sizes, Unlike(f"class {own.class_name}", "unlike pieces run it"))
        classes = {
            name: self.class_program([each.classes[name] for each in programs], users[name])
            for name in first.classes
        }
        ranks = [self.rank(list(own)) for own in zip(*(each.ranks for each in programs), strict=True)]
        return replace(first, classes=classes, ranks=self.ranked(ranks), sizes=self.sizes)

    def ranked(self, ranks: list[RankProgram]) -> list[RankProgram]:
        """What is told of all ranks together."""
        return with_answers(ranks)

    def class_program(self, given: Sequence[ClassProgram], pipeline: int) -> ClassProgram:
        """A class whose rows have sizes."""
        where = f"class {given[0].name}"
        self.alike([len(each.segments) for each in given], Unlike(where, "its segments"))
        segments = [
            self.segment(list(each), pipeline) for each in zip(*(one.segments for one in given), strict=True)
        ]
        return ClassProgram(given[0].name, segments)

    def segment(self, given: Sequence[Segment], pipeline: int) -> Segment:
        name = f"segment {given[0].name}"
        for part in ("name", "inputs", "outputs"):
            self.alike([getattr(each, part) for each in given], Unlike(name, f"its {part}"))
        self.alike([len(each.rows) for each in given], Unlike(name, "its rows"))
        rows = [self.row(list(each), pipeline) for each in zip(*(one.rows for one in given), strict=True)]
        return replace(given[0], rows=rows)

    def row(self, given: Sequence[LocalRow], pipeline: int) -> LocalRow:
        first = given[0]

        place = Unlike(f"operator {first.op}", logical=first.logical)

        if any((each.out, each.op, each.logical) != (first.out, first.op, first.logical) for each in given):
            self.alike([(each.op, each.out, each.logical) for each in given], place)
        if all(each.args == first.args and each.kwargs == first.kwargs for each in given):
            return first
        args = self.argument([each.args for each in given], pipeline, place)
        kwargs = self.argument([each.kwargs for each in given], pipeline, place)
        return LocalRow(first.out, first.op, args, kwargs, first.logical)

    def argument(self, given: Sequence[Any], pipeline: int, place: Unlike) -> Any:
        """An argument, sizes in it where its numbers differ."""
        first = given[0]
        if any(type(each) is not type(first) for each in given):
            raise unlike_programs(self.sizes, place, given, self.lines)
        if isinstance(first, (tuple, list)):
            self.alike([len(each) for each in given], place)
            return tuple([self.argument(each, pipeline, place) for each in zip(*given, strict=True)])
        if isinstance(first, Mapping):
            self.alike([list(each) for each in given], place)
            return {key: self.argument([each[key] for each in given], pipeline, place) for key in first}
        if all(each == first for each in given):
            return first
        if type(first) is not int:
            raise unlike_programs(self.sizes, place, given, self.lines)
        return self.number(given, pipeline, place)

    def number(self, given: Sequence[int], pipeline: int, place: Unlike) -> Any:
        try:
            size = self.explainers[pipeline].size(tuple(given))
        except AmbiguousSize as error:
            raise ambiguous_sizes(self.sizes, place, str(error), self.lines) from None
        if size is None:
            raise unexplained_size(self.sizes, place, given, self.lines)
        return size

    def rank(self, given: Sequence[RankProgram]) -> RankProgram:
        """A rank's tables, and what of them varies."""
        first = given[0]
        where = f"rank {first.rank}"
        for name in OF_RANK:
            self.alike([getattr(each, name) for each in given], Unlike(where, f"its {name}"))
        templates = [template_of(own, tags) for own, tags in zip(given, self.tags, strict=True)]
        self.alike(templates, Unlike(where, "its instructions"))
        literals = self.argument(
            [each.literals for each in given], first.pipeline, Unlike(where, "a literal")
        )
        sized = templates[0]
        for name in ("comms", "transfers"):
            steps = [getattr(each, name) for each in given]
            self.alike([len(each) for each in steps], Unlike(where, f"its {name}"))
            setattr(sized, name, [self.overlay(each, first.pipeline) for each in zip(*steps, strict=True)])
        if self.kept:
            sized.saved = self.saved([held[first.rank] for held in self.kept], first)
        made = replace(first, literals=list(literals), sized=sized)
        for own, probe in zip(given, self.sizes.probes, strict=True):
            check_template(replace(own, sized=sized), self.sizes, probe.counts)
        return made

    def saved(self, given: Sequence[KeptShapes], own: RankProgram) -> list[tuple[Size, ...]]:
        """What a rank keeps of a micro-batch; ranks that keep the same share it."""
        key = (own.pipeline, *map(id, given))
        if key not in self.products:
            place = Unlike(f"rank {own.rank}", "what it keeps for backward")
            self.alike([[len(shape) for shape in shapes] for shapes in given], place)
            self.products[key] = saved_sizes(given, lambda numbers: self.number(numbers, own.pipeline, place))
        return self.products[key]

    def overlay(self, given: tuple[CommStep, ...], pipeline: int) -> Overlay:
        """What varies of a step; the same steps are compared once."""
        key = (pipeline, *map(id, given))
        if key not in self.overlays:
            place = Unlike(f"communication {given[0].id}", given[0].note)

            self.alike([frame_of(each) for each in given], place)
            numbers = zip(*map(numbers_of, given), strict=True)
            varying = [(at, each) for at, each in enumerate(numbers) if each.count(each[0]) != len(each)]
            found = tuple((at, self.number(each, pipeline, place)) for at, each in varying)
            self.overlays[key] = found, given  # the steps are kept, so that their ids stay theirs
        return self.overlays[key][0]

    def alike(self, given: Sequence[object], place: Unlike) -> None:
        """A refusal where the compiles differ."""
        if any(each != given[0] for each in given):
            raise unlike_programs(self.sizes, place, given, self.lines)
