"""HAP's operators from the torch-level calls of an unmodified model, whose step runs once on the meta device.

A user's function that HAP has as one operator, such as gating, is named: calls inside of it are one region.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import CodeType, FrameType

from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from ...base import name_glob
from ...base.source_lines import SourceLine
from ...errors import RuleMissing
from ...trace.anchors import Anchors
from .operators import HapGraph, HapOperator, HapValue, Leaf
from .readings import READERS, Alias, HapReading
from .rules import HapSignature, rule_of

REGION = "region"
KNOWN_REGIONS = ("top_2_gating",)
"""What HAP has as one operator by its name."""
Inputs = Mapping[str, Tensor]


@dataclass(eq=False, slots=True)
class HapCall:
    """One of HAP's operators, as it was read."""

    kind: str
    inputs: list[HapValue]
    outputs: list[HapValue]
    details: tuple[int | str, ...]
    segment: int
    at: SourceLine | None


@dataclass(eq=False, slots=True)
class HapRecording:
    """The calls of a step. missing: calls that HAP has no operator for, with their lines."""

    values: list[HapValue] = field(default_factory=list)
    calls: list[HapCall] = field(default_factory=list)
    uncounted: dict[str, int] = field(default_factory=dict)
    anchors: list[str] = field(default_factory=list)
    missing: dict[str, SourceLine | None] = field(default_factory=dict)

    def graph(self) -> HapGraph:
        """Operators with their rules."""
        operators = tuple(self._operator(call) for call in self.calls)
        uncounted, anchors = tuple(self.uncounted.items()), tuple(self.anchors)
        return HapGraph(tuple(self.values), operators, uncounted, anchors)

    def _operator(self, call: HapCall) -> HapOperator:
        shapes = [tuple(value.shape for value in values) for values in (call.inputs, call.outputs)]
        details = call.details
        if call.kind == REGION:
            batched = (None, Leaf.INPUT)
            details = tuple(index for index, value in enumerate(call.inputs) if value.leaf in batched)
        rule = rule_of(HapSignature(call.kind, shapes[0], shapes[1], details))
        for value in call.outputs:
            value.exchangeable = rule.exchangeable
        return HapOperator(call.kind, rule, tuple(call.inputs), tuple(call.outputs), call.segment, call.at)


def record(
    model: nn.Module,
    inputs: Inputs,
    regions: Sequence[str] = KNOWN_REGIONS,
    segment_ends: Sequence[str] = (),
    anchors: bool = False,
) -> HapRecording:
    """Run a step of a model on the meta device and read its calls.

    regions: names of functions of the user's that are one operator each. segment_ends: globs over names of
    modules; behind each of them a new segment begins. anchors: values are told the names of their anchors.
    """
    held = {name: tensor.to("meta") for name, tensor in model.named_parameters()}
    buffers = {name: tensor.to("meta") for name, tensor in model.named_buffers()}
    given = {name: tensor.to("meta") for name, tensor in inputs.items()}
    leaves = {Leaf.PARAMETER: held, Leaf.BUFFER: buffers, Leaf.INPUT: given}
    recorder = CallRecorder(leaves, regions)
    handles = [
        module.register_forward_hook(lambda *_: recorder.end_segment())
        for name, module in model.named_modules()
        if any(name_glob.matches_exactly(pattern, name) for pattern in segment_ends)
    ]
    try:
        with recorder.names.watch(model), recorder.names if anchors else nullcontext(), recorder:
            loss = functional_call(model, held | buffers, (), dict(given))
    finally:
        for handle in handles:
            handle.remove()
    recorder.finish(loss)
    return recorder.recording


