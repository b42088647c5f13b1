"""The model that an artifact is compared with: built again, or given; the same parameters or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from ..artifact.store import Artifact
from ..base.name_groups import shortened
from ..errors import ArtifactError, HspmdError
from ..models.models import ModelSource, SourceKind, rebuild
from ..program.literals import torch_dtype
from ..program.program import Program, Shard
from ..trace.state.held_tensors import moving_tensors
from .eager import whole_state

SEED = 0
LIVE = "live"
GIVE_MODEL = "pass `--model MODEL`, or call `program.verify` where the model was compiled"
SPARE = 1000
"""Modules and parameters that a model may make beside those of the program, such as layers without any."""
TRUST = "an artifact is data: what it names is not imported on its word"


class ReferenceOrigin(Enum):
    """Whose values a reference has: a model's that was made here after seeding, or those of a live one."""

    MADE = "made"
    GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Reference:
    """build: a fresh copy of the model, on the CPU. state: its parameters and buffers by all names.

    examples: the inputs that its factory gave, None for a live model. again: the values of a model that is
    made once more from the same seed.
    """

    build: Callable[[], nn.Module]
    state: dict[str, Tensor]
    examples: Mapping[str, Tensor] | None
    origin: ReferenceOrigin = ReferenceOrigin.GIVEN
    again: Callable[[], dict[str, Tensor]] | None = None


def find_reference(
    artifact: Artifact, given: ModelSource | nn.Module | None, trust: bool = False
) -> Reference:
    """The given model, or the one that the manifest describes; seeded, and checked to fit the program.

    trust: a factory that the manifest names may be imported and called.
    """
    if isinstance(given, nn.Module):
        return _reference(artifact, given, None, ReferenceOrigin.GIVEN, None)
    source = given if given is not None else _rebuilt(artifact, trust)
    model, examples = _seeded(source)
    return _reference(artifact, model, examples, ReferenceOrigin.MADE, lambda: _state(_seeded(source)[0]))


def _reference(
    artifact: Artifact,
    model: nn.Module,
    examples: Mapping[str, Tensor] | None,
    origin: ReferenceOrigin,
    again: Callable[[], dict[str, Tensor]] | None,
) -> Reference:
    check_model(artifact.program, model)
    return Reference(lambda: _copied(model), _state(model), examples, origin, again)


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in whole_state(model).items()}


def _seeded(source: ModelSource) -> tuple[nn.Module, Mapping[str, Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return source.build()


def _copied(model: nn.Module) -> nn.Module:
    """A copy on the CPU; what the model keeps of an earlier call is no part of that call any more."""
    kept: dict[int, object] = {id(tensor): tensor.detach() for _, tensor in moving_tensors(model)}
    return deepcopy(model, kept).cpu()


def _rebuilt(artifact: Artifact, trust: bool) -> ModelSource:
    """The source that the manifest describes; of one that is not trusted, no more is made than fits."""
    description = artifact.manifest.model
    kind, name = (
        (description.get("kind"), description.get("name")) if isinstance(description, dict) else (None, None)
    )
    if not isinstance(description, dict) or kind == LIVE:
        raise ArtifactError(
            f"the artifact was compiled from a live model, {name}, which can't be built again",
            rule="numbers are compared with the eager model",
            fix=GIVE_MODEL,
        )
    if kind == SourceKind.NAMELESS.value:
        raise ArtifactError(
            f"the artifact was compiled from a factory without an importable name: {name}",
            rule="a lambda, a function inside of another or of the script that runs, a method of an object,"
            " and an object that is called, exist in their own process only",
            fix="pass `--model own_module:factory`, a function that makes the same model, or call"
            " `program.verify` where the model was compiled",
        )
    if kind == SourceKind.FACTORY.value and not trust:
        args = description.get("args")
        given = [(key, str(value)) for key, value in args.items()] if isinstance(args, dict) else []
        raise ArtifactError(
            f"the artifact was compiled from the factory {name}",
            details=given,
            rule=TRUST,
            fix=f"pass `--model MODEL`, such as `--model {name}`, or `--trust-model` if it is your own",
        )
    try:
        source = rebuild(description, trust)
        if kind != SourceKind.FACTORY.value:
            check_size(artifact.program, source)
    except HspmdError as error:
        raise ArtifactError(
            f"the model {name} that the artifact was compiled from can't be built again",
            at=error.at,
            details=[("why", error.what), *error.details],
            rule="numbers are compared with the eager model",
            fix=GIVE_MODEL,
        ) from error
    return source


def check_size(program: Program, source: ModelSource) -> None:
    """Build without memory, no more tensors than the program has: a description may ask for any size."""
    names = {shard.name for own in program.ranks for shard in own.shards} | program.aliases.keys()
    made = 0

    def count(*_: object) -> None:
        nonlocal made
        made += 1
        if made > 8 * len(names) + SPARE:
            raise ValueError(f"it has more than the {len(names)} tensors of the program")

    hooks = [
        register_module_parameter_registration_hook(count),
        register_module_module_registration_hook(count),
    ]
    try:
        with torch.device("meta"):
            model, _ = source.build()
    finally:
        for hook in hooks:
            hook.remove()
    check_model(program, model)


def check_model(program: Program, model: nn.Module) -> None:
    """An ArtifactError that lists every parameter in which model and artifact differ."""
    shards = {shard.name: shard for own in program.ranks for shard in own.shards}
    clashes = list(_clashes(program, shards, model))
    if clashes:
        raise ArtifactError(
            f"the artifact was compiled from another model: {len(clashes)} tensors differ",
            details=shortened(clashes),
            rule="names, shapes, types and ties of parameters and buffers are those at compile time",
            fix="name the model and arguments that the artifact was compiled with, or compile again",
        )


def _clashes(program: Program, shards: dict[str, Shard], model: nn.Module) -> Iterator[tuple[str, str]]:
    held = whole_state(model)
    for name, shard in sorted(shards.items()):
        if name not in held:
            yield name, "only in the artifact"
            continue
        ours, theirs = (torch_dtype(shard.dtype), shard.whole_shape), _type(held[name])
        if ours != theirs:
            yield name, f"{_typed(*ours)} in the artifact, {_typed(*theirs)} in the model"
    for name, _ in model.named_parameters():
        if program.aliases.get(name, name) not in shards:
            yield name, "only in the model"
    for alias, name in program.aliases.items():
        if alias in held and name in held and held[alias] is not held[name]:
            yield alias, f"tied to {name} in the artifact only"


def _type(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...]]:
    return tensor.dtype, tuple(tensor.shape)


def _typed(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
