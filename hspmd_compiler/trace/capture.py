"""The one door to torch's private tracing calls: a module becomes one joint forward and backward fx graph."""

from __future__ import annotations

import copy
import io
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol
from unittest.mock import patch

import torch
from torch import fx, nn
from torch._C._autograd import _get_sequence_nr
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _compiling_state_context
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._functorch._aot_autograd.frontend_utils import _detect_attribute_assignment
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ..base.collection import without_collection
from ..errors import TraceError
from ..ir.graph import Meta, Origin, OriginKind
from .anchors import anchors_behind_calls
from .capture_errors import changes_parameter, has_effects, loses_backward
from .checkpoints import without_checkpoints
from .decompositions.recurrence import recurrence_in_steps
from .decompositions.torch_branches import masks_as_given
from .decompositions.written_out import Decompositions, written_out
from .group_products import own_group_products
from .kept_arguments import kept_arguments
from .own_functions import without_own_functions
from .selection.watch import WatchMasks

OLDEST_TORCH = (2, 11)
PREFIX = "model."
_SHAPE_LOG = logging.getLogger("torch.fx.experimental.symbolic_shapes")
ASSERTION = "aten._assert_tensor_metadata.default"


class JointOutputKind(Enum):
    """What an output of the joint graph is."""

    LOSS = "loss"
    GRAD = "grad"
    BUFFER = "buffer"


@dataclass(frozen=True, slots=True)
class OutputRole:
    """What an output is, and of which parameter or buffer."""

    kind: JointOutputKind
    name: str = ""


@dataclass(frozen=True, slots=True)
class JointGraph:
    """A captured joint graph; `origins` and `roles` follow its placeholders and outputs.

    The role of an output that is None (the gradient of a batch tensor) is None.
    """

    graph: fx.Graph
    origins: tuple[Origin, ...]
    roles: tuple[OutputRole | None, ...]


class StepState(Protocol):
    """What a forward pass finds and leaves in Python.

    assigned: buffers that it gave new tensors, by name. gradients: that it asked for itself.
    """

    assigned: dict[str, torch.Tensor]
    gradients: list[str]

    def around(self) -> AbstractContextManager[None]:
        """A block with one forward pass; behind it all is as it was before."""


class LossModule(nn.Module):
    """The user's model with positional inputs; its loss is the output, and new values of buffers.

    anchored: anchors stand behind inputs and calls.
    """

    def __init__(
        self,
        model: nn.Module,
        names: tuple[str, ...],
        loss_of: Callable[[object], torch.Tensor],
        state: StepState,
        anchored: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self._names = names
        self._loss_of = loss_of
        self._state = state
        self._anchored = anchored

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = dict(zip(self._names, values, strict=True))
        anchors = anchors_behind_calls(self.model, self._anchored)
        around = self._state.around()
        with around, kept_arguments(), own_group_products(), WatchMasks(), anchors as given:
            loss = self._loss_of(self.model(**given(inputs)))
        return loss, *(new.detach() if new.requires_grad else new for new in self._state.assigned.values())


def check_torch_version() -> None:
    """Refuse a torch whose private tracing calls are older than those used here."""
    found = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if found < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise TraceError(
            f"torch {torch.__version__} is too old to trace with",
            rule=f"tracing needs torch {oldest} or newer",
            fix=f"pip install 'torch>={oldest}'",
        )


def new_fake_mode() -> FakeTensorMode:
    """A mode whose tensors have shapes and no memory, fit for `capture_joint`."""
    return FakeTensorMode(shape_env=ShapeEnv(tracked_fakes=[]), allow_non_fake_inputs=True, export=True)


class DispatchRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every tensor operator that runs inside it; `on_call` decides what the call returns."""

    def __init__(self, on_call: Callable[..., object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_call = on_call

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return self._on_call(func, args, kwargs or {})


@contextmanager
def torchs_own_ways() -> Iterator[None]:
    """Inside, modules of PyTorch that choose between ways take the one that can be traced."""
    with recurrence_in_steps(), masks_as_given():
        yield


@contextmanager
def exporting() -> Iterator[None]:
    """Inside, a model sees itself being exported, as in `capture_joint`, and computes nothing twice."""
    with _compiling_state_context(), without_checkpoints(), torchs_own_ways():
        yield


@contextmanager
def running_plainly(step: nn.Module) -> Iterator[None]:
    """Inside, a step sees itself being exported; it may neither keep tensors nor pack those it saves."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with (
            exporting(),
            enable_python_dispatcher(),
            _detect_attribute_assignment(step),
            torch.autograd.graph.disable_saved_tensors_hooks("not in a traced step"),
            torch.enable_grad(),
        ):
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)


