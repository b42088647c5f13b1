"""What a rule is as a value: an operator's dims by letters, and what may happen to each letter.

An `OpRule` is written once per operator. `call_rule.bind` reads it against one call and gives a `CallRule`;
deduction, splittable dims, alternatives of a search, flops and brute-force cases read that and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import OptionError

if TYPE_CHECKING:
    from ..ir.graph import Row

REST = "..."
WORD = re.compile(r"[A-Za-z]\w*")
TOKEN = re.compile(r"\(|\)|\.\.\.|[^\s()]+")

Letters: TypeAlias = tuple[str, ...]
Dims: TypeAlias = tuple[Letters, ...]
"""Per dim its letters, outermost first: () is a dim of length 1, two letters are a product.

A letter may be others side by side: `3|d|5` is three elements, d, and five elements (of a result: zeros).
"""
Shapes: TypeAlias = Sequence[tuple[int, ...] | None]


Ranks: TypeAlias = Sequence[int | None]
"""Of the operands of a call, None for one that is left out."""


class Linear(Enum):
    """Through which operands pending sums and addends pass.

    NO: none. ONE: the only operand's (moves, scalings). BATCH: as ONE, but sums over ranks are settled
    first. FIRST: of a derivative, the gradient's sums over the batch. EACH: one operand's at a time, a
    product. JOINTLY: of several the sums over the batch, where sums over ranks are settled first: each
    element is one operand's. TOGETHER: all operands' at once, a sum.
    """

    NO = "no"
    ONE = "one"
    BATCH = "batch"
    FIRST = "first"
    EACH = "each"
    JOINTLY = "jointly"
    TOGETHER = "together"


class Kind(Enum):
    """What may happen to dims: never cut, cut with a pending sum, or cut with collectives inside."""

    WHOLE = "whole"
    SUM = "sum"
    PATTERN = "pattern"


@dataclass(frozen=True, slots=True)
class Along:
    """The dims of the first operand that a call works along: what `argument` names, else the last `last`.

    Without either: all dims.
    """

    argument: str = ""
    last: int = 0


@dataclass(frozen=True, slots=True)
class Mean:
    """Results are means over the summed letters, or over all: of cut ones sums over the count of the whole.

    kernel: the operator that sums; else argument: the literal that says so, 2 for a sum, 1 for a mean.
    """

    kernel: str = ""
    argument: str = ""


@dataclass(frozen=True, slots=True)
class OpRule:
    """One operator.

    operands, results: letters; every: all tensors are like the first. summed: results are sums over these.
    whole: never cut. pattern: may be cut, with collectives inside the operator. along, along_kind: what the
    dims are that a literal names. lengths: (letter, argument) where an argument gives a letter's length, or
    (letter, length); a letter of results alone that has one may be cut in any way.
    shape: the argument that is the first result's shape, or a tensor that is asked for it alone.
    scale: what results are divided by. carries: the only operands that may be pending sums (what is
    divided, not the divisor). added: the operand that is added to the product of the others (a
    bias). first_only: a shorter operand meets the first elements of a longer one; such dims are whole.
    leads: the operand whose cut by ranks all others take. dense: operands that are copied, for how they
    lie counts; copied: only where they were converted, which may leave gaps. empty_ok: the kernel takes
    empty pieces. kernel: the operator that computes a piece, if not this one. sized: it takes the local
    shape of the first result behind the first operand. heads: letters that attention treats as
    independent. splits_sums: tensor parallelism may cut what is summed: the result is a number.
    flops: per product of all letters but the idle ones; of 1, where nothing is multiplied, per element of
    the largest tensor at most. why: the reason of whole letters, in words.
    emit: writes the local rows in layouts that the value chose. code: a pattern that chooses for itself;
    the value then declares what it can do. variants: the line that a call's literals choose; by_shapes: that
    they and the shapes of its tensors choose. says: what such lines have in common, in words.
    """

    op: str
    operands: tuple[Dims, ...] = ()
    results: tuple[Dims, ...] = ()
    summed: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    pattern: frozenset[str] = frozenset()
    linear: Linear = Linear.NO
    along: Along | None = None
    along_kind: Kind = Kind.WHOLE
    lengths: tuple[tuple[str, str | int], ...] = ()
    shape: str = ""
    every: bool = False
    carries: tuple[int, ...] | None = None
    added: int | None = None
    first_only: bool = False
    leads: int | None = None
    dense: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()
    empty_ok: bool = False
    kernel: str = ""
    sized: bool = False
    scale: Mean | None = None
    heads: frozenset[str] = frozenset()
    splits_sums: bool = False
    flops: float = 1.0
    idle: frozenset[str] = frozenset()
    emit: Callable[..., Any] | None = None
    code: Callable[..., Any] | None = None
    variants: Callable[[Row], OpRule] | None = None
    by_shapes: Callable[[Row, Shapes], OpRule] | None = None
    why: str = ""
    says: str = ""

    @property
    def by_call(self) -> bool:
        """Whether each call chooses its line."""
        return self.variants is not None or self.by_shapes is not None

    def text(self) -> str:
        """As it is written: `m k, k -> m, sum='k'`."""
        if self.by_call:
            return self.says or "a line for each kind of call, chosen by its literals"
        sides = (", ".join(_spelled(dims) for dims in side) for side in (self.operands, self.results))
        words = {"sum": self.summed, "whole": self.whole, "pattern": self.pattern, "heads": self.heads}
        said = [f"{key}={' '.join(sorted(names))!r}" for key, names in words.items() if names]
        if self.along is not None:
            said.append(f"along={self._along_text()!r}")
        if self.linear is not Linear.NO:
            said.append(f"linear={self.linear.value!r}")
        return ", ".join([" -> ".join(sides).strip(), *said])

    def _along_text(self) -> str:
        assert self.along is not None
        dims = self.along.argument or (f"the last {self.along.last}" if self.along.last else "all dims")
        return dims if self.along_kind is Kind.WHOLE else f"{dims} ({self.along_kind.value})"


def _spelled(dims: Dims) -> str:
    return " ".join(dim[0] if len(dim) == 1 else f"({' '.join(dim)})" for dim in dims)


def by_ranks(line: Callable[[Row, Ranks], OpRule]) -> Callable[[Row, Shapes], OpRule]:
    """For `by_shapes`: the number of each operand's dims is enough."""

    def chosen(row: Row, shapes: Shapes) -> OpRule:
        return line(row, [None if shape is None else len(shape) for shape in shapes])

    return chosen


