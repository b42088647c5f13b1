"""Rules that a user registers beside those of the package, which are loaded first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import OptionError
from ..program.operator_names import is_listed, known_operator
from . import rules
from .op_apply import put
from .op_rule import OP_RULES, Along, Linear, parse
from .rule_book import RULES
from .rules import PULLS, Rule, RuleT

if TYPE_CHECKING:
    import torch


def rule(
    op: str | torch._ops.OpOverload,
    letters: str,
    *,
    sum: str = "",
    whole: str = "",
    along: str = "",
    linear: str = "no",
    flops: float = 1.0,
    override: bool = False,
) -> None:
    """Say how an operator splits: each dim of its tensors, in order, by a letter or word.

    letters: `operands -> results`, separated by commas; `...` for any leading dims. A letter in operands
    and results is parallel, with the same length in all. sum: letters over which the results are sums:
    every operand has them. whole: letters that must not be split. Other arguments may not be sizes.
    along: the argument that names dims, which must not be split. linear: through which operands sums may
    pass that are not complete yet: "one" (the only one), "each" (a product), "together" (a sum).
    flops: per product of the lengths of all letters; 1 for one per element of the largest tensor at most
    where no letter is summed over in two operands.
    override: take the place of the rule that the operator has; the same one may be registered again.
    """
    name = str(op)
    way = Along(along) if along else None
    if along:
        _check_argument(name, along)
    made = parse(name, letters, sum=sum, whole=whole, along=way, linear=_linear(linear), flops=flops)
    if name not in OP_RULES or OP_RULES[name].text() != made.text():
        _make_room([name], override)
        put(made)


LINEAR = {way.value: way for way in (Linear.NO, Linear.ONE, Linear.EACH, Linear.TOGETHER)}


def _linear(word: str) -> Linear:
    if word not in LINEAR:
        raise OptionError(
            f"linear={word!r} is not known",
            rule=f"linear is one of {', '.join(LINEAR)}",
            fix='leave it out where the operator is not linear; "each" for a product, "together" for a sum',
        )
    return LINEAR[word]


def rule_for(*ops: str, override: bool = False) -> Callable[[RuleT], RuleT]:
    """Register a function as the rule of operators such as `aten.mm.default`.

    override: take the place of the rules that they have; the same one may be registered again.
    """

    def register(rule: RuleT) -> RuleT:
        new = [op for op in ops if not _same(RULES.get(op), rule)]
        _make_room(new, override)
        return rules.rule_for(*new)(rule)

    return register


def _same(held: Rule | None, rule: Rule) -> bool:
    """Whether both are one function, or one that was defined again, as by a cell of a notebook."""
    codes = [getattr(each, "__code__", None) for each in (held, rule)]
    plain = not any(getattr(each, "__closure__", None) for each in (held, rule))
    return held is rule or (plain and codes[0] is not None and codes[0] == codes[1])


def _make_room(ops: Sequence[str], override: bool) -> None:
    _check_callable(ops)
    taken = [op for op in ops if op in RULES]
    if taken and not override:
        raise OptionError(
            f"{taken[0]} has a rule already",
            details=[(op, _described(op)) for op in taken],
            rule="an operator has one rule",
            fix="drop yours, or say override=True to put it in the other's place",
        )
    for op in taken:
        for table in (RULES, OP_RULES, PULLS):
            table.pop(op, None)


def _check_argument(op: str, along: str) -> None:
    _check_callable([op])
    names = [item.name for item in known_operator(op)._schema.arguments]
    if along not in names:
        raise OptionError(
            f"{op} has no argument {along}",
            details=[("takes", ", ".join(names))],
            rule="along= is the argument that names dims",
            fix="name one of these",
        )


def _check_callable(ops: Sequence[str]) -> None:
    unknown = [op for op in ops if not is_listed(op) and not op.startswith("hspmd.")]
    if unknown:
        raise OptionError(
            f"no program may call {unknown[0]}, so that it needs no rule",
            details=[("operators", ", ".join(unknown))],
            rule="an artifact calls operators that hspmd_compiler/program/operator_names.py lists: of"
            " PyTorch's own,"
            " those that draw nothing and read memory by no strides",
            fix="write what it computes with operators of the list",
        )


def _described(op: str) -> str:
    """The letters of a rule, or the function that it is."""
    if op in OP_RULES:
        return OP_RULES[op].text()
    held = RULES[op]
    return f"{held.__module__}.{getattr(held, '__qualname__', held)}"
