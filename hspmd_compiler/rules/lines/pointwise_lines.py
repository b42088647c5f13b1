"""The table's lines of operators that work element by element."""

from __future__ import annotations

from ...ir.own_names import MASKED
from ..in_code.pointwise_operators import CHOICES, LAZY, LINEAR, PRODUCTS, SETTLING, SUMS
from ..in_code.pointwise_rules import masked, products, settling, sums
from ..op_apply import line
from ..op_rule import Linear

for _op in SETTLING:
    line(
        _op,
        "... -> ...",
        every=True,
        linear=Linear.FIRST if _op.endswith("_backward.default") else Linear.NO,
        code=settling if _op in CHOICES else None,
        empty_ok=True,
    )
for _op in LINEAR:
    line(_op, "... -> ...", linear=Linear.ONE, empty_ok=True)
for _op, _kernel in LAZY.items():
    line(_op, "... -> ...", linear=Linear.ONE, kernel=_kernel, empty_ok=True)
for _op in SUMS:
    line(_op, "... -> ...", every=True, linear=Linear.TOGETHER, code=sums, empty_ok=True)
for _op in PRODUCTS:
    _dividend = (0,) if _op.startswith("aten.div") else None
    line(_op, "... -> ...", every=True, linear=Linear.EACH, carries=_dividend, code=products, empty_ok=True)
line(MASKED, "..., ... -> ...", linear=Linear.FIRST, code=masked)

# Pairs of numbers as complex ones, and back.
line(
    "aten.view_as_complex.default",
    "... pair -> ...",
    whole="pair",
    linear=Linear.BATCH,
    kernel="hspmd.view_as_complex",
)
line("aten.view_as_real.default", "... -> ... pair", whole="pair", linear=Linear.BATCH)
