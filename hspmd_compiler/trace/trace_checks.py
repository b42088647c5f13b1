"""What `trace` refuses, each with the user's line and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ..base.by_key import by_key
from ..errors import TraceError
from ..ir.fx_convert import value_dependent
from ..ir.graph import LogicalGraph, Row, row_inputs
from ..program.arguments import leaves
from ..program.operator_names import known_operator
from .batch_form import spelled_batch
from .capture import LossModule, StepState
from .decompositions.random_rows import is_drawn_by_position
from .loss_output import loss_of
from .state.held_tensors import held_tensors
from .tensor_memory import is_fake, storage_key

ALLOWED_NAMESPACES = ("aten", "hspmd")
CHANGING = {
    "aten.embedding_renorm.default": "changes the rows that it looks up (max_norm)",
    "aten._sparse_coo_tensor_with_dims_and_tensors.default": "gives a gradient of the rows in use (sparse)",
}
"""Operators of embeddings that a step can't have."""
PAST_PARAMETERS = "Unexpected fake buffer"
"""What an export says of a tensor of its own kind that is no parameter, buffer or input."""
_CHANGED = ("entirely functional graph", "mutating a non-functional tensor")
"""What it says of such a tensor that forward changes in place."""
_SHOWN = 12
_READS_VALUES = ("data-dependent", "datadependent", "item()", "unbacked", "_local_scalar", "dynamicoutput")
_RNG_TAG = torch.Tag.nondeterministic_seeded


def check_named(given: object, model: nn.Module) -> None:
    """A batch has names."""
    if not isinstance(given, Mapping) or not given:
        empty = given is None or isinstance(given, Mapping)
        raise TraceError(
            "there are no example inputs" if empty else f"the example inputs are a {type(given).__name__}",
            rule="a batch is a dict of tensors whose dim 0 is the sample",
            fix=f"pass example_inputs={spelled_batch(model)}",
        )


def check_inputs(inputs: Mapping[str, torch.Tensor] | None, batch: int, model: nn.Module) -> None:
    """A batch is a dict of tensors that agree on dim 0, the sample."""
    check_named(inputs, model)
    assert inputs is not None, "it has names"
    bad = [(str(k), f"is a {type(v).__name__}") for k, v in inputs.items() if not isinstance(v, torch.Tensor)]
    bad += [(k, "has no dim 0") for k, v in inputs.items() if isinstance(v, torch.Tensor) and v.dim() == 0]
    bad += [("batch", f"is {batch}, not a positive number")] if batch < 1 else []
    sizes = {k: v.shape[0] for k, v in inputs.items() if isinstance(v, torch.Tensor) and v.dim()}
    bad += [(k, f"has {n} samples") for k, n in sizes.items()] if len(set(sizes.values())) > 1 else []
    if bad:
        raise TraceError(
            "the example inputs are not one batch",
            details=bad,
            rule="a batch is a dict of tensors whose dim 0 is the sample, the same in all",
            fix="pass only tensors, all with the same number of samples",
        )


def _random_error(rows: list[Row]) -> TraceError:
    drawn = [(row.module or "the model", row.op) for row in rows]
    return TraceError(
        "the model draws random numbers that can't be drawn by position",
        at=_places(rows),
        details=drawn[:_SHOWN],
        rule="what the forward pass draws independently for each element (dropout, rand, randn, randint,"
        " normal, bernoulli, ...) is drawn by position, the same on one device and on many; permutations,"
        " samples of distributions over several elements, and a generator of the model's own are not",
        fix="draw them outside and pass them as an input of the batch",
    )


def check_shared_memory(model: nn.Module) -> None:
    """No parameter may share memory with another or a buffer: an update of one would change the other."""
    trained = {storage_key(parameter) for parameter in model.parameters()}
    named = (*model.named_parameters(), *model.named_buffers())
    owners = by_key((storage_key(tensor), name) for name, tensor in named)
    shared = [
        (names[0], f"shares memory with {', '.join(names[1:])}")
        for key, names in owners.items()
        if names[1:] and key in trained
    ]
    if shared:
        raise TraceError(
            "parameters and buffers overlap in memory",
            details=shared[:_SHOWN],
            rule="a parameter has memory of its own; tied weights are one parameter under several names",
            fix="tie whole parameters (b.weight = a.weight), or clone the part",
        )


