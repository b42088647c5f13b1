"""What a rule is: a function from a row and the layouts of its operands to local rows with layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..base.comm_plan import Combine
from ..errors import DeduceError, InternalError
from ..ir.annotated import AnnotatedValue, PerCoordinate
from ..ir.graph import Row
from ..layout.intervals import Sets, covers
from ..layout.layout import Axis, Coordinate, Dim, Factor, Layout, make_layout, routing_of, scale
from .call_rule import Alternative, CallRule

if TYPE_CHECKING:
    import torch

Result = AnnotatedValue | tuple[AnnotatedValue, ...]


class RuleContext(Protocol):
    """What a rule may do while one row is deduced in one stage of one pipeline."""

    @property
    def sequence_parallel(self) -> bool:
        """Whether pending sums of token activations become sequence-split."""

    @property
    def stage_devices(self) -> tuple[int, ...]:
        """The devices of this stage, in the order of its ranks."""

    @property
    def stage_shares(self) -> tuple[int, ...] | None:
        """The weights of this stage's devices, None where they are equal."""

    @property
    def pipeline_devices(self) -> tuple[int, ...]:
        """The devices of all stages of this pipeline."""

    @property
    def batch(self) -> int:
        """The global batch size."""

    @property
    def samples(self) -> Sets:
        """The samples of each BATCH coordinate."""

    @property
    def by_token(self) -> bool:
        """Whether random numbers have places by the tokens of a step: a micro-batch is one row of them."""

    @property
    def micro_batches(self) -> range:
        """The BATCH coordinates of this pipeline."""

    def operand(self, argument: object) -> AnnotatedValue:
        """The value of a Ref in this stage, transferred from another stage if need be."""

    def marked(self, argument: object) -> AnnotatedValue:
        """As `operand`, in the layout that a marker or an override gave it."""

    def optional(self, argument: object) -> AnnotatedValue | None:
        """The value of a Ref, or None."""

    def emit(
        self,
        op: str,
        args: tuple[object, ...],
        layout: Layout,
        *,
        kwargs: dict[str, object] | None = None,
        dtype: torch.dtype | None = None,
        via: AnnotatedValue | None = None,
    ) -> AnnotatedValue:
        """Place a local row. via: the operand of a layout operator, so that conversions move before it."""

    def emit_many(
        self,
        op: str,
        args: tuple[object, ...],
        layouts: Sequence[Layout | None],
        *,
        kwargs: dict[str, object] | None = None,
    ) -> tuple[AnnotatedValue, ...]:
        """Place a local row with several outputs."""

    def convert(self, value: AnnotatedValue, layout: Layout) -> AnnotatedValue:
        """The value in another layout; local where possible."""

    def settle(self, value: AnnotatedValue) -> AnnotatedValue:
        """The value without pending sums and addends."""

    def all_reduce(self, value: AnnotatedValue, combine: Combine) -> AnnotatedValue:
        """Reduce over the ranks of the stage a value whose pieces are whole on every rank."""

    def over_batch(self, value: AnnotatedValue) -> AnnotatedValue:
        """A sum over the batch, reduced over all pipelines in the middle of a pass; whole on every rank."""

    def step_value(self, value: AnnotatedValue) -> AnnotatedValue:
        """A value summed over all micro-batches and pipelines, once a step; whole on every rank."""

    def note_arrival(self, anchor: str, layout: Layout) -> None:
        """Note in which layout a value came to an anchor, in this stage."""

    def arrival(self, anchor: str) -> Layout | None:
        """In which layout the value came to an anchor; None: not in this stage."""

    def at_owners(self, ids: object, rows: AnnotatedValue, of: AnnotatedValue, owners: Sets) -> Dim | None:
        """How rows lie at the owners of their experts; None where these take all rows. ids: the argument that
        says of each row which expert it goes to; of: its value."""

    @property
    def exchanges_rows(self) -> bool:
        """Whether rows go to the owners of their experts."""

    def is_lookup_of(self, index_row: int, rows: int) -> Factor | None:
        """How the table looked up with the value of row `index_row` is cut along its rows, if it is."""

    def producer_op(self, argument: object) -> str:
        """The operator of the row that a Ref names."""

    def note_whole(self, row: Row, gathered: int) -> None:
        """Note that a row without a rule is computed whole, which gathers so many bytes."""

    def row_of(self, argument: object) -> Row:
        """The row that a Ref names."""

    @property
    def stage(self) -> int:
        """The number of this stage."""

    @property
    def products(self) -> dict[object, Any]:
        """How products of this pipeline met, by their calls and layouts."""

    def call_rule(self, row: Row) -> CallRule:
        """The row's rule read against its call; rows that are alike share it."""

    def choice(self, row: Row) -> Alternative | None:
        """What a planner chose for a row; None: the rule's own preference."""


Rule = Callable[[RuleContext, Row], Result]
Pull = Callable[[RuleContext, Row, Layout], AnnotatedValue | None]
RuleT = TypeVar("RuleT", bound=Rule)
PullT = TypeVar("PullT", bound=Pull)

