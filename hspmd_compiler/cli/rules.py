"""`hspmd rules`: how operators split, the ways of a call with flops and bytes, and proof by brute force."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ..errors import OUR_FAILURE, HspmdError, OptionError
from .command import Command, add_json
from .show import progress, show_json, show_sections

if TYPE_CHECKING:
    from ..pages.sections import Section
    from ..verify.rules.rule_check import Checked

NEAR = 5


def add_flags(parser: ArgumentParser) -> None:
    parser.add_argument("op", metavar="OP", nargs="?", help="an operator, as aten.mm.default or mm")
    parser.add_argument(
        "--shape", metavar="N,N", action="append", default=[], help="of each tensor, in order; one for each"
    )
    parser.add_argument(
        "--arg", metavar="NAME=VALUE", action="append", default=[], help="another argument of the operator"
    )
    parser.add_argument("--shares", metavar="N,N", default="1,1", help="what ranks hold (default: 1,1)")
    parser.add_argument("--dtype", default="float32", help="of the tensors (default: float32)")
    parser.add_argument("--check", action="store_true", help="split many calls and compare with whole ones")
    parser.add_argument(
        "--import",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="where rules of yours are",
    )
    add_json(parser)


def run(args: Namespace) -> int:
    """Prints the table, or one rule; 1 if a check finds a difference."""
    from ..pages.rule_pages import all_rules, one_rule

    for module in args.modules:
        _import(module)
    if args.op is None:
        show_sections(all_rules(), args.json)
        return 0
    op = find(args.op)
    checked = _checked(op) if args.check else None
    shapes = [numbers(text, "--shape") for text in args.shape]
    sections = one_rule(op, shapes, literals(args.arg), _shares(args.shares), args.dtype)
    if checked is None:
        show_sections(sections, args.json)
        return 0
    if args.json:
        show_json({"op": op, "check": asdict(checked)})
    else:
        show_sections([*sections, _verdict(checked)], False)
    return OUR_FAILURE if checked.problem is not None else 0


def _checked(op: str) -> Checked:
    from ..rules.op_rule import OP_RULES
    from ..verify.rules.rule_check import check_rule

    if op not in OP_RULES:
        raise OptionError(
            f"the rule of {op} is a function",
            rule="--check makes calls from a rule's letters",
            fix="prove a model that uses it: hspmd verify --values",
        )
    with progress():
        return check_rule(op)


def _verdict(checked: Checked) -> Section:
    from ..pages.sections import Listing

    done = f"{checked.greedy} splits in random layouts, {checked.ways} chosen ways"
    if checked.problem is not None:
        return Listing("check", "check: NOT the whole operator", (done, checked.problem))
    if not checked.greedy:
        return Listing("check", "check: nothing was tried", ("no call can be made from the schema alone",))
    return Listing("check", "check: equal to the whole operator", (done,))


def find(name: str) -> str:
    """The operator that a name means: whole, or without namespace and overload. Raises OptionError."""
    from ..rules.rule_book import RULES

    found = [op for op in RULES if name in (op, op.split(".")[1], op.partition(".")[2])]
    if len(found) == 1:
        return found[0]
    shorts = {op.split(".")[1]: op for op in RULES}
    near = found or [shorts[short] for short in get_close_matches(name, shorts, n=NEAR)]
    raise OptionError(
        f"{name} is {'several operators' if found else 'no operator with a rule'}",
        details=[*([] if found else _without(name)), *([("nearest", ", ".join(near))] if near else [])],
        fix="name one of them, or list all with hspmd rules",
    )


def _without(name: str) -> list[tuple[str, str]]:
    """What becomes of an operator of PyTorch's that has no rule."""
    from ..rules.unknown_operators import Treatment, treatment_of

    op = name if name.startswith("aten.") else f"aten.{name}"
    op = op if op.count(".") > 1 else f"{op}.default"
    how = treatment_of(op)
    if how is None:
        return []
    parts = "written out as operators with rules where PyTorch knows how, else "
    return [("without one", f"{op} is {parts if how is Treatment.WHOLE else ''}{how.value}")]


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """`8,16` as (8, 16); nothing is the shape of a number."""
    parts = [part for part in text.split(",") if part]
    if not all(part.strip().isdecimal() for part in parts):
        raise OptionError(f"{flag} {text} is not understood", fix=f"whole numbers with commas: {flag} 8,16")
    return tuple(int(part) for part in parts)


def _shares(text: str) -> tuple[int, ...]:
    found = numbers(text, "--shares")
    if not sum(found):
        raise OptionError(
            f"--shares {text} shares nothing out",
            rule="a weight for each rank, not all of them 0",
            fix="--shares 2,1",
        )
    return found


def literals(pairs: list[str]) -> dict[str, object]:
    """`dim=1`, `dim=0,1`, `p=0.5`, `keepdim=true` as arguments by name."""
    return {name: _literal(value) for name, _, value in (pair.partition("=") for pair in pairs)}


def _literal(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    try:
        parts = [int(part) for part in text.split(",")]
        return parts[0] if len(parts) == 1 else parts
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _import(module: str) -> None:
    from ..base.names.named_import import import_named

    try:
        import_named(module)
    except HspmdError:
        raise
    except Exception as error:  # whatever the user's own module raises
        raise OptionError(
            f"{module} can't be imported",
            details=[("reason", f"{type(error).__name__}: {error}")],
            fix="name a module as Python imports it: --import package.my_rules",
        ) from error


COMMAND = Command("rules", "how operators split, at what flops and bytes", add_flags, run)
