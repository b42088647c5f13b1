"""How each value of a deduced graph follows from the samples of a batch.

A value of the samples is a sum of terms: per sample, or summed over them, times a power of the number of
samples, divided by a count of labels. Layouts prove that a value is of its sample alone, or a sum over
samples (a pending sum over BATCH, in which its rule is linear); numbers that change with the number of
samples are found by a second graph, of twice as many. A value of which nothing is proved is `Unproved`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ...artifact.proved_loss import ProvedLabels
from ...ir.annotated import STEP_REDUCE, AnnotatedRow, AnnotatedValue, PerCoordinate, PipelineGraph
from ...layout.layout import Axis, Layout
from ...rules.in_code.pointwise_operators import LINEAR, MOVES, SUMS
from ...rules.lines.slice_lines import CUTS_AND_JOINS
from ...rules.lines.view_lines import VIEWS_AND_COPIES
from .label_counts import LabelCounts

MULTIPLIES = ("aten.mul.Tensor", "aten.mul.Scalar")
DIVIDES = ("aten.div.Tensor", "aten.div.Scalar")
FILLS = ("hspmd.full", "aten.scalar_tensor.default", "aten.full.default")
DRAWS = ("hspmd.random_mask", "hspmd.random_numbers")
CASTS = ("aten._to_copy.default", *MOVES)
TOTALS = ("aten.sum.default", "aten.sum.dim_IntList", "hspmd.nll_pick", "aten.mean.dim", "aten.mean.default")
CARRIES = frozenset((*LINEAR, *SUMS, *TOTALS, *VIEWS_AND_COPIES, *CUTS_AND_JOINS))
"""Linear in all that they read together."""


@dataclass(frozen=True, slots=True)
class LossTerm:
    """power: of the number of samples. over: the labels by whose number it is divided."""

    power: int = 0
    over: ProvedLabels | None = None


@dataclass(frozen=True, slots=True)
class OfSamples:
    """Per sample, or a sum over samples. fixed: with an addend that is of no sample."""

    terms: frozenset[LossTerm]
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Whole:
    """The same for all samples, of the model alone. power: of the number of samples that it goes by.

    count: it is the number of these labels in the batch, too.
    """

    power: int = 0
    count: ProvedLabels | None = None


@dataclass(frozen=True, slots=True)
class Unproved:
    """why, where: of the first row of which nothing is known."""

    why: str
    where: str = ""


Form: TypeAlias = OfSamples | Whole | Unproved
PLAIN = OfSamples(frozenset({LossTerm()}))
ONCE = OfSamples(frozenset(), fixed=True)
"""An addend that is of no sample."""


def is_of_samples(layout: Layout) -> bool:
    """Whether BATCH cuts a value, or is what it is to be summed over."""
    return Axis.BATCH in layout.partial or layout.cut(ranks=False) is not None


@dataclass(slots=True)
class BatchForms:
    """Of one graph. like: the same graph of twice as many samples. factors: of what is divided by the number
    of samples, the elements of each; and all other numbers that sums are multiplied by."""

    graph: PipelineGraph
    like: PipelineGraph
    samples: int
    forms: dict[int, Form] = field(default_factory=dict)
    factors: list[tuple[str, float]] = field(default_factory=list)

    def of_loss(self) -> Form:
        """The form of the loss."""
        loss, rows, others = self.graph.loss, self.graph.rows, self.like.rows
        assert loss is not None, "a training step has a loss"
        if [row.op for row in rows] != [row.op for row in others]:
            return Unproved("the model computes otherwise for another number of samples")
        counts = LabelCounts.of(self.graph)
        for (_, _), value in self.graph.inputs.items():
            self.forms[value.id] = PLAIN
        needed = self._needed(loss)
        joint = self._joint()
        for row, other in zip(rows, others, strict=True):
            if row.out.id in needed:
                self.forms[row.out.id] = self._form(row, other, counts, row.out.id in joint)
        return self.forms.get(loss.id, Whole())

    def _needed(self, value: AnnotatedValue) -> set[int]:
        needed = {value.id}
        for row in reversed(self.graph.rows):
            if row.out.id in needed:
                needed.update(read.id for read in row.reads)
        return needed

    def _joint(self) -> set[int]:
        """Results of several values, which are read one by one."""
        return {row.reads[0].id for row in self.graph.rows if row.op == "getitem"}

    def _form(self, row: AnnotatedRow, other: AnnotatedRow, counts: LabelCounts, is_joint: bool) -> Form:
        reads = [self.forms.get(read.id, Whole()) for read in row.reads]
        unproved = next((form for form in reads if isinstance(form, Unproved)), None)
        if unproved is not None:
            return PLAIN if counts.is_alike(row.out) else unproved
        if row.op == STEP_REDUCE:
            return self._sum_of_batch(row, counts)
        power = self._power(row, other)
        if power is None:
            return Unproved(f"{row.op} takes a number that changes with the number of samples", row.where)
        if is_of_samples(row.out.layout) or is_joint:
            return self._of_samples(row, reads, power)
        if any(isinstance(form, OfSamples) for form in reads):
            return Unproved("samples of the whole batch meet", row.where)
        return _of_wholes(row, reads, power)

    def _sum_of_batch(self, row: AnnotatedRow, counts: LabelCounts) -> Form:
        labels = counts.labels(row.reads[0]) if row.out.pure else None
        if labels is not None:
            return Whole(count=labels)
        if row.out.pure:
            return Unproved("it takes a sum over the batch that is no count of labels", row.where)
        return Unproved("it is a function of a sum over the batch, and no multiple of it", row.where)

    def _of_samples(self, row: AnnotatedRow, reads: Sequence[Form], power: int) -> Form:
        own = [form for form in reads if isinstance(form, OfSamples)]
        wholes = [form for form in reads if isinstance(form, Whole) and form != Whole()]
        is_sum = Axis.BATCH in row.out.layout.partial
        once = [each for each in _leaves(row.args) if isinstance(each, PerCoordinate) and each.by_position]
        if row.op == "hspmd.zero_unless":
            return own[0] if own else Unproved("a number of samples is added", row.where) if wholes else ONCE
        if once and not is_sum and row.op not in DRAWS:
            return Unproved("it goes by the place of a sample in the batch", row.where)
        if all(form == PLAIN for form in own) and not wholes and not power:
            self._note(row, is_sum and any(Axis.BATCH in read.layout.partial for read in row.reads))
            return replace(PLAIN, fixed=is_sum and bool(once) and bool(own)) if own or not is_sum else ONCE
        if row.op in (*MULTIPLIES, *DIVIDES):
            return self._scaled(row, own, wholes, power)
        is_added = is_sum and any(Axis.BATCH in read.layout.partial for read in row.reads)
        if power or wholes or not (row.op in CARRIES or is_added):
            return Unproved("it is no sum over samples, or a mean", row.where)
        terms = frozenset(term for form in own for term in form.terms)
        if not is_sum and len(own) < len(reads) and row.op in SUMS:
            terms |= PLAIN.terms  # what is the same for all samples is added to each
        return OfSamples(terms, any(form.fixed for form in own) or (is_sum and bool(once)))

    def _scaled(
        self, row: AnnotatedRow, own: Sequence[OfSamples], wholes: Sequence[Whole], power: int
    ) -> Form:
        """A product, or a quotient by what isn't of samples."""
        sign = -1 if row.op in DIVIDES else 1
        others = [form for form in own if form != PLAIN]
        first = own[0] if own else PLAIN
        if len(others) > 1 or (row.op in DIVIDES and self.forms.get(row.reads[0].id) is not first):
            return Unproved("a product of sums over samples, or divided by one", row.where)
        if row.op in DIVIDES and len(own) > 1 and own[1] != PLAIN:
            return Unproved("it is divided by a mean", row.where)
        form = others[0] if others else first
        for whole in wholes:
            power += whole.power
            if whole.count is not None:
                if row.op not in DIVIDES or any(term.over is not None for term in form.terms):
                    return Unproved("it is multiplied by a number of labels", row.where)
                form = replace(form, terms=frozenset(LossTerm(t.power, whole.count) for t in form.terms))
        self._note(row, True, -sign * power)
        moved = frozenset(LossTerm(term.power + sign * power, term.over) for term in form.terms)
        return replace(form, terms=moved)

    def _note(self, row: AnnotatedRow, is_factor: bool, power: int = 0) -> None:
        """Keep the numbers that sums are multiplied by, for a sample."""
        if is_factor:
            numbers = [each for each in _leaves(row.args) if isinstance(each, (int, float))]
            self.factors += [(row.op, float(each) / float(self.samples) ** abs(power)) for each in numbers]

    def _power(self, row: AnnotatedRow, other: AnnotatedRow) -> int | None:
        """Of the number of samples in a number of the row; None where it is no power, or no factor."""
        pairs = [*zip(_leaves(row.args), _leaves(other.args), strict=True)]
        pairs += zip(_leaves(tuple(row.kwargs.values())), _leaves(tuple(other.kwargs.values())), strict=True)
        unlike = [(one, two) for one, two in pairs if _is_plain(one) and one != two]
        if not unlike:
            return 0
        if len(unlike) > 1 or row.op not in (*MULTIPLIES, *DIVIDES, *FILLS):
            return None
        one, two = unlike[0]
        if not isinstance(one, (int, float)) or not isinstance(two, (int, float)) or not one:
            return None
        return {2.0: 1, 4.0: 2, 0.5: -1}.get(two / one)


