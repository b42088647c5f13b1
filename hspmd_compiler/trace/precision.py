"""A model that computes in a narrow type, from one that is stored in wider ones, for tracing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..errors import TraceError
from ..ir.element_types import NARROW
from ..ir.graph import LogicalGraph
from .blocks.reduced_model import copy_with
from .tracer import Subject

MASTER = torch.float32


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A subject whose tensors are of a narrow type. stored: what they are stored in, by name."""

    subject: Subject
    stored: Mapping[str, torch.dtype]

    def graph(self, traced: LogicalGraph) -> LogicalGraph:
        """The traced graph with the types that are trained and saved."""
        _check_statistics(traced, self.stored)
        params = {
            name: replace(info, stored=self.stored[name]) if name in self.stored else info
            for name, info in traced.params.items()
        }
        return replace(traced, params=params)


class CastInputs:
    """A hook before `forward`: floating inputs come in the type that the model computes in."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Called by PyTorch."""
        return args, {name: self._cast(value) for name, value in kwargs.items()}

    def _cast(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(self.dtype)
        return value


def narrowed(subject: Subject, dtype: torch.dtype) -> Narrowed:
    """Parameters and saved buffers in `dtype`, as `module.to(dtype)` makes them.

    Buffers that the model keeps out of its state dict stay: they are made in the type that they need, as
    frequencies of rotary embeddings are.
    """
    saved = {id(tensor) for tensor in subject.model.state_dict(keep_vars=True).values()}
    params = dict(subject.model.named_parameters())
    buffers = dict(subject.model.named_buffers())
    made: dict[int, torch.Tensor] = {}
    stored: dict[str, torch.dtype] = {}
    with subject.mode:
        for name, tensor in {**params, **buffers}.items():
            made[id(tensor)] = tensor
            if tensor.is_floating_point() and (name in params or id(tensor) in saved):
                empty = torch.empty_like(tensor, dtype=dtype)
                made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if name in params else empty
                stored[name] = MASTER if tensor.dtype in NARROW else tensor.dtype
    model = copy_with(subject.model, made)
    if any(value.is_floating_point() and value.dtype != dtype for value in subject.inputs.values()):
        model.register_forward_pre_hook(CastInputs(dtype), with_kwargs=True)
    return Narrowed(subject.of(model), stored)


def _check_statistics(graph: LogicalGraph, stored: Mapping[str, torch.dtype]) -> None:
    changed = sorted(name for name in graph.mutated if name in stored)
    if changed:
        raise TraceError(
            "the model changes buffers that would be narrowed",
            details=[(name, f"stored in {str(stored[name]).removeprefix('torch.')}") for name in changed],
            rule="running statistics are not kept in a narrow type, where small updates are lost",
            fix="compile in the model's own precision, or normalise by something that keeps no statistics",
        )
