"""Programs stepped by shape. What operators make of types is computed once for all tests of a process."""

from __future__ import annotations

from hspmd_compiler.program.operator_types import OperatorBook
from hspmd_compiler.program.program import Program
from hspmd_compiler.verify.lockstep.report import LockstepReport
from hspmd_compiler.verify.shape import fit
from hspmd_compiler.verify.shape.shape_segments import ShapeBook

OPERATORS = OperatorBook()


def check_fit(program: Program) -> LockstepReport:
    """`fit.check_fit`, which computes anew all that depends on the program."""
    return fit.check_fit(program, book=ShapeBook(OPERATORS))
