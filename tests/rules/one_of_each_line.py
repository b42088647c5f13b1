"""Operators whose rule differs from all others': of those with equal rules, the one with most calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from hspmd_compiler.rules.op_rule import OP_RULES


def one_of_each_line(ops: Iterable[str], calls: Mapping[str, Sequence[object]]) -> set[str]:
    """Of these operators; one whose rule is no line stands for itself."""
    keys = {op: repr(replace(OP_RULES[op], op="")) if op in OP_RULES else op for op in ops}
    alike = groupby(sorted(keys, key=lambda op: (keys[op], op)), key=lambda op: keys[op])
    return {max(same, key=lambda op: len(calls[op])) for _, same in alike}
