"""Records one eager training step, forward and backward, on tensors without memory: what is called on what.

Not a graph to run: operators and literals are numbered, equal numbers mean equal calls. It serves to see
whether two models do the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from ...ir.graph import Origin, OriginKind, Phase, Ref, Row
from ...ir.layers import find_layers
from ..capture import (
    DispatchRecorder,
    JointOutputKind,
    LossModule,
    OutputRole,
    StepState,
    exporting,
    latest_autograd_number,
    real_tensors,
    running_autograd_number,
)
from ..loss_output import loss_of
from ..tensor_memory import storage_key
from .expand import PLACEHOLDER, StepRows, TemplateMismatch

CONSTANT = "constant"
GETITEM = "getitem"
DEVICE = "device"
MOST_CONSTANTS = 1 << 16
META = torch.device("meta")
Geometry = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor (parameter, if `tensor` is one) of the same shape without memory."""
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META)
    is_param = isinstance(tensor, nn.Parameter)
    return nn.Parameter(made, requires_grad=tensor.requires_grad) if is_param else made


@dataclass(slots=True)
class CallTable:
    """Numbers of distinct calls (operator, literals, shapes of operands), and what they return.

    Shared by recordings that are compared. results: of calls that neither change nor alias an operand.
    """

    numbers: dict[object, int] = field(default_factory=dict)
    results: dict[int, tuple[bool, tuple[Geometry | None, ...]]] = field(default_factory=dict)
    functional: dict[torch._ops.OpOverload, bool] = field(default_factory=dict)
    names: dict[torch._ops.OpOverload, str] = field(default_factory=dict)

    def number(self, key: object) -> int:
        """Of a call; new ones get the next."""
        return self.numbers.setdefault(key, len(self.numbers))

    def is_functional(self, func: torch._ops.OpOverload) -> bool:
        """Whether the operator only makes new tensors."""
        if func not in self.functional:
            values = (*func._schema.arguments, *func._schema.returns)
            self.functional[func] = all(v.alias_info is None for v in values)
            self.names[func] = str(func)
        return self.functional[func]


def record_step(
    model: nn.Module, inputs: Mapping[str, torch.Tensor], calls: CallTable, state: StepState
) -> StepRows:
    """Rows of one eager step of a model and inputs on the meta device; the model is used up."""
    return _StepRecorder(model, calls, state).run(inputs)