OP_RULES: dict[str, OpRule] = {}
"""By operator: the one table."""


def parse(
    op: str,
    text: str,
    *,
    sum: str = "",
    whole: str = "",
    pattern: str = "",
    heads: str = "",
    idle: str = "",
    **more: Any,
) -> OpRule:
    """`operands -> results`: letters separated by blanks, tensors by commas, products in brackets.

    more: other fields of OpRule. Raises OptionError for a text that isn't understood, with all that is wrong.
    """
    left, arrow, right = text.partition("->")
    made = OpRule(
        op,
        tuple(map(_tensor, left.split(","))),
        tuple(map(_tensor, right.split(","))),
        summed=frozenset(sum.split()),
        whole=frozenset(whole.split()),
        pattern=frozenset(pattern.split()),
        heads=frozenset(heads.split()),
        idle=frozenset(idle.split()),
        **more,
    )
    bad = list(_clashes(made)) if arrow else [("letters", f"{text!r} has no ->")]
    if bad:
        raise OptionError(
            f"the rule of {op} is not understood",
            details=bad,
            rule="letters name the dims of operands and results: 'm k, k n -> m n'",
            fix='write it as hspmd_compiler.rule("aten.mm.default", "m k, k n -> m n", sum="k")',
        )
    return made


def chosen(
    row: Row, operands: Sequence[Dims], results: Sequence[Dims], whole: Iterable[str] = (), **more: Any
) -> OpRule:
    """The line of an operator with the letters that a call chooses. more: other fields."""
    base = replace(OP_RULES[row.op], variants=None, by_shapes=None)
    used = set[str]().union(*names_of((*operands, *results)))
    return replace(
        base,
        operands=tuple(operands),
        results=tuple(results),
        whole=frozenset(used.intersection(whole)),
        **more,
    )


def numbered(rank: int, letter: str = "d") -> Dims:
    """A letter for each of so many dims."""
    return tuple((f"{letter}{place}",) for place in range(rank))


def lengths_of(dims: Dims, shape: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """The lengths of dims of one letter each."""
    return tuple((name, size) for (name,), size in zip(dims, shape, strict=True))


def _tensor(text: str) -> Dims:
    dims: list[Letters] = []
    group: list[str] | None = None
    for token in TOKEN.findall(text):
        if token == "(":
            group = []
        elif token == ")":
            dims.append(tuple(group or ()))
            group = None
        elif group is not None:
            group.append(token)
        else:
            dims.append((token,))
    return tuple(dims)


def names_of(tensors: tuple[Dims, ...]) -> list[set[str]]:
    """The letters of each tensor."""
    return [{part for dim in dims for name in dim for part in beside(name)} for dims in tensors]


@cache
def beside(name: str) -> Letters:
    """The letters that stand side by side in one, without elements that have no letter."""
    return tuple(part for part in name.split("|") if not part.isdigit())


def _clashes(rule: OpRule) -> Iterator[tuple[str, str]]:
    operands, results = names_of(rule.operands), names_of(rule.results)
    read, written = set().union(*operands), set().union(*results)
    said = {name for dims in (*rule.operands, *rule.results) for dim in dims for name in dim}
    for name in sorted(said | rule.summed | rule.whole):
        if name != REST and not WORD.fullmatch(name):
            yield name, "is not a letter or word"
    for dims in (*rule.operands, *rule.results):
        names = [name for dim in dims for name in dim]
        if len(set(names)) < len(names) or REST in names[1:]:
            yield " ".join(names), "names a dim twice, or has ... behind another dim"
    shared = [set(names) for place, names in enumerate(operands) if place != rule.added]
    for name in sorted(rule.summed):
        everywhere = rule.code is not None or rule.emit is not None or all(name in names for names in shared)
        if not everywhere or all(name in names for names in results):
            yield name, "is summed: every operand has it, and no result"
    if rule.linear is Linear.ONE and len(rule.operands) > 1:
        yield "linear", "'one' is for one operand: 'each' for a product, 'together' for a sum"
    kept = written | rule.summed | rule.whole | rule.pattern
    for name in sorted(read - kept) if rule.along is None else ():
        yield name, "is in no result: name it in sum= or whole="
    for name in sorted((rule.whole | rule.summed | rule.pattern) - read - written):
        yield name, "is no letter of the rule"
