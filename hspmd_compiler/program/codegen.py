"""A segment as one generated Python generator: direct calls, early release, `yield` at communication.

Numbers that follow the micro-batch are its first arguments, each distinct size once.
The text is made here, from validated rows: numbers for values, operators from the kernel table, other
literals passed by name. Nothing that a file says is evaluated as code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from ..errors import ArtifactError
from .interpret import RowCall, read_rows
from .kernels.kernels import fast_kernel
from .lifetimes import unread_inputs
from .literals import segment_holes
from .program import ALIASES, COMM, COMM_START, GETITEM, Segment, Value
from .requests import SegmentRun
from .sized.sizes import Size

SegmentFunction: TypeAlias = Callable[..., SegmentRun[Tensor]]
MakeSegment: TypeAlias = Callable[[Segment, Sequence[object], str, bool], SegmentFunction]


@dataclass(frozen=True, slots=True)
class Code:
    """Generated text and the names it uses. sizes: of its first arguments, in order."""

    text: str
    names: dict[str, object]
    sizes: tuple[Size, ...] = ()

    def function(self) -> SegmentFunction:
        """What the text defines."""
        scope: dict[str, Any] = dict(self.names)
        exec(compile(self.text, "<hspmd segment>", "exec"), scope)  # from `generate`, never from a file
        function: SegmentFunction = scope["segment"]
        return function


class SegmentCache:
    """Compiled segments; ranks with the same segment and the same literals share one function.

    starts: what drives them answers requests to start an exchange. make: as `compile_segment`, or another
    that gives the same.
    """

    def __init__(self, device: str = "cpu", starts: bool = False, make: MakeSegment | None = None) -> None:
        self.device = device
        self.starts = starts
        self._make = make or compile_segment
        self._made: dict[tuple[int, tuple[str, ...]], tuple[Segment, SegmentFunction]] = {}

    def get(self, segment: Segment, literals: Sequence[object]) -> SegmentFunction:
        """The function of `segment` with `literals` in its holes."""
        key = (id(segment), tuple(repr(literals[index]) for index in segment_holes(segment)))
        if key not in self._made:
            self._made[key] = (segment, self._make(segment, literals, self.device, self.starts))
        return self._made[key][1]


def compile_segment(
    segment: Segment, literals: Sequence[object], device: str = "cpu", starts: bool = False
) -> SegmentFunction:
    """A generator function: takes the inputs in order, returns the outputs in order."""
    code = generate(segment, literals, device, starts)
    if code.sizes:
        raise ArtifactError(
            f"segment {segment.name} has sizes in a program of one size",
            details=[("sizes", ", ".join(size.text for size in code.sizes))],
            rule="numbers follow the micro-batch in programs that tell for which sizes they were compiled",
            fix="compile again",
        )
    return code.function()


def generate(segment: Segment, literals: Sequence[object], device: str = "cpu", starts: bool = False) -> Code:
    """The text of `compile_segment`, and the kernels and literals that it names."""
    writer = TextWriter(device, starts)
    lines = [line for call in read_rows(segment, literals) for line in writer.lines(call)]
    return generator(segment, writer, lines)


def generator(segment: Segment, writer: TextWriter, lines: Sequence[str]) -> Code:
    """A segment whose rows are these lines."""
    outputs = "".join(f"{value_name(output.value)}, " for output in segment.outputs)
    inputs = dict.fromkeys(value_name(item.value) for item in segment.inputs)
    body = [*released(unread_inputs(segment)), *lines, f"return ({outputs})", "yield"]
    text = function_text([*writer.sizes.values(), *inputs], body)
    return Code(text, writer.names, tuple(writer.sizes))


def function_text(arguments: Sequence[str], body: Sequence[str]) -> str:
    """What `Code.function` defines."""
    lines = "".join(f"    {line}\n" for line in body)
    return f"def segment({', '.join(arguments)}):\n{lines}"


class TextWriter:
    """Turns rows into expressions and gathers the names they need. sizes: with their arguments' names."""

    def __init__(self, device: str, starts: bool) -> None:
        self._starts = starts
        self.names: dict[str, object] = {}
        self.sizes: dict[Size, str] = {}
        self._device = device
        self._kernels: dict[str, str] = {}

    def lines(self, call: RowCall) -> list[str]:
        """A row, and what is let go of behind it."""
        return [f"{value_name(call.row.out)} = {self.expression(call)}", *released(call.dead)]

    def expression(self, call: RowCall) -> str:
        """The right-hand side of a row's assignment."""
        arguments, op = [self._text(argument) for argument in call.args], call.row.op
        if op == COMM and len(arguments) > 2:
            return f"yield ({arguments[1]}, ({arguments[0]}, {arguments[2]}), {call.may_overwrite})"
        if op == COMM:
            return f"yield ({arguments[1]}, {arguments[0]}, {call.may_overwrite})"
        if op == COMM_START and self._starts:
            return f"yield ({arguments[1]}, {arguments[0]}, None)"
        if op == GETITEM:
            return f"{arguments[0]}[{arguments[1]}]"
        if op in ALIASES:
            return arguments[0]
        arguments += [
            f"{_keyword(name)}={self._text(value)}" for name, value in call.keywords(self._device).items()
        ]
        return f"{self._kernel(op)}({', '.join(arguments)})"

    def _kernel(self, op: str) -> str:
        if op not in self._kernels:
            self._kernels[op] = f"k{len(self._kernels)}"
            self.names[self._kernels[op]] = fast_kernel(op)
        return self._kernels[op]

    def _text(self, argument: object) -> str:
        if isinstance(argument, Value):
            return value_name(argument)
        if argument is None or isinstance(argument, (bool, int)):
            return repr(argument)
        if isinstance(argument, Size):
            return self.sizes.setdefault(argument, f"z{len(self.sizes)}")
        if isinstance(argument, tuple):
            return "(" + "".join(f"{self._text(item)}, " for item in argument) + ")"
        name = f"c{len(self.names)}"
        self.names[name] = argument
        return name


def value_name(value: Value) -> str:
    """A value's name in the text."""
    if type(value.id) is not int or value.id < 0:
        raise ArtifactError(f"{value.id!r} is no value id", rule="value ids are natural numbers")
    return f"v{value.id}"


def _keyword(name: str) -> str:
    if not name.isidentifier():
        raise ArtifactError(f"{name!r} is no keyword of an operator")
    return name


def released(values: Sequence[int]) -> list[str]:
    """The line that lets go of values, if there are any."""
    return [f"del {', '.join(f'v{value}' for value in values)}"] if values else []