class _StepRecorder:
    """One row per call, read by those that use its result."""

    def __init__(self, model: nn.Module, calls: CallTable, state: StepState) -> None:
        self.model, self.calls, self.state = model, calls, state
        self.rows: list[Row] = []
        self.phase = Phase.FORWARD
        self.layers = find_layers(model)
        self.running: list[int] = []
        self._row_of: dict[int, tuple[Ref, Geometry]] = {}  # by id of the tensor
        self._by_memory: dict[object, tuple[Ref, Geometry]] = {}
        self._alive: list[object] = []
        self._layer_of_number: dict[int, int | None] = {}

    def run(self, inputs: Mapping[str, torch.Tensor]) -> StepRows:
        """Forward and backward."""
        self._place_inputs(inputs)
        for place, path in enumerate(self.layers.paths):
            self._watch(self.model.get_submodule(path), place)
        step = LossModule(self.model, tuple(inputs), loss_of, self.state)
        params = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        with DispatchRecorder(self.call), torch.enable_grad():
            with exporting():
                loss, *assigned = step(*inputs.values())
            self.phase = Phase.BACKWARD
            grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        outputs = {OutputRole(JointOutputKind.LOSS): self._find(loss)[0].id}
        for name, value in zip(self.state.assigned, assigned, strict=True):
            outputs[OutputRole(JointOutputKind.BUFFER, name)] = self._find(value)[0].id
        for name, grad in zip(params, grads, strict=True):
            if grad is not None:
                outputs[OutputRole(JointOutputKind.GRAD, name)] = self._find(grad)[0].id
        return StepRows(self.rows, outputs)

    def _place_inputs(self, inputs: Mapping[str, torch.Tensor]) -> None:
        named = (
            (OriginKind.PARAM, self.model.named_parameters()),
            (OriginKind.BUFFER, self.model.named_buffers()),
            (OriginKind.INPUT, inputs.items()),
        )
        for kind, tensors in named:
            for name, tensor in tensors:
                layer = None if kind is OriginKind.INPUT else self.layers.layer_of(name.rpartition(".")[0])
                self._add(PLACEHOLDER, (_geometry(tensor),), (tensor,), layer, Origin(kind, name))

    def _watch(self, layer: nn.Module, place: int) -> None:
        layer.register_forward_pre_hook(lambda *_: self.running.append(place))
        layer.register_forward_hook(lambda *_: self._left())

    def _left(self) -> None:
        self.running.pop()

    def call(
        self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Record one call and answer it; a known one without running it."""
        operands: list[tuple[Ref, Geometry]] = []
        literals = (
            self._literal(args, operands),
            tuple((k, self._literal(kwargs[k], operands)) for k in kwargs),
        )
        number = self.calls.number((func, literals, tuple([geometry for _, geometry in operands])))
        functional = self.calls.is_functional(func)
        known = self.calls.results.get(number)
        result = _made(known) if known is not None else self._run(func, args, kwargs)
        tensors = _tensors(result)
        if known is None and functional:
            self._remember(number, result, tensors)
        refs = [ref for ref, _ in operands]
        layer = self._layer(refs)
        self._add(self.calls.names[func], (number, *refs), tensors, layer)
        return result

    def _literal(self, value: object, operands: list[tuple[Ref, Geometry]]) -> object:
        """The argument without its tensors, hashable, with types, as 1, 1.0 and True are equal."""
        if isinstance(value, torch.Tensor):
            operands.append(self._find(value))
            return Ref
        if isinstance(value, (tuple, list)):
            return tuple([self._literal(item, operands) for item in value])
        if isinstance(value, torch.device):
            return DEVICE
        return (float, value.hex()) if isinstance(value, float) else (type(value), value)

    def _find(self, tensor: torch.Tensor) -> tuple[Ref, Geometry]:
        found = self._row_of.get(id(tensor))
        if found is None and tensor.device == META:
            found = self._by_memory.get((storage_key(tensor), tensor.storage_offset(), _geometry(tensor)))
        return found or self._constant(tensor)

    def _constant(self, tensor: torch.Tensor) -> tuple[Ref, Geometry]:
        """A tensor from elsewhere counts by its numbers."""
        if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.device.type != "cpu":
            raise TemplateMismatch("the forward pass uses a tensor whose numbers are unknown")
        if tensor.numel() > MOST_CONSTANTS:
            raise TemplateMismatch("the forward pass uses a large tensor that is no parameter or buffer")
        with real_tensors():
            numbers = repr(tensor.detach().flatten().tolist())
        layer = self.running[-1] if self.running else None
        self._add(CONSTANT, (_geometry(tensor), numbers), (tensor,), layer)
        return self._row_of[id(tensor)]

    def _run(
        self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        on_meta = {key: _on_meta(value) for key, value in kwargs.items()}
        result = func(*[_on_meta(arg) for arg in args], **on_meta)
        if any(t is not None and t.device != META for t in _tensors(result)):
            raise TemplateMismatch(f"{func} makes a tensor with memory")
        return result

    def _remember(self, number: int, result: object, tensors: Sequence[torch.Tensor | None]) -> None:
        many = isinstance(result, (tuple, list))
        if many or isinstance(result, torch.Tensor):
            shapes = tuple(None if t is None else _geometry(t) for t in tensors)
            self.calls.results[number] = (many, shapes)

    def _add(
        self,
        op: str,
        args: tuple[object, ...],
        results: Sequence[torch.Tensor | None],
        layer: int | None,
        origin: Origin | None = None,
    ) -> None:
        call = self._row(op, args, layer, origin)
        for place, tensor in enumerate(results):
            if tensor is not None:
                row = call if place == 0 else self._row(GETITEM, (Ref(call.id), place), layer, None)
                row.shape, row.dtype = tuple(tensor.shape), tensor.dtype
                self._name(tensor, Ref(row.id))

    def _row(self, op: str, args: tuple[object, ...], layer: int | None, origin: Origin | None) -> Row:
        row = Row(len(self.rows), op, args, {}, None, None, None, layer, "", self.phase)
        if origin is not None:
            row.origin = origin
        self.rows.append(row)
        return row

    def _name(self, tensor: torch.Tensor, ref: Ref) -> None:
        geometry = _geometry(tensor)
        self._row_of[id(tensor)] = found = (ref, geometry)
        self._by_memory[(storage_key(tensor), tensor.storage_offset(), geometry)] = found
        self._alive.append(tensor)

    def _layer(self, refs: Sequence[Ref]) -> int | None:
        """Forward: the layer that runs. Backward: that of the differentiated call, else of the gradients."""
        if self.phase is Phase.FORWARD:
            layer = self.running[-1] if self.running else None
            self._layer_of_number.setdefault(latest_autograd_number(), layer)
            return layer
        number = running_autograd_number()
        if number is not None and number in self._layer_of_number:
            return self._layer_of_number[number]
        inputs = [self.rows[ref.id] for ref in refs]
        layers = [r.layer for r in inputs if r.phase is Phase.BACKWARD and r.layer is not None]
        if layers:
            return min(layers)
        return max((r.layer for r in inputs if r.layer is not None), default=None)


def _geometry(tensor: torch.Tensor) -> Geometry:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _made(known: tuple[bool, tuple[Geometry | None, ...]]) -> object:
    many, shapes = known
    made = [None if g is None else torch.empty_strided(g[0], g[1], dtype=g[2], device=META) for g in shapes]
    return tuple(made) if many else made[0]


def _on_meta(value: object) -> object:
    if isinstance(value, torch.device):
        return META
    if isinstance(value, torch.Tensor) and value.device != META:
        return meta_like(value.detach())
    return type(value)(_on_meta(item) for item in value) if isinstance(value, (tuple, list)) else value


def _tensors(value: object) -> list[torch.Tensor | None]:
    """The results of a call; those that are no tensor are None."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [item if isinstance(item, torch.Tensor) else None for item in value]
    return []
