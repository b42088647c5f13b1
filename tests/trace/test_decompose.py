"""Operators written out as others: the same values whole, split in 2, 3 and 5, and in a traced model."""

from __future__ import annotations

import random
import zlib

import pytest

from ..rules.decomposed_cases import decomposed
from ..rules.rule_cases import Case
from ..rules.test_rules_brute_force import WAYS, try_one

BY_OP: dict[str, list[Case]] = {}
for _case in decomposed():
    BY_OP.setdefault(_case.op, []).append(_case)
THOROUGH = 60


@pytest.mark.parametrize("op", sorted(BY_OP))
def test_split_equals_whole(op: str) -> None:
    draws = random.Random(zlib.crc32(op.encode()))
    for case in BY_OP[op]:
        try_one(case, draws.randrange(2**32), draws.choice(WAYS))


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(BY_OP))
def test_split_equals_whole_more_often(op: str) -> None:
    for case in BY_OP[op]:
        for seed in range(THOROUGH):
            try_one(case, seed, WAYS[seed % len(WAYS)])