class NamedAnchors(Anchors):
    """Anchors, of which all names are known, and the latest: of the value that the running call gives."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names, self.latest = names, ""

    def _name(self, call: str) -> str:
        self.latest = super()._name(call)
        self.names.append(self.latest)
        return self.latest


class CallRecorder(TorchFunctionMode):
    """Reads each torch-level call while it runs; tensors are kept alive, so that ids stay theirs."""

    def __init__(self, leaves: Mapping[Leaf, Inputs], regions: Sequence[str]) -> None:
        super().__init__()
        self.recording = HapRecording()
        self.names = NamedAnchors(self.recording.anchors)
        self._regions = frozenset(regions)
        self._segment = 0
        self._values: dict[int, HapValue] = {}
        self._kept: list[object] = []
        self._inside: dict[int, HapCall] = {}
        self._made_at: dict[int, str] = {}
        self._open: tuple[FrameType, HapCall] | None = None
        for kind, tensors in leaves.items():
            for name, tensor in tensors.items():
                self._note(tensor, name, kind)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self.names.latest = ""
        result = func(*args, **(kwargs or {}))
        if next(tensors_in((result,), {}), None) is None:
            return result
        frame, at = self._place()
        operands = list(tensors_in(args, kwargs or {}))
        if frame is not None:
            self._inner(frame, at, operands, result)
        else:
            self._open = None
            self._outer(func.__name__, at, args, kwargs or {}, operands, result)
        return result

    def end_segment(self) -> None:
        self._segment += 1

    def finish(self, loss: object) -> None:
        """The loss is read by the optimizer; a model that can't be read is refused."""
        loss = loss["loss"] if isinstance(loss, Mapping) else loss[0] if isinstance(loss, tuple) else loss
        value = self._values.get(id(getattr(loss, "loss", loss)))
        if self.recording.missing:
            raise missing_operators(self.recording.missing)
        if value is None or not self.recording.calls or value not in self.recording.calls[-1].outputs:
            raise RuleMissing(
                "the model's result is not what its last call makes",
                rule="HAP's programs end with the loss, a sum over samples",
            )
        value.readers += 1

    def _place(self) -> tuple[FrameType | None, SourceLine | None]:
        """The running call of a region, if any, and the user's line."""
        frame: FrameType | None = sys._getframe(2)
        line: SourceLine | None = None
        region: FrameType | None = None
        while frame is not None and frame.f_code is not record.__code__:
            code = frame.f_code
            if line is None and is_users(code):
                line = SourceLine(code.co_filename, frame.f_lineno, code.co_name)
            if code.co_name in self._regions and is_users(code):
                region = frame
            frame = frame.f_back
        return region, line

    def _inner(self, frame: FrameType, at: SourceLine | None, operands: list[Tensor], result: object) -> None:
        """A call inside of a region: what comes from outside is the region's operand."""
        if self._open is None or self._open[0] is not frame:
            call = HapCall(REGION, [], [], (frame.f_code.co_name,), self._segment, at)
            self.recording.calls.append(call)
            self._open = frame, call
        call = self._open[1]
        for tensor in operands:
            if self._inside.get(id(tensor)) is not call and self._known(tensor):
                value = self._values[id(tensor)]
                if value not in call.inputs:
                    call.inputs.append(self._read(value))
        for tensor in tensors_in((result,), {}):
            if id(tensor) not in self._values:
                self._inside[id(tensor)] = call
                self._made_at[id(tensor)] = self.names.latest
                self._kept.append(tensor)

    def _outer(
        self,
        name: str,
        at: SourceLine | None,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        operands: list[Tensor],
        result: object,
    ) -> None:
        made = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(made, Tensor) or not any(self._known(tensor) for tensor in operands):
            return
        if any(made is tensor for tensor in operands) and name not in READERS:
            return  # hands its operand on
        read = READERS[name](*args, **kwargs) if name in READERS else None
        if isinstance(read, Alias):
            self._values[id(made)] = self._values[id(read.of)]
            self._kept.append(made)
        elif read is None or not all(self._known(tensor) for tensor in read.operands):
            self.recording.missing.setdefault(name, at)
            self._note(made, name)
        else:
            self._operator(read, made, at)

    def _operator(self, read: HapReading, made: Tensor, at: SourceLine | None) -> None:
        inputs = [self._read(self._values[id(tensor)]) for tensor in read.operands]
        for tensor in read.uncounted:
            value = self._values.get(id(tensor))
            if value is not None:
                self.recording.uncounted[value.name] = value.elements
        value = self._note(made, read.kind)
        self.recording.calls.append(HapCall(read.kind, inputs, [value], read.details, self._segment, at))

    def _read(self, value: HapValue) -> HapValue:
        """A buffer is loaded anew for each reader; a parameter has one."""
        if value.readers and value.leaf is Leaf.BUFFER:
            value = self._new(value.shape, value.name, Leaf.BUFFER)
        elif value.readers and value.leaf is Leaf.PARAMETER:
            raise RuleMissing(
                f"parameter {value.name} has two readers", rule="HAP places a parameter for one operator"
            )
        value.readers += 1
        return value

    def _known(self, tensor: Tensor) -> bool:
        """Whether a tensor is a value, or becomes one, as a region's result that is read outside."""
        if id(tensor) in self._values:
            return True
        call = self._inside.get(id(tensor))
        if call is None:
            return False
        call.outputs.append(self._note(tensor, str(call.details[0])))
        call.outputs[-1].segment = call.segment
        return True

    def _note(self, tensor: Tensor, name: str, leaf: Leaf | None = None) -> HapValue:
        self._kept.append(tensor)
        value = self._new(tuple(tensor.shape) or (1,), name, leaf)
        value.anchor = name if leaf is Leaf.INPUT else self._made_at.pop(id(tensor), self.names.latest)
        self._values[id(tensor)] = value
        return value

    def _new(self, shape: tuple[int, ...], name: str, leaf: Leaf | None) -> HapValue:
        value = HapValue(len(self.recording.values), shape, name, leaf, segment=self._segment)
        self.recording.values.append(value)
        return value


def tensors_in(args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[Tensor]:
    """Of a call's arguments, lists of tensors opened."""
    for one in (*args, *kwargs.values()):
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from (inner for inner in one if isinstance(inner, Tensor))


_USERS: dict[int, tuple[CodeType, bool]] = {}
"""By id, which hashes faster; the code is held, so that its id stays its own."""


def is_users(code: CodeType) -> bool:
    if id(code) not in _USERS:
        line = SourceLine(code.co_filename, code.co_firstlineno, code.co_name)
        _USERS[id(code)] = code, line.is_users
    return _USERS[id(code)][1]


def missing_operators(missing: Mapping[str, SourceLine | None]) -> RuleMissing:
    """All of them, each with the first line that calls it."""
    return RuleMissing(
        f"HAP has no operator for {', '.join(sorted(missing))}",
        details=[(name, line.text() if line else "") for name, line in sorted(missing.items())],
        rule="its space is a closed list: hspmd_compiler/synthesizer/hap/readings.py",
        fix="search the full space (--space full)",
    )
