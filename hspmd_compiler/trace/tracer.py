"""`trace`: an unmodified model and example inputs become one LogicalGraph of forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..base.by_key import by_key
from ..base.source_lines import causes, line_of_error, line_of_trace
from ..errors import HspmdError, TraceError
from ..ir.element_types import check_types
from ..ir.fx_convert import PLACEHOLDER, RowFacts, rows_of
from ..ir.graph import (
    InputInfo,
    LogicalGraph,
    Origin,
    OriginKind,
    ParamInfo,
    Phase,
    Ref,
    Row,
    map_refs,
    refs_of,
    row_inputs,
)
from ..ir.layers import LayerMap, assign_layers, find_layers
from ..ir.own_operators import lower_library_operators
from . import trace_checks as checks
from .capture import (
    ASSERTION,
    JointGraph,
    JointOutputKind,
    OutputRole,
    capture_joint,
    check_torch_version,
    fake_copy,
    fake_mode_of,
    is_backward,
    module_path,
    new_fake_mode,
    sequence_number,
    stack_trace,
)
from .constants import replace_constants
from .decompositions.decompose import decompose
from .decompositions.expert_rows import without_sorting
from .decompositions.own_decompositions import TRACED_WRONGLY
from .decompositions.random_rows import is_drawn_by_position, masks_by_position
from .decompositions.written_draws import draws_written_out
from .eager_trace import run_step
from .init_record import build_fake
from .key_cache import without_key_cache
from .loss_output import loss_of
from .state.held_state import ReachableState
from .state.held_tensors import moving_tensors
from .state.python_state import traced_steadily

Inputs = Mapping[str, torch.Tensor]
Factory = Callable[[], tuple[nn.Module, Inputs]]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is traced: a model of fake tensors and a batch of them, in one mode, and what it reaches.

    anchored: with anchors behind inputs and calls.
    """

    model: nn.Module
    inputs: dict[str, torch.Tensor]
    mode: torch._subclasses.FakeTensorMode
    batch: int
    state: ReachableState
    anchored: bool = False

    def of(self, model: nn.Module) -> Subject:
        """The same with another model."""
        return replace(self, model=model, state=ReachableState(model))


def trace(model: nn.Module | Factory, example_inputs: Inputs | None = None, *, batch: int) -> LogicalGraph:
    """Capture one training step at global batch size `batch`; weights are never materialised.

    model: a live model, which stays as it is, a model of fake tensors, or a factory that returns
    (model, example_inputs). Dim 0 of every example input is replaced by `batch`.
    """
    subject = subject_of(model, example_inputs, batch=batch)
    with without_key_cache(subject.model, subject.inputs):
        return finished(traced_steadily(subject, trace_subject))


def finished(graph: LogicalGraph) -> LogicalGraph:
    """The traced graph in operators that have rules: experts' rows unsorted, random numbers by position, the
    rest decomposed."""
    return decompose(masks_by_position(draws_written_out(without_sorting(graph))))


def subject_of(model: nn.Module | Factory, example_inputs: Inputs | None = None, *, batch: int) -> Subject:
    """The arguments of `trace` checked, as fake tensors."""
    check_torch_version()
    if not isinstance(model, nn.Module):
        model, made_inputs = build_fake(model)
        example_inputs = made_inputs if example_inputs is None else example_inputs
    checks.check_inputs(example_inputs, batch, model)
    checks.check_lazy(model)
    checks.check_shared_memory(model)
    checks.check_modules(model)
    checks.check_hooks(model)
    mode = fake_mode_of(model)
    if mode is None:
        mode = new_fake_mode()
        model = fake_copy(model, mode, [tensor for _, tensor in moving_tensors(model)])
    with mode:
        inputs = {
            k: torch.empty((batch, *v.shape[1:]), dtype=v.dtype) for k, v in (example_inputs or {}).items()
        }
    return Subject(model, inputs, mode, batch, ReachableState(model))


def trace_subject(subject: Subject) -> LogicalGraph:
    """The whole step as torch captures it, random operators too."""
    joint = _capture(subject)
    graph = _Assembler(subject, joint).graph()
    _check(graph, subject)
    return graph


