"""Rules written as letters, one for each dim: `rule(aten.mm.default, "m k, k n -> m n", sum="k")`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..annotations.layout import (
    Axis,
    Dim,
    Factor,
    Layout,
    dim_size,
    make_layout,
    sum_axis,
)
from ..errors import DeduceError, OptionError
from .annotated import AnnotatedValue
from .cuts import dense, schema_place, whole_dim
from .empty_pieces import emit_unless_empty
from .ir import Row, refs_of
from .pointwise_rules import join_dims, localized, settled_over_ranks
from .rules import Result, RuleContext, local_shape, rule_for
from .view_maps import deduplicated

REST = "..."
WORD = re.compile(r"[A-Za-z]\w*")
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LetterRule:
    """The dims of operands and results by name; `...` stands for any number of leading dims.

    summed: letters over which the results are sums. whole: letters that are never split. sizes: the
    argument that is the shape of the first result. linear: in its one operand. dense: what it computes
    depends on how its operands lie in memory. kernel: what computes a piece, where that is not the
    operator itself.
    """

    operands: tuple[Names, ...]
    results: tuple[Names, ...]
    summed: frozenset[str]
    whole: frozenset[str]
    sizes: str = ""
    linear: bool = False
    dense: bool = False
    kernel: str = ""

    def named(self, ranks: Sequence[int]) -> list[Names]:
        """The names of each operand's dims; dims of `...` are numbered from the right."""
        return [_spelled(names, rank) for names, rank in zip(self.operands, ranks, strict=True)]

    def text(self) -> str:
        """As it is written: `m k, k -> m, sum='k'`."""
        sides = (", ".join(" ".join(names) for names in side) for side in (self.operands, self.results))
        more = {"sum": self.summed, "whole": self.whole}
        said = [f"{key}={' '.join(sorted(names))!r}" for key, names in more.items() if names]
        return ", ".join([" -> ".join(sides), *said])

    def outputs(self, ranks: Sequence[int]) -> list[Names]:
        """The names of each result's dims."""
        return [_spelled(names, rank) for names, rank in zip(self.results, ranks, strict=True)]


LETTERS: dict[str, LetterRule] = {}
"""By operator; `passes/infer_dims.py` reads them too."""


def add_letters(op: str, made: LetterRule) -> None:
    """Register a rule that is read already."""
    rule_for(op)(_apply)
    LETTERS[op] = made


def parse_letters(op: str, letters: str, *, sum: str = "", whole: str = "") -> LetterRule:
    """As `rule` of `own_rules` says, not registered."""
    left, arrow, right = letters.partition("->")
    operands, results = (tuple(tuple(part.split()) for part in side.split(",")) for side in (left, right))
    made = LetterRule(operands, results, frozenset(sum.split()), frozenset(whole.split()))
    bad = [("letters", f"{letters!r} has no ->")] if not arrow else list(_clashes(made))
    if bad:
        raise OptionError(
            f"the rule of {op} is not understood",
            details=bad,
            rule="letters name the dims of operands and results: 'm k, k n -> m n'",
            fix='write it as hspmd_compiler.rule("aten.mm.default", "m k, k n -> m n", sum="k")',
        )
    return made


def _clashes(made: LetterRule) -> Iterator[tuple[str, str]]:
    read = {name for names in made.operands for name in names}
    written = {name for names in made.results for name in names}
    for name in sorted(read | written | made.summed | made.whole):
        if name != REST and not WORD.fullmatch(name):
            yield name, "is not a letter or word"
    for names in (*made.operands, *made.results):
        if len(set(names)) < len(names) or REST in names[1:]:
            yield " ".join(names), "names a dim twice, or has ... behind another dim"
    for name in sorted(made.summed):
        if name in written or any(name not in names for names in made.operands):
            yield name, "is summed: every operand has it, and no result"
    for name in sorted(read - written - made.summed - made.whole):
        yield name, "is in no result: name it in sum= or whole="
    for name in sorted((made.whole | made.summed) - read - written):
        yield name, "is no letter of the rule"


def _spelled(names: Names, rank: int) -> Names:
    if REST not in names:
        return names
    count = max(0, rank - len(names) + 1)
    return (*(f"{REST}{count - place}" for place in range(count)), *names[1:])


