"""Traces a training step by running it once on tensors without memory: what is called is the graph.

It costs a fifth of an export, and is exact for a step that only makes new tensors out of those it was
given. What else a step may do (change a tensor in place, take one from elsewhere, draw random numbers,
read a number out of a tensor) is refused here, and left to the export. Rows are those of the export,
names of places included; tests hold the two equal. A step that asks for a gradient in its forward can't be
exported; in such a one, and no other, whole tensors that it made may be changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from ..ir.fx_convert import GETITEM, PLACEHOLDER, is_default, metas_of
from ..ir.graph import Origin, OriginKind, Phase, Ref, Row, row_inputs
from ..ir.layers import assign_layers, find_layers
from .call_places import CallPlaces
from .capture import (
    DispatchRecorder,
    JointOutputKind,
    LossModule,
    OutputRole,
    StepState,
    quiet,
    running_plainly,
)
from .decompositions.own_decompositions import TRACED_WRONGLY
from .decompositions.written_memory import Memories, of_new_tensor
from .decompositions.written_out import written_out
from .loss_output import loss_of
from .own_functions import InsideFunctions
from .tensor_memory import storage_key
from .trace_checks import ALLOWED_NAMESPACES, is_random

DETACH = torch.ops.aten.detach.default
NO_RESULT = frozenset((torch.ops.prim.device.default, torch.ops.aten._linalg_check_errors.default))
"""Calls that no value comes from: of a matrix that has no inverse, eager says so, and a program gives NaN."""
ACTIVATION = Origin(OriginKind.ACTIVATION)
IN_MODEL = (OriginKind.PARAM, OriginKind.BUFFER)


class NotPlain(Exception):
    """The step does what only an export can trace; the message says what."""


@dataclass(frozen=True, slots=True)
class EagerStep:
    """Rows of a step in the order of its calls, dead ones too, and which of them are its outputs."""

    rows: list[Row]
    outputs: dict[OutputRole, int]


def run_step(
    model: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    mode: torch._subclasses.FakeTensorMode,
    state: StepState,
    anchored: bool = False,
) -> EagerStep:
    """Rows of one step of a model and inputs that belong to `mode`; NotPlain where they can't be had so.

    anchored: see LossModule.
    """
    return _Recorder(model, state, anchored).run(inputs, mode)


@dataclass(slots=True)
class _Recorder:
    """One row per call, read by those that use its result.

    refusal: the first thing that was not plain; raising inside a call would end the process.
    """

    model: nn.Module
    state: StepState
    anchored: bool = False
    rows: list[Row] = field(default_factory=list)
    phase: Phase = Phase.FORWARD
    places: CallPlaces = field(default_factory=CallPlaces)
    refusal: NotPlain | None = None
    inside: InsideFunctions = field(default_factory=InsideFunctions)
    _row_of: dict[int, tuple[Ref, int]] = field(default_factory=dict)  # by id of the tensor: row, memory
    _memories: Memories = field(default_factory=Memories)
    _names: dict[torch._ops.OpOverload, str] = field(default_factory=dict)
    _made_from_nothing: int | None = None
    _in_place: str = ""

    def run(self, inputs: Mapping[str, torch.Tensor], mode: torch._subclasses.FakeTensorMode) -> EagerStep:
        """Forward and backward."""
        if len(list(self.model.modules())) < len(list(self.model.named_modules(remove_duplicate=False))):
            raise NotPlain("a module has several names")
        tangent = self._place_inputs(inputs, mode)
        params = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        step = LossModule(self.model, tuple(inputs), loss_of, self.state, self.anchored)
        hooks = list(self.places.watch(self.model))
        try:
            with (
                quiet(),
                mode,
                running_plainly(step),
                written_out(TRACED_WRONGLY),
                self.inside.watch(),
                DispatchRecorder(self.call),
            ):
                loss, *assigned = step(*inputs.values())
                self.phase = Phase.BACKWARD
                self.places.follow(loss.grad_fn)
                grads = torch.autograd.grad(loss, list(params.values()), tangent, allow_unused=True)
        finally:
            for hook in hooks:
                hook.remove()
        if self.refusal is not None:
            raise self.refusal
        if self._in_place and not self.state.gradients:  # only for what no export can trace
            raise NotPlain(self._in_place)
        assign_layers(self.rows, find_layers(self.model), self.places.paths, self.places.numbers)
        outputs = {OutputRole(JointOutputKind.LOSS): self._ref(loss).id}
        for name, value in zip(self.state.assigned, assigned, strict=True):
            outputs[OutputRole(JointOutputKind.BUFFER, name)] = self._ref(value).id
        for name, grad in zip(params, grads, strict=True):
            if grad is not None:
                outputs[OutputRole(JointOutputKind.GRAD, name)] = self._ref(grad).id
        return EagerStep(self.rows, outputs)

    def _place_inputs(
        self, inputs: Mapping[str, torch.Tensor], mode: torch._subclasses.FakeTensorMode
    ) -> torch.Tensor:
        """Rows of parameters, buffers, inputs and the loss's gradient, which is returned."""
        named = (
            (OriginKind.PARAM, self.model.named_parameters()),
            (OriginKind.BUFFER, self.model.named_buffers()),
            (OriginKind.INPUT, inputs.items()),
        )
        for kind, tensors in named:
            for name, tensor in tensors:
                row = self._placeholder(Origin(kind, name), tensor)
                if kind in IN_MODEL:
                    self.places.paths[row.id] = name.rpartition(".")[0]
        with mode:
            tangent = torch.empty(())
        self._placeholder(Origin(OriginKind.TANGENT), tangent).phase = Phase.BACKWARD
        return tangent

    def _placeholder(self, origin: Origin, tensor: torch.Tensor) -> Row:
        row = self._row(PLACEHOLDER, (), {}, tensor)
        row.origin = origin
        self._name(tensor, row)
        return row

    def call(
        self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Run one call, and record it."""
        result = func(*args, **kwargs)
        if self.refusal is None and func not in NO_RESULT:
            try:
                self._record(func, args, kwargs, result)
            except NotPlain as refusal:
                self.refusal = refusal
        return result

    def _record(
        self,
        func: torch._ops.OpOverload,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        result: object,
    ) -> None:
        if func is DETACH and self._is_wrapping(args[0], result):
            return
        name = self._names.get(func) or self._plain_name(func)
        made = self._made_anew(func, name, args, kwargs)
        read = tuple([self._argument(value) for value in args])
        named = {k: self._argument(value) for k, value in kwargs.items() if not is_default(k, value)}
        row = self._row(name, read, named, made if made is not None else result)
        self._note(row)
        if self._is_unrecorded(name) and _require_grad(args):
            raise NotPlain(f"{name} is differentiated, but not recorded")
        if is_random(row):
            raise NotPlain(f"{name} draws random numbers")
        self._made_from_nothing = None
        if made is not None:
            self._rename(args[0], row)
        elif isinstance(result, torch.Tensor):
            self._name(result, row)
            self._made_from_nothing = None if row_inputs(row) else row.id
        elif isinstance(result, (tuple, list)):
            for place, item in enumerate(result):
                self._part(row, place, item)
        else:
            raise NotPlain(f"{name} gives a {type(result).__name__}")

    def _is_unrecorded(self, name: str) -> bool:
        """Whether autograd does not see a call; operators and functions that record themselves apart."""
        seen = torch.is_grad_enabled() or self.inside or not name.startswith("aten.")
        return self.phase is Phase.FORWARD and not seen

    def _is_wrapping(self, value: object, result: object) -> bool:
        """Whether a detach is torch's own: it wraps every new tensor that Python asks for once."""
        if self._made_from_nothing is None or not isinstance(result, torch.Tensor):
            return False
        row = self.rows[self._made_from_nothing]
        wraps = self._argument(value) == Ref(row.id)
        if wraps:
            self._name(result, row)
            self._made_from_nothing = None
        return wraps

    def _plain_name(self, func: torch._ops.OpOverload) -> str:
        name, schema = str(func), func._schema
        if name.split(".")[0] not in ALLOWED_NAMESPACES:
            raise NotPlain(f"{name} is an operator of a library of its own")
        aliases = [v.alias_info for v in (*schema.arguments, *schema.returns)]
        if any(alias is not None and alias.is_write for alias in aliases):
            anew = of_new_tensor(func)
            if anew is None or torch.Tag.nondeterministic_seeded in func.tags:
                raise NotPlain(f"{name} changes a tensor in place")
            name = str(anew)
        self._names[func] = name
        return name

    def _made_anew(
        self, func: torch._ops.OpOverload, name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """What the operator of this name gives in place of one that changes its first operand."""
        anew = None if name == str(func) else of_new_tensor(func)
        target = args[0] if args else None
        if anew is None or not isinstance(target, torch.Tensor):
            return None
        self._ref(target)
        shared = list(self._memories.sharing(target))
        if any(self._is_given(other) for other, _ in shared):
            raise NotPlain(f"{func} changes a tensor in place that the step was given")
        if not all(same for _, same in shared):
            raise NotPlain(f"{func} changes a part of a tensor in place")
        self._in_place = self._in_place or f"{func} changes a tensor in place"
        made = anew(*args, **kwargs)
        if (made.shape, made.dtype) != (target.shape, target.dtype):
            raise NotPlain(f"{func} changes a tensor in place to its own type")
        return made

    def _is_given(self, tensor: torch.Tensor) -> bool:
        return self.rows[self._row_of[id(tensor)][0].id].op == PLACEHOLDER

    def _rename(self, target: object, row: Row) -> None:
        """A tensor that was changed is what the row makes, and so is all that is the same elements."""
        if isinstance(target, torch.Tensor):
            for other, _ in self._memories.sharing(target):
                self._row_of[id(other)] = Ref(row.id), storage_key(other)

    def _part(self, row: Row, place: int, item: object) -> None:
        """A row for one of several results; some are left out."""
        if isinstance(item, torch.Tensor):
            part = self._row(GETITEM, (Ref(row.id), place), {}, item)
            self.places.note_part(part, row)
            self._name(item, part)
        elif item is not None:
            raise NotPlain(f"{row.op} gives a {type(item).__name__}")

    def _note(self, row: Row) -> None:
        if self.phase is Phase.FORWARD:
            self.places.note_forward(row)
        else:
            self.places.note_backward(row)

    def _argument(self, value: object) -> object:
        if isinstance(value, torch.Tensor):
            return self._ref(value)
        if isinstance(value, (tuple, list)):
            return tuple([self._argument(item) for item in value])
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NotPlain("a size depends on the numbers in a tensor")
        return value

    def _ref(self, tensor: torch.Tensor) -> Ref:
        found = self._row_of.get(id(tensor))
        if found is None:
            raise NotPlain("a tensor comes from elsewhere")
        if found[1] != storage_key(tensor):
            raise NotPlain("a tensor was given other memory")
        return found[0]

    def _name(self, tensor: torch.Tensor, row: Row) -> None:
        if id(tensor) in self._row_of or tensor.dtype.is_complex:
            raise NotPlain(f"{row.op} gives a tensor that was there before, or a complex one")
        self._row_of[id(tensor)] = Ref(row.id), self._memories.add(tensor)

    def _row(self, op: str, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> Row:
        shape, dtype, outs = metas_of(result)
        row = Row(len(self.rows), op, args, kwargs, shape, dtype, outs, None, "", self.phase, ACTIVATION)
        self.rows.append(row)
        return row


def _require_grad(values: Iterable[object]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
