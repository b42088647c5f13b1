"""A rule read against one call: every letter has a size, products are apart, literals are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate, chain, pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from ..base.comm_plan import Interval
from ..errors import DeduceError
from ..ir.graph import Ref, Row
from ..layout.layout import Layout
from ..program.operator_names import known_operator
from ..program.quick.schemas import SCHEMAS
from .op_rule import OP_RULES, REST, Along, Dims, Kind, Letters, Linear, OpRule, beside

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way in which the ranks of a stage compute a call.

    letter: what they cut, "" nothing; `+i`: operand i is a pending sum that passes. flops, moved: per rank;
    moved counts elements read and written. inside: elements that every rank reduces within the operator.
    """

    letter: str
    operands: tuple[Layout, ...]
    results: tuple[Layout | None, ...]
    flops: tuple[float, ...]
    moved: tuple[int, ...]
    inside: int = 0


@dataclass(frozen=True, eq=False)
class CallRule:
    """One call, of the logical graph alone. `=n@...` names a dim of a result that no operand has.

    sizes: of each letter, in the order of the call. floats: whether sums may be pending in it. known: what
    was computed of it for layouts of its operands; it lives as long as the graph's facts.
    """

    rule: OpRule
    operands: tuple[Dims, ...]
    results: tuple[Dims | None, ...]
    sizes: dict[str, int]
    summed: frozenset[str]
    whole: frozenset[str]
    pattern: frozenset[str]
    floats: bool
    known: dict[object, Any] = field(default_factory=dict)

    @cached_property
    def positional(self) -> bool:
        """Whether all its tensors are operands, and positional arguments."""
        places, shape = tensor_places(self.rule.op), self.rule.shape
        return all(not (keyword or many or name == shape) for _, name, keyword, many in places)

    @cached_property
    def contracts(self) -> bool:
        """Whether it is a product that sums over a letter of both operands."""
        return self.rule.linear is Linear.EACH and len(self.operands) >= 2 and bool(self.summed)

    @cached_property
    def inside(self) -> frozenset[str]:
        """Letters that stand beside others in a dim, which is cut as one."""
        return frozenset(part for name in self.sizes if "|" in name for part in beside(name))

    @cached_property
    def left_whole(self) -> tuple[str, ...]:
        """Letters that tensor parallelism leaves whole: also of sums, but those of products and of totals."""
        splits = self.contracts or self.rule.splits_sums
        names = self.whole | self.pattern | (frozenset() if splits else self.summed)
        return tuple(sorted(names & self.sizes.keys()))

    @cached_property
    def joins(self) -> tuple[str, ...]:
        """Letters that are others side by side."""
        return tuple(name for name in self.sizes if "|" in name)

    @cached_property
    def whole_places(self) -> tuple[tuple[int, ...], ...]:
        """Of each operand the dims that are never cut."""
        return tuple(
            tuple(place for place, names in enumerate(dims) if names and self.whole.issuperset(names))
            for dims in self.operands
        )

    @cached_property
    def factors(self) -> tuple[tuple[int, int], Letters, Letters, Letters, str]:
        """Of a product: its two operands, the letters of each and of the result, and the summed one."""
        first, second = (place for place in range(len(self.operands)) if place != self.rule.added)
        left, right = (tuple(dim[0] if dim else "" for dim in self.operands[p]) for p in (first, second))
        out = tuple(dim[0] for dim in self.results[0] or () if dim and dim[0] not in self.whole)
        (summed,) = self.summed
        return (first, second), left, right, out, summed

    def refs(self, row: Row) -> list[Ref]:
        """Its operands among the arguments of a row; of a source none is read."""
        given = row.args if self.positional else tensors(row)
        return [item for item in given if type(item) is Ref][: len(self.operands)]

    def size(self, names: Letters) -> int:
        """The length of a dim of these letters."""
        return prod([self.sizes[name] for name in names])

    def parts(self, name: str) -> tuple[int, ...]:
        """The lengths of what stands side by side in a letter."""
        if "|" not in name:
            return (self.sizes[name],)
        return tuple([int(part) if part.isdigit() else self.sizes[part] for part in name.split("|")])

    def spans(self, name: str) -> list[tuple[str, Interval]]:
        """What stands side by side in a letter, and where in it."""
        ends = accumulate(self.parts(name), initial=0)
        return list(zip(name.split("|"), pairwise(ends), strict=True))

    @cached_property
    def multiplies(self) -> bool:
        """Whether its flops are more than its largest tensor has elements: a product, or its rule says so."""
        rule = self.rule
        counts = Counter(letter for dims in self.operands for letter in {*chain(*dims)} & self.summed)
        return rule.flops > 1 or bool(rule.heads) or any(count > 1 for count in counts.values())

    def flops(self, share: float = 1.0) -> float:
        """Of the whole call, or of a share of it."""
        idle = self.rule.idle
        counted = prod([size for name, size in self.sizes.items() if name.rpartition("@")[2] not in idle])
        if not self.multiplies:
            counted = min(counted, self._largest)
        return self.rule.flops * counted * share

    @cached_property
    def _largest(self) -> int:
        """Elements of the largest tensor; all letters count where none is named."""
        named = [dims for dims in (*self.operands, *self.results) if dims]
        return max((prod(map(self.size, dims)) for dims in named), default=prod(self.sizes.values()))