def trace_plain(subject: Subject) -> LogicalGraph:
    """As `trace_subject`, by running the step once; NotPlain where only the whole way will do."""
    step = run_step(subject.model, subject.inputs, subject.mode, subject.state, subject.anchored)
    ids = _live(step.rows, set(step.outputs.values()), canonical_names(subject.model))
    rows = [_renumbered(row, ids) for row in step.rows if row.id in ids]
    graph = assemble(subject, rows, {role: ids[i] for role, i in step.outputs.items()})
    _check(graph, subject)
    return graph


def _check(graph: LogicalGraph, subject: Subject) -> None:
    lower_library_operators(graph)
    checks.check_operators(graph)
    check_types(graph)
    checks.check_gradients(graph, subject.model, subject.inputs, subject.mode, subject.state)


def _capture(subject: Subject) -> JointGraph:
    try:
        return capture_joint(
            subject.model,
            subject.inputs,
            subject.mode,
            loss_of,
            subject.state,
            TRACED_WRONGLY,
            subject.anchored,
        )
    except Exception as error:
        for cause in causes(error):
            if isinstance(cause, HspmdError):
                raise cause from None
        if subject.state.gradients and checks.PAST_PARAMETERS in str(error):
            raise checks.gradient_in_forward(line_of_error(error)) from error
        raise checks.capture_failed(error, line_of_error(error), subject.model) from error


class _Assembler:
    """Makes the LogicalGraph of a captured joint graph: rows, names, ties, layers."""

    def __init__(self, subject: Subject, joint: JointGraph) -> None:
        self.subject, self.joint = subject, joint
        self.layers: LayerMap = find_layers(subject.model)
        self.canonical = canonical_names(subject.model)
        self.origins = dict(zip(joint.graph.find_nodes(op="placeholder"), joint.origins, strict=True))

    def graph(self) -> LogicalGraph:
        """The graph with tied weights merged and dead rows gone."""
        self._replace_constants()
        nodes = [n for n in self.joint.graph.nodes if str(n.target) != ASSERTION]
        rows, ids = rows_of(nodes, self._facts)
        self._assign_layers(rows, ids)
        outputs = [ids[n] if isinstance(n, torch.fx.Node) else None for n in self._output_nodes()]
        self._merge_ties(rows)
        new_ids = _live(rows, {i for i in outputs if i is not None}, self.canonical)
        rows = [_renumbered(row, new_ids) for row in rows if row.id in new_ids]
        final = self._outputs([None if i is None else new_ids[i] for i in outputs])
        return assemble(self.subject, rows, final)

    def _replace_constants(self) -> None:
        try:
            replace_constants(self.joint.graph)
        except TraceError as error:
            if self.subject.state.gradients:
                raise checks.gradient_in_forward(error.at) from None
            raise

    def _output_nodes(self) -> tuple[object, ...]:
        outputs = self.joint.graph.output_node().args[0]
        return tuple(outputs)  # type: ignore[arg-type]

    def _facts(self, node: torch.fx.Node) -> RowFacts:
        origin = self.origins.get(node, Origin(OriginKind.ACTIVATION))
        backward = is_backward(node) or origin.kind is OriginKind.TANGENT
        where = "" if node.op == "placeholder" else line_of_trace(stack_trace(node))
        return RowFacts(phase=Phase.BACKWARD if backward else Phase.FORWARD, origin=origin, where=where)

    def _assign_layers(self, rows: list[Row], ids: dict[torch.fx.Node, int]) -> None:
        paths = {i: path for node, i in ids.items() if (path := module_path(node)) is not None}
        numbers = {i: n for node, i in ids.items() if (n := sequence_number(node)) is not None}
        for row in rows:
            if row.origin.kind in (OriginKind.PARAM, OriginKind.BUFFER):
                paths[row.id] = row.origin.name.rpartition(".")[0]
        assign_layers(rows, self.layers, paths, numbers)

    def _merge_ties(self, rows: list[Row]) -> None:
        first = {
            row.origin.name: row.id
            for row in rows
            if row.origin.kind in (OriginKind.PARAM, OriginKind.BUFFER)
        }
        merged = {
            first[alias]: first[name]
            for alias, name in self.canonical.items()
            if alias != name and alias in first and name in first
        }
        if not merged:
            return
        for row in rows:
            if any(ref.id in merged for ref in refs_of(row.args)) or row.kwargs:
                row.args = _redirect(row.args, merged)  # type: ignore[assignment]
                row.kwargs = _redirect(row.kwargs, merged)  # type: ignore[assignment]

    def _outputs(self, ids: list[int | None]) -> dict[OutputRole, int]:
        named = ((role, i) for role, i in zip(self.joint.roles, ids, strict=True) if role and i is not None)
        return {
            replace(role, name=self.canonical[role.name]) if role.name else role: i
            for role, i in named
            if role.kind is JointOutputKind.LOSS or role.name in self.canonical
        }


