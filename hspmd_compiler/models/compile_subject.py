"""What is compiled: a live model with its inputs, or what a factory makes, which is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from ..base.log import task
from ..errors import HspmdError, OptionError, TraceError
from ..program.init_program import InitProgram
from ..trace.init_record import Numbers, record_factory
from ..trace.tensor_memory import is_fake
from .models import ModelSource, load_model, source_of_factory

Inputs = Mapping[str, torch.Tensor]
Made = tuple[nn.Module, dict[str, torch.Tensor]]
Factory = Callable[[], Made]

DYNAMO = "torch._dynamo."
"""Where the class of what torch.compile makes lives; importing it takes long."""


@dataclass(frozen=True, slots=True)
class CompileSubject:
    """What is compiled. live: the model whose weights are taken; else `init` makes them, as `source` does.

    inputs: what the model is called with. left_out: masks of ones that a batch may hold beside them.
    numbers: what a fake tensor holds that the factory made.
    """

    model: nn.Module
    inputs: Inputs
    description: dict[str, object]
    init: InitProgram | None = None
    live: nn.Module | None = None
    source: ModelSource | None = None
    examples: Inputs | None = None
    left_out: Inputs = field(default_factory=dict)
    numbers: Numbers | None = None

    def held(self, name: str) -> torch.Tensor | None:
        """The numbers of an input; None where they aren't known, as of a factory's random ones."""
        value = self.inputs[name]
        if value.is_meta:
            return None
        if not is_fake(value):
            return value
        try:
            return None if self.numbers is None else self.numbers(value)
        except HspmdError:  # of a tensor that the factory made in a way that isn't recorded
            return None


def subject_of(
    model: ModelSource | Factory | nn.Module | str, example_inputs: Inputs | None
) -> CompileSubject:
    """What is compiled: a live model with its inputs, or what a recorded factory makes."""
    if type(model).__module__.startswith(DYNAMO):
        raise TraceError(
            "the model is what torch.compile made",
            rule="the plain model is traced, and every rank computes a part of it",
            fix="give the model as it was before torch.compile",
        )
    if isinstance(model, nn.Module):
        if example_inputs is None:
            raise TraceError(
                "a live model is compiled without example inputs",
                rule="example_inputs is a dict of tensors whose dim 0 is the sample",
                fix="pass example_inputs, or a factory that returns (model, example_inputs)",
            )
        name = f"{type(model).__module__}.{type(model).__qualname__}"
        return CompileSubject(
            model,
            example_inputs,
            {"kind": "live", "name": name, "args": {}},
            live=model,
            examples=example_inputs,
        )
    source = source_of(model)
    with task("build"):
        recorded = record_factory(source.build)
    inputs = recorded.example_inputs if example_inputs is None else example_inputs
    return CompileSubject(
        recorded.model,
        inputs,
        source.description(),
        recorded.init,
        None,
        source,
        example_inputs,
        numbers=recorded.numbers,
    )


def source_of(factory: ModelSource | Factory | str) -> ModelSource:
    """A factory as a source, by its importable name; a text names a model as on the command line."""
    if isinstance(factory, ModelSource):
        return factory
    if isinstance(factory, str):
        return load_model(factory)
    if not callable(factory):
        raise OptionError(
            f"the model is a {type(factory).__name__}",
            rule="a model is an nn.Module with example inputs, a factory of both, or the name of one",
            fix="hspmd.compile(model, {'x': ..., 'y': ...}, strategy=...)",
        )
    return source_of_factory(factory)


def whole_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by their first names."""
    held = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach().resolve_conj().resolve_neg() for name, value in held}