@cache
def _arguments(op: str) -> Sequence[Any]:
    """Those of its schema."""
    if op in SCHEMAS:
        return SCHEMAS[op]
    from ..ir import comm_marker, own_operators  # noqa: F401  (operators register on import, which loads torch)

    return known_operator(op)._schema.arguments


@cache
def tensor_places(op: str) -> tuple[tuple[int, str, bool, bool], ...]:
    """(place, name, keyword only, several) of an operator's tensor arguments, from its schema."""
    return tuple(
        (place, item.name, item.kwarg_only, str(item.type) in LISTS)
        for place, item in enumerate(_arguments(op))
        if str(item.type) in ("Tensor", "Optional[Tensor]", *LISTS)
    )


LISTS = ("List[Tensor]", "List[Optional[Tensor]]")


def tensors(row: Row) -> list[Ref | None]:
    """The operands of a call, None where one is left out; a tensor asked for its shape alone is none."""
    found: list[Ref | None] = []
    unread = OP_RULES[row.op].shape
    for place, name, keyword, many in tensor_places(row.op):
        if name == unread:
            continue
        value: Any = row.args[place] if place < len(row.args) and not keyword else row.kwargs.get(name)
        found.extend(item if type(item) is Ref else None for item in (value if many else (value,)))
    return found


@cache
def argument_place(op: str, name: str) -> tuple[int, object]:
    """Where an operator takes an argument, and what it is where it is left out."""
    return next((p, a.default_value) for p, a in enumerate(_arguments(op)) if a.name == name)


def argument_of(row: Row, name: str) -> object:
    """A literal of a call by its name in the schema, its default where it is left out."""
    place, default = argument_place(row.op, name)
    return row.args[place] if place < len(row.args) else row.kwargs.get(name, default)


def call_of(rows: Sequence[Row], row: Row) -> CallRule:
    """The call of one of the rows of a graph."""
    given = [None if ref is None else rows[ref.id] for ref in tensors(row)]
    floats = all(held is None or held.dtype is None or has_fractions(held.dtype) for held in given)
    return bind(row, [None if held is None else held.shape for held in given], floats=floats)


@dataclass(slots=True)
class GraphCalls:
    """The calls of a graph's rows. alike: a number per row; rows with the same one share a call."""

    rows: Sequence[Row]
    alike: Sequence[int]
    known: dict[int, CallRule] = field(default_factory=dict)

    def of(self, row: Row) -> CallRule:
        """The rule of a row, read against its call."""
        number = self.alike[row.id]
        found = self.known.get(number)
        if found is None:
            found = self.known[number] = call_of(self.rows, row)
        return found


