"""The list of operators that a program may call holds what rules are for, and nothing that reads at will."""

from __future__ import annotations

import torch

from hspmd_compiler.program.kernels.kernels import aten_operator
from hspmd_compiler.program.operator_names import NAMES, is_listed
from hspmd_compiler.rules.lines.constant_lines import FILLS
from hspmd_compiler.rules.rule_book import RULES

DANGEROUS = ("strided", "resize", "storage", "empty", "file", "alias_", "nested", "sparse", "quant", "rand")


def test_every_operator_with_a_rule_is_listed() -> None:
    """Fills are written as `hspmd.full`."""
    aten = {name for name in RULES if name.startswith("aten.")} - FILLS.keys()
    assert sorted(name for name in aten if not is_listed(name)) == []


def test_every_name_is_one_of_torch() -> None:
    assert sorted(name for name in NAMES if not hasattr(torch.ops.aten, name)) == []


def test_nothing_on_the_list_reads_memory_at_will() -> None:
    assert [name for name in sorted(NAMES) if any(part in name for part in DANGEROUS)] == []


def test_nothing_on_the_list_writes_into_its_arguments() -> None:
    for name in sorted(NAMES):
        for overload in getattr(torch.ops.aten, name).overloads():
            if not getattr(getattr(torch.ops.aten, name), overload)._schema.is_mutable:
                assert aten_operator(f"aten.{name}.{overload}")