def _of_wholes(row: AnnotatedRow, reads: Sequence[Form], power: int) -> Form:
    """What is made of values that are of no sample."""
    wholes = [form for form in reads if isinstance(form, Whole) and form != Whole()]
    if row.op in FILLS:
        return Whole(power)
    if not wholes and not power:
        return Whole()
    is_form_alone = row.op in CASTS or row.op in VIEWS_AND_COPIES
    is_clamp = row.op in ("aten.clamp.default", "aten.clamp_min.default") and _is_at_least_one(row)
    if len(wholes) == 1 and not power and (is_form_alone or (is_clamp and wholes[0].count is not None)):
        return wholes[0]
    counted = any(form.count is not None for form in wholes)
    if counted or row.op not in (*MULTIPLIES, *DIVIDES):
        return Unproved("it is a function of the number of samples or labels", row.where)
    of = {read.id: form for read, form in zip(row.reads, reads, strict=True)}
    total = 0
    for place, argument in enumerate(row.args[:2]):
        form = of.get(argument.id) if isinstance(argument, AnnotatedValue) else Whole(power)
        assert isinstance(form, Whole), "nothing here is of samples"
        total += -form.power if place and row.op in DIVIDES else form.power
    return Whole(total)


def _is_at_least_one(row: AnnotatedRow) -> bool:
    """Whether a clamp changes nothing but a count of none."""
    return len(row.args) == 2 and isinstance(row.args[1], (int, float)) and row.args[1] <= 1


def _is_plain(value: object) -> bool:
    return not isinstance(value, (AnnotatedValue, PerCoordinate))


def _leaves(value: object) -> list[object]:
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