def latest_autograd_number() -> int:
    """Number of the autograd node that was made last, in a forward pass."""
    return int(_get_sequence_nr()) - 1


def running_autograd_number() -> int | None:
    """Number of the autograd node that runs, in a backward pass; None between two of them."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def real_tensors() -> AbstractContextManager[object]:
    """Inside, tensor calls make real tensors whatever modes are active around."""
    context: AbstractContextManager[object] = _disable_current_modes()
    return context


@contextmanager
def building_fakes(trunc_normal: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Three functions of torch that fail on fake tensors do their work another way inside.

    `torch.nn.init.trunc_normal_` loops until no number is out of bounds: it calls `trunc_normal`.
    `Module.to(dtype)` swaps tensors, which fails where a weak reference exists: it sets their data.
    `parametrizations.orthogonal` looks whether a matrix is orthogonal, and makes it so if not: a tensor
    says which of both is taken.
    """
    door: Any = parametrizations
    own_making = door._make_orthogonal
    with (
        patch.object(door, "_is_orthogonal", lambda *_: False),
        patch.object(door, "_make_orthogonal", lambda matrix: _orthogonal(matrix, own_making)),
        patch.object(torch.nn.init, "_no_grad_trunc_normal_", trunc_normal),
        patch.object(torch.utils, "swap_tensors", _set_data),
    ):
        yield


