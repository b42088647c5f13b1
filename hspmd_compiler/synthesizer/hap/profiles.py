"""Speeds and bandwidths that HAP's authors left in their scripts, and how they write a mix of devices.

Speeds are in HAP's own count of flops (3 for a multiply-add, without kernel areas and attention's
projections), bandwidths in bytes of the whole tensor a second. Source: alibaba/hap 6a80300 (2024-01),
ylxdzsw/hap a72b045 to 7c73d02 (2023); constants, no code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from ...errors import OptionError
from .costs import Bandwidths

EQUAL = 5966645808610.0
FAST, SLOW = 3858755112937.0, 2149250936815.0

PROFILES: Mapping[str, Bandwidths] = {
    "released": Bandwidths(9463184466, 5906161310, 9740459122, 24588140722),
    "het_2of8_fast": Bandwidths(815418707, 476774816, 876490907, 7504501871),
    "four_gpu": Bandwidths(2911974213, 1592001970, 2697857772, 7881094967),
}
"""All-gather, all-reduce, reduce-scatter, all-to-all. het_2of8_fast: 2 of 8 devices fast, 10.4 Gbps."""

EVERY = "every device_flops="
TIMES = re.compile(r"\b(\d+) *x *(\d+(?:\.\d+)?)\b", re.ASCII)
"""`8 x 3858755112937`: so many of a speed."""
MOST_DEVICES = 1 << 16
LONGEST = 2000
HELP = "[3858755112937]*(n*2/8) + [2149250936815]*(n*6/8), or every device_flops=5966645808610"


def speeds_of(text: str, devices: int) -> list[float]:
    """The speeds that a text names for so many devices: lists, + and *, numbers, n, fast, slow.

    Words before "every device_flops=" and a comment in parentheses at the end are left out.
    """
    try:
        if EVERY in text:
            text = f"[{text.partition(EVERY)[2]}]*n"
        text = TIMES.sub(r"[\2]*\1", text)
        found = _evaluate(_parsed(text), {"n": float(devices), "fast": FAST, "slow": SLOW})
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError, OverflowError, MemoryError) as error:
        raise OptionError(
            f"can't read the devices {text[:200]!r}", details=[("why", str(error)[:200])], rule=HELP
        ) from None
    if not isinstance(found, list) or len(found) != devices:
        named = len(found) if isinstance(found, list) else "a number"
        raise OptionError(f"{text!r} names {named} devices, there are {devices}", rule=HELP)
    return found


def _parsed(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        head, comment, _ = text.rpartition("(")
        if not comment:
            raise
        return ast.parse(head.strip(), mode="eval").body


def _evaluate(node: ast.expr, names: Mapping[str, float]) -> float | list[float]:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.List(elts=parts):
            return [_number(part, names) for part in parts]
        case ast.Call(func=ast.Name(id="round" | "int"), args=[part], keywords=[]):
            return float(round(_number(part, names)))
        case ast.BinOp(left=left, op=op, right=right):
            return _joined(_evaluate(left, names), op, _evaluate(right, names))
    raise ValueError(f"{ast.unparse(node)[:100]} is no number and no list of numbers")


def _number(node: ast.expr, names: Mapping[str, float]) -> float:
    found = _evaluate(node, names)
    if isinstance(found, list):
        raise ValueError(f"{ast.unparse(node)[:100]} is a list where a number is wanted")
    return found


def _joined(left: float | list[float], op: ast.operator, right: float | list[float]) -> float | list[float]:
    match left, op, right:
        case list(), ast.Add(), list():
            return left + right
        case list(), ast.Mult(), float():
            return left * _count(right, len(left))
        case float(), ast.Mult(), list():
            return right * _count(left, len(right))
        case float(), _, float():
            return _arithmetic(left, op, right)
    raise ValueError("lists are joined by + and repeated by *")


def _arithmetic(left: float, op: ast.operator, right: float) -> float:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return left // right
    raise ValueError("numbers are joined by + - * / //")


def _count(number: float, length: int) -> int:
    if not 0 <= round(number) * length <= MOST_DEVICES:
        raise ValueError(f"{number} times a list is not within {MOST_DEVICES} devices")
    return round(number)