def _apply(ctx: RuleContext, row: Row) -> Result:
    """Operands meet letter by letter; cut summed letters become pending sums."""
    made = LETTERS[row.op]
    refs = list(refs_of(row.args))
    given = [ctx.operand(ref) for ref in refs]
    values = [settled_over_ranks(ctx, value) if made.linear else ctx.settle(value) for value in given]
    shapes = _shapes(row)
    _check_call(row, made, values, shapes)
    named = made.named([len(value.layout.dims) for value in values])
    values = [_whole_letters(ctx, made, value, names) for value, names in zip(values, named, strict=True)]
    met = _met(made, values, named)
    values = [
        ctx.convert(value, _layout(met, names, value.layout.shape, value.layout.partial))
        for value, names in zip(values, named, strict=True)
    ]
    values = [dense(ctx, value) for value in values] if made.dense else values
    axes = [f.axis for name in made.summed for f in met.get(name, ()) if f.axis is not None]
    pending = frozenset().union(*(value.layout.partial for value in values))
    layouts = _results(made, met, shapes, pending | {sum_axis(axis) for axis in axes})
    row = _sized(row, made, layouts[0])
    row = replace(row, op=made.kernel) if made.kernel else row
    args = localized(ctx, row, {ref.id: value for ref, value in zip(refs, values, strict=True)})
    return emit_unless_empty(ctx, row, args, layouts, values)


def _shapes(row: Row) -> list[tuple[int, ...] | None]:
    if row.outs is None:
        return [row.shape or ()]
    return [None if meta is None else meta[0] for meta in row.outs]


def _results(
    made: LetterRule, met: dict[str, Dim], shapes: Sequence[tuple[int, ...] | None], partial: frozenset[Axis]
) -> list[Layout | None]:
    outputs = made.outputs([0 if shape is None else len(shape) for shape in shapes])
    return [
        None if shape is None else _layout(met, names, shape, partial)
        for names, shape in zip(outputs, shapes, strict=True)
    ]


def _sized(row: Row, made: LetterRule, result: Layout | None) -> Row:
    """The row with the shape of its result in local sizes."""
    if not made.sizes or result is None:
        return row
    place = schema_place(row.op, made.sizes)
    return replace(row, args=(*row.args[:place], local_shape(result), *row.args[place + 1 :]))


def _whole_letters(ctx: RuleContext, made: LetterRule, value: AnnotatedValue, names: Names) -> AnnotatedValue:
    for place, name in enumerate(names):
        if name in made.whole:
            value = whole_dim(ctx, value, place)
    return value


def _met(made: LetterRule, values: Sequence[AnnotatedValue], named: Sequence[Names]) -> dict[str, Dim]:
    """Each letter's dim in which all operands meet; ranks cut one letter at most, a summed one exactly."""
    sizes: dict[str, int] = {}
    for value, names in zip(values, named, strict=True):
        for name, size in zip(names, value.layout.shape, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))
    order = list(sizes)
    spread = [
        make_layout(tuple(dict(zip(names, value.layout.dims, strict=True)).get(name, ()) for name in order))
        for value, names in zip(values, named, strict=True)
    ]
    layout = make_layout(join_dims(spread, [sizes[name] for name in order]))
    cut = layout.cut(ranks=True)
    if cut is not None and order[cut[0]] in made.summed:
        layout = deduplicated(layout)
    return dict(zip(order, layout.dims, strict=True))


def _layout(
    met: dict[str, Dim], names: Names, shape: Sequence[int], partial: frozenset[Axis] = frozenset()
) -> Layout:
    """Dims by their letters; one of another length (broadcast, or new in a result) is whole."""
    dims = (
        met[name] if name in met and dim_size(met[name]) == size else (Factor(size),)
        for name, size in zip(names, shape, strict=True)
    )
    return make_layout(tuple(dims), partial)


def _check_call(
    row: Row, made: LetterRule, values: Sequence[AnnotatedValue], shapes: Sequence[tuple[int, ...] | None]
) -> None:
    ranks = [len(value.layout.dims) for value in values]
    fits = len(values) == len(made.operands) and len(shapes) == len(made.results)
    if fits and not list(refs_of(row.kwargs)):
        made_dims = [
            (names, len(shape))
            for names, shape in zip(made.results, shapes, strict=True)
            if shape is not None
        ]
        pairs = (*zip(made.operands, ranks, strict=True), *made_dims)
        if all(len(_spelled(names, rank)) == rank for names, rank in pairs):
            return
    raise DeduceError(
        f"{row.op} is called with other tensors than its rule names",
        at=row.where,
        details=[("operands", str([list(value.layout.shape) for value in values]))],
        rule=f"{', '.join(map(' '.join, made.operands))} -> {', '.join(map(' '.join, made.results))}",
        fix="write the rule for this call; `...` stands for any number of leading dims",
    )