def bind(row: Row, shapes: Sequence[Shape | None], *, floats: bool = True) -> CallRule:
    """A rule read against a call.

    shapes: of its tensor arguments, None where one is left out. floats: whether all have fractions.
    Raises DeduceError where the call has other dims than the rule's letters.
    """
    rule = OP_RULES[row.op]
    if rule.by_shapes is not None:
        rule = rule.by_shapes(row, shapes)
    elif rule.variants is not None:
        rule = rule.variants(row)
    return bound(row, rule, shapes, floats=floats)


def bound(row: Row, rule: OpRule, shapes: Sequence[Shape | None], *, floats: bool = True) -> CallRule:
    """A line read against a call, whose part it may be."""
    return _Binding(row, rule, floats).bound(shapes)


@dataclass(slots=True)
class _Binding:
    """The reading of one call.

    short: letters that a shorter operand meets the first elements of. uneven: letters that may have
    another length in a result, where they are whole or what is pending.
    """

    row: Row
    rule: OpRule
    floats: bool
    sizes: dict[str, int] = field(default_factory=dict)
    short: set[str] = field(default_factory=set)
    lengths: dict[str, int] = field(default_factory=dict)
    uneven: frozenset[str] = frozenset()

    def bound(self, shapes: Sequence[Shape | None]) -> CallRule:
        """All letters with sizes."""
        rule, row = self.rule, self.row
        if not rule.every and len(shapes) < len(rule.operands):
            raise self._other_call(f"{len(shapes)} tensors for {len(rule.operands)}")
        self.lengths = {name: _length(row, given) for name, given in rule.lengths}
        self.sizes.update(self.lengths)
        given = [
            (self._broadcast(place, shape), shape)
            for place, shape in enumerate(shapes)
            if shape is not None and (rule.every or place < len(rule.operands))
        ]
        if rule.operands and len(given) < len([shape for shape in shapes if shape is not None]):
            raise self._other_call("more tensors than the rule has operands")
        operands = tuple([self._sized(dims, shape) for dims, shape in given])
        main = operands[0] if operands else ()
        along = frozenset(name for dim in dims_along(row, rule.along, len(main)) for name in main[dim])
        self.uneven = rule.whole | rule.summed | rule.pattern | along | self.short
        results = [self._result(dims, shape, main, along) for dims, shape in self._outputs()]
        order = dict.fromkeys(n for dims in (*filter(None, results), *operands) for dim in dims for n in dim)
        new = frozenset(name for name in order if name.startswith("="))
        self.sizes.update({name: int(name[1:].split("@")[0]) for name in new})
        summed = rule.summed | _those(along, rule.along_kind is Kind.SUM)
        if REST in summed:
            summed |= {name for name in order if name.startswith(REST)}
        return CallRule(
            rule,
            operands,
            tuple(results),
            {name: self.sizes[name] for name in order},
            summed & order.keys(),
            rule.whole | _those(along, rule.along_kind is Kind.WHOLE) | self.short | new,
            rule.pattern | _those(along, rule.along_kind is Kind.PATTERN),
            floats=self.floats
            and (row.dtype is None or has_fractions(row.dtype))
            and (rule.linear is not Linear.TOGETHER or len(given) > 1),
        )

    def _outputs(self) -> Iterable[tuple[Dims, Shape | None]]:
        """(letters, shape) of each result, shape None for one that is not there."""
        rule, row = self.rule, self.row
        shapes = [row.shape or ()] if row.outs is None else [m if m is None else m[0] for m in row.outs]
        if len(rule.results) == 1:
            return [(rule.results[0], shape) for shape in shapes]
        if len(rule.results) != len(shapes):
            raise self._other_call(f"{len(shapes)} results for {len(rule.results)}")
        return zip(rule.results, shapes, strict=True)

    def _broadcast(self, place: int, shape: Shape) -> Dims:
        """The letters of an operand's own dims; a bias, or a pattern's mask, may lack leading ones."""
        rule = self.rule
        dims = rule.operands[0 if rule.every else place]
        lacking = dims[:1] != ((REST,),) and len(shape) < len(dims)
        if lacking and (rule.code is not None or rule.emit is not None or place == rule.added):
            return dims[len(dims) - len(shape) :]
        return _spelled(dims, len(shape))

    def _sized(self, dims: Dims, shape: Shape) -> Dims:
        """Letters with their sizes; a dim of length 1 is broadcast where the letter is longer elsewhere."""
        if len(dims) != len(shape):
            raise self._other_call(f"{list(shape)} for {' '.join(map(str, dims))}")
        return tuple([self._dim(names, size) for names, size in zip(dims, shape, strict=True)])

    def _dim(self, names: Letters, size: int) -> Letters:
        known = {name: self.lengths[name] for name in names if name in self.lengths}
        left = size // max(1, prod(known.values()))
        for name in names:
            own = known.get(name, left if len(names) > 1 else size)
            met = self.sizes.get(name, own)
            if own != met and self.rule.first_only:
                self.short.add(name)
                return (f"={size}@{name}{len(self.sizes)}",)
            if own != met and 1 not in (own, met):
                raise self._other_call(f"{name} is {met} long here and {own} there")
            self.sizes[name] = max(own, met) if 0 not in (own, met) else 0
        return names

    def _result(self, pattern: Dims, shape: Shape | None, main: Dims, along: frozenset[str]) -> Dims | None:
        """Letters of a result: the first operand's, without what the call works along where it is gone."""
        if shape is None:
            return None
        if pattern == ((REST,),) and along:
            kept = len(shape) == len(main)
            names = main if kept else tuple(d for d in main if along.isdisjoint(d))
            if kept and self.rule.along_kind is Kind.SUM:  # a dim of length 1 is another one, too
                names = tuple(d if along.isdisjoint(d) else () for d in main)
        else:
            names = _spelled(pattern, len(shape))
        if len(names) != len(shape):
            raise self._other_call(f"a result {list(shape)}")
        return tuple([self._fresh(dim, size) for dim, size in zip(names, shape, strict=True)])

    def _fresh(self, names: Letters, size: int) -> Letters:
        """The letters of a result's dim; one of another length is new, and whole."""
        for name in names:
            if "|" in name:
                self.sizes[name] = sum(self._parts(name))
        if names and prod(self.sizes.get(name, -1) for name in names) == size:
            return names
        if any(name in self.sizes and name not in self.uneven for name in names):
            raise self._other_call(f"a result is {size} long along {' '.join(names)}, operands are not")
        return () if size == 1 else (f"={size}@{'.'.join(names)}",)

    def _parts(self, name: str) -> Iterator[int]:
        return (int(part) if part.isdigit() else self.sizes[part] for part in name.split("|"))

    def _other_call(self, what: str) -> DeduceError:
        return DeduceError(
            f"{self.row.op} is called with other tensors than its rule names",
            at=self.row.where,
            details=[("call", what)],
            rule=self.rule.text(),
            fix="write the rule for this call; `...` stands for any number of leading dims",
        )


def _length(row: Row, given: str | int) -> int:
    return given if isinstance(given, int) else int(argument_of(row, given))  # type: ignore[call-overload]


def _those(names: frozenset[str], are: bool) -> frozenset[str]:
    return names if are else frozenset()


def _spelled(pattern: Dims, rank: int) -> Dims:
    """`...` as numbered letters, counted from the right so that operands are broadcast."""
    if not pattern or pattern[0] != (REST,):
        return pattern
    count = max(0, rank - len(pattern) + 1)
    return (*((f"{REST}{count - place}",) for place in range(count)), *pattern[1:])


def dims_along(row: Row, along: Along | None, rank: int) -> list[int]:
    """The dims that a call works along, counted from the front."""
    if along is None:
        return []
    if along.last:
        return list(range(max(0, rank - along.last), rank))
    value: Any = argument_of(row, along.argument) if along.argument else None
    given = [value] if isinstance(value, int) else list(value or range(rank))
    return [int(dim) % rank for dim in given] if rank else []


def has_fractions(dtype: torch.dtype) -> bool:
    """Whether a type takes real or complex numbers, so that sums of it may be pending."""
    return dtype.is_floating_point or dtype.is_complex
