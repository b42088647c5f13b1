"""What no forward pass may change: which parameters, modules and hooks there are, and torch's seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import nn

from ..tensor_memory import is_fake, storage_key
from .changes import MODULES, PARAMETERS, Change, Refusal

Flags = tuple[bool, int, int]
"""Of a parameter: whether it is trained, its hooks, its memory."""
FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
"""Those that the first step registers, as transformers does to record what modules give, act in the step
that is compared with it."""
PARAMETER = "make parameters in __init__; change them between steps"
HOOK = "register hooks before compiling"


def forbidden(change: Change) -> Iterator[Refusal]:
    """What is refused of a change, whatever the next step does."""
    for part, what, fix in (
        (PARAMETERS, "a parameter", PARAMETER),
        (MODULES, "a module", "make modules in __init__"),
    ):
        if change.holder.is_part(part):
            for key in change.keys:
                yield change.holder.at(key), f"{_how(change, key)} {what}", fix
    owner = change.holder.owner
    hooks = [] if owner is None else [name for name in vars(owner) if name.endswith("_hooks")]
    lasting = any(change.holder.is_part(name) for name in FORWARD_HOOKS) and not any(change.before.values())
    if any(change.holder.is_part(name) for name in hooks) and not lasting:
        yield change.holder.path, "registers or removes a hook", HOOK


def _how(change: Change, key: object) -> str:
    if change.before.get(key) is None:
        return "registers"
    return "replaces" if change.after.get(key) is not None else "removes"


def parameter_flags(model: nn.Module) -> dict[str, Flags]:
    """Of every parameter, by name."""
    return {name: _flags(parameter) for name, parameter in model.named_parameters()}


def _flags(parameter: torch.Tensor) -> Flags:
    after_sum = getattr(parameter, "_post_accumulate_grad_hooks", None)
    hooks = len(parameter._backward_hooks or ()) + len(after_sum or ())
    return parameter.requires_grad, hooks, storage_key(parameter) if is_fake(parameter) else 0


def forbidden_flags(model: nn.Module, before: Mapping[str, Flags]) -> Iterator[Refusal]:
    """What forward changed of parameters that it left in their places; training is put back."""
    for name, parameter in model.named_parameters():
        if name not in before:
            continue
        (trained, hooks, memory), (now, more, other) = before[name], _flags(parameter)
        if trained != now:
            parameter.requires_grad_(trained)
            yield name, f"sets requires_grad from {trained} to {now}", "freeze parameters before compiling"
        if hooks != more:
            yield name, "registers or removes a hook on its gradient", HOOK
        if memory != other:
            yield name, "gives the parameter other memory (.data = ...)", PARAMETER


@contextmanager
def seeding_noted() -> Iterator[list[Refusal]]:
    """Gathers calls of `torch.manual_seed` in this block, and makes none."""
    found: list[Refusal] = []

    def noted(seed: int) -> torch.Generator:
        fix = "leave the seed to the run (hspmd run --seed)"
        found.append(("torch.manual_seed", "seeds what is drawn; masks here depend on seed and step", fix))
        return torch.default_generator

    with patch.object(torch, "manual_seed", noted), patch.object(torch.random, "manual_seed", noted):
        yield found
