"""Class programs by content: stages with the same work share one."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...program.program import ClassProgram, Segment


@dataclass(slots=True)
class ClassPrograms:
    """Every distinct class program under its name."""

    programs: dict[str, ClassProgram] = field(default_factory=dict)
    by_size: dict[object, list[str]] = field(default_factory=dict)
    by_identity: dict[int, str] = field(default_factory=dict)

    def name_of(self, segments: list[Segment]) -> str:
        """The class with these segments, new if there is none."""
        if id(segments) not in self.by_identity:
            self.by_identity[id(segments)] = self._equal_or_new(segments)
        return self.by_identity[id(segments)]

    def _equal_or_new(self, segments: list[Segment]) -> str:
        size = tuple((len(part.inputs), len(part.rows), len(part.outputs)) for part in segments)
        alike = self.by_size.setdefault(size, [])
        for name in alike:
            known = self.programs[name].segments
            if known == segments and repr(known) == repr(segments):  # 1 == 1.0 == True, but not as text
                return name
        name = f"c{len(self.programs)}"
        self.programs[name] = ClassProgram(name, segments)
        alike.append(name)
        return name
