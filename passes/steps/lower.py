"""What the passes decided, as instructions: a program per class of ranks, tables per rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ...base.devices import DeviceKind
from ...program.check import problems_of_program
from ...program.program_text import program_text
from ..compile_state import Measured
from ..lower.lower import Lowered, lower
from ..pass_chain import Pass


@dataclass(frozen=True, slots=True)
class Lower(Pass[Measured, Lowered]):
    """device: of those devices that the strategy binds to no kind."""

    name: ClassVar[str] = "lower"

    device: DeviceKind = DeviceKind.CPU

    def run(self, state: Measured) -> Lowered:
        return lower(state, self.device.value)

    def text(self, before: Measured, after: Lowered) -> str:
        return program_text(after.program)

    def problems(self, before: Measured, after: Lowered) -> Iterator[str]:
        """Every rank has a program, of a class that is there."""
        program = after.program
        if [own.rank for own in program.ranks] != list(range(program.world_size)):
            yield f"programs of ranks {[own.rank for own in program.ranks]}, not of all {program.world_size}"
        used = {own.class_name for own in program.ranks}
        if used != program.classes.keys():
            yield f"classes {sorted(program.classes)}, used {sorted(used)}"

    def slow_problems(self, after: Lowered) -> Iterator[str]:
        """Every value, slot, literal, parameter and group that a program names is there."""
        return (f"{where}: {what}" for where, what in problems_of_program(after.program))