RULES: dict[str, Rule] = {}
PULLS: dict[str, Pull] = {}


def rule_for(*ops: str) -> Callable[[RuleT], RuleT]:
    """Register a rule for operators such as `aten.mm.default`; twice is an error."""

    def register(rule: RuleT) -> RuleT:
        for op in ops:
            if op in RULES:
                raise InternalError(f"two rules for {op}", fix="remove one of them")
            RULES[op] = rule
        return rule

    return register


def pull_for(*ops: str) -> Callable[[PullT], PullT]:
    """Register how a pure value of these operators is computed directly in a cut layout."""

    def register(pull: PullT) -> PullT:
        for op in ops:
            PULLS[op] = pull
        return pull

    return register


def integer(argument: object) -> int:
    """A whole number among a row's arguments."""
    if not isinstance(argument, int):
        raise InternalError(f"{argument!r} is not a whole number", fix="report this model")
    return argument


def items(argument: object) -> tuple[object, ...]:
    """A list among a row's arguments."""
    if not isinstance(argument, (tuple, list)):
        raise InternalError(f"{argument!r} is not a list", fix="report this model")
    return tuple(argument)


def local_shape(layout: Layout) -> PerCoordinate:
    """The local shape as a literal; -1 for rows whose number is known in a step only."""
    routing = routing_of(layout)
    if routing is None:
        return PerCoordinate(layout.local_shape)
    dim = routing[0]

    def shape(at: Coordinate) -> tuple[int, ...]:
        sizes = layout.local_shape(at)
        return (*sizes[:dim], -1, *sizes[dim + 1 :])

    return PerCoordinate(shape)


def local_sizes(layout: Layout, dim: int) -> PerCoordinate:
    """The local length of one dim as a literal; of rows at their experts that of an even load."""
    return PerCoordinate(lambda at: layout.local_shape(at)[dim])


def held_intervals(factor: Factor | None, size: int) -> PerCoordinate:
    """The intervals that a coordinate holds, all of [0, size) where nothing is cut."""
    part = factor if factor is not None else Factor(size)
    return PerCoordinate(lambda at: part.held(at))


@cache
def is_addend(layout: Layout) -> bool:
    """Whether ranks hold addends of the value: a pending sum or contributing pieces."""
    return Axis.TENSOR in layout.partial or contrib_factor(layout) is not None


@cache
def contrib_factor(layout: Layout) -> tuple[int, Factor] | None:
    """The (dim, factor) whose pieces are addends."""
    cut = layout.cut(ranks=True)
    return cut if cut is not None and cut[1].contrib else None


@cache
def consistent(layout: Layout) -> Layout:
    """The same cut with consistent copies in place of addends, and no pending sum over ranks."""
    cut = contrib_factor(layout)
    dims = layout.dims
    if cut is not None and cut[1].sets is not None and not covers(cut[1].size, cut[1].sets):
        dims = uncut(layout, ranks=True).dims
    elif cut is not None:
        dims = tuple(tuple(factor.copies() for factor in dim) for dim in dims)
    return make_layout(dims, layout.partial - {Axis.TENSOR})


@cache
def uncut(layout: Layout, *, ranks: bool, dim: int | None = None) -> Layout:
    """The layout with the cut by ranks (or by the batch axis) taken away, in one dim or in all."""
    dims = tuple(
        tuple(factor.without(ranks) if dim in (None, index) else factor for factor in parts)
        for index, parts in enumerate(layout.dims)
    )
    return make_layout(dims, layout.partial)


def chosen_layout(ctx: RuleContext, row: Row) -> Layout | None:
    """The layout of a row's result that a planner chose."""
    choice = ctx.choice(row)
    return None if choice is None else choice.results[0]


def sample_factor(ctx: RuleContext, size: int) -> Factor | None:
    """How micro-batches cut a dim of `size` whose elements are the samples', one after another."""
    inner, rest = divmod(size, ctx.batch)
    return None if rest or not inner else scale(Factor(ctx.batch, Axis.BATCH, ctx.samples), inner)


def batch_coupled(row: Row, layout: Layout, why: str) -> DeduceError:
    """The error for a value that mixes samples of different micro-batches."""
    return DeduceError(
        f"{row.op} mixes samples of different micro-batches: {why}",
        at=row.where,
        details=[("shape", str(list(layout.shape)))],
        rule="where the batch is split, a layer works on each sample by itself, or on sums over the batch;"
        " values of all samples are gathered behind the layers only, as for a loss",
        fix="use one pipeline with one micro-batch, write the layer per sample, or call it behind the layers",
    )


def at_first(axis: Axis) -> PerCoordinate:
    """True at the first coordinate of an axis only, as a literal."""

    def first(at: Coordinate) -> bool:
        return at.along(axis) == 0

    return PerCoordinate(first, by_position=axis is Axis.BATCH)