def _orthogonal(matrix: torch.Tensor, made: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The matrix where it is orthogonal, by the bounds of `parametrizations`, else what is made of it."""
    unit = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    bounds = unit * 1e-5 + 10.0 * matrix.shape[-2] * torch.finfo(matrix.dtype).eps
    is_so = ((matrix.mH @ matrix - unit).abs() <= bounds).all()
    return torch.where(is_so, matrix, made(matrix))


def _set_data(target: torch.Tensor, source: torch.Tensor) -> None:
    target.data = source.data


def fake_mode_of(model: nn.Module) -> FakeTensorMode | None:
    """The mode of a model that consists of fake tensors which `capture_joint` can use, else None."""
    tensors = [*model.parameters(), *model.buffers()]
    modes = {id(t.fake_mode): t.fake_mode for t in tensors if isinstance(t, FakeTensor)}
    usable = len(modes) == 1 and all(isinstance(t, FakeTensor) and t.device.type == "cpu" for t in tensors)
    mode = next(iter(modes.values()), None)
    return mode if usable and mode is not None and mode.shape_env is not None else None


def fake_like(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake CPU tensor (parameter, if `tensor` is one) of the same shape, strides and type."""
    with mode:
        fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    is_param = isinstance(tensor, nn.Parameter)
    return nn.Parameter(fake, requires_grad=tensor.requires_grad) if is_param else fake


def fake_copy(model: nn.Module, mode: FakeTensorMode, others: Iterable[torch.Tensor] = ()) -> nn.Module:
    """A copy of `model` with fake parameters and buffers, ties kept; the model itself is untouched.

    others: what else that the model holds is fake in the copy, so that no step can read its numbers.
    """
    memo = {id(t): fake_like(t, mode) for t in (*model.parameters(), *model.buffers(), *others)}
    return copy.deepcopy(model, memo)


def capture_joint(
    model: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    mode: FakeTensorMode,
    loss_of: Callable[[object], torch.Tensor],
    state: StepState,
    own: Decompositions = MappingProxyType({}),
    anchored: bool = False,
) -> JointGraph:
    """Trace forward and backward of a fake `model` on fake `inputs`; both belong to `mode`.

    own: see `written_out`. anchored: see LossModule.
    """
    names, values = tuple(inputs), tuple(inputs.values())
    wrapped = LossModule(model, names, loss_of, state, anchored)
    grad_mode = torch.set_grad_enabled(torch.is_grad_enabled())  # torch leaves it off where it fails
    with grad_mode, quiet(), written_out(own), without_checkpoints(), torchs_own_ways(), ExitStack() as stack:
        with tracing(TracingContext(mode)), without_own_functions(loses_backward):
            exported = torch.export.export(wrapped, values, strict=False)
        flat = exported.module(check_guards=False)
        joint = aot_export_joint_with_descriptors(stack, flat, values, decompositions=None)
    graph = joint.graph_module.graph
    return JointGraph(graph, tuple(_origins(graph, names)), tuple(_roles(graph, tuple(state.assigned))))


def trace_decomposed(
    call: Callable[..., object],
    operands: Sequence[Meta],
    own: Decompositions,
    stays: Callable[[torch._ops.OpOverload], bool],
) -> fx.Graph:
    """What `call` does with operands of these shapes and types, in operators that stay as far as may be:
    all others are replaced by what `own`, or else PyTorch, says they are made of, again and again."""
    known = {**decomposition_table, **core_aten_decompositions(), **own}
    table = {op: made for op, made in known.items() if not stays(op)}
    with quiet(), FakeTensorMode(), torch.no_grad():
        fakes = [torch.empty(shape, dtype=dtype) for shape, dtype in operands]
        return make_fx(call, table, "fake")(*fakes).graph


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings and what torch prints of a failure, and without garbage collection."""
    level, printed = _SHAPE_LOG.level, io.StringIO()
    _SHAPE_LOG.setLevel(logging.ERROR)
    try:
        with without_collection(), warnings.catch_warnings(), redirect_stderr(printed):
            warnings.simplefilter("ignore")
            yield
        sys.stderr.write(printed.getvalue())
    finally:
        _SHAPE_LOG.setLevel(level)


def _origins(graph: fx.Graph, names: tuple[str, ...]) -> Iterator[Origin]:
    for node in graph.find_nodes(op="placeholder"):
        match node.meta["desc"]:
            case ParamAOTInput(target=target):
                yield Origin(OriginKind.PARAM, _user_name(target))
            case BufferAOTInput(target=target):
                yield Origin(OriginKind.BUFFER, _user_name(target))
            case PlainAOTInput(idx=index):
                yield Origin(OriginKind.INPUT, names[index])
            case TangentAOTInput():
                yield Origin(OriginKind.TANGENT)
            case _:
                raise has_effects(graph, stack_trace)


def _roles(graph: fx.Graph, assigned: Sequence[str]) -> Iterator[OutputRole | None]:
    for desc in graph.output_node().meta["desc"]:
        match desc:
            case None:
                yield None
            case PlainAOTOutput(idx=0):
                yield OutputRole(JointOutputKind.LOSS)
            case PlainAOTOutput(idx=place):
                yield OutputRole(JointOutputKind.BUFFER, assigned[place - 1])
            case GradAOTOutput(grad_of=ParamAOTInput(target=target)):
                yield OutputRole(JointOutputKind.GRAD, _user_name(target))
            case InputMutationAOTOutput(mutated_input=BufferAOTInput(target=target)):
                yield OutputRole(JointOutputKind.BUFFER, _user_name(target))
            case InputMutationAOTOutput(mutated_input=ParamAOTInput(target=target)):
                raise changes_parameter(_user_name(target))
            case GradAOTOutput(grad_of=other) | InputMutationAOTOutput(mutated_input=other):
                yield OutputRole(JointOutputKind.GRAD, f"<{other.expr()}>")
            case other:
                raise TraceError(f"the traced graph has an output of an unknown kind: {other}")


def _user_name(name: str) -> str:
    return name.removeprefix(PREFIX)


def module_path(node: fx.Node) -> str | None:
    """Dotted path of the user's module that made `node` (its forward, for a backward node), if known."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    path = re.sub(r"@\d+", "", [path for path, _ in stack.values()][-1])
    return "" if path == PREFIX.rstrip(".") else _user_name(path)


def is_backward(node: fx.Node) -> bool:
    """Whether the node belongs to the backward half."""
    return bool(node.meta.get("partitioner_tag") == "is_backward")


def sequence_number(node: fx.Node) -> int | None:
    """Number that a forward node shares with the backward nodes which differentiate it."""
    number = node.meta.get("seq_nr")
    return number if isinstance(number, int) else None


def stack_trace(node: fx.Node) -> str:
    """Python frames that led to the node, outermost first, as text."""
    return str(node.meta.get("stack_trace") or "")
