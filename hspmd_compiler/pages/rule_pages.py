"""What `hspmd rules` shows: every operator's line, and the ways of one call with flops and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import torch

from ..errors import OptionError
from ..ir.graph import Ref, Row
from ..layout.layout import Axis, Coordinate, Layout, whole
from ..program.operator_names import known_operator
from ..rules.alternatives import PENDING, WHOLE, alternatives
from ..rules.call_rule import LISTS, Alternative, CallRule, bind, tensors
from ..rules.op_rule import OP_RULES
from ..rules.rule_book import RULES
from .sections import Listing, Section, Table

TENSORS = ("Tensor", "Optional[Tensor]")
NEW = "="
"""What letters of a result begin with that no operand has."""


def all_rules() -> list[Section]:
    """A row for each operator, by name."""
    rows = tuple((op, line_of(op)) for op in sorted(RULES))
    return [Table("rules", f"{len(rows)} operators with a rule", ("operator", "line"), rows)]


def line_of(op: str) -> str:
    """The rule as it is written, or the function that it is."""
    if op in OP_RULES:
        return OP_RULES[op].text()
    held = RULES[op]
    return f"function {held.__module__}.{getattr(held, '__qualname__', held)}"


def one_rule(
    op: str,
    shapes: Sequence[tuple[int, ...]],
    literals: Mapping[str, object],
    shares: tuple[int, ...],
    dtype: str,
) -> list[Section]:
    """The line of one operator, and the ways of a call on tensors of these shapes. shares: of the ranks."""
    line = Listing("rule", op, (line_of(op),))
    if op not in OP_RULES or not shapes:
        more = "--shape N,N for each tensor shows the ways to split a call" if op in OP_RULES else ""
        return [line, *([Listing("ways", more, ())] if more else [])]
    row = _called(op, shapes, literals, dtype)
    given = [None if ref is None else shapes[ref.id] for ref in tensors(row)]
    call = bind(row, given, floats=_dtype(dtype).is_floating_point)
    ways = alternatives(call, [whole(shape) for shape in shapes], shares)
    return [_letters(op, call), _table(call, ways, len(shares), _dtype(dtype).itemsize)]


def _letters(op: str, call: CallRule) -> Listing:
    sizes = ", ".join(f"{name} = {size}" for name, size in call.sizes.items() if not name.startswith(NEW))
    kept = ", ".join(sorted(n for n in call.whole & call.sizes.keys() if not n.startswith(NEW))) or "none"
    return Listing("rule", op, (call.rule.text(), f"lengths: {sizes}", f"never cut: {kept}"))


def _table(call: CallRule, ways: Sequence[Alternative], ranks: int, itemsize: int) -> Table:
    columns = ("cut", "operands", "results", "flops", "bytes moved", "bytes reduced inside")
    rows = tuple(
        (
            _cut(way.letter),
            ", ".join(_held(layout, ranks) for layout in way.operands),
            ", ".join(_held(layout, ranks) for layout in way.results if layout is not None),
            _each([round(flops) for flops in way.flops]),
            _each([moved * itemsize for moved in way.moved]),
            way.inside * itemsize,
        )
        for way in ways
    )
    return Table(
        "ways", f"ways over {ranks} ranks, per rank; + is a sum that is not complete yet", columns, rows
    )


def _cut(letter: str) -> str:
    if letter == WHOLE:
        return "nothing"
    return (
        letter if not letter.startswith(PENDING) else f"sums of operand {letter.removeprefix(PENDING)} pass"
    )


def _held(layout: Layout, ranks: int) -> str:
    """What each rank holds, once where all hold the same: `4x8`, `4x8|2x8`, `4x8+`."""
    shapes = ["x".join(map(str, layout.local_shape(Coordinate(rank, 0)))) or "1" for rank in range(ranks)]
    pending = "+" if Axis.TENSOR in layout.partial else ""
    return (shapes[0] if len(set(shapes)) == 1 else "|".join(shapes)) + pending


def _each(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else "|".join(map(str, values))


def _called(op: str, shapes: Sequence[tuple[int, ...]], literals: Mapping[str, object], dtype: str) -> Row:
    """The call as a row; the shapes of its results are those that the operator gives."""
    schema, given = known_operator(op)._schema, iter(shapes)
    kinds = [str(item.type) for item in schema.arguments]
    refs: list[tuple[int, ...]] = []
    args: list[object] = []
    for place, item in enumerate(schema.arguments):
        if str(item.type) in TENSORS and (shape := next(given, None)) is not None:
            args.append(Ref(len(refs)))
            refs.append(shape)
        elif str(item.type) in LISTS:
            count = len(shapes) - len(refs) - sum(kind in TENSORS for kind in kinds[place:])
            parts = list(islice(given, max(count, 0)))
            args.append([Ref(len(refs) + place) for place in range(len(parts))])
            refs += parts
        elif item.name in literals:
            literal = literals[item.name]
            args.append([literal] if isinstance(literal, int) and "List" in str(item.type) else literal)
        elif item.has_default_value() or str(item.type) == "Optional[Tensor]":
            args.append(item.default_value)
        else:
            raise _wrong_call(op, f"{item.name} is missing")
    if (rest := list(given)) or literals.keys() - {item.name for item in schema.arguments}:
        raise _wrong_call(op, f"it takes no {rest or sorted(literals)}")
    kept = [place for place, item in enumerate(schema.arguments) if item.kwarg_only]
    names = {schema.arguments[place].name: args[place] for place in kept}
    return _run(op, tuple(args[: len(args) - len(kept)]), names, refs, _dtype(dtype))


def _run(
    op: str,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype,
) -> Row:
    def held(value: object) -> object:
        if isinstance(value, list):
            return [held(item) for item in value]
        return torch.empty(shapes[value.id], dtype=dtype, device="meta") if isinstance(value, Ref) else value

    try:
        found = known_operator(op)(*map(held, args), **{name: held(value) for name, value in kwargs.items()})
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError) as error:
        raise _wrong_call(op, str(error).partition("\n")[0]) from error
    row = Row(len(shapes), op, args, kwargs, None, None, None, where="")
    if isinstance(found, torch.Tensor):
        row.shape, row.dtype = tuple(found.shape), found.dtype
    else:
        row.outs = tuple(None if item is None else (tuple(item.shape), item.dtype) for item in found)
    return row


def _wrong_call(op: str, why: str) -> OptionError:
    arguments = ", ".join(f"{item.name}: {item.type}" for item in known_operator(op)._schema.arguments)
    return OptionError(
        f"{op} can't be called with these shapes and arguments",
        details=[("reason", why), ("takes", arguments)],
        fix="give --shape N,N for each tensor in order, and --arg NAME=VALUE for the rest",
    )


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise OptionError(
            f"--dtype {name} is no type of tensors", fix="float32, bfloat16, float64, int64, ..."
        )
    return found