def assemble(subject: Subject, rows: list[Row], outputs: Mapping[OutputRole, int]) -> LogicalGraph:
    """The graph of a whole step of `subject`; tied weights are one row, under their first name.

    A buffer that is neither saved nor read, only written, as a loss for others to see, is left out.
    """
    place = {row.origin: row.id for row in rows if row.op == PLACEHOLDER}
    grads = {role.name: i for role, i in outputs.items() if role.kind is JointOutputKind.GRAD}
    mutated = {role.name: i for role, i in outputs.items() if role.kind is JointOutputKind.BUFFER}
    read = {outputs[OutputRole(JointOutputKind.LOSS)], *mutated.values()}.union(*map(row_inputs, rows))
    found = _params(subject.model, place)
    params = [p for p in found if p.persistent or p.row in read or p.name not in mutated]
    return LogicalGraph(
        rows,
        {p.name: replace(p, grad=grads.get(p.name)) for p in params},
        {
            k: InputInfo(k, place[Origin(OriginKind.INPUT, k)], tuple(v.shape), v.dtype)
            for k, v in subject.inputs.items()
        },
        outputs[OutputRole(JointOutputKind.LOSS)],
        place[Origin(OriginKind.TANGENT)],
        subject.batch,
        find_layers(subject.model).paths,
        {p.name: mutated[p.name] for p in params if p.name in mutated},
    )


def _params(model: nn.Module, place: Mapping[Origin, int]) -> Iterator[ParamInfo]:
    aliases = dict(alias_groups(model))
    params = dict(model.named_parameters())
    saved = model.state_dict().keys()
    for name, tensor in (*params.items(), *model.named_buffers()):
        is_buffer = name not in params
        origin = Origin(OriginKind.BUFFER if is_buffer else OriginKind.PARAM, name)
        if origin in place:
            yield ParamInfo(
                name,
                place[origin],
                tuple(tensor.shape),
                tensor.dtype,
                tensor.requires_grad and not is_buffer,
                is_buffer,
                aliases[name],
                None,
                any(alias in saved for alias in aliases[name]),
            )


def canonical_names(model: nn.Module) -> dict[str, str]:
    """The first name of every parameter and buffer, by each of its names."""
    return {alias: name for name, group in alias_groups(model) for alias in group}


def alias_groups(model: nn.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every parameter and buffer by its first name, with all its names in the model's order."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    groups = by_key((id(tensor), name) for name, tensor in named)
    yield from ((names[0], tuple(names)) for names in groups.values())


def _redirect(value: object, ids: Mapping[int, int]) -> object:
    return map_refs(value, lambda ref: Ref(ids.get(ref.id, ref.id)))


def _live(rows: list[Row], outputs: set[int], canonical: Mapping[str, str]) -> dict[int, int]:
    """New ids of the rows that an output needs, and of placeholders; merged tied ones are gone.

    Random operators stay, needed or not: eager draws numbers for them, too.
    """
    needed = outputs | {row.id for row in rows if is_drawn_by_position(row)}
    for row in reversed(rows):
        if row.op == PLACEHOLDER and canonical.get(row.origin.name, row.origin.name) == row.origin.name:
            needed.add(row.id)
        elif row.id in needed:
            needed.update(ref.id for ref in refs_of((row.args, row.kwargs)))
    return {old: new for new, old in enumerate(sorted(needed))}


def _renumbered(row: Row, ids: Mapping[int, int]) -> Row:
    row.id = ids[row.id]
    row.args = _redirect(row.args, ids)  # type: ignore[assignment]
    row.kwargs = _redirect(row.kwargs, ids)  # type: ignore[assignment]
    return row