def check_modules(model: nn.Module) -> None:
    """A batch norm without a momentum divides by how many batches it has seen: a number inside a tensor."""
    found = [
        (name or "the model", f"{type(module).__name__}(momentum=None)")
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.momentum is None
        if module.training and module.track_running_stats
    ]
    if found:
        raise TraceError(
            "a batch norm keeps the average over all batches so far",
            details=found[:_SHOWN],
            rule="a step runs the same operators every time; this average weights each batch otherwise",
            fix="give it a momentum, such as momentum=0.1",
        )


def check_lazy(model: nn.Module) -> None:
    """A lazy module has no shapes before its first call."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    found = [(name, "has no shape yet") for name, tensor in tensors if is_lazy(tensor)]
    if found:
        raise TraceError(
            "lazy modules were never called",
            details=found[:_SHOWN],
            rule="parameters have their shapes before the model is traced",
            fix="call the model once on a batch, or give the sizes (nn.Linear instead of nn.LazyLinear)",
        )


def check_hooks(model: nn.Module) -> None:
    """A hook on the gradients of parameters or modules is no operator of the step."""
    found = [
        (name, "a hook on its gradient")
        for name, parameter in model.named_parameters()
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    ]
    found += [
        (name or "the model", "a backward hook")
        for name, module in model.named_modules()
        if module._backward_hooks or module._backward_pre_hooks
    ]
    if found:
        raise TraceError(
            "hooks on gradients would be lost",
            details=found[:_SHOWN],
            rule="a step is what forward computes and its derivative; gradients are summed over micro-batches"
            " and ranks, which no hook sees",
            fix="remove the hooks before compiling, or write what they do into forward (weight * mask)",
        )


def capture_failed(error: Exception, where: str, model: nn.Module) -> TraceError:
    """The error for a model that torch could not capture."""
    if PAST_PARAMETERS in str(error):
        return _past_parameters(where, model)
    if any(words in str(error) for words in _CHANGED):
        return _changed_in_place(where, model)
    if _is_data_dependent(error):
        return TraceError(
            "the model can't be traced",
            at=where,
            details=[("why", "the line looks at the numbers in a tensor, which differ from batch to batch")],
            rule="forward must run the same tensor operators whatever the values of the batch",
            fix="remove branches, .item() and sizes that depend on tensor values from this line: torch.where("
            "mask, a, b) in place of if and x[mask], float sums over mask in place of counts",
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = lines[0][:200] if lines else ""
    return TraceError(
        "the model can't be traced",
        at=where,
        details=[("torch", f"{type(error).__name__}: {message}".rstrip(": "))],
        rule="forward must run the same tensor operators whatever the values of the batch",
        fix="see that forward(**example_inputs) runs in eager; write this line with plain tensor operators",
    )


def _past_parameters(where: str, model: nn.Module) -> TraceError:
    held = [(name, "is no constant") for name, tensor in held_tensors(model) if is_fake(tensor)]
    return TraceError(
        "forward reads memory of a parameter, or of an earlier call, by another way",
        at=where,
        details=held[:_SHOWN] or [("such as", "self.weight.data")],
        rule="a step reads parameters, buffers and inputs as themselves; nothing else keeps up with them",
        fix="use the parameter in forward (self.weight, self.weight.detach()), or register a buffer",
    )


def _changed_in_place(where: str, model: nn.Module) -> TraceError:
    held = [(name, "is no buffer") for name in dict.fromkeys(name for name, _ in held_tensors(model))]
    return TraceError(
        "forward changes a tensor in place that is no buffer",
        at=where,
        details=held[:_SHOWN] or [("such as", "a tensor in a global, or in another object")],
        rule="a step leaves new values in parameters and buffers, and every step reads what the one before"
        " left there; no other tensor has a place in a program",
        fix="keep what changes from step to step in a buffer (self.register_buffer('t', tensor,"
        " persistent=False)), or use a new tensor (t = self.t + 1)",
    )


def gradient_in_forward(at: str | Iterable[str]) -> TraceError:
    """The error for a gradient penalty that does what only an export can trace."""
    return TraceError(
        "forward asks for a gradient that the trace can't follow",
        at=at,
        details=[("autograd", "torch.autograd.grad in forward, and a step that one plain run can't trace")],
        rule="a gradient inside of forward is traced by one plain run, which makes tensors, or changes whole"
        " ones that it made: no buffer is updated there, no part of a tensor written, no dropout drawn, and"
        " capture='full' allows no such run",
        fix="compile with capture='auto'; use no batch norm, dropout or x[:, 0] = ... in this model (group or"
        " layer norm, torch.where or torch.cat)",
    )


def _is_data_dependent(error: Exception) -> bool:
    text = f"{type(error).__name__} {error}".lower()
    return any(word in text for word in _READS_VALUES)


def check_operators(graph: LogicalGraph) -> None:
    """Only deterministic operators of aten and of this package may remain."""
    foreign = [row for row in graph.rows if "." in row.op and row.op.split(".")[0] not in ALLOWED_NAMESPACES]
    if foreign:
        raise TraceError(
            "the model uses operators of a library of its own",
            at=_places(foreign),
            details=sorted({(row.op, "has no rule here") for row in foreign}),
            rule="artifacts hold aten operators only, so that loading needs no model library",
            fix="choose the library's plain implementation (for HF: attn_implementation='sdpa',"
            " experts_implementation='batched_mm')",
        )
    changing = [row for row in graph.rows if row.op in CHANGING]
    if changing:
        raise TraceError(
            "an embedding is not a plain lookup",
            at=_places(changing),
            details=sorted({(row.op, CHANGING[row.op]) for row in changing}),
            rule="a step reads parameters, and gives a whole gradient for each",
            fix="build the embedding without max_norm= and sparse=",
        )
    scalars = [row for row in graph.rows if row.shape is None and row.outs is None]
    if scalars:
        raise value_dependent(_places(scalars))
    imaginary = [row for row in graph.rows if _has_complex_number(row)]
    if imaginary:
        raise TraceError(
            "the model computes with a complex number written in its code",
            at=_places(imaginary),
            rule="an artifact holds complex tensors, and numbers that are real",
            fix="torch.complex(real, imag) of two tensors, or self.register_buffer(name, tensor)",
        )
    random = [row for row in graph.rows if is_random(row)]
    if random:
        raise _random_error(random)


def _has_complex_number(row: Row) -> bool:
    if row.dtype is None or not row.dtype.is_complex:  # no other result has one
        return False
    return any(isinstance(leaf, complex) for leaf in leaves((row.args, row.kwargs)))


def _places(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row.where for row in rows))[:5]


def is_random(row: Row) -> bool:
    if not row.op.startswith("aten.") or is_drawn_by_position(row):
        return False
    if row.op.startswith("aten._scaled_dot_product"):
        return _attention_dropout(row) > 0
    return _RNG_TAG in known_operator(row.op).tags


def _attention_dropout(row: Row) -> float:
    place = next(
        (i for i, a in enumerate(known_operator(row.op)._schema.arguments) if a.name == "dropout_p"), None
    )
    given = row.kwargs.get("dropout_p", 0.0)
    if place is not None and place < len(row.args):
        given = row.args[place]
    return given if isinstance(given, float) else 0.0


def check_gradients(
    graph: LogicalGraph,
    model: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    mode: torch._subclasses.FakeTensorMode,
    state: StepState,
) -> None:
    """A trainable parameter may lack a gradient only where eager autograd gives it none either."""
    missing = [p.name for p in graph.params.values() if p.trainable and p.grad is None]
    if not missing:
        return
    reached = _reaching_loss(graph)
    doubtful = [name for name in missing if graph.params[name].row in reached]
    eager = _eager_gradients(model, inputs, mode, state) if doubtful else set()
    wrong = [name for name in doubtful if name in eager]
    if wrong:
        raise TraceError(
            "the trace lost gradients that eager autograd computes",
            details=[(name, "has no gradient in the traced graph") for name in wrong],
            rule="every gradient of eager must be in the graph",
            fix="report this model; freezing these parameters (requires_grad_(False)) avoids it",
        )


def _reaching_loss(graph: LogicalGraph) -> set[int]:
    needed = {graph.loss}
    for row in reversed(graph.rows):
        if row.id in needed:
            needed.update(row_inputs(row))
    return needed


def _eager_gradients(
    model: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    mode: torch._subclasses.FakeTensorMode,
    state: StepState,
) -> set[str]:
    """Names of the parameters to which eager autograd gives a gradient, found on fake tensors."""
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    try:
        with mode, torch.enable_grad():
            loss, *_ = LossModule(model, tuple(inputs), loss_of, state)(*inputs.values())
            grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
    except Exception:
        return set(params)  # eager can't be asked without numbers, so nothing may be missing
    return {name for name, grad in zip(params, grads, strict=True) if grad is not None}
